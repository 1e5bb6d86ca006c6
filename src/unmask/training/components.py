"""What a recipe makes: rows of tokens, a tokenizer, a network that fits the objective, and the checkpoint's card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from unmask.checkpoint import CheckpointConfig
from unmask.config import Recipe
from unmask.data.rows import Rows
from unmask.data.split import SplitProgress, prepare
from unmask.errors import UnmaskError
from unmask.objectives.base import Objective
from unmask.training.distributed import Distributed


@dataclass(frozen=True)
class Components:
    """The material of a run. `denoiser` is fresh, made from the training seed."""

    denoiser: Any
    tokenizer: Any
    train: Rows
    validation: Rows
    checkpoint_config: CheckpointConfig


def build_components(recipe: Recipe, world: Distributed, progress: SplitProgress | None = None) -> Components:
    """Read the data, once on each machine, and make the network.

    torch's generator is seeded here, and runs on into the dropout.
    """
    data = recipe.data
    corpus = world.machine_does(lambda: prepare(data.source, data.tokenizer, data.validation, data.seed, progress))
    tokenizer: Any = corpus.tokenizer
    train, validation = corpus.rows(data.policy, data.length)
    train.check_trainable()
    torch.manual_seed(recipe.training.seed)
    denoiser = _network(recipe.model, recipe.objective, len(tokenizer), tokenizer.mask_token_id, data.length)
    return Components(denoiser, tokenizer, train, validation, _card(recipe))


def check_fit(spec: Any, objective: Any) -> None:
    """Refuse a network that reads in another direction than the objective predicts."""
    if spec.causal != objective.causal:
        reads, needs = ("both ways", "left to right") if objective.causal else ("left to right", "both ways")
        fitting = f"model.name={'causal' if objective.causal else 'dit'}"
        raise UnmaskError(
            f"The model '{spec.name}' reads {reads}, and the objective '{objective.name}' needs {needs}; "
            f"choose another objective, or {'another one' if spec.name == 'checkpoint' else fitting}."
        )
    _check_planner(spec, objective)


def _check_planner(spec: Any, objective: Any) -> None:
    """Refuse a planner that would not learn, and to train one that is not there."""
    planner = getattr(spec, "planner", None)
    if objective.trains_planner and planner is None:
        raise UnmaskError(
            f"The objective '{objective.name}' trains a checkpoint's planner, and the model '{spec.name}' has none; "
            "begin with 'unmask train planner --from CKPT', or name another objective."
        )
    if planner is not None and not objective.trains_planner:
        raise UnmaskError(
            f"model.planner does not learn by the objective '{objective.name}'; set objective=planner, or leave "
            "model.planner out."
        )
    if planner is not None and spec.lora is not None:
        raise UnmaskError("model.lora changes the network and model.planner leaves it as it is; give one of them.")


def _network(spec: Any, objective: Objective, vocab_size: int, mask_token_id: int, length: int) -> Any:
    options = {"mask_logit": True} if objective.needs_mask_logit else {}
    return spec.build(vocab_size, mask_token_id, length, **options)


def _card(recipe: Recipe) -> CheckpointConfig:
    return CheckpointConfig(
        schedule=recipe.schedule,
        objective=recipe.objective.evaluation_objective,
        policy=recipe.data.policy,
        length=recipe.data.length,
        protocol={"data": recipe.data.model_dump(mode="json")},
    )
