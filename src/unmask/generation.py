"""The front door: load a checkpoint, then generate, fill, score and stream with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask import checkpoint
from unmask.bounds import Bound, Evaluation
from unmask.checkpoint import Card
from unmask.data.policies import rows_given, rows_of_texts
from unmask.data.rows import Rows
from unmask.data.tokenizers import encode
from unmask.errors import UnmaskError
from unmask.likelihood import device_of, evaluate, evaluation_work
from unmask.models.engine import Dtype, Engine, fast_dtype, halve_trunk
from unmask.registry import build
from unmask.samplers.base import Canvas, Sampler, State, sample, walk
from unmask.samplers.draws import TokenRule
from unmask.tally import Progress
from unmask.templates import PieceReader, decode_canvas, parse_blanks

BATCH = 64
SCORE_PRECISION = 0.02
"""Bits per token to which `score` knows a bound unless asked otherwise."""


@dataclass(frozen=True)
class Generation:
    """One finished sequence. `order` is the network call that wrote each token (-1: given), `confidence` its chance."""

    text: str
    ids: list[int]
    order: list[int]
    confidence: list[float]
    calls: int
    seed: int


@dataclass(frozen=True)
class Frame:
    """A canvas on its way: `text` shows a block where a mask is; `call` of `calls` network calls are done.

    `pieces` is what each position adds to the text, None where it is masked; the first `end` of them make up `text`.
    """

    text: str
    ids: list[int]
    order: list[int]
    confidence: list[float]
    call: int
    calls: int
    pieces: list[str | None]
    end: int


class MaskedDiffusionLM:
    """A denoiser, its tokenizer and its card. The causal twin comes through the same door; it cannot fill."""

    def __init__(
        self, denoiser: Any, tokenizer: Any, card: Card, path: Path | None = None, engine: Engine | None = None
    ) -> None:
        self.denoiser = denoiser
        self.tokenizer = tokenizer
        self.card = card
        self.path = path
        self._engine = engine

    @property
    def causal(self) -> bool:
        """Whether this is the autoregressive twin."""
        return self.card.objective.causal

    @property
    def device(self) -> torch.device:
        """Where the network computes."""
        return device_of(self.denoiser)

    def ready(self, tokens: int) -> Any:
        """The network as it is best asked about so many tokens in all calls together; the same law, only faster."""
        if self._engine is not None:
            return self._engine.prepare(tokens)
        return self.denoiser

    @property
    def words(self) -> Any:
        """The tokenizer, which verbs on texts need; converted weights may come without one."""
        if self.tokenizer is None:
            raise UnmaskError("This checkpoint has no tokenizer; convert it again and name one with --tokenizer.")
        return self.tokenizer

    def generate(
        self,
        n: int = 1,
        *,
        prompt: str = "",
        length: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        batch_size: int | None = None,
    ) -> list[str]:
        """`n` texts of `length` tokens (prompt included; the model's own length by default).

        `steps=None` writes one token a call, the exact law; `steps=T` at most T calls. Sequence i has the seed
        `seed + i` and does not depend on how many are drawn beside it.
        """
        rule = token_rule(temperature, top_k, top_p)
        done = self.sample(n, prompt=prompt, length=length, steps=steps, seed=seed, rule=rule, batch_size=batch_size)
        return [one.text for one in done]

    def sample(
        self,
        n: int = 1,
        *,
        prompt: str = "",
        length: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        rule: TokenRule | None = None,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> list[Generation]:
        """Like `generate`, with ids, order, confidences and the number of network calls of each sequence."""
        row = self._open_row(prompt, length)
        if n < 1:
            raise UnmaskError(f"n={n} texts cannot be generated; ask for at least one.")
        sampler = self.sampler(steps)
        denoiser = self.ready(n * len(row) * min(steps or len(row), len(row)))
        done: list[Generation] = []
        at_once = batch_size or BATCH
        for start in range(0, n, at_once):
            size = min(at_once, n - start)
            canvas = self._canvas([row] * size, seed + start)
            done += self._finish(sample(sampler, denoiser, canvas, rule))
            if progress is not None:
                progress(size)
        return done

    def fill(
        self,
        text: str | Sequence[str],
        *,
        steps: int | None = None,
        seed: int = 0,
        greedy: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        batch_size: int | None = None,
    ) -> str | list[str]:
        """Write the blanks of a text or of several: `[MASK]` is one token, `[MASK:3]` three."""
        rule = token_rule(0.0 if greedy else temperature, top_k, top_p)
        texts = [text] if isinstance(text, str) else list(text)
        filled = [
            one.text for one in self.fill_details(texts, steps=steps, seed=seed, rule=rule, batch_size=batch_size)
        ]
        return filled[0] if isinstance(text, str) else filled

    def fill_details(
        self,
        texts: Sequence[str],
        *,
        steps: int | None = None,
        seed: int = 0,
        rule: TokenRule | None = None,
        batch_size: int | None = None,
    ) -> list[Generation]:
        """Like `fill`, with the order and confidence of every token; line i has the seed `seed + i`."""
        rows = [self._blank_row(text) for text in texts]
        sampler = self.sampler(steps)
        mask = self.denoiser.config.mask_token_id
        denoiser = self.ready(sum(len(row) * min(steps or len(row), row.count(mask)) for row in rows))
        done: list[Generation] = []
        at_once = batch_size or BATCH
        for start in range(0, len(rows), at_once):
            canvas = self._canvas(rows[start : start + at_once], seed + start)
            done += self._finish(sample(sampler, denoiser, canvas, rule))
        return done

    def stream(
        self,
        prompt: str = "",
        *,
        length: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        rule: TokenRule | None = None,
    ) -> Iterator[Frame]:
        """Every canvas of one generation, from the masked one to the text; blanks in the prompt are written too."""
        ids = self._blank_ids(prompt) if prompt else []
        canvas = self._canvas([self._extend(ids, length)], seed)
        reader = PieceReader(self.words, self.denoiser.config.mask_token_id)
        for state in walk(self.sampler(steps), self.denoiser, canvas, rule):
            yield self._frame(state, reader)

    def score(
        self,
        texts: str | Sequence[str],
        given: str | Sequence[str] | None = None,
        *,
        precision: float | None = SCORE_PRECISION,
        seed: int = 0,
        batch_size: int | None = None,
    ) -> Bound:
        """The bound on -log p(texts), or on -log p(texts | given), with its error; `bound[i]` is that of text i.

        For the autoregressive twin it is the likelihood itself. `precision`: the Monte-Carlo error to reach, in bits
        per token.
        """
        return self.judge(texts, given, precision=precision, seed=seed, batch_size=batch_size).headline

    def judge(
        self,
        texts: str | Sequence[str],
        given: str | Sequence[str] | None = None,
        *,
        steps: tuple[int, ...] = (),
        precision: float | None = SCORE_PRECISION,
        seed: int = 0,
        batch_size: int | None = None,
    ) -> Evaluation:
        """`score` by every estimator of the objective, and by T-step bounds for T in `steps`."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        rows = self._scored_rows(texts, _paired(given, len(texts)))
        return self.evaluate(rows, steps=steps, seed=seed, precision=precision, batch_size=batch_size, each=True)

    def evaluate(self, rows: Rows, **options: Any) -> Evaluation:
        """Judge rows of tokens; the options are those of `unmask.likelihood.evaluate`."""
        objective = self.card.objective
        denoiser = self.ready(rows.length * evaluation_work(objective, rows, len(options.get("steps", ()))))
        return evaluate(denoiser, objective, self.card.schedule, rows, **options)

    def sampler(self, steps: int | None = None) -> Sampler:
        """The sampler that `generate` uses for a number of steps."""
        if self.causal:
            return build("sampler", "ar")
        return build("sampler", {"name": "reveal", "steps": steps, "schedule": self.card.schedule})

    def _scored_rows(self, texts: list[str], given: list[str] | None) -> Rows:
        ids = encode(self.words, texts)
        for text, tokens in zip(texts, ids, strict=True):
            if not tokens:
                raise UnmaskError(f"The text {text!r} has no tokens, so it has no likelihood; give some text.")
        length, eos = self.row_length, self.words.eos_token_id
        if given is None:
            return rows_of_texts(self.card.policy, ids, length, eos, texts=texts)
        return rows_given(self.card.policy, encode(self.words, given), ids, length, eos, texts=texts)

    @property
    def row_length(self) -> int:
        """Tokens of a row, as the model was trained."""
        return min(self.card.length, self.denoiser.config.max_length)

    def _open_row(self, prompt: str, length: int | None) -> list[int]:
        return self._extend(encode(self.words, [prompt])[0] if prompt else [], length)

    def _extend(self, ids: list[int], length: int | None) -> list[int]:
        """Masks behind the given tokens, up to the length of the canvas."""
        limit = self.denoiser.config.max_length
        length = self.row_length if length is None else length
        if length < 1:
            raise UnmaskError(f"A text of length {length} cannot be generated; ask for at least one token.")
        if length > limit:
            raise UnmaskError(
                f"A canvas of {length} tokens is longer than the {limit} of this model; ask for at most that, and "
                "write longer text window by window (semi-autoregressive sampling): the end of one text is the prompt "
                "of the next."
            )
        if len(ids) > length:
            raise UnmaskError(
                f"The prompt has {len(ids)} tokens and the canvas {length}; shorten it or ask for a longer text."
            )
        return ids + [self.denoiser.config.mask_token_id] * (length - len(ids))

    def _blank_ids(self, text: str) -> list[int]:
        """Token ids of a text with `[MASK]` and `[MASK:n]` blanks."""
        parts = parse_blanks(text)
        known = iter(encode(self.words, [part for part in parts if isinstance(part, str)]))
        mask = self.denoiser.config.mask_token_id
        return [i for part in parts for i in (next(known) if isinstance(part, str) else [mask] * part)]

    def _blank_row(self, text: str) -> list[int]:
        ids = self._blank_ids(text)
        mask, limit = self.denoiser.config.mask_token_id, self.denoiser.config.max_length
        if mask not in ids:
            raise UnmaskError(f"The text {text!r} has no blank; mark one with [MASK] or [MASK:n].")
        if len(ids) > limit:
            raise UnmaskError(f"The text has {len(ids)} tokens and this model reads {limit}; shorten it.")
        if self.causal and any(i != mask for i in ids[ids.index(mask) :]):
            raise UnmaskError("An autoregressive model cannot see what stands after a blank; fill with a masked one.")
        return self.card.policy.frame(ids, self.row_length, self.words.eos_token_id)

    def _canvas(self, rows: list[list[int]], seed: int) -> Canvas:
        """A canvas of ragged rows, padded on the right."""
        width = max(len(row) for row in rows)
        pad = self.words.pad_token_id or 0
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=self.device)
        real = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows], device=self.device)
        return Canvas.of(ids, self.denoiser.config.mask_token_id, seed, real)

    def _finish(self, state: State) -> list[Generation]:
        canvas = state.canvas
        columns = (state.ids, state.order, state.confidence, canvas.attention_mask)
        rows = zip(*(_listed(column) for column in columns), state.calls.tolist(), canvas.seeds.tolist(), strict=True)
        done = []
        for ids, order, confidence, real, calls, seed in rows:
            size = sum(real)
            text = self.decode(ids[:size])
            done.append(Generation(text, ids[:size], order[:size], confidence[:size], calls, seed))
        return done

    def _frame(self, state: State, reader: PieceReader) -> Frame:
        ids, order, confidence = (_listed(x)[0] for x in (state.ids, state.order, state.confidence))
        pieces, end = reader.read(ids), self._end(ids)
        return Frame(self.decode(ids), ids, order, confidence, state.call, state.total, pieces, end)

    def decode(self, ids: list[int]) -> str:
        """The text of a canvas; where the length policy ends a text with EOS, up to the first one."""
        return decode_canvas(self.words, ids[: self._end(ids)], self.denoiser.config.mask_token_id)

    def _end(self, ids: list[int]) -> int:
        """Tokens of a canvas that are its text."""
        eos = self.words.eos_token_id
        return ids.index(eos) if self.card.policy.ends_with_eos and eos in ids else len(ids)


