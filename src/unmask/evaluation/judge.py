"""The judge: any causal language model of Hugging Face, or our own twin, that says how likely texts are to it.

Every token of a text is counted, the first too, since the judge's begin token stands before it (its end token, where it
has none, as GPT-2). No end token is appended or counted: judges differ in how a text ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import unmask.models  # noqa: F401  (our own networks are known to the Auto classes)
from unmask.checkpoint import DEFAULT_AR_MODEL, find_checkpoint, is_checkpoint, shipped_models
from unmask.data.encoding import encode
from unmask.errors import UnmaskError
from unmask.evaluation.statistics import Values
from unmask.likelihood import Progress
from unmask.models.build import first_line, is_causal_config, read_config, silence_transformers
from unmask.models.inference import Dtype, select_dtype

BATCH = 64
UNCOUNTED = -100
LOGITS = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Numbers that one pass may put out; a batch is made smaller to stay below. A CPU is faster where its caches help."""
LOSS_ROWS = 1 << 24
"""Numbers that are turned into float32 at a time."""


@dataclass(frozen=True)
class Window:
    """Tokens `start` to `end` of one text, of which those from `first` on are counted here."""

    text: int
    start: int
    first: int
    end: int
    last: bool


def windows(text: int, length: int, context: int | None) -> Iterator[Window]:
    """A text of so many tokens as pieces that a judge can read, each behind a begin token of its own.

    The first is as long as the context; each later one counts half a context of new tokens, behind at least as many old
    ones. Every token is counted once.
    """
    context = context or length
    begin, end = 0, min(length, context)
    while True:
        yield Window(text, max(0, end - context), begin, end, last=end == length)
        if end == length:
            return
        begin, end = end, min(length, end + max(1, context // 2))


class Judge:
    """A causal language model, its tokenizer, the token it begins with and how much it reads at a time."""

    def __init__(self, model: Any, tokenizer: Any, name: str = "judge") -> None:
        self.name = name
        self.model = model.eval()
        self.tokenizer = tokenizer
        config = model.config.get_text_config(decoder=True)
        self.begin = _begin_token(config, tokenizer, name)
        self.context = _context(config)
        self.most_logits = LOGITS.get(model.device.type, LOGITS["cuda"])
        self.vocabulary = self._probe()

    def as_dict(self) -> dict[str, Any]:
        """Which judge it is and how it computes, for a record."""
        dtype, device = str(self.model.dtype).removeprefix("torch."), str(self.model.device)
        return {"name": self.name, "context": self.context, "dtype": dtype, "device": device}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The judge's tokens of each text; the name of a special token in a text is ordinary text where it can be."""
        if self.tokenizer.is_fast:
            ids = encode(self.tokenizer, texts)
        else:
            ids = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        if max((max(row) for row in ids if row), default=0) >= self.vocabulary:
            raise UnmaskError(
                f"The tokenizer of the judge '{self.name}' knows tokens beyond the {self.vocabulary} of its "
                "network; save the two that belong together."
            )
        return ids

    def nats(
        self, lists: Sequence[Sequence[int]], batch_size: int | None = None, progress: Progress | None = None
    ) -> Values:
        """[n] -log p of each list of tokens, all of them counted; 0 for an empty one. `progress` counts lists."""
        total = np.zeros(len(lists), dtype=np.float64)
        pieces = [w for i, ids in enumerate(lists) for w in windows(i, len(ids), self.context)]
        for batch in self._batches(pieces, batch_size or BATCH):
            filled = [window for window in batch if window.end]
            if filled:
                np.add.at(total, [window.text for window in filled], self._score(lists, filled))
            if progress is not None:
                progress(sum(window.last for window in batch))
        return total

    def _batches(self, pieces: list[Window], size: int) -> Iterator[list[Window]]:
        """Pieces of like length together, the longest first: what does not fit into memory says so at once."""
        waiting = sorted(pieces, key=lambda window: window.start - window.end)
        while waiting:
            width = max(1, waiting[0].end - waiting[0].start)
            fitting = max(1, min(size, self.most_logits // (width * self.vocabulary)))
            yield waiting[:fitting]
            waiting = waiting[fitting:]

    @torch.inference_mode()
    def _score(self, lists: Sequence[Sequence[int]], batch: list[Window]) -> Values:
        """[B] nats of the counted tokens of some pieces, padded on the right, where no token sees them."""
        read = [torch.tensor([self.begin, *lists[w.text][w.start : w.end - 1]]) for w in batch]
        asked = [torch.tensor([UNCOUNTED] * (w.first - w.start) + list(lists[w.text][w.first : w.end])) for w in batch]
        ids_BL = pad_sequence(read, batch_first=True, padding_value=self.begin).to(self.model.device)
        targets_BL = pad_sequence(asked, batch_first=True, padding_value=UNCOUNTED).to(self.model.device)
        return _losses(self._logits(ids_BL), targets_BL).double().sum(1).cpu().numpy()

    def _logits(self, ids_BL: Tensor) -> Tensor:
        return self.model(input_ids=ids_BL, use_cache=False).logits

    @torch.inference_mode()
    def _probe(self) -> int:
        """The size of the vocabulary, once it is sure that no row sees the token after it."""
        ids = torch.full((2, min(4, self.context or 4)), self.begin, device=self.model.device)
        ids[1, -1] = 0 if self.begin else 1
        one, other = self._logits(ids)[:, :-1].float()
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-3):
            raise UnmaskError(
                f"The judge '{self.name}' sees the tokens that it is to predict, so it is no causal language model; "
                "name one that reads from left to right."
            )
        return one.shape[-1]


def open_judge(name: str, device: str | torch.device | None = None, dtype: Dtype = "auto") -> Judge:
    """Open a causal language model by its folder, its name on the Hugging Face hub or among the models that ship.

    Weights are safetensors and no code is run that comes with them. It computes on the GPU where there is one, in bf16
    if it has that.
    """
    path = find_checkpoint(name) if name in shipped_models() else Path(name).expanduser()
    if not path.is_dir() and (path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1):
        raise UnmaskError(f"There is no judge at '{name}'; give the folder or the hub name of a causal language model.")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if is_checkpoint(path) and not is_causal_config(read_config(path)):
        raise UnmaskError(
            f"The judge '{name}' is a masked diffusion model, which cannot judge; name a causal language model, "
            f"such as {DEFAULT_AR_MODEL}."
        )
    where = str(path) if path.is_dir() else name
    model = _open_model(where, name, select_dtype(dtype, place))
    return Judge(model.to(place), _open_tokenizer(where, name), name)


def _open_model(where: str, name: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    opener: Any = AutoModelForCausalLM
    try:
        with silence_transformers():
            model, report = opener.from_pretrained(
                where, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
    except Exception as error:
        raise UnmaskError(
            f"The judge '{name}' cannot be opened ({first_line(error)}); give the folder or the hub name of a causal "
            "language model whose weights are safetensors."
        ) from error
    if missing := [*report["missing_keys"], *report["mismatched_keys"]]:
        raise UnmaskError(
            f"The judge '{name}' has no fitting weights for {missing[0]} and {len(missing) - 1} more, so it is no "
            "trained causal language model; name another."
        )
    return model


def _open_tokenizer(where: str, name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        with silence_transformers():
            return AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    except Exception as error:
        raise UnmaskError(
            f"The tokenizer of the judge '{name}' cannot be opened ({first_line(error)}); save it beside the weights."
        ) from error


def _begin_token(config: Any, tokenizer: Any, name: str) -> int:
    for token in (tokenizer.bos_token_id, getattr(config, "bos_token_id", None), tokenizer.eos_token_id):
        if token is not None:
            return token
    raise UnmaskError(f"The judge '{name}' has neither a begin nor an end token to put before a text; name another.")


def _context(config: Any) -> int | None:
    """Tokens that a network reads at a time; None where its configuration knows no limit."""
    return config.max_length if is_causal_config(config) else getattr(config, "max_position_embeddings", None)


def _losses(logits_BLV: Tensor, targets_BL: Tensor) -> Tensor:
    """[B, L] -log p of the targets in float32, some rows at a time; 0 where they are not counted."""
    rows_NV = logits_BLV.flatten(0, 1)
    size = max(1, LOSS_ROWS // rows_NV.shape[1])
    parts = zip(rows_NV.split(size), targets_BL.flatten().split(size), strict=True)
    nll_N = torch.cat(
        [cross_entropy(rows.float(), targets, ignore_index=UNCOUNTED, reduction="none") for rows, targets in parts]
    )
    return nll_N.view(targets_BL.shape)
