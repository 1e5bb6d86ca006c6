"""The network, the synthetic rows and the device of a benchmark, from a recipe, a checkpoint or the defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.checkpoint import read_checkpoint_config
from unmask.config import Recipe, read_recipe
from unmask.data.length_policies import Packed, SpecialTokens
from unmask.data.rows import Rows, Tokens
from unmask.errors import UnmaskError, is_out_of_memory
from unmask.models import CausalConfig, CausalLM, CheckpointSpec, DiT, DiTConfig, DiTSpec
from unmask.models.build import read_config
from unmask.models.inference import InferenceEngine, cast_trunk_to_bf16, has_triton
from unmask.objectives.base import Objective
from unmask.objectives.subs import Subs
from unmask.optimizers.base import AdamW, OptimizerComponent
from unmask.schedules import LogLinear, Schedule
from unmask.training.checkpointing import find_latest
from unmask.training.metrics import flops_per_token
from unmask.training.trainer import check_fit

from .plain import PlainDiT

DEFAULTS = {
    "cuda": ("model.size=small", "data.length=1024", "training.batch_size=64"),
    "cpu": ("model.size=nano", "data.length=128", "training.batch_size=16"),
}
VOCABULARY = {"cuda": 50_258, "cpu": 257}
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
"""Config fields that a denoiser and its autoregressive counterpart share."""


@dataclass(frozen=True)
class Setup:
    """A network and the rows it reads. Equal setups do equal work, also in another process."""

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
        """The network's config, without building the network."""
        if isinstance(self.spec, CheckpointSpec):
            return read_config(Path(self.spec.path))
        with torch.device("meta"):
            return self.spec.build(self.vocab_size, self.mask_token_id, self.length).config

    def network(self) -> Any:
        """Build the network that is trained."""
        options = {"mask_logit": True} if self.objective.needs_mask_logit else {}
        with self.device:
            return perturb_zeros(self.spec.build(self.vocab_size, self.mask_token_id, self.length, **options))

    def inference_network(self, causal: bool) -> Any:
        """Build the network, or its counterpart of the same sizes, optimised for inference as `unmask.load` does."""
        if self.spec.causal == causal:
            network = self.network()
        else:
            shared = {name: getattr(self.config, name) for name in SHARED} | {"max_length": self.length}
            with self.device:
                network = perturb_zeros(CausalLM(CausalConfig(**shared)) if causal else DiT(DiTConfig(**shared)))
        network.eval()
        if self.precision == torch.bfloat16:
            cast_trunk_to_bf16(network)
        if self.device.type != "cuda" or not has_triton():
            return network
        if not causal:
            return InferenceEngine(network).compile()
        network.fused = True  # draws use compiled kernels; the blocks stay uncompiled
        return network

    def plain_network(self) -> PlainDiT:
        """Build the plain network of the same sizes; it is bidirectional and unconditioned."""
        with self.device:
            return perturb_zeros(PlainDiT(self.config, self.length))

    def ids(self, rows: int) -> np.ndarray:
        """Draw random tokens [rows, L] without masks."""
        drawn = np.random.default_rng(0).integers(0, self.vocab_size - 1, (rows, self.length))
        return drawn + (drawn >= self.mask_token_id)

    def pinned_ids(self, rows: int) -> torch.Tensor:
        """Draw the same tokens as a tensor in host memory, pinned for a GPU."""
        ids = torch.from_numpy(self.ids(rows))
        return ids.pin_memory() if self.device.type == "cuda" else ids

    def rows(self, count: int) -> Rows:
        """Draw the same tokens as a table of rows."""
        offsets = np.arange(count + 1) * self.length
        return Packed().rows(Tokens(self.ids(count).reshape(-1), offsets, None, None), self.length, SpecialTokens(None))

    @contextmanager
    def refuse_out_of_memory(self) -> Iterator[None]:
        """Raise `UnmaskError` if the work in this block does not fit into memory."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, RuntimeError) and not is_out_of_memory(error):
                raise
            place = "this machine" if self.device.type == "cpu" else str(self.device)
            remedy = "--batch" if self.batch > 1 else "--length, or take a smaller --size"
            raise UnmaskError(
                f"A batch of {self.batch} rows of {self.length} tokens, with a vocabulary of {self.vocab_size}, does "
                f"not fit into the memory of {place}; lower {remedy}."
            ) from None

    def as_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return {
            "model": self.spec.model_dump(mode="json"),
            "vocab_size": self.vocab_size,
            "length": self.length,
            "batch": self.batch,
            "objective": self.objective.model_dump(mode="json"),
            "schedule": self.schedule.model_dump(mode="json"),
            "precision": str(self.precision).removeprefix("torch."),
        }


@dataclass(frozen=True)
class Workload:
    """One run: `count` training steps or network calls, each on one batch of the setup."""

    setup: Setup
    count: int = 10
    optimizer: OptimizerComponent = field(default_factory=AdamW)
    accumulation: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of a run."""
        return self.count * self.setup.batch * self.setup.length

    @property
    def training_flops(self) -> float:
        """Operations of training on these tokens, with the head applied to masked rows only."""
        setup = self.setup
        return self.tokens * (flops_per_token(setup.config, setup.length, setup.objective, setup.schedule) or 0.0)


