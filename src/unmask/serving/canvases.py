"""Fills and edits: plans, and whole canvases as answers and streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

from unmask.pipeline import MaskedDiffusionLM
from unmask.serving.api import (
    EditRequest,
    FillRequest,
    GenerationRequest,
    Limits,
    count_tokens,
    server_event,
    sum_usage,
)
from unmask.serving.batches import Events, Finished, Job, Ticket
from unmask.text_processor import Generation, PieceReader, TextProcessor


def plan_fill(lm: MaskedDiffusionLM, request: FillRequest, ticket: Ticket, limits: Limits) -> Job:
    """The job of a request to fill texts or rows."""
    texts = [request.text] if isinstance(request.text, str) else request.text
    rows = request.tokens or []
    limits.check_texts(len(texts or rows))
    options = request.options(request.choose_seed(), limits)
    if request.greedy:
        options["temperature"] = 0.0

    def call(one: MaskedDiffusionLM) -> Any:
        if texts is not None:
            return one.fill_details(texts, **options)
        mask = one.text_processor.mask_token_id
        return one.fill_rows([[mask if token is None else token for token in row] for row in rows], **options)

    return _plan(lm, call, request, ticket, limits)


def plan_edit(lm: MaskedDiffusionLM, request: EditRequest, ticket: Ticket, limits: Limits) -> Job:
    """The job of a request to rewrite a part of a text."""
    options = request.options(request.choose_seed(), limits)
    options |= {"spans": request.spans, "strength": request.strength, "keep": request.keep}
    return _plan(lm, lambda one: one.edit_details(request.text, **options), request, ticket, limits)


def _plan(
    lm: MaskedDiffusionLM, call: Callable[[Any], Any], request: GenerationRequest, ticket: Ticket, limits: Limits
) -> Job:
    job = Job.plan(lm, call, ticket=ticket, watched=request.diffusing)
    job.check_calls(limits.steps)
    return job


def canvas_report(job: Job, texts: list[Generation], kind: str) -> dict[str, Any]:
    """Finished canvases with every token."""
    data, counts = [], []
    for index, one in enumerate(texts):
        pieces = read_pieces(job.lm.text_processor, one.ids)
        columns = zip(one.ids, pieces, one.order, one.confidence, strict=True)
        tokens = [
            {"id": token, "text": piece, "given": call < 0, "confidence": confidence, "call": call}
            for token, piece, call, confidence in columns
        ]
        data.append({"index": index, "text": one.text, "tokens": tokens, "calls": one.calls, "seed": one.seed})
        counts.append(count_tokens(one))
    return {"object": kind, "data": data, "usage": sum_usage(counts)}


def alternatives(job: Job, top: int) -> list[list[list[dict[str, Any]]]]:
    """For every text and blank the most likely tokens."""
    decode = job.lm.text_processor.tokenizer.decode
    return [
        [[{"text": decode([token]), "id": token, "probability": p} for token, p in one] for one in masks]
        for masks in job.lm.top_ids(job.rows, top)
    ]


def read_pieces(processor: TextProcessor, ids: list[int]) -> list[str]:
    """The text of each position; nothing for masks and after the end of the text."""
    pieces = PieceReader(processor.tokenizer, processor.mask_token_id).read(ids)
    end = processor.text_end(ids)
    return [piece or "" if place < end else "" for place, piece in enumerate(pieces)]


async def stream_canvases(events: Events, jobs: list[Job], n: int = 1) -> AsyncIterator[bytes]:
    """Every canvas: all tokens, then what changed, then the text. Text i of job j has the index `j n + i`."""
    shown: dict[int, list[tuple[int | None, str]]] = {}
    name = f"canvas-{uuid4().hex}"
    async for number, event in events:
        if event is None:
            yield b": waiting\n\n"
            continue
        processor, index = jobs[number].lm.text_processor, number * n + event.index
        if isinstance(event, Finished):
            one = event.generation
            about = {"object": "canvas.done", "id": name, "index": index, "call": one.calls, "calls": one.calls}
            usage = sum_usage([count_tokens(one)])
            yield server_event({**about, "text": one.text, "seed": one.seed, "usage": usage})
            continue
        mask = processor.mask_token_id
        pieces = read_pieces(processor, event.ids)
        now = [(None if token == mask else token, piece) for token, piece in zip(event.ids, pieces, strict=True)]
        about = {"id": name, "index": index, "call": event.call, "calls": event.calls}
        if index not in shown:
            tokens = [{"id": token, "text": piece, "given": token is not None} for token, piece in now]
            yield server_event({"object": "canvas", **about, "tokens": tokens})
        elif changes := [
            {"position": place, "id": new[0], "text": new[1], "confidence": event.confidence[place]}
            for place, (old, new) in enumerate(zip(shown[index], now, strict=False))
            if old != new
        ]:
            yield server_event({"object": "canvas.delta", **about, "changes": changes})
        shown[index] = now
    yield b"data: [DONE]\n\n"
