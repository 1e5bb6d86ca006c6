"""`unmask bench`: what training, sampling and bounds cost on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from unmask.cli.common import console

if TYPE_CHECKING:
    from unmask.benchmarks.report import Place, Ratio, Report, Result
    from unmask.benchmarks.setup import Setup
    from unmask.benchmarks.sweep import Cell, Overtaking, SweepReport
from typing import TYPE_CHECKING, Any

from unmask.cli.common import Device, Json, print_json, progress
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.benchmarks.setup import Setup
    from unmask.config import Recipe


class Rival(str, Enum):
    """Whom a bound may be compared with; a type of its own, since Typer's lists take no literals."""

    plain = "plain"
    training = "training"


What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[WHAT] [KEY=VALUE]...",
        help="A recipe (name or .yaml) or a checkpoint's folder, and overrides such as model.size=tiny; the data are "
        "synthetic. Without it: on a GPU the small network, 50,258 tokens, length 1,024 and batch 64; on a CPU nano, "
        "257, 128 and 16.",
    ),
]
Size = Annotated[Literal["nano", "tiny", "small", "medium"] | None, typer.Option(help="Size of the network.")]
Vocab = Annotated[int | None, typer.Option(min=2, help="Tokens of the vocabulary, the mask among them.")]
Length = Annotated[int | None, typer.Option(min=2, help="Tokens of a row.")]
Lengths = Annotated[list[int] | None, typer.Option(min=2, help="Tokens of a text; repeatable. 128 to 8192 on a GPU.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Rows at a time.")]
Batches = Annotated[list[int] | None, typer.Option(min=1, help="Texts at a time; repeatable. 1, 16 and 64 on a GPU.")]
StepCounts = Annotated[
    list[int] | None, typer.Option(min=1, help="Steps T of masked diffusion; repeatable. 1000 on a GPU.")
]
Limit = Annotated[
    float,
    typer.Option(
        min=0, help="Seconds one figure may take; a longer walk is timed over an excerpt, marked ~. inf walks all."
    ),
]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds that count; every contender runs once a round.")]
Warmup = Annotated[int, typer.Option(min=0, help="Rounds before them that do not.")]
Precision = Annotated[Literal["auto", "bf16", "float32"] | None, typer.Option(help="What matrices are multiplied in.")]
Memory = Annotated[
    bool | None, typer.Option(help="Peak memory of each contender alone; on a CPU in a process of its own.")
]
Against = Annotated[Literal["plain"] | None, typer.Option(help="Also the plain dense implementation, and the ratios.")]


def show_report(report: Report, setup: Setup) -> None:
    """Where, what, a table of the contenders, and the ratios."""
    show_place(report.place, setup, f", length {setup.length}, batch {setup.batch}")
    console.print(results_table(report.results, report.place))
    show_ratios(next(iter(report.results)), report.ratios)


def show_sweep(report: SweepReport) -> None:
    """A table for each length and batch, and where samplers cross."""
    show_place(report.place, report.sweep.setup)
    for cell in report.cells:
        show_cell(cell, report.place)
    show_overtakings(report.overtakings)


def show_place(place: Place, setup: Setup, rows: str = "") -> None:
    """Device, network and rate of products in two lines; `rows`: what is said of them, where all are alike."""
    precision = str(setup.precision).removeprefix("torch.")
    config = setup.config
    shape = f"{config.num_hidden_layers} blocks of width {config.hidden_size}, {setup.vocab_size:,} tokens"
    _say(
        f"{place.device}, {place.threads} threads, torch {place.version}, {precision}: {place.rate / 1e12:.3g} TFLOP/s"
    )
    _say(f"{setup.spec.name}: {shape}{rows}")


def show_cell(cell: Cell, place: Place) -> None:
    """The samplers at one length and batch."""
    _say(f"\nlength {cell.length}, batch {cell.batch}")
    console.print(results_table(cell.results, place))
    for name, ratio in cell.ratios.items():
        show_ratios(name.replace("plain", "mdlm"), {name: ratio})