def perturb_zeros(network: Any) -> Any:
    """Replace parameters that are initialised to zero, so that activations have their usual magnitude."""
    with torch.no_grad():
        for parameter in network.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    return network


def is_named(what: Sequence[str]) -> bool:
    """Return whether the words name a recipe or a checkpoint before any ``key=value``."""
    return bool(what) and "=" not in what[0]


def read_bench_recipe(what: Sequence[str], options: Sequence[str], device: torch.device) -> Recipe:
    """Read the recipe of a name, .yaml file or checkpoint folder, or the defaults of the device, with overrides."""
    if is_named(what):
        name, overrides = what[0], [*what[1:], *options]
        if Path(name).is_dir():
            return read_recipe(None, [*_checkpoint_overrides(Path(name)), *overrides])
        return read_recipe(name, overrides)
    size, *others = DEFAULTS["cuda" if device.type == "cuda" else "cpu"]
    overrides = [*what, *options]
    recipe = read_recipe(None, [size, *others, *overrides])
    if hasattr(recipe.model, "size") and "size" not in recipe.model.model_fields_set:
        return read_recipe(None, [*others, *overrides, size])  # another model was named without a size
    return recipe


def _checkpoint_overrides(folder: Path) -> list[str]:
    folder = find_latest(folder) or folder
    config = read_checkpoint_config(folder)
    values = {
        "model": {"name": "checkpoint", "path": str(folder)},
        "data.length": config.length,
        "objective": config.objective.model_dump(mode="json"),
        "schedule": config.schedule.model_dump(mode="json"),
    }
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def make_setup(recipe: Recipe, named: bool, vocab_size: int | None, device: torch.device) -> Setup:
    """Make the setup of a recipe. The defaults (`named` false) have a fixed vocabulary."""
    check_fit(recipe.model, recipe.objective, recipe.data.policy)
    if isinstance(recipe.model, CheckpointSpec):
        config = read_config(Path(recipe.model.path))
        if vocab_size not in (None, config.vocab_size):
            raise UnmaskError(f"The checkpoint has {config.vocab_size} tokens, not {vocab_size}; leave --vocab out.")
        vocab_size, mask = config.vocab_size, config.mask_token_id
    else:
        default = VOCABULARY["cuda" if device.type == "cuda" else "cpu"]
        vocab_size = vocab_size or (_vocab_size(recipe) if named else default)
        mask = vocab_size - 1
    name = recipe.training.precision
    half = name == "bf16" or (name == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())
    return Setup(
        spec=recipe.model,
        vocab_size=vocab_size,
        mask_token_id=mask,
        length=recipe.data.length,
        batch=recipe.training.batch_size,
        objective=recipe.objective,
        schedule=recipe.schedule,
        precision=torch.bfloat16 if half else torch.float32,
        device=device,
    )


def _vocab_size(recipe: Recipe) -> int:
    tokenizer = recipe.data.tokenizer
    if hasattr(tokenizer, "vocab_size"):
        return tokenizer.vocab_size
    if tokenizer.name in ("byte", "dna"):
        return len(tokenizer.build())
    raise UnmaskError(f"The vocabulary size of the tokenizer '{tokenizer.name}' depends on its data; add --vocab.")
