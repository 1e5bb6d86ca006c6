"""The front door: load a checkpoint, then write texts with it. `Author` tells how they came about, `Opened` scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from unmask import checkpoint
from unmask.authoring import Author
from unmask.devices import device_named
from unmask.editing import kept_words
from unmask.models.engine import Dtype, Engine, fast_dtype, halve_trunk
from unmask.samplers.choice import Spec
from unmask.samplers.draws import TokenRule
from unmask.wishes import Constraints, TextScore, cooled


class MaskedDiffusionLM(Author):
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
        rule: TokenRule | None = None,
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
        `trajectory`. A `streamer` of `transformers` is told of a single text while it is written. A `rule` stands for
        `temperature` to `greedy_above`.
        """
        canvas: dict[str, Any] = {"prompt": prompt, "prompts": prompts, "suffix": suffix, "length": length}
        wish: dict[str, Any] = {"constraint": constraint, "particles": particles, "guidance": guidance}
        wish |= {"best_of": best_of, "score": score, "stride": stride, "rule": rule}
        wish |= {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        wish |= {"greedy_tail": greedy_tail, "greedy_above": greedy_above}
        how: dict[str, Any] = {"steps": steps, "seed": seed, "batch_size": batch_size, "streamer": streamer}
        how |= {"order": order, "sampler": sampler}
        done = self.sample(n, **canvas, **how, return_trajectory=return_trajectory, **wish)
        return done if return_trajectory else [one.text for one in done]

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
        rule: TokenRule | None = None,
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
        asked: dict[str, Any] = {"constraint": constraint, "particles": particles, "order": order, "sampler": sampler}
        asked |= {"temperature": cooled(greedy, temperature), "top_k": top_k, "top_p": top_p, "min_p": min_p}
        asked |= {"greedy_tail": greedy_tail, "greedy_above": greedy_above, "rule": rule}
        filled = [one.text for one in self.fill_details(text, steps=steps, seed=seed, batch_size=batch_size, **asked)]
        return filled[0] if isinstance(text, str) else filled

    def edit(
        self,
        text: str,
        *,
        spans: Sequence[tuple[int, int]] | None = None,
        strength: float | None = None,
        **how: Any,
    ) -> str:
        """Write a part of a text anew: the tokens of some characters, or the least likely ones.

        `spans`: (start, end) in characters, end not included; tokens that reach beyond are written anew as a whole, and
        an empty list changes nothing. `strength` (0.3): the share of the tokens, those that the network finds least
        likely, as it judges every eighth of them at once from the others. Other options are those of `generate` that
        say how: `steps`, `seed`, `order`, `sampler`, `constraint`, `particles`, `temperature` and so on.
        """
        return self.edit_details(text, spans=spans, strength=strength, **how).text

    def rewrite(self, text: str, keep: str | Sequence[str], **how: Any) -> str:
        """Write all of a text anew but the words to `keep`, wherever they stand in it, with as many tokens between.

        Where a kept word ends in the text, it ends in what is written too. One string is one word, and an empty list
        keeps nothing. Other options are those of `edit`.
        """
        return self.edit_details(text, keep=kept_words(keep), **how).text


def load(
    path: str | Path | None = None, *, device: str | torch.device | None = None, dtype: Dtype = "auto"
) -> MaskedDiffusionLM:
    """Open a checkpoint, on the GPU where there is one: a folder that `unmask train` or `unmask convert` wrote, a model
    that ships with the package by its name, or, where none is named, `stories`.

    `dtype` is what its blocks compute in: by default bf16 on a GPU that has it, as they were trained there.
    """
    where = device_named(device)
    fast = fast_dtype(dtype, where)
    opened = checkpoint.load(path)
    network = opened.model.to(where)
    if fast == torch.bfloat16:
        halve_trunk(network)
    engine = Engine(network) if where.type == "cuda" and not opened.card.objective.causal else None
    return MaskedDiffusionLM(network, opened.tokenizer, opened.card, opened.path, engine)