def results_table(results: Mapping[str, Result], place: Place) -> Table:
    """A row a contender."""
    unit = next(iter(results.values())).unit
    table = Table(box=None, header_style="bold")
    table.add_column("", no_wrap=True)
    for heading in ("tokens/s", "seconds", "quartiles", f"{unit}s", f"ms/{unit}", "GiB", "MFU"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, result in results.items():
        table.add_row(name, *_figures(result, place))
    return table


def show_ratios(first: str, ratios: Mapping[str, Ratio]) -> None:
    """One sentence a comparison."""
    for name, ratio in ratios.items():
        speed = ratio.speed
        words = f"{first} is {speed.median:.2f} ({speed.low:.2f} to {speed.high:.2f}) times as fast as {name}"
        _say(words + (f", in {ratio.memory:.2f} of its memory." if ratio.memory is not None else "."))


def show_overtakings(found: Iterable[Overtaking]) -> None:
    """One sentence for each pair of samplers along lengths, and along batches."""
    for one in found:
        crossing = one.crossing
        at = f"At batch {one.fixed}" if one.axis == "length" else f"At length {one.fixed}"
        reach = f"at every {one.axis} tried" if crossing.at is None else f"from {one.axis} {crossing.at:,.0f} on"
        _say(f"{at}, {crossing.winner} is faster than {crossing.loser} {reach}.")


def _figures(result: Result, place: Place) -> list[str]:
    spread = result.spread
    return [
        f"{result.tokens_per_second:,.0f}",
        f"{'~' if result.estimated else ''}{spread.median:.3g}",
        f"{spread.low:.3g}–{spread.high:.3g}",
        f"{result.units:,.0f}",
        f"{1000 * spread.median / result.units:.3g}",
        "-" if result.peak_gib is None else f"{result.peak_gib:.2f}",
        f"{result.mfu(place):.0%}",
    ]


def _say(words: str) -> None:
    console.print(words, highlight=False, soft_wrap=True, markup=False)


app = typer.Typer(no_args_is_help=True, help="Measure speed and memory: unmask bench train|sample|eval.")


@app.callback()
def bench() -> None:
    """Measure speed and memory: unmask bench train|sample|eval."""


@app.command("train")
def train(
    what: What = None,
    size: Size = None,
    vocab: Vocab = None,
    length: Length = None,
    batch: Batch = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of a run; 20 on a GPU, 3 on a CPU.")] = None,
    repeats: Repeats = 5,
    warmup: Warmup = 1,
    precision: Precision = None,
    optimizer: Annotated[
        Literal["adamw", "muon"] | None, typer.Option(help="Who moves the weights; the plain way always by AdamW.")
    ] = None,
    against: Against = None,
    memory: Memory = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Training as 'unmask train' does it, on random tokens: tokens a second, peak memory, MFU.

    Every figure is the median of the rounds, with the quartiles. MFU is the share of the speed that a large matrix
    product has on the same device.

    Examples:

        unmask bench train

        unmask bench train --against plain --json

        unmask bench train --size small --vocab 50258 --length 1024 --batch 64 --optimizer muon

        unmask bench train paper/owt --vocab 50258 training.batch_size=32
    """
    from unmask.benchmarks.choices import check_trains_on
    from unmask.benchmarks.train import CONTENDERS, Training
    from unmask.models.inference import select_device

    where = select_device(device)
    check_trains_on(where)
    recipe, setup = _chosen(what, where, vocab, _options(size, length, batch, precision, optimizer))
    _check_comparable(setup, against)
    work = Training(setup, recipe.optimizer, steps or _by(where, 20, 3), recipe.training.accumulation)
    _contest(work, CONTENDERS, [against], repeats, warmup, memory, as_json)


@app.command("eval")
def evaluate(
    what: What = None,
    size: Size = None,
    vocab: Vocab = None,
    length: Length = None,
    batch: Batch = None,
    calls: Annotated[int | None, typer.Option(min=1, help="Batches of a run; 20 on a GPU, 5 on a CPU.")] = None,
    repeats: Repeats = 5,
    warmup: Warmup = 1,
    precision: Precision = None,
    against: Annotated[
        list[Rival] | None,
        typer.Option(
            help="Also the plain dense implementation, or our own training by the optimizer and accumulation of the "
            "recipe, and the ratios; repeatable."
        ),
    ] = None,
    memory: Memory = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """A bound of one draw a row, as 'unmask eval' computes each of its draws, on random tokens.

    Examples:

        unmask bench eval

        unmask bench eval --against plain --against training --json

        unmask bench eval runs/mine --batch 64
    """
    from unmask.benchmarks.bounds import CONTENDERS, Scoring
    from unmask.benchmarks.choices import check_trains_on
    from unmask.models.inference import select_device

    where = select_device(device)
    others = [rival.value for rival in against or []]
    if "training" in others:
        check_trains_on(where)
    recipe, setup = _chosen(what, where, vocab, _options(size, length, batch, precision))
    _check_comparable(setup, "plain" if "plain" in others else None)
    work = Scoring(setup, calls or _by(where, 20, 5), recipe.optimizer, recipe.training.accumulation)
    _contest(work, CONTENDERS, others, repeats, warmup, memory, as_json)


@app.command("sample")
def sample(
    what: What = None,
    size: Size = None,
    vocab: Vocab = None,
    length: Lengths = None,
    batch: Batches = None,
    steps: StepCounts = None,
    repeats: Repeats = 3,
    warmup: Warmup = 1,
    limit: Limit = 10.0,
    precision: Precision = None,
    against: Against = None,
    memory: Memory = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Masked diffusion in T steps and one token at a time beside the AR twin with its cache, and where they cross.

    Weights are random and tokens are whatever they give; the time does not depend on them. Peak memory is measured on a
    GPU, and on a CPU with --memory.

    Examples:

        unmask bench sample

        unmask bench sample --length 1024 --batch 1 --batch 16 --steps 1000 --limit inf --against plain

        unmask bench sample runs/mine --steps 64 --json
    """
    from unmask.benchmarks.sweep import Sweep

    pass
    from unmask.models.inference import select_device

    where = select_device(device)
    lengths = sorted(set(length or ([] if _named(what) else _by(where, [128, 512, 1024, 2048, 8192], [64, 128, 256]))))
    _, setup = _chosen(what, where, vocab, _options(size, max(lengths, default=None), None, precision))
    _check_comparable(setup, against)
    sweep = Sweep(
        setup,
        lengths or [setup.length],
        sorted(set(batch or _by(where, [1, 16, 64], [1, 4]))),
        sorted(set(steps or _by(where, [1000], [16]))),
        ("one by one", "ar", *([against] if against else [])),
        repeats,
        warmup,
        limit,
        where.type == "cuda" if memory is None else memory,
    )
    with progress("sampling", sweep.cells, quiet=as_json) as advance:
        report = sweep.measure(advance)
    if as_json:
        print_json(report.as_dict())
    else:
        show_sweep(report)


def _contest(work: Any, known: Any, others: Any, repeats: int, warmup: int, memory: bool | None, as_json: bool) -> None:
    """Measure our way beside others and print it."""
    from unmask.benchmarks.contest import measure

    pass

    contenders = {name: known[name] for name in ("unmask", *dict.fromkeys(filter(None, others)))}
    wanted = memory is not False
    rounds = len(contenders) * (repeats + warmup + wanted)
    with progress("measuring", rounds, quiet=as_json) as advance:
        report = measure(work, contenders, repeats=repeats, warmup=warmup, memory=wanted, progress=advance)
    if as_json:
        print_json(report.as_dict())
    else:
        show_report(report, work.setup)


def _chosen(what: list[str] | None, device: Any, vocab: int | None, options: list[str]) -> tuple[Recipe, Setup]:
    from unmask.benchmarks.choices import chosen_recipe, setup_for

    recipe = chosen_recipe(what or [], options, device)
    return recipe, setup_for(recipe, _named(what), vocab, device)


def _named(what: list[str] | None) -> bool:
    """Whether a recipe or checkpoint was named, and not overrides alone."""
    return bool(what) and "=" not in what[0]  # type: ignore[index]


def _options(
    size: str | None, length: int | None, batch: int | None, precision: str | None, optimizer: str | None = None
) -> list[str]:
    """The options as overrides of a recipe."""
    values = {
        "model.size": size,
        "data.length": length,
        "training.batch_size": batch,
        "training.precision": precision,
        "optimizer": optimizer,
    }
    return [f"{key}={value}" for key, value in values.items() if value is not None]


def _by(device: Any, on_gpu: Any, on_cpu: Any) -> Any:
    return on_gpu if device.type == "cuda" else on_cpu


def _check_comparable(setup: Setup, against: str | None) -> None:
    if against and (setup.objective.causal or setup.objective.needs_visible_rows or setup.objective.needs_mask_logit):
        raise UnmaskError(
            f"The plain implementation is masked diffusion by SUBS and cannot stand beside the objective "
            f"'{setup.objective.name}'; leave --against out."  # type: ignore[attr-defined]
        )
