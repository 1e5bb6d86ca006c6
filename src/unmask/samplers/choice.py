"""Which sampler a user means: an order by its name, a sampler by its options, or the uniform order if neither."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from unmask.errors import UnmaskError, did_you_mean
from unmask.registry import build, get
from unmask.samplers.base import Sampler
from unmask.schedules import Schedule

Order = Literal[
    "confidence", "margin", "entropy", "planner", "left_to_right", "uniform", "threshold", "entropy_bounded"
]
Spec = str | Mapping[str, Any] | Sampler
"""A sampler's name, `{name: ..., option: ...}`, or the sampler itself."""


def choose_sampler(
    schedule: Schedule,
    steps: int | None = None,
    order: str | None = None,
    sampler: Spec | None = None,
    scores: bool = False,
) -> Sampler:
    """The sampler of a masked model; where it has these options and nothing is said of them, in `steps` and with the
    `schedule` of the model. `scores`: whether its objective teaches it scores."""
    if order is not None and sampler is not None:
        raise UnmaskError(f"order='{order}' and sampler={sampler!r} are two ways to unmask; give one of them.")
    spec = sampler if sampler is not None else _ordered(order) if order is not None else "reveal"
    chosen: Sampler = spec if isinstance(spec, Sampler) else build("sampler", _completed(spec, schedule, steps))
    if chosen.causal:
        raise UnmaskError("The sampler 'ar' reads from left to right, and this model does not; give another.")
    if chosen.needs_scores and not scores:
        raise UnmaskError(
            "The sampler 'analytic' goes by the mass of scores, which only the objective 'sedd' teaches; take "
            "'reveal', which is the same walk for predictions."
        )
    if steps is not None and getattr(chosen, "steps", steps) != steps:
        raise UnmaskError(
            f"The sampler has steps={getattr(chosen, 'steps', None)} of its own; leave out steps={steps}."
        )
    if steps is not None and chosen.adaptive:
        raise UnmaskError(f"The network decides how many calls this order takes; leave out steps={steps}.")
    return chosen


def _ordered(order: str) -> dict[str, Any]:
    """Orders that write as many positions as they like are samplers of their own."""
    orders = get_args(Order)
    if order not in orders:
        raise UnmaskError(f"There is no order named '{order}'.{did_you_mean(str(order), orders)}")
    planned = get_args(get("sampler", "ordered").model_fields["order"].annotation)
    return {"name": "ordered", "order": order} if order in planned else {"name": order}


def _completed(spec: str | Mapping[str, Any], schedule: Schedule, steps: int | None) -> Any:
    """What is said of a sampler, with the model's schedule and the number of steps where nothing is said of them."""
    said = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(said, Mapping) or not isinstance(said.get("name"), str):
        return spec
    known = {"schedule": schedule} if steps is None else {"schedule": schedule, "steps": steps}
    fields = get("sampler", said["name"]).model_fields
    return {**{name: value for name, value in known.items() if name in fields}, **said}
