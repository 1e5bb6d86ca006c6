"""A checkpoint on the table: what it is, and a text of which a few positions are held open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.data.tokenizers import encode, vocabulary_size
from unmask.errors import UnmaskError
from unmask.generation import MaskedDiffusionLM
from unmask.laws import describe
from unmask.laws.exact import MOST_OPEN
from unmask.random import Purpose, uniform
from unmask.training.checkpoints import read_progressed
from unmask.training.runfolder import find_latest

LENGTH = 32
"""Tokens of a text that nobody gave: enough to have neighbours, few enough for 256 canvases on a laptop."""
PADS = 5


@dataclass(frozen=True)
class Patient:
    """A model and `ids` [L] of a text, of which the positions `open` [L] are masked and the others given.

    `text` is None where the tokens were drawn at random, since nothing better could be had.
    """

    lm: MaskedDiffusionLM
    ids: Tensor
    open: Tensor
    text: str | None

    @property
    def config(self) -> Any:
        """What the network says about itself."""
        return self.lm.denoiser.config

    @property
    def canvas(self) -> Tensor:
        """[L] what the network is shown: for a masked one, the open positions masked; for a causal one, the text."""
        return self.ids if self.lm.causal else self.ids.masked_fill(self.open, self.config.mask_token_id)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the network's weights."""
        return self.lm.denoiser.dtype

    def rows(self, ids: Tensor, attention: Tensor | None = None) -> Tensor:
        """Hidden rows of canvases [B, L], half of whose tokens are said to be visible where the network asks."""
        denoiser = self.lm.denoiser
        seen = None if attention is None else attention.to(self.lm.device)
        alpha = {} if self.lm.causal else {"alpha": torch.full((len(ids),), 0.5, device=self.lm.device)}
        with torch.no_grad():
            return denoiser.hidden(ids.to(self.lm.device), attention_mask=seen, **alpha)

    def logits(self, ids: Tensor, attention: Tensor | None = None) -> Tensor:
        """[B, L, V] in float32 on the CPU, with an ordinary logit for the mask token."""
        with torch.no_grad():
            return self.lm.denoiser.head(self.rows(ids, attention), mask_logit=True).float().cpu()

    def strangers(self, count: int, length: int | None = None) -> Tensor:
        """[count, length] other tokens of the vocabulary, drawn at random."""
        return random_tokens(self.lm, count, len(self.ids) if length is None else length, seed=1)


def admit(lm: MaskedDiffusionLM, text: str | None = None) -> Patient:
    """A patient with a text that was given, else with one that the model writes, else with random tokens."""
    if text is not None:
        ids = _given(lm, text)
    else:
        text, ids = _own(lm)
    return Patient(lm, torch.tensor(ids), _spread(len(ids)), text)


def about(lm: MaskedDiffusionLM) -> dict[str, Any]:
    """What a checkpoint is: plain values for JSON and for people."""
    config, card = lm.denoiser.config, lm.card
    return {
        "path": str(lm.path),
        "network": type(lm.denoiser).__name__,
        "parameters": sum(parameter.numel() for parameter in lm.denoiser.parameters()),
        "precision": str(lm.denoiser.dtype).removeprefix("torch."),
        "conditioned": bool(getattr(config, "conditioned", False)),
        "vocabulary": config.vocab_size,
        "mask_token_id": config.mask_token_id,
        "length": lm.row_length,
        "longest": config.max_length,
        "schedule": describe(card.schedule),
        "objective": describe(card.objective),
        "policy": describe(card.policy),
        "tokenizer": _tokenizer(lm.tokenizer),
        "version": card.version,
        "steps": _steps(lm.path),
    }


def random_tokens(lm: MaskedDiffusionLM, count: int, length: int, seed: int = 0) -> Tensor:
    """[count, length] tokens of the vocabulary, the mask never among them."""
    sample, position = torch.arange(count)[:, None], torch.arange(length)
    u = uniform(seed, Purpose.TOKEN, sample=sample, position=position)
    ids = (u * (lm.denoiser.config.vocab_size - 1)).long()
    return ids + (ids >= lm.denoiser.config.mask_token_id)


def _given(lm: MaskedDiffusionLM, text: str) -> list[int]:
    ids = encode(lm.words, [text])[0]
    if not ids:
        raise UnmaskError(f"The text {text!r} has no tokens to look at; give some text, or none.")
    if len(ids) > lm.row_length:
        raise UnmaskError(f"The text has {len(ids)} tokens and a row of this model {lm.row_length}; shorten it.")
    return ids


def _own(lm: MaskedDiffusionLM) -> tuple[str | None, list[int]]:
    """A text that the model writes, as the tokenizer reads it; random tokens where too little comes of that."""
    length = max(1, min(LENGTH, lm.row_length - PADS))
    try:
        text = lm.generate(1, length=length, steps=None if lm.causal else length // 2 or 1)[0]
        ids = encode(lm.words, [text])[0][:length]
    except UnmaskError:
        ids = []
    if len(ids) < min(MOST_OPEN, length):
        return None, random_tokens(lm, 1, length)[0].tolist()
    return text, ids


def _spread(length: int) -> Tensor:
    """[L] True at eight positions spread evenly, or at all if there are fewer."""
    count = min(MOST_OPEN, length)
    open_ = torch.zeros(length, dtype=torch.bool)
    open_[torch.arange(count) * length // count] = True
    return open_


def _tokenizer(tokenizer: Any) -> dict[str, Any] | None:
    if tokenizer is None:
        return None
    return {
        "kind": type(tokenizer.backend_tokenizer.model).__name__,
        "vocabulary": vocabulary_size(tokenizer),
        "mask": tokenizer.mask_token,
        "mask_token_id": tokenizer.mask_token_id,
        "eos": tokenizer.eos_token,
        "eos_token_id": tokenizer.eos_token_id,
    }


def _steps(path: Path | None) -> int | None:
    """The steps after which the weights were saved, where the state of the training still lies beside them."""
    if path is None:
        return None
    try:
        return read_progressed(find_latest(path) or path).step
    except UnmaskError:
        return None
