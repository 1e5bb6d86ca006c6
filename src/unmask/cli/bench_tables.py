"""How measurements are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.table import Table

from unmask.cli.common import console

if TYPE_CHECKING:
    from unmask.benchmarks.report import Place, Ratio, Report, Result
    from unmask.benchmarks.setup import Setup
    from unmask.benchmarks.sweep import Cell, Overtaking, SweepReport


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
