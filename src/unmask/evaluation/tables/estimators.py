"""Tables of estimators on one network: noise schedules, the steps of the derivation, and the number of steps T."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.checkpoint import read_checkpoint_config
from unmask.data.protocols import Protocol
from unmask.data.rows import spread_indices
from unmask.evaluation.tables.base import (
    PAPER,
    SMALL,
    TINY,
    Cell,
    Curve,
    Experiment,
    Run,
    Scale,
    Table,
    Unfinished,
    bound_cell,
    by_label,
    error_note,
    one_seed,
    seeded_runs,
    units,
)
from unmask.evaluation.tables.language_modeling import STEPS
from unmask.evaluation.tables.sampling import cells_of, judged_cells, judged_data
from unmask.evaluation.tables.workspace import Workspace
from unmask.evaluation.zero_shot import evaluation_part, protocol_rows
from unmask.likelihood import Bound, estimate_bound
from unmask.objectives.base import Noise, Objective
from unmask.objectives.d3pm import D3PM, reverse_step_kl
from unmask.objectives.subs import MaskCount, Subs
from unmask.pipeline import load
from unmask.process import Batch
from unmask.registry import build
from unmask.schedules import Schedule, draw_times

SCHEDULES: dict[str, Any] = {
    "log-linear": "loglinear",
    "cosine": "cosine",
    "cosine-squared": "cosine-squared",
    "linear": "linear-sigma",
    "geometric": "geometric",
    "polynomial": "polynomial",
    "learned": {"name": "learned", "every": 20, "warmup": 20},
}
VARIANCE_PUBLISHED = {"log-linear": 1.81, "cosine": 3.30, "cosine-squared": 3.30, "linear": 7.57}
"""Variance of the bound over draws for one datapoint, in (nats per token)²."""


class SampledD3PM(D3PM):
    """D3PM before Rao-Blackwellisation: one draw of z_s, by torch's generator, estimates the KL of a reverse step."""

    def step_loss(
        self, log_x: Tensor, mask_probability: Tensor, reveal: Tensor, rate_s: Tensor, rate_t: Tensor
    ) -> Tensor:
        # the KL is reveal * revealed + rate_s/rate_t * stayed; a draw picks one of the two
        stay = reverse_step_kl(log_x, mask_probability, torch.zeros_like(reveal), rate_s, rate_t)
        revealed = reverse_step_kl(log_x, mask_probability, torch.ones_like(reveal), rate_s, rate_t) - stay
        stayed = stay * rate_t / rate_s.clamp_min(1e-20)
        return torch.where(torch.rand_like(reveal) < reveal, revealed, stayed)


DERIVATION: dict[str, Objective] = {
    f"D3PM, T = {STEPS}, z_s sampled": SampledD3PM(steps=STEPS),
    "& exact KL": D3PM(steps=STEPS),
    "& zero-masking": D3PM(steps=STEPS, zero_masking=True),
    "& carry-over": Subs(steps=STEPS),
    "& continuous time": Subs(),
    "& mask count": MaskCount(),
}
"""The steps from D3PM to the bound of MDLM."""
INFINITE = "∞"
PUBLISHED_BY_STEPS = {
    "10": 42.18,
    "20": 30.70,
    "50": 25.77,
    "100": 24.35,
    "200": 23.66,
    "500": 23.26,
    "1000": 23.15,
    INFINITE: 23.05,
}
"""Perplexity of MDLM on OpenWebText by T."""
BATCH_SIZE = 16
"""Sequences in a batch whose gradient is estimated."""


# ---- variances ------------------------------------------------------------------------------------------------------


