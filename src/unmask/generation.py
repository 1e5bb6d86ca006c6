"""The front door: load a checkpoint, then generate, fill, score and stream with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unmask import checkpoint
from unmask.bounds import Bound, Evaluation
from unmask.checkpoint import Card
from unmask.constraints import Automaton, Constraint
from unmask.data.rows import Rows
from unmask.errors import UnmaskError
from unmask.likelihood import device_of, evaluate, evaluation_work
from unmask.models.engine import Dtype, Engine, fast_dtype, halve_trunk
from unmask.registry import build
from unmask.samplers import control
from unmask.samplers.base import Canvas, Sampler, State
from unmask.samplers.choice import Spec, choose_sampler
from unmask.samplers.draws import TokenRule
from unmask.scribe import Frame, Generation, Scribe
from unmask.tally import Progress
from unmask.templates import PieceReader

Constraints = Constraint | Sequence[Constraint] | None
Walk = Callable[[Canvas], Iterator[State]]
SCORE_PRECISION = 0.02
"""Bits per token to which `score` knows a bound unless asked otherwise."""


class MaskedDiffusionLM:
    """A denoiser, its tokenizer and its card. The causal twin comes through the same door; it cannot fill."""

    def __init__(
        self, denoiser: Any, tokenizer: Any, card: Card, path: Path | None = None, engine: Engine | None = None
    ) -> None:
        self.denoiser = denoiser
        self.tokenizer = tokenizer
        self.card = card
        self.path = path
        self.scribe = Scribe(tokenizer, denoiser.config, card)
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
        """The tokenizer, which verbs on texts need."""
        return self.scribe.words

    @property
    def row_length(self) -> int:
        """Tokens of a row, as the model was trained."""
        return self.scribe.length

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
        min_p: float | None = None,
        greedy_tail: float | None = None,
        greedy_above: float | None = None,
        batch_size: int | None = None,
        constraint: Constraints = None,
        particles: int = 1,
        order: str | None = None,
        sampler: Spec | None = None,
    ) -> list[str]:
        """`n` texts of `length` tokens (prompt included; the model's own length by default).

        `steps=None` writes one token a call, the exact law; `steps=T` at most T calls. Sequence i has the seed
        `seed + i` and does not depend on how many are drawn beside it. Every text satisfies the `constraint` (one of
        `unmask.constraints` or several); with many `particles` its law is the model's, given that. `order` names
        another order of unmasking (`unmask.samplers.choice.Order`), `sampler` any sampler, such as
        `{"name": "remdm", "strategy": "cap"}`.
        """
        rule = token_rule(temperature, top_k, top_p, min_p, greedy_tail, greedy_above)
        shape: dict[str, Any] = {"prompt": prompt, "length": length, "steps": steps, "batch_size": batch_size}
        shape |= {"order": order, "sampler": sampler}
        done = self.sample(n, **shape, seed=seed, rule=rule, constraint=constraint, particles=particles)
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
        constraint: Constraints = None,
        particles: int = 1,
        order: str | None = None,
        sampler: Spec | None = None,
    ) -> list[Generation]:
        """Like `generate`, with ids, order, confidences and the number of network calls of each sequence."""
        row = self.scribe.open_row(prompt, length)
        if n < 1:
            raise UnmaskError(f"n={n} texts cannot be generated; ask for at least one.")
        rows, automaton = [row] * n, self.scribe.bind(constraint, [row])
        walk = self._walk(rows, self.sampler(steps, order, sampler), rule, automaton, particles)
        at_once = batch_size or control.batch_size(automaton, particles, len(row))
        return self._finished(rows, walk, seed, at_once, progress)

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
        min_p: float | None = None,
        greedy_tail: float | None = None,
        greedy_above: float | None = None,
        batch_size: int | None = None,
        constraint: Constraints = None,
        particles: int = 1,
        order: str | None = None,
        sampler: Spec | None = None,
    ) -> str | list[str]:
        """Write the blanks of a text or of several: `[MASK]` is one token, `[MASK:3]` three.

        `constraint` and `particles` are those of `generate`, on the whole text; so are `order` and `sampler`.
        """
        rule = token_rule(0.0 if greedy else temperature, top_k, top_p, min_p, greedy_tail, greedy_above)
        texts = [text] if isinstance(text, str) else list(text)
        asked: dict[str, Any] = {"rule": rule, "constraint": constraint, "particles": particles}
        asked |= {"order": order, "sampler": sampler}
        filled = [one.text for one in self.fill_details(texts, steps=steps, seed=seed, batch_size=batch_size, **asked)]
        return filled[0] if isinstance(text, str) else filled

    def fill_details(
        self,
        texts: Sequence[str],
        *,
        steps: int | None = None,
        seed: int = 0,
        rule: TokenRule | None = None,
        batch_size: int | None = None,
        constraint: Constraints = None,
        particles: int = 1,
        order: str | None = None,
        sampler: Spec | None = None,
    ) -> list[Generation]:
        """Like `fill`, with the order and confidence of every token; line i has the seed `seed + i`."""
        rows = [self.scribe.blank_row(text) for text in texts]
        automaton = self.scribe.bind(constraint, rows)
        walk = self._walk(rows, self.sampler(steps, order, sampler), rule, automaton, particles)
        at_once = batch_size or control.batch_size(automaton, particles, max(map(len, rows)))
        return self._finished(rows, walk, seed, at_once)

    def stream(
        self,
        prompt: str = "",
        *,
        length: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        rule: TokenRule | None = None,
        constraint: Constraints = None,
        particles: int = 1,
        order: str | None = None,
        sampler: Spec | None = None,
    ) -> Iterator[Frame]:
        """Every canvas of one generation, from the masked one to the text; blanks in the prompt are written too.

        Which of several `particles` is shown is known at the end, so that nothing is shown before.
        """
        row = self.scribe.extend(self.scribe.blank_ids(prompt) if prompt else [], length)
        canvas = self.scribe.canvas([row], seed, self.device)
        reader = PieceReader(self.words, self.scribe.mask)
        way = self.sampler(steps, order, sampler)
        for state in self._walk([row], way, rule, self.scribe.bind(constraint, [row]), particles)(canvas):
            yield self.scribe.frame(state, reader)

    def _walk(
        self,
        rows: list[list[int]],
        sampler: Sampler,
        rule: TokenRule | None,
        automaton: Automaton | None,
        particles: int,
    ) -> Walk:
        """How canvases of some rows are walked."""
        begin = control.walks(sampler, rule or TokenRule(), automaton, particles, self.device)
        steps = getattr(sampler, "steps", None)
        calls = [min(steps or len(row), row.count(self.scribe.mask)) for row in rows]
        denoiser = self.ready(particles * sum(len(row) * n for row, n in zip(rows, calls, strict=True)))
        return partial(begin, denoiser)

    def _finished(
        self, rows: list[list[int]], walk: Walk, seed: int, at_once: int, progress: Progress | None = None
    ) -> list[Generation]:
        """What walks over rows wrote, some rows at a time."""
        done: list[Generation] = []
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once]
            for state in walk(self.scribe.canvas(part, seed + start, self.device)):
                last = state
            done += self.scribe.finish(last)
            if progress is not None:
                progress(len(part))
        return done

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
        rows = self.scribe.scored_rows(texts, given)
        return self.evaluate(rows, steps=steps, seed=seed, precision=precision, batch_size=batch_size, each=True)

    def evaluate(self, rows: Rows, **options: Any) -> Evaluation:
        """Judge rows of tokens; the options are those of `unmask.likelihood.evaluate`."""
        objective = self.card.objective
        denoiser = self.ready(rows.length * evaluation_work(objective, rows, len(options.get("steps", ()))))
        return evaluate(denoiser, objective, self.card.schedule, rows, **options)

    def sampler(self, steps: int | None = None, order: str | None = None, sampler: Spec | None = None) -> Sampler:
        """The sampler that `generate` uses for these words of a user."""
        if not self.causal:
            return choose_sampler(self.card.schedule, steps, order, sampler)
        if order is not None or sampler is not None:
            raise UnmaskError(
                "An autoregressive model writes from left to right; order and sampler are for masked ones."
            )
        return build("sampler", "ar")

    def decode(self, ids: list[int]) -> str:
        """The text of a canvas; where the length policy ends a text with EOS, up to the first one."""
        return self.scribe.decode(ids)


def load(
    path: str | Path | None = None, *, device: str | torch.device | None = None, dtype: Dtype = "auto"
) -> MaskedDiffusionLM:
    """Open a checkpoint, on the GPU where there is one: a folder that `unmask train` or `unmask convert` wrote, a model
    that ships with the package by its name, or, where none is named, `stories`.

    `dtype` is what its blocks compute in: by default bf16 on a GPU that has it, as they were trained there.
    """
    opened = checkpoint.load(path)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    network = opened.model.to(device)
    if fast_dtype(dtype, device) == torch.bfloat16:
        halve_trunk(network)
    engine = Engine(network) if device.type == "cuda" and not opened.card.objective.causal else None
    return MaskedDiffusionLM(network, opened.tokenizer, opened.card, opened.path, engine)


def token_rule(
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    greedy_tail: float | None = None,
    greedy_above: float | None = None,
) -> TokenRule:
    """How tokens are chosen, from the words of a user; temperature 0 is greedy."""
    if not 0 <= temperature < float("inf"):
        raise UnmaskError(f"temperature={temperature} is not possible; give 0 (greedy) or a positive number.")
    if top_k is not None and top_k < 1:
        raise UnmaskError(f"top_k={top_k} leaves no token; give at least 1.")
    if top_p is not None and not 0 < top_p <= 1:
        raise UnmaskError(f"top_p={top_p} is not a probability mass; give a number above 0 and at most 1.")
    if min_p is not None and not 0 <= min_p <= 1:
        raise UnmaskError(f"min_p={min_p} is no share of the likeliest token's probability; give one from 0 to 1.")
    if greedy_tail is not None and not 0 <= greedy_tail <= 1:
        raise UnmaskError(f"greedy_tail={greedy_tail} is no fraction of the calls; give a number from 0 to 1.")
    if greedy_above is not None and not 0 <= greedy_above <= 1:
        raise UnmaskError(f"greedy_above={greedy_above} is no probability; give a number from 0 to 1.")
    hybrid = {"min_p": min_p, "greedy_tail": greedy_tail, "greedy_above": greedy_above}
    return TokenRule(temperature=temperature, top_k=top_k, top_p=top_p, **hybrid)
