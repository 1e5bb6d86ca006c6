"""Likelihoods of DNA: variants of a VCF file scored against a reference genome, and averages over both strands."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.data.sources.fasta import LETTERS, reverse_complement_text
from unmask.data.sources.files import InputFile
from unmask.data.sources.genome import POSITION, Genome
from unmask.errors import UnmaskError
from unmask.likelihood import OFFSETS, Bound, Draws, Evaluation, draw_nats

if TYPE_CHECKING:
    from unmask.pipeline import MaskedDiffusionLM

DRAWS = 4 * OFFSETS
"""Default draws per allele and strand."""
SHOWN = ("chrom", "pos", "id", "ref", "alt", "log_ratio", "stderr", "ref_nats", "alt_nats")
_BASES = re.compile("[ACGTN]+")


@dataclass(frozen=True)
class Variant:
    """An allele `alt` in place of `ref` at base `pos`, counted from 1, of a record of the genome."""

    chrom: str
    pos: int
    id: str
    ref: str
    alt: str
    record: str


@dataclass(frozen=True)
class VariantScore:
    """The difference of two bounds, log p(alt) - log p(ref) in nats, with its Monte-Carlo error.

    The same times and masks are drawn for both alleles. A difference of bounds is an estimate, not a bound.
    """

    variant: Variant
    log_ratio: float
    stderr: float
    ref_nats: float
    alt_nats: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values by the names in `SHOWN`."""
        values = vars(self.variant) | vars(self)
        return {name: values[name] for name in SHOWN}


def read_variants(path: Path, genome: Genome) -> tuple[list[Variant], int]:
    """The variants of a VCF file, one per alternative allele, and the number of symbolic alleles, such as <DEL>."""
    variants: list[Variant] = []
    symbolic = 0
    for where, fields in _lines(path):
        if len(fields) < 5 or not POSITION.fullmatch(fields[1]) or not int(fields[1]):
            raise UnmaskError(
                f"{where}a variant must be CHROM, POS, ID, REF and ALT, separated by tabs, got "
                f"{' '.join(fields)[:60]!r}."
            )
        chrom, pos, name, ref, alts = fields[0], int(fields[1]), fields[2], fields[3].upper(), fields[4].upper()
        if not _BASES.fullmatch(ref):
            raise UnmaskError(f"{where}REF must be bases, got '{fields[3][:40]}'.")
        record = genome.record(chrom, where)
        size = genome.sizes[record]
        if pos - 1 + len(ref) > size:
            raise UnmaskError(f"{where}POS must be inside '{chrom}', which has {size} bases, got {pos}.")
        found = genome.read(record, pos - 1, pos - 1 + len(ref))
        if found != ref:
            raise UnmaskError(
                f"{where}REF is '{ref[:40]}', but '{genome.path}' has '{found[:40]}' at {chrom}:{pos}; give the genome "
                "that the variants were called on."
            )
        for alt in alts.split(","):
            if _BASES.fullmatch(alt):
                variants.append(Variant(chrom, pos, name, ref, alt, record))
            else:
                symbolic += 1
    if not variants:
        raise UnmaskError(f"'{path}' has no variants with bases in REF and ALT; give another file.")
    return variants, symbolic


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The beginning of an error message, and the fields, for each line of a VCF file after its header."""
    if not path.is_file():
        raise UnmaskError(f"There is no file '{path}'; check the path of --vcf.")
    with InputFile(path, path.name, str(path)).open_text() as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip() and not line.startswith("#"):
                yield f"'{path}', line {number}: ", line.rstrip("\r\n").split("\t")


def score_variant(
    lm: MaskedDiffusionLM,
    genome: Genome,
    variant: Variant,
    context: int | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    both_strands: bool = False,
    batch_size: int | None = None,
) -> VariantScore:
    """Score a variant in a window of `context` bases, by default the length of the model.

    The window has the same flanks for both alleles and as many bases before the variant as behind it, where the record
    has them. The result depends on these arguments alone. both_strands: average over both strands.
    """
    longest = max(len(variant.ref), len(variant.alt))
    room = (context or lm.row_length) - longest
    if room < 0 or room + longest > lm.row_length:
        raise UnmaskError(
            f"The variant {variant.chrom}:{variant.pos} has {longest} bases and the window {room + longest}; the model "
            f"reads {lm.row_length}."
        )
    start, end = variant.pos - 1, variant.pos - 1 + len(variant.ref)
    before = genome.read(variant.record, max(0, start - (room - room // 2)), start)
    after = genome.read(variant.record, end, min(genome.sizes[variant.record], end + room // 2))
    objective = next(iter(lm.config.objective.estimators().values()))
    offsets, passes = (1, 1) if objective.exact else (OFFSETS, max(1, draws // OFFSETS))
    plan = Draws(seed, offsets, passes, batch_size)
    nats = []
    for allele in (variant.ref, variant.alt):
        text = before + allele + after
        strands = [text, reverse_complement_text(text)] if both_strands else [text]
        rows = [lm.text_processor.scored_rows([one], "") for one in strands]
        denoiser = lm.prepare_denoiser(rows[0].length * plan.offsets * plan.passes * len(rows))
        found = [draw_nats(denoiser, objective, lm.config.schedule, one, plan).nats[:, 0] for one in rows]
        nats.append(np.mean(found, axis=0))
    ref_R, alt_R = nats
    difference_R = ref_R - alt_R
    count = len(difference_R)
    error = float(difference_R.std(ddof=1)) / math.sqrt(count) if count > 1 else 0.0
    return VariantScore(variant, float(difference_R.mean()), error, float(ref_R.mean()), float(alt_R.mean()))


# ---- both strands ---------------------------------------------------------------------------------------------------


def score_both_strands(lm: MaskedDiffusionLM, texts: list[str], **options: Any) -> Evaluation:
    """The mean of the bounds of each text and of its reverse complement; `options` are those of `lm.score_details`."""
    for text in texts:
        if strange := set(text.upper()) - set(LETTERS):
            raise UnmaskError(f"--both-strands needs texts of {LETTERS}, got '{min(strange)}' in {text[:40]!r}.")
    given, opposite = (
        lm.score_details(strand, **options) for strand in (texts, [reverse_complement_text(text) for text in texts])
    )
    return Evaluation(
        {name: average_bounds(bound, opposite.bounds[name]) for name, bound in given.bounds.items()},
        {steps: average_bounds(bound, opposite.discrete[steps]) for steps, bound in given.discrete.items()},
    )


def average_bounds(one: Bound, other: Bound) -> Bound:
    """The mean of two independent bounds of the same texts; data errors are averaged, as the documents are the same."""

    def mean(name: str) -> Any:
        a, b = getattr(one, name), getattr(other, name)
        return None if a is None or b is None else (a + b) / 2

    return replace(
        one,
        nats=(one.nats + other.nats) / 2,
        mc_stderr=math.hypot(one.mc_stderr, other.mc_stderr) / 2,
        draws=one.draws + other.draws,
        each=tuple(map(average_bounds, one.each, other.each)),
        data_stderr=mean("data_stderr"),
        byte_data_stderr=mean("byte_data_stderr"),
        character_data_stderr=mean("character_data_stderr"),
    )