def loss_variance(
    denoiser: Any, objective: Objective, schedule: Schedule, batches: Sequence[Batch], draws: int
) -> tuple[float, float]:
    """The variance of the bound of a sequence over independent draws, in (nats per token)², and its error.

    It is averaged over sequences, and the error is that of this average.
    """
    variances = []
    for number, batch in enumerate(batches):
        nats = []
        for draw in range(draws):
            with torch.no_grad():
                terms = objective.loss(denoiser, batch, schedule, _draw_noise(batch, draw, number, stratified=False))
            nats.append(terms.nelbo.double().sum(1) / terms.counted.sum(1))
        variances.append(torch.stack(nats).var(dim=0))
    return _mean_and_error(torch.cat(variances))


def gradient_variance(
    denoiser: Any, objective: Objective, schedule: Schedule, batches: Sequence[Batch], pairs: int, stratified: bool
) -> tuple[float, float]:
    """The variance of the gradient of a batch's loss per token over draws, summed over all weights, and its error.

    Half of the squared distance of two independent gradients of one batch is an unbiased estimate.
    """
    weights = [weight for weight in denoiser.parameters() if weight.requires_grad]

    def gradient(batch: Batch, number: int, draw: int) -> list[Tensor | None]:
        terms = objective.loss(denoiser, batch, schedule, _draw_noise(batch, draw, number, stratified))
        return list(torch.autograd.grad(terms.loss / terms.count, weights, allow_unused=True))

    estimates = []
    for pair in range(pairs):
        number = pair % len(batches)
        one, other = (gradient(batches[number], number, 2 * pair + half) for half in range(2))
        distances = [(a - b).double().square().sum() for a, b in zip(one, other, strict=True) if a is not None]  # type: ignore[operator]
        estimates.append(torch.stack(distances).sum() / 2)
    return _mean_and_error(torch.stack(estimates))


def _draw_noise(batch: Batch, draw: int, number: int, stratified: bool) -> Noise:
    """The noise of one draw for a batch, with independent times, or stratified ones as in training."""
    size, length = batch.input_ids.shape
    index = torch.arange(size, device=batch.input_ids.device)
    t = draw_times(number, draw, index, size, independent=not stratified)
    return Noise.draw(0, draw, number * size + index, t, length)


