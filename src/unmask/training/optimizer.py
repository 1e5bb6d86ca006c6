"""What an optimiser keeps, by the names of its parameters, out of it and back; and the rate of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import Optimizer


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Use this rate from now on."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_tensors(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """All that the optimiser keeps, as `parameter.key`, whatever its keys; nothing for a parameter it never moved."""
    state = optimizer.state
    return {
        f"{name}.{key}": tensor
        for name, parameter in parameters.items()
        if parameter in state
        for key, tensor in state[parameter].items()
    }


def load_optimizer_tensors(
    optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], saved: Mapping[str, Tensor]
) -> None:
    """Put back what `optimizer_tensors` gave."""
    kept: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for place, tensor in saved.items():
        name, _, key = place.rpartition(".")
        kept[name][key] = tensor
    number = {parameter: i for i, parameter in enumerate(_in_order(optimizer))}
    state = {number[parameters[name]]: tensors for name, tensors in kept.items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _in_order(optimizer: Optimizer) -> list[nn.Parameter]:
    """The parameters in the order in which a state dict numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
