"""Completions: plans, and answers and streams in the formats of OpenAI, Mistral and llama.cpp."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from unmask.errors import UnmaskError
from unmask.random import check_seeds
from unmask.serving.api import CompletionRequest, Limits, server_event, sum_usage
from unmask.serving.batches import Cancelled, Events, Finished, Job, Ticket
from unmask.text_processor import GLYPH, REPLACEMENT, Generation, PieceReader, Template, TextProcessor

if TYPE_CHECKING:
    from unmask.pipeline import MaskedDiffusionLM


def template_size(template: Template) -> int:
    """The largest number of tokens that a text with blanks may have."""
    sizes = (
        len(part) if isinstance(part, list) else part if isinstance(part, int) else part.stop - 1 for part in template
    )
    return sum(sizes)


@dataclass
class Completion:
    """A job, and the part of its canvases that is the answer: all but the first `start` and the last `tail` tokens."""

    job: Job
    request: CompletionRequest
    start: int
    tail: int

    @property
    def processor(self) -> TextProcessor:
        return self.job.lm.text_processor

    def span(self, ids: list[int]) -> tuple[int, int]:
        """The first position of the answer and the one after its last; a text may end earlier."""
        return self.start, max(self.start, min(len(ids) - self.tail, self.processor.text_end(ids)))

    def pieces(self, ids: list[int], stop: int) -> list[str]:
        """The text of each token of the answer before the position `stop`."""
        reader = PieceReader(self.processor.tokenizer, self.processor.mask_token_id)
        first = 0 if self.request.echo else self.start
        return [piece or "" for piece in reader.read(ids)][first:stop]

    def final_text(self, ids: list[int]) -> str:
        """The text before the first mask of the answer."""
        start, stop = self.span(ids)
        mask = self.processor.mask_token_id
        known = next((place for place in range(start, stop) if ids[place] == mask), stop)
        return "".join(self.pieces(ids, known)).rstrip(REPLACEMENT if known < stop else "")

    def cut(self, text: str, finished: bool) -> tuple[str, bool]:
        """The text before the first stop word, and whether there is one.

        Of an unfinished text the end is held back, since it may be the beginning of a stop word.
        """
        found = [place for word in self.request.stops if (place := text.find(word)) >= 0]
        if found:
            return text[: min(found)], True
        held = 0 if finished else max(map(len, self.request.stops), default=1) - 1
        return text[: len(text) - held], False

    def choice(self, index: int, one: Generation) -> dict[str, Any]:
        """An element of `choices`."""
        start, stop = self.span(one.ids)
        pieces = self.pieces(one.ids, len(one.ids) if self.request.echo and self.tail else stop)
        text, stopped = self.cut("".join(pieces).replace(GLYPH, ""), True)
        ended = stopped or stop < len(one.ids) - self.tail
        logprobs = None
        if self.request.logprobs is not None:
            first = 0 if self.request.echo else start
            columns = zip(pieces, one.order[first:], one.confidence[first:], strict=False)
            logprobs = {
                "tokens": pieces,
                "token_logprobs": [None if call < 0 else math.log(max(p, 1e-45)) for _, call, p in columns],
                "top_logprobs": None,
                "text_offset": list(accumulate(map(len, pieces), initial=0))[:-1],
            }
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": "stop" if ended else "length",
            "unmask": {"seed": one.seed, "calls": one.calls},
        }

    def usage(self, ids: list[int]) -> tuple[int, int]:
        """Tokens of the prompt and of the answer."""
        start, stop = self.span(ids)
        return start + self.tail, stop - start


def plan_completions(
    lm: MaskedDiffusionLM, request: CompletionRequest, ticket: Ticket, limits: Limits
) -> list[Completion]:
    """A completion for each prompt; text j of prompt i has the seed `seed + i n + j`."""
    seed, count = request.choose_seed(), request.n * len(request.prompts)
    limits.check_texts(count)
    check_seeds(seed, count)

    def plan(number: int, prompt: str) -> Completion:
        if ticket.over:
            raise Cancelled
        processor, suffix = lm.text_processor, request.suffix or ""
        start, tail = (template_size(processor.parse(text)) for text in (prompt, suffix))
        length = lm.row_length if request.max_tokens is None else start + tail + request.max_tokens
        if length > limits.tokens:
            raise UnmaskError(f"A text has at most {limits.tokens} tokens on this server, got {length}; ask for fewer.")
        options = request.options(seed + number * request.n, limits, prompt)
        options |= {"window": request.window, "stride": request.stride}
        job = Job.plan(
            lm,
            lambda one: one.sample(request.n, prompt=prompt, suffix=suffix, length=length, **options),
            ticket=ticket,
            watched=request.diffusing or request.stream,
        )
        job.check_calls(limits.steps)
        return Completion(job, request, start, tail)

    return [plan(number, prompt) for number, prompt in enumerate(request.prompts)]


def completion_answer(name: str, planned: list[Completion], texts: list[list[Generation]]) -> dict[str, Any]:
    """OpenAI's answer with the texts of each job."""
    choices, counts = list[dict[str, Any]](), []
    for completion, group in zip(planned, texts, strict=True):
        for one in group:
            choices.append(completion.choice(len(choices), one))
            prompt, written = completion.usage(one.ids)
            counts.append((prompt if one is group[0] else 0, written))
    return {**completion_head(name), "choices": choices, "usage": sum_usage(counts)}