def _mean_and_error(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _open(workspace: Workspace, run: Run, protocol: Protocol, documents: int | None) -> tuple[Any, Any, list[Batch]]:
    """The network of a run in float32, the test rows of a protocol, and at most four batches of them."""
    lm = load(workspace.train(run), device=workspace.device, dtype="float32")
    rows, _ = protocol_rows(lm, evaluation_part(protocol), documents)
    chosen = spread_indices(len(rows), 4 * BATCH_SIZE)
    parts = np.array_split(chosen, -(-len(chosen) // BATCH_SIZE))
    return lm.denoiser, rows, [Batch.of_rows(rows[part]).to(lm.device) for part in parts]


# ---- schedules ------------------------------------------------------------------------------------------------------


def schedule_runs(scale: Scale, protocol: Protocol) -> list[Run]:
    """MDLM as in Table 1, and trained with each of the other schedules."""
    rows = {_schedule_label(name): {"objective": "subs", "schedule": spec} for name, spec in SCHEDULES.items()}
    return seeded_runs(rows, scale, protocol)


def _schedule_label(name: str) -> str:
    return "MDLM" if name == "log-linear" else f"MDLM, {name}"


def measure_schedules(workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """One network under every schedule, and networks trained with each of them."""
    network, trained = runs[0], by_label(runs)
    (column, unit), *_ = units(protocol).items()
    rows: dict[str, dict[str, Cell | str]] = {}
    columns = [column, "variance per datapoint", "gradient variance", f"trained with it: {column}"]
    for name in SCHEDULES:
        own = trained[_schedule_label(name)]
        rows[name] = {}
        with suppress(Unfinished):
            rows[name][columns[-1]] = bound_cell(workspace.bounds(own, protocol, scale.documents), unit)
        with suppress(Unfinished):
            schedule = _trained_schedule(workspace, own[0])
            found = _measure_estimator(workspace, network, protocol, scale, Subs(), schedule)
            figures = (_same_data(found["bound"], unit), _cell(found["variance"], "data"))
            rows[name] |= dict(zip(columns, (*figures, _cell(found["stratified"], "mc")), strict=False))
    notes = [
        "The first three columns are of one network, MDLM trained with the log-linear schedule, whose bound does not "
        "depend on the schedule: ± Monte-Carlo error. Variance of one draw of a sequence, and "
        f"gradient variance of a batch of {BATCH_SIZE} summed over all weights, both in (nats per token)². "
        "'learned' is the schedule that the last column's run has learned.",
        f"Last column: {error_note(scale)}",
        "Published: LM1B, where every schedule gives 3.30 nats per token; 'linear' there has sigma_max = 1e8.",
    ]
    published = {name: {"variance per datapoint": value} for name, value in VARIANCE_PUBLISHED.items()}
    return Table(f"Noise schedules on {protocol.name}", columns, rows, published, notes)


def _trained_schedule(workspace: Workspace, run: Run) -> Schedule:
    """The schedule of a run at its end, which it may have learned."""

    def compute() -> dict[str, Any]:
        return read_checkpoint_config(workspace.train(run)).schedule.model_dump(mode="json")

    return build("schedule", workspace.measure(f"schedule-{run.folder}", compute, of=[run]))


def _measure_estimator(
    workspace: Workspace, run: Run, protocol: Protocol, scale: Scale, estimator: Objective, schedule: Schedule
) -> dict[str, Any]:
    """The bound and the variances of one estimator on the network of a run."""

    def compute() -> dict[str, Any]:
        denoiser, rows, batches = _open(workspace, run, protocol, scale.documents)
        torch.manual_seed(0)
        setting = denoiser, estimator, schedule, batches
        return {
            "bound": estimate_bound(denoiser, estimator, schedule, rows).as_dict(),
            "variance": loss_variance(*setting, scale.samples),
            "iid": gradient_variance(*setting, scale.samples // 2, stratified=False),
            "stratified": gradient_variance(*setting, scale.samples // 2, stratified=True),
        }

    objective = {"class": type(estimator).__name__, **estimator.model_dump(mode="json")}
    inputs: dict[str, Any] = {
        "objective": objective,
        "schedule": schedule.model_dump(mode="json"),
        "samples": scale.samples,
    }
    name, part = f"estimator-{run.folder}", evaluation_part(protocol)
    return workspace.measure(name, compute, of=[run], protocol=part.name, documents=scale.documents, **inputs)


def _cell(found: Sequence[float], error: str) -> Cell:
    value, spread = found
    return Cell(value, {error: spread})


def _same_data(values: dict[str, Any], unit: str) -> Cell:
    """A bound without its data error, which all rows share."""
    bound = Bound.from_dict(values)
    return Cell(getattr(bound, unit), {"mc": bound.error(unit) or 0.0}, bound=True)


# ---- Rao-Blackwellisation -------------------------------------------------------------------------------------------


def measure_rao_blackwell(workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """Bound and gradient variance of each step from D3PM to MDLM, on one D3PM network."""
    (run,) = runs
    rows: dict[str, dict[str, Cell | str]] = {}
    for name, objective in DERIVATION.items():
        rows[name] = {}
        with suppress(Unfinished):
            found = _measure_estimator(workspace, run, protocol, scale, objective, run.recipe.schedule)
            rows[name] = {
                "gradient variance": _cell(found["stratified"], "mc"),
                "with i.i.d. t": _cell(found["iid"], "mc"),
                "variance per datapoint": _cell(found["variance"], "data"),
                "perplexity": _same_data(found["bound"], "perplexity"),
            }
    notes = [
        f"Fixed weights of a D3PM network trained with T = {STEPS}. Gradient of the loss per token of a batch of "
        f"{BATCH_SIZE} with low-discrepancy or i.i.d. times: variance over draws, summed over all weights, ± "
        "Monte-Carlo error; variance of one draw of a sequence; both in (nats per token)².",
        "The reconstruction term, which carry-over removes, does not depend on the draw: it raises the bound but not "
        "the variance.",
    ]
    columns = ["gradient variance", "with i.i.d. t", "variance per datapoint", "perplexity"]
    return Table(f"Rao-Blackwellisation on {protocol.name}", columns, rows, notes=notes, log_x=True)


# ---- the number of steps --------------------------------------------------------------------------------------------


def measure_steps(workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """The bound of the T-step process and the quality of T-step samples of one network, by T."""
    judge, network = runs
    rows: dict[str, dict[str, Cell | str]] = {}
    for label in PUBLISHED_BY_STEPS:
        steps = None if label == INFINITE else int(label)
        rows[label] = {}
        with suppress(Unfinished):
            bound = workspace.bound(network, protocol, scale.documents, steps=steps)
            rows[label] |= {column: bound_cell([bound], unit) for column, unit in units(protocol).items()}
        with suppress(Unfinished):
            quality = judged_cells(workspace, network, judge, scale.samples, steps=steps)
            rows[label] |= {name: quality[name] for name in ("judge perplexity", "entropy")}
    data: dict[str, Cell | str] = {}
    with suppress(Unfinished):
        data = cells_of(judged_data(workspace, judge, protocol, scale.samples))
    times = [int(label) for label in rows if label != INFINITE]
    curves = []
    for column in (next(iter(units(protocol))), "judge perplexity", "entropy"):
        found = [(steps, rows[str(steps)][column]) for steps in times if column in rows[str(steps)]]
        curves.append(Curve.of("T steps", [steps for steps, _ in found], [cell for _, cell in found], column))
        if limit := rows[INFINITE].get(column):
            curves.append(Curve.of("T → ∞", (times[0], times[-1]), (limit, limit), column))
    published = {label: {"perplexity": value} for label, value in PUBLISHED_BY_STEPS.items()}
    notes = [
        f"One MDLM, bound: {error_note(scale)} Published: OpenWebText.",
        f"Judge perplexity and entropy (nats) of {scale.samples} texts drawn in T steps, with 95% intervals; the judge "
        "is the AR model of the same data. T = ∞ writes one token per call; data: texts of the test part.",
    ]
    return Table(
        f"The number of steps T on {protocol.name}",
        [*units(protocol), "judge perplexity", "entropy"],
        {**rows, "data": {name: data[name] for name in ("judge perplexity", "entropy") if name in data}},
        published,
        notes,
        comparable=protocol.name == "openwebtext",
        curves=curves,
        axes=("T", ""),
        log_x=True,
    )


EXPERIMENTS = (
    Experiment(
        "schedules",
        "The bound, its variance and training under every noise schedule",
        {
            "tiny": Scale("stdlib", TINY, documents=6, samples=16),
            "small": Scale("text8-74m", SMALL, seeds=2),
            "paper": Scale("lm1b", PAPER),
        },
        schedule_runs,
        measure_schedules,
    ),
    Experiment(
        "steps",
        "The bound and samples of MDLM against the number of steps T",
        {
            "tiny": Scale("stdlib", TINY, documents=6, samples=8),
            "small": Scale("text8-74m", SMALL, samples=256),
            "paper": Scale("openwebtext", PAPER, samples=256),
        },
        one_seed("AR", "MDLM"),
        measure_steps,
    ),
    Experiment(
        "rao-blackwell",
        "Gradient variance of each step of the derivation, from D3PM to MDLM",
        {
            "tiny": Scale("stdlib", TINY, documents=6, samples=16),
            "small": Scale("text8-74m", SMALL, samples=256),
            "paper": Scale("lm1b", PAPER, samples=256),
        },
        one_seed("D3PM"),
        measure_rao_blackwell,
    ),
)
