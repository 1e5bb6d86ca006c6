"""The models of a server, the threads that prepare requests, and the events of jobs on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from starlette.requests import Request

from unmask.generation_config import Order
from unmask.registry import AXES
from unmask.serving.api import Limits, UnknownModel, count_tokens
from unmask.serving.batches import Cancelled, CanvasEvent, ClientGone, Event, Failed, Finished, Job, Ticket
from unmask.serving.metrics import Metrics
from unmask.serving.scheduler import Scheduler
from unmask.text_processor import Generation

if TYPE_CHECKING:
    from unmask.pipeline import MaskedDiffusionLM

PLANNING_THREADS, LIBRARY_THREADS = 4, 8
KEEP_ALIVE_SECONDS = 15.0
"""Comments are sent this often while a stream waits, so that proxies keep it open."""

T = TypeVar("T")


class Service:
    """The models by name, the scheduler, and the threads that prepare requests."""

    def __init__(self, models: dict[str, MaskedDiffusionLM], limits: Limits | None = None) -> None:
        self.limits, self.metrics = limits or Limits(), Metrics()
        self.scheduler = Scheduler(self.metrics).start()
        self.models = {name: self.scheduler.share(lm) for name, lm in models.items()}
        self.created = int(time.time())
        self._planning = ThreadPoolExecutor(PLANNING_THREADS, "unmask-plan")
        self._library = ThreadPoolExecutor(LIBRARY_THREADS, "unmask-library")

    def close(self) -> None:
        """Stop the threads; requests that are not finished fail."""
        self.scheduler.stop()
        self._planning.shutdown(wait=False, cancel_futures=True)
        self._library.shutdown(wait=False, cancel_futures=True)

    def ticket(self) -> Ticket:
        return Ticket(time.monotonic() + self.limits.seconds)

    def find(self, name: str | None) -> tuple[str, MaskedDiffusionLM]:
        """A model by its name; the first one without a name."""
        chosen = next(iter(self.models)) if name is None else name
        if chosen not in self.models:
            raise UnknownModel(f"There is no model named '{chosen[:80]}'; the models are {', '.join(self.models)}.")
        return chosen, self.models[chosen]

    def hide_paths(self, message: str) -> str:
        """An error message with names of models for their folders."""
        for name, lm in self.models.items():
            message = message if lm.path is None else message.replace(str(lm.path), name)
        return message

    def describe(self, name: str) -> dict[str, Any]:
        """A model as an element of /v1/models."""
        lm = self.find(name)[1]
        orders = [one for one in get_args(Order) if one != "planner" or getattr(lm.denoiser, "planner", None)]
        samplers = [one for one in AXES["sampler"] if one != "ar"]
        if not lm.config.objective.predicts_scores:
            samplers.remove("analytic")
        about = {
            "causal": lm.causal,
            "length": lm.row_length,
            "parameters": sum(parameter.numel() for parameter in lm.denoiser.parameters()),
            "objective": lm.config.objective.name,
            "mask_token_id": lm.text_processor.mask_token_id,
            "eos_token_id": lm.text_processor.eos_token_id,
            "orders": [] if lm.causal else orders,
            "samplers": [] if lm.causal else samplers,
            "defaults": lm.generation_config,
        }
        return {"id": name, "object": "model", "created": self.created, "owned_by": "unmask", "unmask": about}

    # -- threads

    async def in_thread(self, http: Request, ticket: Ticket, work: Callable[[], T], planning: bool = False) -> T:
        """Run a method of the library, whose network calls the scheduler makes."""

        def run() -> T:
            if ticket.over:
                raise Cancelled
            self.scheduler.working_for(ticket)
            return work()

        threads = self._planning if planning else self._library
        return await _while_open(http, ticket, asyncio.get_running_loop().run_in_executor(threads, run))

    async def events(self, jobs: list[Job]) -> AsyncGenerator[tuple[int, CanvasEvent | Finished | None], None]:
        """The events of jobs with the numbers of the jobs, until all texts are written; None now and then.

        Leaving the iterator early cancels the jobs.
        """
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Event]]()
        left = sum(len(job.rows) for job in jobs)

        def notify(number: int) -> Callable[[Event], None]:
            def send(event: Event) -> None:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(queue.put_nowait, (number, event))

            return send

        for number, job in enumerate(jobs):
            job.notify = notify(number)
            self.scheduler.submit(job)
        try:
            while left:
                try:
                    number, event = await asyncio.wait_for(queue.get(), KEEP_ALIVE_SECONDS)
                except asyncio.TimeoutError:
                    yield 0, None
                    continue
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Finished):
                    left -= 1
                    self.metrics.tokens.inc(count_tokens(event.generation)[1])
                yield number, event
        finally:
            if left:
                for job in jobs:
                    job.ticket.cancelled = True

    async def finish(self, http: Request, jobs: list[Job]) -> list[list[Generation]]:
        """The texts of all jobs of a request."""
        found: list[dict[int, Generation]] = [{} for _ in jobs]

        async def collect() -> None:
            async for number, event in self.events(jobs):
                if isinstance(event, Finished):
                    found[number][event.index] = event.generation

        await _while_open(http, jobs[0].ticket, collect())
        return [[texts[index] for index in sorted(texts)] for texts in found]


async def _while_open(http: Request, ticket: Ticket, answer: Awaitable[T]) -> T:
    """The answer. A request is cancelled if its client goes away, or its time is over, before that."""

    async def wait_for_end() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    working, gone = asyncio.ensure_future(answer), asyncio.ensure_future(wait_for_end())
    try:
        left = max(0.0, ticket.deadline - time.monotonic())
        await asyncio.wait({working, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone if gone.done() else Cancelled("The request ran out of time; ask for less.")
    finally:
        gone.cancel()
        if not working.done():
            ticket.cancelled = True
            working.cancel()
