"""Variants: the difference of two bounds with common random numbers, VCF files, and averages over both strands."""

from __future__ import annotations

import math
import random

import pytest
import torch

from unmask import registry
from unmask.checkpoint import CheckpointConfig
from unmask.data.sources.fasta import reverse_complement_text
from unmask.data.sources.genome import Genome
from unmask.errors import UnmaskError
from unmask.evaluation.variants import Variant, read_variants, score_both_strands, score_variant
from unmask.pipeline import build_pipeline

pytest.importorskip("pyfaidx")

BASES = "".join(random.Random(1).choices("ACGT", k=200))
LENGTH = 32


def dna_lm(name: str, **options):
    """A random model of bases."""
    torch.manual_seed(0)
    tokenizer = registry.build("tokenizer", "dna").build()
    spec = registry.build("model", {"name": name, "hidden_size": 16, "layers": 1, **options})
    network = spec.build(len(tokenizer), tokenizer.mask_token_id, LENGTH)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    config = CheckpointConfig(objective="ar" if spec.causal else "subs", length=LENGTH)
    return build_pipeline(network.eval(), tokenizer, config)


@pytest.fixture(scope="module")
def masked():
    return dna_lm("dit", heads=2)


@pytest.fixture
def genome(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "g.fa").write_text(f">chr1\n{BASES.lower()}\n>2\nACGTNACGT\n")
    return Genome(tmp_path / "g.fa")


def write_vcf(folder, *lines):
    path = folder / "v.vcf"
    header = ["##fileformat=VCFv4.2", "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO"]
    path.write_text("\r\n".join([*header, *lines]) + "\r\n", newline="")
    return path


def variants_at(genome, folder, *changes):
    """Substitutions and insertions (position, alternative) in chr1."""
    lines = [f"1\t{pos}\tv{pos}\t{BASES[pos - 1]}\t{alt}\t.\t.\t." for pos, alt in changes]
    return read_variants(write_vcf(folder, *lines), genome)[0]


