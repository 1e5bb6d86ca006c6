"""Several ways to do the same work, measured beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from unmask.benchmarks.report import Place, Report, Result
from unmask.benchmarks.room import room_for
from unmask.benchmarks.setup import Setup
from unmask.benchmarks.timing import Progress, Run, peak_gib, race


class Work(Protocol):
    """What a run does, whoever does it."""

    unit: ClassVar[str]
    """What `units` counts: steps, or network calls."""

    @property
    def setup(self) -> Setup:
        """The network and its rows."""

    @property
    def units(self) -> int:
        """Steps or calls of a run."""

    @property
    def tokens(self) -> int:
        """Tokens of a run."""

    def flops(self, contender: str) -> float:
        """Operations of a run, counted as if the head saw predicted rows alone."""

    def brief(self) -> Work:
        """The same in as few units as show its memory."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""


def measure(
    work: Work,
    contenders: Mapping[str, Callable[[Any], Run]],
    *,
    repeats: int = 5,
    warmup: int = 1,
    memory: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Peak memory of each contender alone, then rounds of all of them."""
    setup = work.setup
    peaks: dict[str, float | None] = dict.fromkeys(contenders)
    place = Place.of(setup.device, setup.precision)
    with room_for(setup):
        for name, prepare in contenders.items() if memory else ():
            peaks[name] = peak_gib(prepare, (work.brief(),), setup.device)
            if progress is not None:
                progress(1)
        seconds = race({name: prepare(work) for name, prepare in contenders.items()}, repeats, warmup, progress)
    results = {
        name: Result(work.tokens, work.units, work.flops(name), seconds[name], peaks[name], work.unit)
        for name in contenders
    }
    return Report(place, {**work.as_dict(), "repeats": repeats, "warmup": warmup}, results)
