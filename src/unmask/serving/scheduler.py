"""The scheduler: one thread that advances all requests and shares network calls between them.

A `Job` holds the rows of one request. Rows with the same options and the same length form a `JointBatch`, which new
rows join at its next call and finished rows leave. Rows with a constraint, particles, windows or a sampler that cannot
join run as a `SingleBatch` of their own, by the generator of the library. In every round each batch runs up to its next
network call; the calls of all batches are then made together, grouped by padded length. Batches run in greenlets, so a
sampler waits inside `denoiser.hidden` without knowing it.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor

from unmask.serving.batches import Cancelled, Failed, Job, JointBatch, Row, SingleBatch, Ticket
from unmask.serving.calls import MAX_ROWS, Call, SharedDenoiser, make_calls
from unmask.serving.metrics import Metrics

if TYPE_CHECKING:
    from unmask.pipeline import MaskedDiffusionLM

Batch = JointBatch | SingleBatch


@dataclass(eq=False)
class RunningBatch:
    """A batch with the greenlet that waits inside its step, if any."""

    batch: Batch
    waits_for: Call | None = None
    suspended: Any = None

    def resume(self) -> None:
        """Run until the next network call or the end of the step."""
        if self.suspended is None:
            self.suspended = greenlet(self.batch.advance)
        call = self.suspended.switch()
        self.waits_for = None if self.suspended.dead else call
        if self.suspended.dead:
            self.suspended = None

    def stop(self) -> None:
        """Leave a step that waits for a call."""
        if self.suspended is not None:
            self.suspended.throw()


class Scheduler:
    """Runs the jobs and network calls of all models in one thread."""

    def __init__(self, metrics: Metrics | None = None, max_rows: int = MAX_ROWS) -> None:
        self.metrics = metrics or Metrics()
        self.max_rows = max_rows
        self._lock = threading.Condition()
        self._new: list[Job] = []
        self._posted: list[tuple[Call, Ticket]] = []
        self._queue: deque[list[Row]] = deque()
        self._joint: dict[tuple[Any, ...], RunningBatch] = {}
        self._single: list[RunningBatch] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="unmask-scheduler", daemon=True)
        self._worker = threading.local()
        """`ticket`: the request that another thread works for."""
        self._last_round: torch.cuda.Event | None = None

    # -- from other threads

    def start(self) -> Scheduler:
        self._thread.start()
        return self

    def stop(self, timeout: float | None = None) -> None:
        """Stop after the current round."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        self._thread.join(timeout)

    def submit(self, job: Job) -> None:
        """Queue a job; its events go to `job.notify`."""
        with self._lock:
            self._new.append(job)
            self._lock.notify()

    def share(self, lm: MaskedDiffusionLM) -> MaskedDiffusionLM:
        """The same model with network calls that are made by the scheduler."""
        shared = copy.copy(lm)
        shared.denoiser = SharedDenoiser(lm._engine or lm.denoiser, self.wait)
        shared._engine = None
        return shared

    def working_for(self, ticket: Ticket) -> None:
        """Say for which request this thread makes network calls."""
        self._worker.ticket = ticket

    def wait(self, call: Call) -> Tensor:
        """Wait for a network call, in a batch or in another thread."""
        if threading.current_thread() is not self._thread:
            ticket = getattr(self._worker, "ticket", Ticket(float("inf")))
            with self._lock:
                if self._stopping:
                    raise Cancelled("The server is stopping.")
                self._posted.append((call, ticket))
                self._lock.notify()
            call.done.wait()
        else:
            batch: Any = getcurrent()
            batch.parent.switch(call)
        if isinstance(call.result, BaseException):
            raise call.result
        assert call.result is not None
        return call.result

    # -- in the thread

    @torch.no_grad()
    def _run(self) -> None:
        while True:
            with self._lock:
                while self._is_idle() and not self._stopping:
                    self._lock.wait()
                if self._stopping:
                    break
            self.round()
        for running in self._running():
            running.stop()
        self._end_all(Cancelled("The server is stopping."))

    def _end_all(self, error: Cancelled) -> None:
        with self._lock:
            jobs = [*self._new, *(rows[0].job for rows in self._queue)]
            for call, _ in self._posted:
                call.result = error
                call.done.set()
        for running in self._running():
            jobs += running.batch.jobs()
        for job in dict.fromkeys(jobs):
            job.notify(Failed(error))

    def _is_idle(self) -> bool:
        return not (self._new or self._posted or self._queue or self._joint or self._single)

    def _running(self) -> list[RunningBatch]:
        return [*self._joint.values(), *self._single]

    @torch.no_grad()
    def round(self) -> None:
        """Let every batch make one step."""
        with self._lock:
            new, self._new = self._new, []
            posted, self._posted = self._posted, []
        for job in new:
            self._queue.extend(_parts(job))
        self._remove_ended()
        self._admit()
        for running in self._running():
            if running.waits_for is None:
                self._resume(running)
        calls = []
        for call, ticket in posted:
            if ticket.over:
                call.result = Cancelled()
            else:
                calls.append(call)
        waiting = [running for running in self._running() if running.waits_for is not None]
        if self._last_round is not None:
            self._last_round.synchronize()  # the CPU is at most one call ahead
        make_calls([*calls, *(running.waits_for for running in waiting if running.waits_for is not None)], self.metrics)
        for call, _ in posted:
            if isinstance(call.result, Tensor):
                call.result = call.result.clone()
            call.done.set()
        for running in waiting:
            self._resume(running)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            self._last_round = torch.cuda.Event()
            self._last_round.record()
        self._remove_ended()

    def _resume(self, running: RunningBatch) -> None:
        try:
            running.resume()
        except Exception as error:
            running.suspended = running.waits_for = None
            for job in running.batch.jobs():
                job.notify(Failed(error))
                job.ticket.cancelled = True

    def _remove_ended(self) -> None:
        """Remove requests that are over, and batches without rows."""
        self._queue = deque(rows for rows in self._queue if not _over(rows[0].job))
        for running in self._running():
            for job in running.batch.jobs():
                _over(job)
            if running.suspended is None:
                running.batch.remove_cancelled()
            if not running.batch.size:
                running.stop()
        self._joint = {key: one for key, one in self._joint.items() if one.batch.size}
        self._single = [one for one in self._single if one.batch.size]
        self.metrics.queued_rows.set(sum(map(len, self._queue)))
        self.metrics.running_rows.set(sum(one.batch.size for one in self._running()))

    def _admit(self) -> None:
        """Start rows in the order of their arrival, as many as there is room for."""
        new: dict[Any, list[Row]] = {}
        room = self.max_rows - sum(one.batch.size for one in self._running())
        while self._queue:
            rows = self._queue[0]
            job = rows[0].job
            size = len(rows) * job.options.particles
            if size > room and room < self.max_rows:
                break
            self._queue.popleft()
            room -= size
            if not job.can_join:
                new.setdefault(rows[0].key if job.sampler.causal else id(rows), []).extend(rows)
                continue
            if rows[0].key not in self._joint:
                self._joint[rows[0].key] = RunningBatch(JointBatch(job))
            joint = self._joint[rows[0].key].batch
            assert isinstance(joint, JointBatch)
            joint.waiting.extend(rows)
        self._single += [RunningBatch(SingleBatch(rows)) for rows in new.values()]


def _parts(job: Job) -> list[list[Row]]:
    """The rows that start together: single ones if they may join a batch, batches of the library's size otherwise."""
    rows = [Row(job, index) for index in range(len(job.rows))]
    alone = job.can_join or job.sampler.causal
    size = 1 if alone else job.config.batch_size or job.options.batch_size(max(map(len, job.rows)), job.lm.device)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _over(job: Job) -> bool:
    """Whether a request is over; one that ran out of time is told so once."""
    if job.ticket.over and not job.ticket.cancelled:
        job.ticket.cancelled = True
        job.notify(Failed(Cancelled("The request ran out of time; ask for less.")))
    return job.ticket.cancelled
