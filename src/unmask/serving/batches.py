"""Jobs, and the batches that write their rows."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from unmask.errors import UnmaskError
from unmask.generation_config import (
    GenerationConfig,
    SamplingOptions,
    choose_token_sampler,
    configure_sampler,
    wrap_denoiser,
)
from unmask.samplers.base import Canvas, Sampler, State
from unmask.text_processor import Generation

if TYPE_CHECKING:
    from unmask.pipeline import MaskedDiffusionLM


class Cancelled(Exception):
    """The client disconnected, or the request used up its time."""


class ClientGone(Cancelled):
    """The client has closed the connection."""


@dataclass(frozen=True)
class CanvasEvent:
    """The canvas of text `index` after `call` of `calls` network calls."""

    index: int
    call: int
    calls: int
    ids: list[int]
    confidence: list[float]


@dataclass(frozen=True)
class Finished:
    """Text `index` is written."""

    index: int
    generation: Generation


@dataclass(frozen=True)
class Failed:
    """The job ended with an error."""

    error: BaseException


Event = CanvasEvent | Finished | Failed
Events = AsyncIterator[tuple[int, CanvasEvent | Finished | None]]
"""The events of several jobs with the numbers of the jobs; None now and then."""


@dataclass(eq=False)
class Ticket:
    """A request as the scheduler sees it. `deadline` is a time of `time.monotonic`."""

    deadline: float
    cancelled: bool = False

    @property
    def over(self) -> bool:
        return self.cancelled or time.monotonic() > self.deadline


@dataclass(eq=False)
class Job:
    """Rows to be written with the same options; row i has the seed `config.seed + i`.

    `notify` receives the events in the thread of the scheduler. `watched`: whether every canvas is an event.
    """

    lm: MaskedDiffusionLM
    rows: list[list[int]]
    sampler: Sampler
    config: GenerationConfig
    length: int | None
    options: SamplingOptions
    denoiser: Any
    ticket: Ticket = field(default_factory=lambda: Ticket(float("inf")))
    notify: Callable[[Event], None] = lambda event: None
    watched: bool = False

    @classmethod
    def plan(cls, lm: MaskedDiffusionLM, call: Callable[[Any], Any], **about: Any) -> Job:
        """The job of a method of the library, such as ``lambda lm: lm.fill_details(...)``, which writes nothing yet.

        `about` are fields of the job: `ticket`, `notify`, `watched`.
        """
        planned: list[Job] = []

        def capture(
            rows: list[list[int]],
            sampler: Sampler,
            config: GenerationConfig,
            length: int | None = None,
            *_: Any,
            **__: Any,
        ) -> list[Any]:
            options, denoiser = lm.sampling_options(rows, sampler, config)
            planned.append(cls(lm, rows, sampler, config, length, options, denoiser, **about))
            return planned

        planner = copy.copy(lm)
        planner._generate = capture  # type: ignore[method-assign]
        call(planner)
        return planned[0]

    @property
    def can_join(self) -> bool:
        """Whether rows may join others that are being written."""
        options = self.options
        alone = options.automaton is not None or options.particles > 1 or options.windows is not None
        return self.sampler.can_join and not alone and options.score is None

    def check_calls(self, most: int) -> None:
        """Raise `UnmaskError` if a row needs more than `most` network calls."""
        mask = self.lm.text_processor.mask_token_id
        steps = getattr(self.sampler, "steps", None)
        calls = max(row.count(mask) for row in self.rows)
        if steps is not None:
            calls = steps if self.sampler.rewrites else min(calls, steps)
        if calls > most:
            raise UnmaskError(f"steps must be at most {most} on this server, got {calls}; ask for fewer.")


@dataclass(frozen=True, eq=False)
class Row:
    """One text of a job."""

    job: Job
    index: int

    @property
    def ids(self) -> list[int]:
        return self.job.rows[self.index]

    @property
    def key(self) -> tuple[Any, ...]:
        """Rows with equal keys may share a batch."""
        job = self.job
        return id(job.lm), job.sampler, job.options, len(self.ids)


def make_canvas(rows: Sequence[Row]) -> Canvas:
    """The canvas of rows of one model, each with its own seed."""
    lm = rows[0].job.lm
    canvas = lm.text_processor.canvas([row.ids for row in rows], 0, lm.device)
    return replace(canvas, seeds=torch.tensor([row.job.config.seed + row.index for row in rows], device=lm.device))


def report(rows: Sequence[Row], state: State, finished: Sequence[int], changed: Sequence[int]) -> None:
    """Send the canvases of watched rows among the `changed` sequences of a state, and texts of `finished` ones."""
    device = state.ids.device
    if watched := [i for i in changed if rows[i].job.watched]:
        index = torch.tensor(watched, device=device)
        columns = (state.ids, state.confidence, state.calls, state.calls_made, state.canvas.attention_mask.sum(dim=1))
        for i, *values in zip(watched, *(column[index].tolist() for column in columns), strict=True):
            ids, confidence, calls, made, size = values
            stop = min(size, rows[i].job.length or size)
            rows[i].job.notify(CanvasEvent(rows[i].index, made, calls, ids[:stop], confidence[:stop]))
    for length in {rows[i].job.length for i in finished}:
        done = [i for i in finished if rows[i].job.length == length]
        index = torch.tensor(done, device=device)
        last = state.select(index, state.canvas.select(index), None)
        texts = rows[0].job.lm.text_processor.finish(iter([last]), length)
        for i, generation in zip(done, texts, strict=True):
            rows[i].job.notify(Finished(rows[i].index, generation))


class JointBatch:
    """Rows of one model with the same options and length, at different calls."""

    def __init__(self, job: Job) -> None:
        self.sampler, self.options, self.denoiser = job.sampler, job.options, job.denoiser
        self.device = job.lm.device
        self.token_sampler = choose_token_sampler(self.sampler, self.options, self.device)
        self.rows: list[Row] = []
        self.left: list[int] = []
        """The calls that each row still needs; unknown to an adaptive sampler."""
        self.waiting: list[Row] = []
        self.state: State | None = None
        self.wrapped: Any = None

    @property
    def size(self) -> int:
        return len(self.rows) + len(self.waiting)

    def remove_cancelled(self) -> None:
        self.waiting = [row for row in self.waiting if not row.job.ticket.over]
        self._keep([i for i, row in enumerate(self.rows) if not row.job.ticket.over])

    def advance(self) -> None:
        """Let waiting rows join, make one step, and report."""
        if self.waiting:
            self._join()
        if self.state is None:
            return
        self.state = self.sampler.step(self.wrapped, self.state, self.token_sampler)
        if self.sampler.adaptive:
            self.left = (self.state.calls - self.state.own_call).tolist()
        else:
            self.left = [calls - 1 for calls in self.left]
        self._report(range(len(self.rows)))

    def _join(self) -> None:
        rows, self.waiting = self.waiting, []
        state = self.sampler.begin(make_canvas(rows))
        self.state = self.sampler.join([state] if self.state is None else [self.state, state])
        self.rows, self.left = self.rows + rows, self.left + state.calls.tolist()
        self._wrap()
        self._report(range(len(self.rows) - len(rows), len(self.rows)))

    def _wrap(self) -> None:
        self.wrapped = None if self.state is None else wrap_denoiser(self.denoiser, self.state.canvas, self.options)

    def _report(self, numbers: range) -> None:
        """Report rows, and remove those that need no further call."""
        assert self.state is not None
        finished = [i for i in numbers if self.left[i] <= 0]
        report(self.rows, self.state, finished, numbers)
        if finished:
            self._keep(sorted(set(range(len(self.rows))) - set(finished)))

    def _keep(self, numbers: list[int]) -> None:
        if len(numbers) == len(self.rows):
            return
        self.rows, self.left = [self.rows[i] for i in numbers], [self.left[i] for i in numbers]
        if not numbers:
            self.state = None
        elif self.state is not None:
            self.state = self.sampler.keep(self.state, torch.tensor(numbers, device=self.device))
        self._wrap()

    def jobs(self) -> list[Job]:
        return list(dict.fromkeys(row.job for row in [*self.rows, *self.waiting]))


class SingleBatch:
    """Rows with the same options that start together, written as the library writes them."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows, job = rows, rows[0].job
        run = configure_sampler(job.sampler, job.options, job.lm.device)
        self.states: Iterator[State] = run(job.denoiser, make_canvas(rows))
        self.last: State | None = None
        self.ended = False

    @property
    def size(self) -> int:
        over = self.ended or all(row.job.ticket.over for row in self.rows)
        return 0 if over else len(self.rows) * self.rows[0].job.options.particles

    def remove_cancelled(self) -> None:
        """Nothing to do: a batch without other rows has the size 0."""

    def advance(self) -> None:
        state = next(self.states, None)
        if state is None:
            self.ended = True
            assert self.last is not None
            report(self.rows, self.last, range(len(self.rows)), ())
            return
        self.last = state
        report(self.rows, state, (), range(len(self.rows)))

    def jobs(self) -> list[Job]:
        return list(dict.fromkeys(row.job for row in self.rows))
