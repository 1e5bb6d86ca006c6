"""Generative perplexity: the likelihood of texts under a causal language model of Hugging Face, the judge.

Every token of a text is counted, including the first: the judge's BOS token precedes each text (EOS if it has no BOS,
as GPT-2). No EOS is appended or counted, because models differ in how a text ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import unmask.models  # noqa: F401  (registers our networks with the Auto classes)
from unmask.checkpoint import DEFAULT_AR_MODEL, find_checkpoint, is_checkpoint, load_checkpoint, shipped_models
from unmask.data.encoding import encode
from unmask.data.tokenizers import check_tokenizer_file
from unmask.errors import UnmaskError
from unmask.evaluation.statistics import Values
from unmask.io import offline_if_unreachable, reading
from unmask.models.build import check_published_sizes, silence_transformers
from unmask.models.config import AutoregressiveConfig
from unmask.models.inference import Dtype, select_dtype

if TYPE_CHECKING:
    from unmask.likelihood import Progress

BATCH_SIZE = 64
IGNORE_INDEX = -100
MAX_LOGITS = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Logits per forward pass; batches are made smaller to stay below. A CPU is faster with tensors that fit its caches."""
LOSS_CHUNK = 1 << 24
"""Logits converted to float32 at a time."""


class Window(NamedTuple):
    """Tokens `start` to `end` of a text; those from `first` on are scored, the others are context."""

    text: int
    start: int
    first: int
    end: int
    is_last: bool


