"""Fits of scaling laws find the laws that made the losses, and scarce data are cut from the training part."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.data.protocols import get_protocol
from unmask.evaluation.tables import get_experiment
from unmask.evaluation.tables.base import merge
from unmask.evaluation.tables.scaling import ScarceScale, fit_power_law, fit_scaling, optimum
from unmask.evaluation.tables.workspace import Workspace, training_flops

SIZES = np.log(np.array([1e5, 2e5, 4e5, 8e5]))
BUDGETS = np.array([1e15, 4e15, 1.6e16])


def losses(scale: float, alpha: float) -> np.ndarray:
    """[budgets, sizes] with the lowest loss scale C^-alpha at a size between those that are tried."""
    lowest = scale * BUDGETS**-alpha
    return lowest[:, None] * (1 + 0.05 * (SIZES - SIZES.mean()) ** 2)


def test_the_lowest_point_of_a_parabola():
    size, loss = optimum(SIZES, 2 + 0.3 * (SIZES - 12.5) ** 2)
    assert (size, loss) == pytest.approx((12.5, 2.0))
    falling = np.array([4.0, 3.0, 2.5, 2.2])
    assert optimum(SIZES, falling) == (SIZES[-1], 2.2)  # the lowest point lies outside


def test_laws_and_their_ratio_are_found():
    assert fit_power_law(BUDGETS, 3 * BUDGETS**-0.07) == pytest.approx((np.log(3), 0.07))
    # The second model needs a quarter of the compute: its loss at C is that of the first at 4 C.
    both = np.stack([losses(30.0, 0.08), losses(30.0 * 4**-0.08, 0.08)])
    fitted = fit_scaling(SIZES, BUDGETS, both, np.full_like(both, 1e-6))
    assert fitted["ratio"].value == pytest.approx(4.0, rel=1e-3)
    assert [cell.value for cell in fitted["alpha"]] == pytest.approx([0.08, 0.08], rel=1e-3)
    low, high = fit_scaling(SIZES, BUDGETS, both, np.full_like(both, 0.002))["ratio"].interval
    assert low < 4.0 < high
    assert high - low > 0.05
    rising = np.stack([losses(30.0, 0.08), losses(1.0, -0.01)])
    assert fit_scaling(SIZES, BUDGETS, rising, np.zeros_like(rising))["ratio"] is None


def test_budgets_decide_the_steps():
    experiment = get_experiment("scaling")
    scale = experiment.scale("tiny")
    runs = experiment.runs(scale, get_protocol(scale.protocol))
    assert len(runs) == 2 * len(scale.budgets) * len(scale.widths)
    assert len(scale.widths) >= 4
    assert len(scale.budgets) >= 3
    for run in runs:
        budget = float(run.label.split(", ")[2].split()[0])
        assert training_flops(run.recipe) == pytest.approx(budget, rel=0.15)


def test_scarce_text_is_measured_and_cut(tmp_path):
    experiment = get_experiment("data-scarce")
    tiny = experiment.scale("tiny")
    small = {"model": {"hidden_size": 16, "layers": 1, "heads": 1}, "training": {"steps": 4, "validate_every": 2}}
    scale = ScarceScale(tiny.protocol, merge(tiny.recipe, small), characters=(2_000,))
    protocol = get_protocol(scale.protocol)
    runs = experiment.runs(scale, protocol)
    table = experiment.measure(Workspace(tmp_path), scale, protocol, runs)
    assert list(table.rows) == ["MDLM, 2,000 characters", "AR, 2,000 characters"]
    row = table.rows["AR, 2,000 characters"]
    assert row["best validation"].value <= row["last validation"].value
    assert row["epochs"].value in (2 * 16 * 64 / 2000, 4 * 16 * 64 / 2000)
    assert {curve.x_axis for curve in table.curves} == {"", "epochs"}
