"""The data collator with which `transformers.Trainer` trains a masked diffusion model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unmask.checkpoint import find_checkpoint, read_checkpoint_config
from unmask.data.tokenizers import open_tokenizer
from unmask.errors import UnmaskError
from unmask.objectives.base import Noise
from unmask.objectives.subs import Subs
from unmask.process import Batch, mask_tokens
from unmask.registry import build
from unmask.schedules import draw_times


class DataCollatorForMaskedDiffusion:
    """Masks each row of token ids at a random time t, so that the loss of the model is an estimate of the bound.

    Rows are lists of ids, or dicts with `input_ids` and optionally `attention_mask` and `labels`; tokens with the label
    -100 are given: they are never masked or counted. A batch has the masked `input_ids`, the clean tokens as `labels`,
    and `alpha` and `loss_weight` of each row for `DiT.forward`. Times are low-discrepancy over the batches of all
    processes. Random numbers come from torch's generator, which `Trainer` seeds, saves and restores.

    Args:
        tokenizer: The tokenizer of the model.
        schedule: The noise schedule: a name, a dict or a `Schedule`.
        objective: `subs`, or a dict of its options, such as `{"name": "subs", "weight": "flat"}`.
        length: If set, rows are filled with EOS up to this length, and every EOS counts, as in the length policy
            `supervised_eos`. Otherwise rows are padded to the longest one, and padding is not counted.
    """

    def __init__(
        self, tokenizer: Any, schedule: Any = "loglinear", objective: Any = "subs", length: int | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.schedule = build("schedule", schedule)
        self.objective = build("objective", objective)
        self.length = length
        if not isinstance(self.objective, Subs):
            raise UnmaskError(f"objective must be subs, got '{self.objective.name}'; train others with 'unmask train'.")
        if tokenizer.mask_token_id is None:
            raise UnmaskError("The tokenizer has no mask token; add one with tokenizer.add_special_tokens.")
        if length is not None and tokenizer.eos_token_id is None:
            raise UnmaskError("The tokenizer has no EOS token to fill rows with; leave out length.")

    @classmethod
    def from_pretrained(cls, path: str | Path | None = None) -> DataCollatorForMaskedDiffusion:
        """The collator with the tokenizer, schedule, objective and length policy of a checkpoint."""
        folder = find_checkpoint(path)
        config = read_checkpoint_config(folder)
        length = config.length if config.policy.supervises_padding else None
        return cls(open_tokenizer(folder), config.schedule, config.objective, length)

    def __call__(self, features: Sequence[Any]) -> dict[str, Tensor]:
        """A batch of masked rows."""
        batch = self._batch([one if isinstance(one, Mapping) else {"input_ids": one} for one in features])
        size, length = batch.input_ids.shape
        seed = int(torch.randint(2**62, ()))
        # without data workers all processes draw the same seed, and their rows form one global batch
        index = int(os.environ.get("RANK", 0)) * size + torch.arange(size)
        t = draw_times(seed, 0, index, int(os.environ.get("WORLD_SIZE", 1)) * size)
        noise = Noise.draw(seed, 0, index, t, length)
        corruption = self.objective.corrupt(batch, self.schedule, noise, None)
        masked = {
            "input_ids": mask_tokens(batch, corruption.predicted, self.tokenizer.mask_token_id),
            "labels": batch.input_ids.masked_fill(~batch.target_mask, -100),
            "alpha": 1.0 - corruption.mask_rate,
            "loss_weight": torch.ones(size) if self.objective.weight == "flat" else corruption.weight,
        }
        return masked | {"attention_mask": batch.attention_mask.long()} if batch.has_pads else masked

    def _batch(self, features: Sequence[Mapping[str, Any]]) -> Batch:
        rows, frozen = [], []
        for feature in features:
            ids = torch.as_tensor(feature["input_ids"], dtype=torch.int64)
            keep = torch.as_tensor(feature.get("attention_mask", torch.ones_like(ids))).bool()
            given = torch.as_tensor(feature.get("labels", ids)) == -100
            ids, given = ids[keep], given[keep]
            if self.length is not None:
                room = max(0, self.length - len(ids))
                ids = torch.cat([ids, ids.new_full((room,), self.tokenizer.eos_token_id)])
                given = torch.cat([given, given.new_zeros(room)])
            rows.append(ids)
            frozen.append(given)
        attended = [torch.ones_like(row, dtype=torch.bool) for row in rows]
        return Batch.of(*(pad_sequence(one, batch_first=True) for one in (rows, attended, frozen)))
