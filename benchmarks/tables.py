"""Reports as tables and sentences for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from unmask.cli.common import console, print_fitting

from .measure import Machine, Ratio, Report, Result
from .sample import SweepReport
from .setup import Setup


def print_report(report: Report, setup: Setup) -> None:
    """Print machine, network, a row per implementation, and the ratios."""
    _print_setup(report.machine, setup, f", length {setup.length}, batch {setup.batch}")
    print_fitting(_results_table(report.results, report.machine))
    for name, ratio in report.ratios.items():
        _print_ratio(next(iter(report.results)), name, ratio)


def print_sweep(report: SweepReport, setup: Setup) -> None:
    """Print a table for each length and batch size, and where samplers cross."""
    _print_setup(report.machine, setup)
    for cell in report.cells:
        _print(f"\nlength {cell.length}, batch {cell.batch}")
        print_fitting(_results_table(cell.results, report.machine))
        for name, ratio in cell.ratios.items():
            _print_ratio(name.replace("plain", "mdlm"), name, ratio)
    for one in report.crossovers:
        fixed = f"At batch {one.fixed}" if one.axis == "length" else f"At length {one.fixed}"
        reach = f"at every {one.axis} measured" if one.at is None else f"from {one.axis} {one.at:,.0f} on"
        _print(f"{fixed}, {one.winner} is faster than {one.loser} {reach}.")


def _print_setup(machine: Machine, setup: Setup, rows: str = "") -> None:
    precision = str(setup.precision).removeprefix("torch.")
    rate = f"{machine.matrix_rate / 1e12:.3g} TFLOP/s"
    _print(f"{machine.device}, {machine.threads} threads, torch {machine.torch_version}, {precision}: {rate}")
    config = setup.config
    shape = f"{config.num_hidden_layers} blocks of width {config.hidden_size}, {setup.vocab_size:,} tokens"
    _print(f"{setup.spec.name}: {shape}{rows}")


def _results_table(results: Mapping[str, Result], machine: Machine) -> Table:
    unit = next(iter(results.values())).unit
    table = Table(box=None, header_style="bold")
    table.add_column("", no_wrap=True)
    for heading in ("tokens/s", "seconds", "quartiles", f"{unit}s", f"ms/{unit}", "GiB", "MFU"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, result in results.items():
        spread = result.spread
        table.add_row(
            name,
            f"{result.tokens / spread.median:,.0f}",
            f"{'~' if result.estimated else ''}{spread.median:.3g}",
            f"{spread.low:.3g}–{spread.high:.3g}",
            f"{result.count:,.0f}",
            f"{1000 * spread.median / result.count:.3g}",
            "-" if result.peak_gib is None else f"{result.peak_gib:.2f}",
            f"{result.mfu(machine):.0%}",
        )
    return table


def _print_ratio(first: str, second: str, ratio: Ratio) -> None:
    speed = ratio.speed
    words = f"{first} is {speed.median:.2f} ({speed.low:.2f} to {speed.high:.2f}) times as fast as {second}"
    _print(words + (f", in {ratio.memory:.2f} of its memory." if ratio.memory is not None else "."))


def _print(words: str) -> None:
    console.print(words, highlight=False, soft_wrap=True, markup=False)