def completion_head(name: str) -> dict[str, Any]:
    return {"id": f"cmpl-{uuid4().hex}", "object": "text_completion", "created": int(time.time()), "model": name}


def as_fim(answer: dict[str, Any]) -> dict[str, Any]:
    """A completion, or a chunk of one, in the shape of Mistral's fill-in-the-middle."""
    chunk = "usage" not in answer
    choices = [
        {
            "index": one["index"],
            "delta" if chunk else "message": {"role": "assistant", "content": one["text"]},
            "finish_reason": one["finish_reason"],
        }
        for one in answer["choices"]
    ]
    return {**answer, "object": "chat.completion.chunk" if chunk else "chat.completion", "choices": choices}


def as_infill(answer: dict[str, Any]) -> dict[str, Any]:
    """A completion, or a chunk of one, in the shape of llama.cpp's infill."""
    (choice,) = answer["choices"]
    shaped = {"content": choice["text"], "stop": choice["finish_reason"] is not None, "model": answer["model"]}
    if choice["finish_reason"] is not None:
        shaped["stop_type"] = "eos" if choice["finish_reason"] == "stop" else "limit"
    if usage := answer.get("usage"):
        shaped |= {"tokens_evaluated": usage["prompt_tokens"], "tokens_predicted": usage["completion_tokens"]}
    return shaped


Shape = Callable[[dict[str, Any]], dict[str, Any]]


async def stream_text(
    events: Events, name: str, planned: list[Completion], request: CompletionRequest, shape: Shape = dict
) -> AsyncIterator[bytes]:
    """OpenAI's chunks: text as soon as all of it from the left is final; if the sampler rewrites tokens, at the end.

    `shape` turns each chunk into that of another interface.
    """
    head, sent, counts = completion_head(name), dict[int, int](), list[tuple[int, int]]()
    async for number, event in events:
        if event is None:
            yield b": waiting\n\n"
            continue
        completion = planned[number]
        index = number * request.n + event.index
        done = isinstance(event, Finished)
        if isinstance(event, Finished):
            choice = completion.choice(index, event.generation)
            text = choice["text"]
            prompt, written = completion.usage(event.generation.ids)
            counts.append((prompt if event.index == 0 else 0, written))
        elif completion.job.sampler.rewrites:
            continue
        else:
            text, _ = completion.cut(completion.final_text(event.ids), False)
        delta, sent[index] = text[sent.get(index, 0) :], max(len(text), sent.get(index, 0))
        if delta or done:
            chunk = {"index": index, "text": delta, "logprobs": None, "finish_reason": None}
            if done:
                chunk |= {"logprobs": choice["logprobs"], "finish_reason": choice["finish_reason"]}
            yield server_event(shape({**head, "choices": [chunk]}))
    if request.stream_options is not None and request.stream_options.include_usage:
        yield server_event({**head, "choices": [], "usage": sum_usage(counts)})
    if shape is not as_infill:
        yield b"data: [DONE]\n\n"