def load(
    path: str | Path | None = None, *, device: str | torch.device | None = None, dtype: Dtype = "auto"
) -> MaskedDiffusionLM:
    """Open a checkpoint (a folder that `unmask train` or `unmask convert` wrote), on the GPU where there is one.

    `dtype` is what its blocks compute in: by default bf16 on a GPU that has it, as they were trained there.
    """
    if path is None:
        raise UnmaskError("No checkpoint was named; train one with 'unmask train my.txt' and give its folder.")
    opened = checkpoint.load(path)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    network = opened.model.to(device)
    if fast_dtype(dtype, device) == torch.bfloat16:
        halve_trunk(network)
    engine = Engine(network) if device.type == "cuda" and not opened.card.objective.causal else None
    return MaskedDiffusionLM(network, opened.tokenizer, opened.card, opened.path, engine)


def token_rule(temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None) -> TokenRule:
    """How tokens are chosen, from the words of a user; 0 is greedy."""
    if not 0 <= temperature < float("inf"):
        raise UnmaskError(f"temperature={temperature} is not possible; give 0 (greedy) or a positive number.")
    if top_k is not None and top_k < 1:
        raise UnmaskError(f"top_k={top_k} leaves no token; give at least 1.")
    if top_p is not None and not 0 < top_p <= 1:
        raise UnmaskError(f"top_p={top_p} is not a probability mass; give a number above 0 and at most 1.")
    return TokenRule(temperature=temperature, top_k=top_k, top_p=top_p)


def _paired(given: str | Sequence[str] | None, count: int) -> list[str] | None:
    """One condition for each text."""
    if given is None:
        return None
    conditions = [given] * count if isinstance(given, str) else list(given)
    if len(conditions) != count:
        raise UnmaskError(
            f"There are {count} texts and {len(conditions)} conditions; give one for each or one for all."
        )
    return conditions


def _listed(column: Tensor) -> list[Any]:
    return column.tolist()
