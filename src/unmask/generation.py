"""The front door: load a checkpoint, then generate, fill, edit and stream with it; `Opened` scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from unmask import checkpoint
from unmask.editing import opened_up
from unmask.errors import UnmaskError
from unmask.lengths import nats_of_known, settle
from unmask.models.engine import Dtype, Engine, fast_dtype, halve_trunk
from unmask.models.planner import no_planner
from unmask.opened import Opened
from unmask.registry import build
from unmask.samplers.base import Sampler
from unmask.samplers.choice import Spec, choose_sampler
from unmask.samplers.draws import TokenRule
from unmask.scribe import Frame, Generation
from unmask.tally import Progress
from unmask.templates import PieceReader
from unmask.writing import Constraints, TextScore, Wish, Writer


class MaskedDiffusionLM(Opened):
    """A denoiser, its tokenizer and its card. The causal twin comes through the same door; it cannot fill."""

    def generate(
        self,
        n: int = 1,
        *,
        prompt: str = "",
        prompts: Sequence[str] | None = None,
        suffix: str = "",
        length: int | None = None,
        stride: int | None = None,
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
        guidance: float = 0.0,
        best_of: int = 1,
        score: TextScore | None = None,
        return_trajectory: bool = False,
        streamer: Any = None,
    ) -> list[Any]:
        """`n` texts (of each of the `prompts`) of `length` tokens, prompt and suffix included (as long as the model's).

        `steps=None` writes one token a call, the exact law; `steps=T` at most T calls a window. Sequence i has the seed
        `seed + i` and does not depend on how many are drawn beside it. What is longer than the model is written in
        windows of its length, each `stride` tokens behind the one before. Every text satisfies the `constraint` (one of
        `unmask.constraints` or several); with many `particles` its law is the model's, given that.

        `guidance=w` takes the logits (1 + w) times those behind the prompt minus w times those without it. `score`, any
        function of a text, chooses the `best_of` several, or weighs `particles`, whose law goes to p exp(score).

        `order` names another order of unmasking (`unmask.samplers.choice.Order`), `sampler` any sampler, such as
        `{"name": "remdm", "strategy": "cap"}`. With `return_trajectory` the `Generation`s are returned, each with its
        `trajectory`. A `streamer` of `transformers` is told of a single text while it is written.
        """
        rule = token_rule(temperature, top_k, top_p, min_p, greedy_tail, greedy_above)
        canvas: dict[str, Any] = {"prompt": prompt, "prompts": prompts, "suffix": suffix, "length": length}
        wish: dict[str, Any] = {"constraint": constraint, "particles": particles, "guidance": guidance}
        wish |= {"best_of": best_of, "score": score, "stride": stride, "rule": rule}
        how: dict[str, Any] = {"steps": steps, "seed": seed, "batch_size": batch_size, "streamer": streamer}
        how |= {"order": order, "sampler": sampler}
        done = self.sample(n, **canvas, **how, return_trajectory=return_trajectory, **wish)
        return done if return_trajectory else [one.text for one in done]

    def sample(
        self,
        n: int = 1,
        *,
        prompt: str = "",
        prompts: Sequence[str] | None = None,
        suffix: str = "",
        length: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        progress: Progress | None = None,
        return_trajectory: bool = False,
        streamer: Any = None,
        order: str | None = None,
        sampler: Spec | None = None,
        **wish: Any,
    ) -> list[Generation]:
        """Like `generate`, with ids, order, confidences and the number of network calls of each sequence.

        Other options are the fields of `unmask.writing.Wish`.
        """
        if n < 1:
            raise UnmaskError(f"n={n} texts cannot be generated; ask for at least one.")
        rows = [row for row in self._open_rows(prompt, prompts, suffix, length) for _ in range(n)]
        writer = self._writer(rows, self.sampler(steps, order, sampler), wish)
        if streamer is not None:
            return writer.tell(seed, streamer, return_trajectory)
        return writer.write(seed, batch_size, progress, return_trajectory)

    def _open_rows(
        self, prompt: str, prompts: Sequence[str] | None, suffix: str, length: int | None
    ) -> list[list[int]]:
        if prompts is not None and prompt:
            raise UnmaskError("There is a prompt and a list of prompts; give one of them.")
        if prompts is not None and (isinstance(prompts, str) or not prompts):
            raise UnmaskError(f"prompts={prompts!r} is no list of texts; give at least one, or a single prompt=.")
        return [self.scribe.open_row(one, length, suffix) for one in (prompts or [prompt])]

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

        `[MASK:2-6]` has as many tokens as make the known ones likeliest. A blank with text behind it holds no end of
        the text. `constraint` and `particles` are those of `generate`, on the whole text; so
        are `order` and `sampler`.
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
        batch_size: int | None = None,
        order: str | None = None,
        sampler: Spec | None = None,
        **wish: Any,
    ) -> list[Generation]:
        """Like `fill`, with the order and confidence of every token; line i has the seed `seed + i`."""
        chosen = self.sampler(steps, order, sampler)
        rows = [self.scribe.blank_row(self._settled(text, needed=True)) for text in texts]
        return self._writer(rows, chosen, wish).write(seed, batch_size)

    def fill_rows(
        self,
        rows: Sequence[Sequence[int]],
        *,
        steps: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        progress: Progress | None = None,
        order: str | None = None,
        sampler: Spec | None = None,
        **wish: Any,
    ) -> list[Generation]:
        """Like `fill_details` for rows of token ids with masks among them.

        What ends a text must stand in its row; `unmask.data.policies.Policy.frame` puts it there.
        """
        if not rows:
            raise UnmaskError("There are no rows to fill; give at least one.")
        given = [self.scribe.readable(list(row)) for row in rows]
        return self._writer(given, self.sampler(steps, order, sampler), wish).write(seed, batch_size, progress)

    def _settled(self, text: str, needed: bool = False) -> list[int]:
        """The tokens of a text with blanks, each as long as it is to be."""
        parts = self.scribe.parts(text)
        if needed and all(isinstance(part, str) for part in parts):
            raise UnmaskError(f"The text {text!r} has no blank; mark one with [MASK] or [MASK:n].")
        if any(isinstance(part, range) for part in parts):
            network = self.scribe.goes_on(self.denoiser)
            parts = settle(parts, nats_of_known(network, self.card.schedule, self.scribe, self.device))
        return self.scribe.blank_ids(parts)

    def edit(
        self,
        text: str,
        *,
        spans: Sequence[tuple[int, int]] | None = None,
        strength: float | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        **how: Any,
    ) -> str:
        """Write a part of a text anew: the tokens of some characters, or the least likely ones.

        `spans`: (start, end) in characters, end not included; tokens that reach beyond are written anew as a whole.
        `strength` (0.3): the share of the tokens, those that the network finds least likely, as it judges every eighth
        of them at once from the others. Other options are `steps`, `seed` and those of `unmask.writing.Wish`.
        """
        rule = token_rule(temperature, top_k, top_p)
        return self.edit_details(text, spans=spans, strength=strength, rule=rule, **how).text

    def rewrite(
        self,
        text: str,
        keep: Sequence[str],
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        **how: Any,
    ) -> str:
        """Write all of a text anew but the words to `keep`, wherever they stand in it, with as many tokens between."""
        return self.edit_details(text, keep=keep, rule=token_rule(temperature, top_k, top_p), **how).text

    def edit_details(
        self,
        text: str,
        *,
        spans: Sequence[tuple[int, int]] | None = None,
        strength: float | None = None,
        keep: Sequence[str] | None = None,
        steps: int | None = None,
        seed: int = 0,
        order: str | None = None,
        sampler: Spec | None = None,
        **wish: Any,
    ) -> Generation:
        """Like `edit` and `rewrite`, with the order and confidence of every token."""
        chosen = self.sampler(steps, order, sampler)
        ids = opened_up(self.scribe, self.scribe.goes_on(self.denoiser), text, spans, strength, keep)
        (written,) = self._writer([self.scribe.blank_row(ids)], chosen, wish).write(seed, None)
        return written

    def stream(
        self,
        prompt: str = "",
        *,
        suffix: str = "",
        length: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        order: str | None = None,
        sampler: Spec | None = None,
        **wish: Any,
    ) -> Iterator[Frame]:
        """Every canvas of one generation, from the masked one to the text; blanks in the prompt are written too.

        Which of several `particles` is shown is known at the end, so that nothing is shown before.
        """
        chosen = self.sampler(steps, order, sampler)
        row = self.scribe.open_ids(self._settled(prompt) if prompt else [], length, suffix)
        reader = PieceReader(self.words, self.scribe.mask)
        for state in self._writer([row], chosen, wish).states([row], seed):
            yield self.scribe.frame(state, reader)

    def _writer(self, rows: list[list[int]], sampler: Sampler, wish: dict[str, Any]) -> Writer:
        """Rows that are shorter than the model's may go on behind what is written."""
        wish = {name: value for name, value in wish.items() if name != "rule" or value is not None}
        short = min(len(row) for row in rows) < self.scribe.length

        def ready(tokens: int) -> Any:
            network = self.ready(tokens)
            return self.scribe.goes_on(network) if short else network

        return Writer(self.scribe, sampler, Wish(**wish), rows, self.device, ready)

    def sampler(self, steps: int | None = None, order: str | None = None, sampler: Spec | None = None) -> Sampler:
        """The sampler that `generate` uses for these words of a user."""
        if not self.causal:
            chosen = choose_sampler(self.card.schedule, steps, order, sampler)
            if chosen.needs_planner and getattr(self.denoiser, "planner", None) is None:
                raise no_planner(self.path)
            return chosen
        if order is not None or sampler is not None:
            raise UnmaskError(
                "An autoregressive model writes from left to right; order and sampler are for masked ones."
            )
        return build("sampler", "ar")


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
