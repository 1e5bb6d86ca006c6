"""What is measured: a network by its spec, random tokens, and the place and precision of the work."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.benchmarks import plain
from unmask.data.cache import Tokens
from unmask.data.length_policies import Packed, SpecialTokens
from unmask.data.rows import Rows
from unmask.models import CausalConfig, CausalLM, CheckpointSpec, DiT, DiTConfig, DiTSpec
from unmask.models.build import read_config
from unmask.models.inference import InferenceEngine, cast_trunk_to_bf16, has_triton, use_fused_kernels
from unmask.objectives.base import Objective
from unmask.objectives.subs import Subs
from unmask.schedules import LogLinear, Schedule

PERTURBATION = 0.02
SHARED = (
    "vocab_size",
    "mask_token_id",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "mlp_ratio",
    "dropout",
    "rope_base",
    "qk_norm",
)
"""What a network and its twin have in common."""


@dataclass(frozen=True)
class Setup:
    """A network and the rows it works on. Two processes that read the same setup do the same work."""

    spec: Any = field(default_factory=lambda: DiTSpec(size="nano"))
    vocab_size: int = 257
    mask_token_id: int = 256
    length: int = 128
    batch: int = 16
    objective: Objective = field(default_factory=Subs)
    schedule: Schedule = field(default_factory=LogLinear)
    precision: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @cached_property
    def config(self) -> Any:
        """The sizes of the network, which is not built for it."""
        if isinstance(self.spec, CheckpointSpec):
            return read_config(Path(self.spec.path))
        with torch.device("meta"):
            return self.spec.build(self.vocab_size, self.mask_token_id, self.length).config

    def network(self) -> Any:
        """The network on its device. Branches that start at zero are woken, so that numbers are of the usual size."""
        options = {"mask_logit": True} if self.objective.needs_mask_logit else {}
        with self.device:
            return woken(self.spec.build(self.vocab_size, self.mask_token_id, self.length, **options))

    def reader(self, causal: bool) -> Any:
        """The network where it reads in this direction, else its twin."""
        if self.spec.causal == causal:
            return self.network()
        shared = {name: getattr(self.config, name) for name in SHARED} | {"max_length": self.length}
        with self.device:
            return woken(CausalLM(CausalConfig(**shared)) if causal else DiT(DiTConfig(**shared)))

    def ready(self, causal: bool = False) -> Any:
        """The network, or its twin, as `unmask.load` makes it ready for a long job."""
        network = self.reader(causal).eval()
        if self.precision == torch.bfloat16:
            cast_trunk_to_bf16(network)
        if self.device.type != "cuda" or not has_triton():
            return network
        return use_fused_kernels(network) if causal else InferenceEngine(network).compile()

    def plain_network(self) -> plain.PlainDiT:
        """The plain network of the same sizes; it reads both ways and is not conditioned, whatever the spec says."""
        with self.device:
            return woken(plain.PlainDiT(self.plain_shape()))

    def plain_shape(self) -> plain.Shape:
        """Its sizes."""
        config = self.config
        return plain.Shape(
            vocab_size=config.vocab_size,
            mask_token_id=config.mask_token_id,
            length=self.length,
            width=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            mlp_ratio=config.mlp_ratio,
            dropout=config.dropout,
        )

    def ids(self, rows: int) -> np.ndarray:
        """[rows, L] random tokens, none of them the mask."""
        drawn = np.random.default_rng(0).integers(0, self.vocab_size - 1, (rows, self.length))
        return drawn + (drawn >= self.mask_token_id)

    def rows(self, count: int) -> Rows:
        """The same as a table in memory."""
        offsets = np.arange(count + 1) * self.length
        return Packed().rows(Tokens(self.ids(count).reshape(-1), offsets, None, None), self.length, SpecialTokens(None))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "model": self.spec.model_dump(mode="json"),
            "vocab_size": self.vocab_size,
            "length": self.length,
            "batch": self.batch,
            "objective": self.objective.model_dump(mode="json"),
            "schedule": self.schedule.model_dump(mode="json"),
            "precision": str(self.precision).removeprefix("torch."),
        }


def woken(network: Any) -> Any:
    """The same network, in which what was zero is small."""
    with torch.no_grad():
        for parameter in network.parameters():
            if not parameter.any():
                parameter.normal_(std=PERTURBATION)
    return network
