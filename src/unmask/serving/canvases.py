"""Fills and edits: plans, and whole canvases as answers and streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

from unmask.errors import UnmaskError
from unmask.pipeline import MaskedDiffusionLM
from unmask.serving.api import EditRequest, FillRequest
from unmask.serving.batches import CanvasEvent, Finished, Job, Ticket
from unmask.serving.service import Service, choose_seed, server_event, sum_usage
from unmask.text_processor import Generation, PieceReader, TextProcessor


async def plan_fill(service: Service, lm: MaskedDiffusionLM, ticket: Ticket, request: FillRequest) -> Job:
    """The job of a request to fill texts or rows."""
    limits = service.limits
    texts = [request.text] if isinstance(request.text, str) else request.text
    count = len(texts or request.tokens or ())
    if count > limits.texts:
        raise UnmaskError(f"A request may ask for {limits.texts} texts on this server, got {count}; ask for fewer.")

    def call(one: MaskedDiffusionLM) -> Any:
        options = request.options(choose_seed(request.seed), limits)
        if request.greedy:
            options["temperature"] = 0.0
        if texts is not None:
            return one.fill_details(texts, **options)
        return one.fill_rows(_rows(one, request), **options)

    return await service.plan(lm, ticket, call, request.diffusing)


def _rows(lm: MaskedDiffusionLM, request: FillRequest) -> list[list[int]]:
    mask = lm.text_processor.mask_token_id
    return [[mask if token is None else token for token in row] for row in request.tokens or ()]


async def plan_edit(service: Service, lm: MaskedDiffusionLM, ticket: Ticket, request: EditRequest) -> Job:
    """The job of a request to rewrite a part of a text."""

    def call(one: Any) -> Any:
        options = request.options(choose_seed(request.seed), service.limits)
        places = {"spans": request.spans, "strength": request.strength, "keep": request.keep}
        return one.edit_details(request.text, **places, **options)

    return await service.plan(lm, ticket, call, request.diffusing)


def canvas_report(lm: MaskedDiffusionLM, texts: list[Generation], kind: str) -> dict[str, Any]:
    """Finished canvases with every token."""
    data, counts = [], []
    for index, one in enumerate(texts):
        pieces = read_pieces(lm.text_processor, one.ids)
        columns = zip(one.ids, pieces, one.order, one.confidence, strict=True)
        tokens = [
            {"id": token, "text": piece, "given": call < 0, "confidence": confidence, "call": call}
            for token, piece, call, confidence in columns
        ]
        data.append({"index": index, "text": one.text, "tokens": tokens, "calls": one.calls, "seed": one.seed})
        written = sum(call >= 0 for call in one.order)
        counts.append((len(one.ids) - written, written))
    return {"object": kind, "data": data, "usage": sum_usage(counts)}


async def alternatives(
    service: Service, lm: MaskedDiffusionLM, ticket: Ticket, job: Job, top: int
) -> list[list[list[dict[str, Any]]]]:
    """For every text and blank the most likely tokens."""
    found = await service.in_thread(ticket, lambda: lm.top_ids(job.rows, top))
    decode = lm.text_processor.tokenizer.decode
    return [
        [[{"text": decode([token]), "id": token, "probability": p} for token, p in one] for one in masks]
        for masks in found
    ]


def read_pieces(processor: TextProcessor, ids: list[int]) -> list[str]:
    """The text of each position; nothing for masks and after the end of the text."""
    pieces = PieceReader(processor.tokenizer, processor.mask_token_id).read(ids)
    end = processor.text_end(ids)
    return [piece or "" if place < end else "" for place, piece in enumerate(pieces)]


async def stream_canvases(service: Service, jobs: list[Job], first: list[int]) -> AsyncIterator[bytes]:
    """Every canvas: all tokens, then what changed, then the text. Text i of job j has the index `first[j] + i`."""
    shown: dict[int, list[tuple[int | None, str]]] = {}
    name = f"canvas-{uuid4().hex}"
    async for number, event in service.events(jobs):
        if event is None:
            yield b": waiting\n\n"
            continue
        assert isinstance(event, CanvasEvent | Finished)
        processor, index = jobs[number].lm.text_processor, first[number] + event.index
        if isinstance(event, Finished):
            one = event.generation
            written = sum(call >= 0 for call in one.order)
            about = {"object": "canvas.done", "id": name, "index": index, "call": one.calls, "calls": one.calls}
            usage = sum_usage([(len(one.ids) - written, written)])
            yield server_event({**about, "text": one.text, "seed": one.seed, "usage": usage})
            continue
        mask = processor.mask_token_id
        pieces = read_pieces(processor, event.ids)
        now = [(None if token == mask else token, piece) for token, piece in zip(event.ids, pieces, strict=True)]
        about = {"id": name, "index": index, "call": event.call, "calls": event.calls}
        if index not in shown:
            tokens = [{"id": token, "text": piece, "given": token is not None} for token, piece in now]
            yield server_event({"object": "canvas", **about, "tokens": tokens})
        elif changes := list(_changes(shown[index], now, event.confidence)):
            yield server_event({"object": "canvas.delta", **about, "changes": changes})
        shown[index] = now
    yield b"data: [DONE]\n\n"


def _changes(
    before: list[tuple[int | None, str]], now: list[tuple[int | None, str]], confidence: list[float]
) -> Iterator[dict[str, Any]]:
    for position, (old, new) in enumerate(zip(before, now, strict=False)):
        if old != new:
            yield {"position": position, "id": new[0], "text": new[1], "confidence": confidence[position]}