def split_windows(text: int, length: int, context: int | None) -> Iterator[Window]:
    """Split a text into windows that fit into the context of a judge; every token is scored once.

    The first window is as long as the context. Each later one scores half a context of new tokens after at least half
    a context of old ones.
    """
    context = context or length
    first, end = 0, min(length, context)
    while True:
        yield Window(text, max(0, end - context), first, end, is_last=end == length)
        if end == length:
            return
        first, end = end, min(length, end + max(1, context // 2))


class Judge:
    """A causal language model and its tokenizer. `context` is the longest input, None if unlimited."""

    def __init__(self, model: Any, tokenizer: Any, name: str = "judge") -> None:
        self.name = name
        self.model = model.eval()
        self.tokenizer = tokenizer
        config = model.config.get_text_config(decoder=True)
        candidates = (tokenizer.bos_token_id, getattr(config, "bos_token_id", None), tokenizer.eos_token_id)
        known = [token for token in candidates if token is not None]
        if not known:
            raise UnmaskError(f"The judge '{name}' has neither a BOS nor an EOS token; choose another.")
        self.bos: int = known[0]
        ours = isinstance(config, AutoregressiveConfig)
        self.context = config.max_length if ours else getattr(config, "max_position_embeddings", None)
        self.max_logits = MAX_LOGITS.get(model.device.type, MAX_LOGITS["cuda"])
        self.vocab_size = self._check_causal()

    def as_dict(self) -> dict[str, Any]:
        """Name, context, dtype and device, for JSON."""
        dtype, device = str(self.model.dtype).removeprefix("torch."), str(self.model.device)
        return {"name": self.name, "context": self.context, "dtype": dtype, "device": device}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The judge's tokens of each text. Fast tokenizers read the names of special tokens as plain text."""
        if self.tokenizer.is_fast:
            ids = encode(self.tokenizer, texts)
        else:
            ids = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        if max((max(row) for row in ids if row), default=0) >= self.vocab_size:
            raise UnmaskError(
                f"The tokenizer of the judge '{self.name}' has more tokens than the {self.vocab_size} of its network; "
                "save a matching pair."
            )
        return ids

    def nll(
        self, texts: Sequence[Sequence[int]], batch_size: int | None = None, progress: Progress | None = None
    ) -> Values:
        """[n] -log p of each tokenized text in nats; 0 for an empty one. `progress` counts texts."""
        total = np.zeros(len(texts), dtype=np.float64)
        windows = [window for i, ids in enumerate(texts) for window in split_windows(i, len(ids), self.context)]
        # Similar lengths share a batch; the longest come first, so that running out of memory shows at once.
        windows.sort(key=lambda window: window.start - window.end)
        while windows:
            size = self._batch_size(max(1, windows[0].end - windows[0].start), batch_size)
            batch, windows = windows[:size], windows[size:]
            filled = [window for window in batch if window.end]
            if filled:
                np.add.at(total, [window.text for window in filled], self.window_nll(texts, filled))
            if progress is not None:
                progress(sum(window.is_last for window in batch))
        return total

    @torch.inference_mode()
    def features(self, texts: Sequence[Sequence[int]], batch_size: int | None = None) -> Values:
        """[n, d] the last hidden state at the last token of each text, as mauve-text extracts it.

        A text longer than the context is cut off there; an empty one is the BOS token.
        """
        kept = [torch.tensor(list(ids[: self.context]) or [self.bos]) for ids in texts]
        order = sorted(range(len(kept)), key=lambda i: -len(kept[i]))
        rows: dict[int, Values] = {}
        while len(rows) < len(kept):
            size = self._batch_size(len(kept[order[len(rows)]]), batch_size)
            batch = order[len(rows) : len(rows) + size]
            ids_BL = pad_sequence([kept[i] for i in batch], batch_first=True, padding_value=self.bos)
            output = self.model(input_ids=ids_BL.to(self.model.device), use_cache=False, output_hidden_states=True)
            for i, state_LD in zip(batch, output.hidden_states[-1].double().cpu().numpy(), strict=True):
                rows[i] = state_LD[len(kept[i]) - 1]
        return np.stack([rows[i] for i in range(len(kept))])

    def _batch_size(self, width: int, batch_size: int | None) -> int:
        return max(1, min(batch_size or BATCH_SIZE, self.max_logits // (width * self.vocab_size)))

    @torch.inference_mode()
    def window_nll(self, texts: Sequence[Sequence[int]], batch: list[Window]) -> Values:
        """[B] nats of the scored tokens of each window. Padding on the right is seen by no token."""
        inputs = [torch.tensor([self.bos, *texts[w.text][w.start : w.end - 1]]) for w in batch]
        targets = [
            torch.tensor([IGNORE_INDEX] * (w.first - w.start) + list(texts[w.text][w.first : w.end])) for w in batch
        ]
        ids_BL = pad_sequence(inputs, batch_first=True, padding_value=self.bos).to(self.model.device)
        targets_BL = pad_sequence(targets, batch_first=True, padding_value=IGNORE_INDEX).to(self.model.device)
        logits_NV = self._logits(ids_BL).flatten(0, 1)
        chunk = max(1, LOSS_CHUNK // logits_NV.shape[1])
        chunks = zip(logits_NV.split(chunk), targets_BL.flatten().split(chunk), strict=True)
        nll_N = torch.cat([cross_entropy(x.float(), y, ignore_index=IGNORE_INDEX, reduction="none") for x, y in chunks])
        return nll_N.view(targets_BL.shape).double().sum(1).cpu().numpy()

    def _logits(self, ids_BL: Tensor) -> Tensor:
        return self.model(input_ids=ids_BL, use_cache=False).logits

    @torch.inference_mode()
    def _check_causal(self) -> int:
        """Raise `UnmaskError` if logits depend on later tokens; return the size of the vocabulary."""
        ids = torch.full((2, min(4, self.context or 4)), self.bos, device=self.model.device)
        ids[1, -1] = 0 if self.bos else 1
        one, other = self._logits(ids)[:, :-1].float()
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-3):
            raise UnmaskError(
                f"The judge '{self.name}' sees the tokens it predicts, so it is not a causal language model; choose "
                "another."
            )
        return one.shape[-1]


def open_judge(name: str, device: str | torch.device | None = None, dtype: Dtype = "auto") -> Judge:
    """Open a causal language model by its folder, hub name or shipped name.

    Weights must be safetensors, and no remote code runs. The judge is on the GPU if there is one, in bf16 if the GPU
    supports it.
    """
    path = find_checkpoint(name) if name in shipped_models() else Path(name).expanduser()
    if not path.is_dir() and (path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1):
        raise UnmaskError(f"There is no judge at '{name}'; give the folder or hub name of a causal language model.")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    precision = select_dtype(dtype, place)
    if is_checkpoint(path):
        checkpoint = load_checkpoint(path)
        if not checkpoint.config.objective.causal:
            raise UnmaskError(
                f"The judge '{name}' is a masked diffusion model; give a causal language model, such as "
                f"{DEFAULT_AR_MODEL}."
            )
        if checkpoint.tokenizer is None:
            raise UnmaskError(f"The judge '{name}' has no tokenizer; convert it again with --tokenizer.")
        return Judge(checkpoint.model.to(place, precision), checkpoint.tokenizer, name)
    if path.is_dir():
        check_published_sizes(path)
    location = str(path) if path.is_dir() else name
    with nullcontext() if path.is_dir() else offline_if_unreachable():
        return Judge(_load_model(location, name, precision).to(place), _load_tokenizer(location, name), name)


def _load_model(location: str, name: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    remedy = "give the folder or hub name of a causal language model with safetensors weights"
    with silence_transformers(), reading(f"The judge '{name}' cannot be opened", remedy):
        model, report = auto.from_pretrained(
            location, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    if missing := [*report["missing_keys"], *report["mismatched_keys"]]:
        raise UnmaskError(
            f"The judge '{name}' lacks fitting weights for {missing[0]} and {len(missing) - 1} more, so it is not a "
            "trained causal language model; choose another."
        )
    return model


def _load_tokenizer(location: str, name: str) -> Any:
    from transformers import AutoTokenizer

    if (file := Path(location, "tokenizer.json")).exists():
        check_tokenizer_file(file)
    what = f"The tokenizer of the judge '{name}' cannot be opened"
    with silence_transformers(), reading(what, "save it beside the weights"):
        return AutoTokenizer.from_pretrained(location, trust_remote_code=False)