def window(variant, allele):
    start, end = variant.pos - 1, variant.pos - 1 + len(variant.ref)
    room = LENGTH - max(len(variant.ref), len(variant.alt))
    return BASES[max(0, start - (room - room // 2)) : start] + allele + BASES[end : end + room // 2]


def test_an_exact_likelihood_gives_the_exact_ratio(genome, tmp_path):
    lm = dna_lm("mamba")
    for variant in variants_at(genome, tmp_path, (100, "N"), (3, "N"), (200, "N"), (50, "ACGTA")):
        found = score_variant(lm, genome, variant)
        texts = [window(variant, allele) for allele in (variant.ref, variant.alt)]
        ref, alt = (lm.score(text).nats for text in texts)
        assert found.log_ratio == pytest.approx(ref - alt, abs=1e-4)
        assert (found.stderr, found.ref_nats) == (0.0, pytest.approx(ref, abs=1e-4))
        both = score_variant(lm, genome, variant, both_strands=True)
        opposite = [lm.score(reverse_complement_text(text)).nats for text in texts]
        assert both.log_ratio == pytest.approx((ref - alt + opposite[0] - opposite[1]) / 2, abs=1e-4)


def test_common_random_numbers_make_the_error_small(masked, genome, tmp_path):
    (variant,) = variants_at(genome, tmp_path, (100, "N"))
    found = score_variant(masked, genome, variant, draws=256)
    ref, alt = (
        masked.score([window(variant, allele)], seed=seed, precision=0.004)
        for seed, allele in ((5, variant.ref), (6, variant.alt))
    )
    independent = math.hypot(ref.stderr, alt.stderr)
    assert abs(found.log_ratio - (ref.nats - alt.nats)) < 5 * math.hypot(found.stderr, independent)
    alone = score_variant(masked, genome, variant, draws=16)
    assert alone.stderr < 0.5 * masked.score([window(variant, variant.ref)], precision=None).stderr
    assert found.stderr < alone.stderr


def test_an_equivariant_model_scores_a_variant_equally_on_both_strands(genome, tmp_path):
    """As exactly as the Monte-Carlo errors tell, since other positions are masked."""
    lm = dna_lm("caduceus-ps")
    context = 12
    text = BASES[94:106]
    (tmp_path / "strands.fa").write_text(f">given\n{text}\n>opposite\n{reverse_complement_text(text)}\n")
    strands = Genome(tmp_path / "strands.fa")
    ref, alt = text[3], "ACGT"["ACGT".index(text[3]) - 1]
    given = Variant("given", 4, ".", ref, alt, "given")
    opposite = Variant("opposite", 9, ".", *map(reverse_complement_text, (ref, alt)), "opposite")
    one, other = (score_variant(lm, strands, variant, context, draws=512) for variant in (given, opposite))
    assert abs(one.log_ratio) > 5 * one.stderr
    assert abs(one.log_ratio - other.log_ratio) < 4 * math.hypot(one.stderr, other.stderr)


def test_a_score_does_not_depend_on_the_other_variants(masked, genome, tmp_path):
    one, other = variants_at(genome, tmp_path, (60, "N"), (80, "N"))
    assert score_variant(masked, genome, other).log_ratio == score_variant(masked, genome, other).log_ratio
    assert score_variant(masked, genome, one) != score_variant(masked, genome, other)
    assert score_variant(masked, genome, one, seed=1).log_ratio != score_variant(masked, genome, one).log_ratio
    same = score_variant(masked, genome, type(one)(one.chrom, one.pos, one.id, one.ref, one.ref, one.record))
    assert (same.log_ratio, same.stderr) == (0.0, 0.0)


def test_alleles_of_a_vcf_file(genome, tmp_path):
    base = BASES[9]
    lines = [f"chr1\t10\trs1\t{base.lower()}\tN,{base}AC,<DEL>", f"1\t10\t.\t{BASES[9:12]}\t*", "chr2\t5\t.\tN\tA", ""]
    variants, left_out = read_variants(write_vcf(tmp_path, *lines), genome)
    assert [(one.chrom, one.pos, one.ref, one.alt, one.record) for one in variants] == [
        ("chr1", 10, base, "N", "chr1"),
        ("chr1", 10, base, f"{base}AC", "chr1"),
        ("chr2", 5, "N", "A", "2"),
    ]
    assert left_out == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("chr2\t1\t.\tC\tA", "line 3: REF is 'C', but .* has 'A' at chr2:1"),
        ("chr3\t1\t.\tC\tA", "line 3: .* has no record 'chr3'"),
        ("chr2\t9\t.\tTT\tA", "must be inside 'chr2', which has 9 bases"),
        ("chr2 1 . C A", "separated by tabs"),
        ("chr2\tx\t.\tC\tA", "must be CHROM, POS"),
        ("chr2\t0\t.\tC\tA", "must be CHROM, POS"),
        (f"chr2\t{5000 * '9'}\t.\tC\tA", "must be CHROM, POS"),
        ("chr2\t1\t.\t<C>\tA", "REF must be bases"),
        ("chr2\t1\t.\tA\t<DUP>", "no variants with bases"),
    ],
)
def test_wrong_lines_are_refused_in_one_sentence(genome, tmp_path, line, words):
    with pytest.raises(UnmaskError, match=words) as error:
        read_variants(write_vcf(tmp_path, line), genome)
    assert "\n" not in str(error.value)


def test_a_window_must_fit(masked, genome, tmp_path):
    (long,) = variants_at(genome, tmp_path, (60, "A" * (LENGTH + 1)))
    (short,) = variants_at(genome, tmp_path, (60, "N"))
    for variant, context in ((long, None), (short, LENGTH + 1)):
        with pytest.raises(UnmaskError, match=f"the model reads {LENGTH}"):
            score_variant(masked, genome, variant, context=context)


def test_the_average_over_strands_is_the_mean_of_both_bounds(masked):
    texts = ["ACGTTGCAAC", "GGGTNTTA"]
    average = score_both_strands(masked, texts, precision=0.05).headline
    each = [masked.score(strand, precision=0.05) for strand in (texts, [reverse_complement_text(one) for one in texts])]
    assert average.nats == pytest.approx(sum(one.nats for one in each) / 2)
    assert average.mc_stderr == pytest.approx(math.hypot(*(one.mc_stderr for one in each)) / 2)
    assert (average.tokens, len(average)) == (18, 2)
    assert average[1].nats == pytest.approx(sum(one[1].nats for one in each) / 2)
    with pytest.raises(UnmaskError, match="got 'X'"):
        score_both_strands(masked, ["ACX"])
