"""`unmask score`: the likelihood of texts, with its error, and of variants of a genome."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import common
from unmask.cli.eval import print_evaluation
from unmask.errors import UnmaskError

Words = Annotated[
    list[str] | None,
    typer.Argument(
        help="Texts; '-' reads one per line from stdin. The first of several words is the checkpoint, a folder or a "
        "shipped model ('unmask list shipped'); a single word is a text for 'stories'. With --vcf only the checkpoint.",
        metavar="[CKPT] TEXT...",
    ),
]
Precision = Annotated[
    float | None,
    typer.Option(
        min=1e-4,
        help="Target Monte-Carlo error in bits per token; half the error takes 4 times as long. Default: 0.05, or what "
        "256 draws reach.",
    ),
]


@common.option_groups
def score(
    words: Words = None,
    *,
    given: Annotated[str | None, typer.Option(help="Condition on this text, which is not counted.")] = None,
    steps: common.BoundSteps = None,
    precision: Precision = None,
    vcf: Annotated[
        Path | None, typer.Option(help="Score the variants of this VCF file, which may be compressed.", metavar="FILE")
    ] = None,
    fasta: Annotated[
        Path | None,
        typer.Option(help="The genome of --vcf, here or below UNMASK_DATA, which may be compressed.", metavar="FILE"),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=2, help="Bases in the window around a variant. Default: the model's length.")
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(
            min=16, help="Draws of times and masks for each allele of a variant, a multiple of 16. Default: 64."
        ),
    ] = None,
    both_strands: Annotated[
        bool, typer.Option("--both-strands", help="Average over DNA and its reverse complement.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the variants to this file as a table, or as JSON if it ends in .json.")
    ] = None,
    batch_size: common.BatchSize = None,
    seed: common.BoundSeed = 0,
    model: common.ModelOptions,
    as_json: common.Json = False,
) -> None:
    """Measure how likely texts are: a bound on -log p by two estimators; exit with code 1 if they disagree.

    With --vcf: log p(alt) - log p(ref) of each variant in nats, with its Monte-Carlo error, in columns separated by
    tabs. It is the difference of two bounds that are drawn with the same times and masks.

    Examples:

        unmask score "Once upon a time, there was a little girl."

        unmask score stories-ar "Once upon a time, there was a little girl." "There was a time."

        unmask score runs/mine "of the list." --given "Return a copy " --steps 64 --json

        unmask score runs/dna "ACGTTGCA" --both-strands

        unmask score runs/dna --vcf variants.vcf --fasta hg38.fa --out scores.tsv
    """
    words = words or []
    if vcf is not None or fasta is not None:
        if vcf is None or fasta is None:
            raise UnmaskError("--vcf and --fasta belong together; give both.")
        if given is not None or steps or precision is not None or len(words) > 1:
            raise UnmaskError("--vcf takes a checkpoint and no texts, --given, --steps or --precision; leave them out.")
        checkpoint = common.check_checkpoint(words[0] if words else None)
        options = {"context": context, "draws": draws, "seed": seed, "both_strands": both_strands}
        _score_variants(model, checkpoint, vcf, fasta, options, batch_size, out, as_json)
        return
    if (out, context, draws) != (None, None, None):
        raise UnmaskError("--out, --context and --draws are options of --vcf; leave them out.")
    if not words:
        raise UnmaskError("Give texts to score, or --vcf and --fasta.")
    if both_strands and given is not None:
        raise UnmaskError("--both-strands reads texts from both ends, so it excludes --given; leave one of them out.")
    checkpoint, texts = common.split_arguments(words, "score")
    lm = model.load(checkpoint)
    with common.out_of_memory_advice(batch_size), common.progress("scoring", None, quiet=as_json) as advance:
        arguments: dict[str, Any] = {
            "steps": tuple(steps or ()),
            "precision": precision or "auto",
            "seed": seed,
            "batch_size": batch_size,
            "progress": advance,
        }
        if both_strands:
            from unmask.evaluation.variants import score_both_strands

            result = score_both_strands(lm, texts, **arguments)
        else:
            result = lm.score_details(texts, given, **arguments)
    print_evaluation(result, lm.config.policy, precision or "auto", as_json, texts)


def _score_variants(
    model: common.ModelOptions,
    checkpoint: str | None,
    vcf: Path,
    fasta: Path,
    options: dict[str, Any],
    batch_size: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    from unmask.data.sources.genome import Genome, find_data_file
    from unmask.evaluation.variants import DRAWS, SHOWN, read_variants, score_variant
    from unmask.io import atomic_text, check_output_file

    options["draws"] = options["draws"] or DRAWS
    if out is not None:
        check_output_file(out)
    genome = Genome(find_data_file(str(fasta)))
    variants, symbolic = read_variants(vcf, genome)
    lm = model.load(checkpoint)
    scores = []
    with common.out_of_memory_advice(batch_size), common.progress("variants", len(variants), quiet=as_json) as advance:
        for variant in variants:
            scores.append(score_variant(lm, genome, variant, **options, batch_size=batch_size).as_dict())
            advance(1)
    report = {"vcf": str(vcf), "fasta": str(fasta), **options, "left_out": symbolic, "variants": scores}
    shown = [[f"{one:.4f}" if isinstance(one, float) else str(one) for one in row.values()] for row in scores]
    table = "".join("\t".join(line) + "\n" for line in [[*SHOWN], *shown])
    if out is not None:
        atomic_text(out, common.format_json(report) if out.suffix == ".json" else table)
        common.error_console.print(f"Written to {out}", soft_wrap=True, markup=False)
    if as_json:
        common.print_json(report)
    elif out is None:
        print(table, end="")
    if symbolic:
        common.error_console.print(f"Left out: {symbolic} alternative alleles that are not bases.", soft_wrap=True)
