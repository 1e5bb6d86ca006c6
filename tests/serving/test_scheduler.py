"""The scheduler: the same texts as the library, shared network calls, cancellation and errors."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from unmask.checkpoint import CheckpointConfig
from unmask.constraints import Regex, Words
from unmask.errors import UnmaskError
from unmask.laws.tables import random_table
from unmask.pipeline import MaskedDiffusionLM
from unmask.serving.batches import Cancelled, CanvasEvent, Failed, Finished, Job, Ticket
from unmask.serving.calls import WIDTH_STEP, Call, make_calls
from unmask.serving.metrics import Metrics
from unmask.serving.scheduler import Scheduler
from unmask.text_processor import Generation


class Recorded:
    """A denoiser that records the shape of every call."""

    def __init__(self, denoiser: Any) -> None:
        self.denoiser, self.shapes = denoiser, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.denoiser, name)

    def hidden(self, input_ids, **options):
        self.shapes.append(tuple(input_ids.shape))
        return self.denoiser.hidden(input_ids, **options)

    def hidden_at(self, input_ids, positions, **options):
        self.shapes.append(tuple(input_ids.shape))
        return self.denoiser.hidden_at(input_ids, positions, **options)


class Letters:
    """A tokenizer of single letters for tables of four tokens."""

    pad_token_id, eos_token_id, mask_token_id, bos_token_id = 0, None, 3, None

    def decode(self, ids, **options):
        return "".join("abcd"[i] for i in ids)


def table_lm(recorded: bool = False) -> MaskedDiffusionLM:
    """A model whose denoiser is a table, so that equal canvases have equal logits in any company."""
    table = random_table(length=5, vocab_size=4, mask_token_id=3, conditioned=True)
    return MaskedDiffusionLM(Recorded(table) if recorded else table, Letters(), CheckpointConfig(length=5))


@pytest.fixture
def scheduler():
    scheduler = Scheduler().start()
    yield scheduler
    scheduler.stop(30)


def plan(lm: MaskedDiffusionLM, call: Callable[[Any], Any], **about: Any) -> tuple[Job, queue.Queue]:
    job, events = Job.plan(lm, call), queue.Queue()
    job.notify = events.put
    for name, value in about.items():
        setattr(job, name, value)
    return job, events


def finished(job: Job, events: queue.Queue) -> list[Generation]:
    found = {}
    while len(found) < len(job.rows):
        event = events.get(timeout=60)
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Finished):
            found[event.index] = event.generation
    return [found[i] for i in sorted(found)]


OPTIONS = [
    {},
    {"steps": 2},
    {"temperature": 0.7, "steps": 3},
    {"greedy_tail": 0.4, "steps": 4},
    {"order": "confidence"},
    {"order": "uniform", "steps": 2},
    {"order": "threshold"},
    {"order": "entropy_bounded"},
    {"sampler": "remdm", "steps": 5},
    {"sampler": {"name": "remdm", "strategy": "cap_conf", "eta": 0.5, "steps": 4}},
    {"sampler": "remdm-conf", "steps": 3},
    {"sampler": "corrector", "steps": 4},
    {"constraint": Words([0]), "steps": 3},
    {"constraint": Words([1]), "particles": 3, "steps": 2},
    {"window": 3, "stride": 2, "steps": 2},
    {"guidance": 1.5, "steps": 2},
]
ROWS = [[3, 3, 3, 3, 3], [0, 3, 3, 3, 3], [3, 3, 3, 1, 3], [3, 2, 3, 3], [3, 3, 1]]


def writes(options: dict[str, Any], start: int, seed: int) -> Callable[[Any], Any]:
    rows = [row for row in ROWS if "guidance" not in options or set(row) != {3}]
    mine = [rows[start % len(rows)], rows[(start + 1) % len(rows)]]
    return lambda lm: lm.fill_rows(mine, **options, seed=seed)


@pytest.mark.parametrize("step", [1, 64])
def test_everything_together_is_bit_equal_to_each_alone(scheduler, step, monkeypatch):
    """All options in one scheduler, with requests that arrive later; bit for bit what the library writes."""
    monkeypatch.setitem(WIDTH_STEP, "cpu", step)
    lm = table_lm()
    shared, jobs = scheduler.share(lm), []
    for number in range(3):
        for place, options in enumerate(OPTIONS):
            call = writes(options, number + place, 10 * place + number)
            job, events = plan(shared, call)
            scheduler.submit(job)
            jobs.append((call, job, events))
            time.sleep(0.002)
    for call, job, events in jobs:
        assert finished(job, events) == call(lm)


def test_a_model_of_two_lengths_writes_the_texts_of_the_library(scheduler, mdlm):
    shared, jobs = scheduler.share(mdlm), []
    for number in range(6):
        options = {"prompt": "ab" * (number % 2), "length": (20, 24, 48)[number % 3], "steps": 5, "seed": number}
        options |= {"sampler": "remdm"} if number < 3 else {}
        job, events = plan(shared, lambda lm, options=options: lm.sample(2, **options))
        scheduler.submit(job)
        jobs.append((options, job, events))
    for options, job, events in jobs:
        assert [one.text for one in finished(job, events)] == mdlm.generate(2, **options)


def test_an_autoregressive_model_writes_the_texts_of_the_library(scheduler, ar):
    shared, jobs = scheduler.share(ar), []
    for seed in range(4):
        job, events = plan(shared, lambda lm, seed=seed: lm.sample(2, prompt="a" * (seed % 2), length=12, seed=seed))
        scheduler.submit(job)
        jobs.append((seed, job, events))
    for seed, job, events in jobs:
        texts = [one.text for one in finished(job, events)]
        assert texts == ar.generate(2, prompt="a" * (seed % 2), length=12, seed=seed)


def run_rounds(scheduler: Scheduler, jobs: list[Job]) -> int:
    """Run a scheduler without its thread until the jobs are finished; returns the number of rounds."""
    scheduler._thread = threading.current_thread()
    for job in jobs:
        scheduler.submit(job)
    rounds = 0
    while not scheduler._is_idle():
        scheduler.round()
        rounds += 1
        assert rounds < 100
    return rounds


def test_requests_at_different_steps_share_network_calls():
    scheduler, lm = Scheduler(), table_lm(recorded=True)
    shared, shapes = scheduler.share(lm), lm.denoiser.shapes
    scheduler._thread = threading.current_thread()
    jobs = [plan(shared, lambda lm, s=s: lm.sample(1, order="uniform", steps=4, seed=s))[0] for s in range(3)]
    for job in jobs:
        scheduler.submit(job)
        scheduler.round()
    while not scheduler._is_idle():
        scheduler.round()
    assert [rows for rows, _ in shapes] == [1, 2, 3, 3, 2, 1]


@pytest.fixture
def padding(monkeypatch):
    """Pad rows of other lengths, as on a GPU."""
    monkeypatch.setitem(WIDTH_STEP, "cpu", 64)


def test_other_options_and_lengths_share_network_calls_too(padding):
    scheduler, lm = Scheduler(), table_lm(recorded=True)
    shared = scheduler.share(lm)
    calls = [writes(options, 0, 0) for options in OPTIONS if options.get("steps") == 2 and "window" not in options]
    jobs = [plan(shared, call)[0] for call in calls]
    run_rounds(scheduler, jobs)
    assert lm.denoiser.shapes[0][0] >= 2 * len(jobs)
    assert len(lm.denoiser.shapes) <= 5


def test_rows_wait_while_there_is_no_room():
    scheduler, lm = Scheduler(max_rows=4), table_lm(recorded=True)
    job, events = plan(scheduler.share(lm), lambda lm: lm.sample(10, steps=2, order="uniform"))
    run_rounds(scheduler, [job])
    assert max(rows for rows, _ in lm.denoiser.shapes) == 4
    assert [one.text for one in finished(job, events)] == lm.generate(10, steps=2, order="uniform")


def test_a_cancelled_request_leaves_before_the_next_call():
    scheduler, lm = Scheduler(), table_lm(recorded=True)
    shared = scheduler.share(lm)
    scheduler._thread = threading.current_thread()
    going, staying = (plan(shared, lambda lm, s=s: lm.sample(2, steps=4, order="uniform", seed=s)) for s in (0, 5))
    for job, _ in (going, staying):
        scheduler.submit(job)
    scheduler.round()
    going[0].ticket.cancelled = True
    while not scheduler._is_idle():
        scheduler.round()
    assert [rows for rows, _ in lm.denoiser.shapes] == [4, 2, 2, 2]
    assert [one.text for one in finished(*staying)] == lm.generate(2, steps=4, order="uniform", seed=5)
    assert going[1].empty()


def test_a_request_out_of_time_is_told_once(scheduler):
    late, events = plan(scheduler.share(table_lm()), lambda lm: lm.sample(1), ticket=Ticket(time.monotonic() - 1))
    scheduler.submit(late)
    assert isinstance(events.get(timeout=10).error, Cancelled)


def test_watched_canvases_are_those_of_the_stream(scheduler, mdlm):
    for options in ({"steps": 4}, {"steps": 3, "constraint": Regex("[a-z]*")}, {"sampler": "remdm", "steps": 4}):
        job, events = plan(
            scheduler.share(mdlm), lambda lm, o=options: lm.sample(1, length=12, seed=2, **o), watched=True
        )
        scheduler.submit(job)
        frames = list(mdlm.stream(length=12, seed=2, **options))
        seen = [events.get(timeout=60) for _ in frames]
        assert all(isinstance(event, CanvasEvent) for event in seen)
        assert [(event.ids, event.call, event.calls) for event in seen] == [(f.ids, f.call, f.calls) for f in frames]
        assert isinstance(events.get(timeout=60), Finished)


def test_other_methods_of_the_library_are_unchanged(scheduler, mdlm):
    shared = scheduler.share(mdlm)
    text, edit = "a small text", {"strength": 0.5, "steps": 2}
    assert shared.score(text, seed=3).nats == pytest.approx(mdlm.score(text, seed=3).nats)
    assert [
        one.text for one in finished(*submitted(scheduler, shared, lambda lm: [lm.edit_details(text, **edit)]))
    ] == [mdlm.edit(text, **edit)]
    assert shared.top_tokens("a [MASK]", 3)[0][0][0][0] == mdlm.top_tokens("a [MASK]", 3)[0][0][0][0]


def submitted(scheduler: Scheduler, lm: MaskedDiffusionLM, call: Callable[[Any], Any]) -> tuple[Job, queue.Queue]:
    job, events = plan(lm, call)
    scheduler.submit(job)
    return job, events


def test_an_error_in_the_network_fails_its_requests_alone(scheduler, mdlm):
    broken = table_lm()
    broken.denoiser.logits = None
    failing = submitted(scheduler, scheduler.share(broken), lambda lm: lm.sample(2))
    working = submitted(scheduler, scheduler.share(mdlm), lambda lm: lm.sample(2, length=8))
    assert len(finished(*working)) == 2
    with pytest.raises(TypeError):
        finished(*failing)


def test_stopping_ends_open_requests(mdlm):
    scheduler = Scheduler(max_rows=1).start()
    _, events = submitted(scheduler, scheduler.share(mdlm), lambda lm: lm.sample(4, length=48))
    scheduler.stop(30)
    seen = []
    while not events.empty():
        seen.append(events.get())
    assert isinstance(seen[-1], Failed)


def test_too_many_network_calls_are_refused():
    job = Job.plan(table_lm(), lambda lm: lm.sample(1, sampler={"name": "remdm", "steps": 1000}))
    with pytest.raises(UnmaskError, match="steps must be at most 100"):
        job.check_calls(100)


def test_calls_of_different_lengths_and_sizes_are_made_together(padding):
    table = random_table(length=5, vocab_size=4, mask_token_id=3, conditioned=True)
    recorded = Recorded(table)
    inputs = [torch.tensor([[3, 1, 3]]), torch.tensor([[3, 3, 3, 3], [1, 3, 3, 0]]), torch.tensor([[3, 3, 3, 3, 2]])]
    calls = [Call(recorded, ids, None, torch.full((len(ids),), 0.3), None) for ids in inputs]
    make_calls(calls, Metrics())
    assert recorded.shapes == [(4, 5)]
    for call in calls:
        assert torch.equal(call.result, table.hidden(call.ids, alpha=call.alpha))
