"""Fits of scaling laws find the laws that made the losses, and scarce data are cut from the training part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from unmask.data.protocols import get_protocol
from unmask.evaluation.tables import get_experiment, scaling
from unmask.evaluation.tables.base import merge
from unmask.evaluation.tables.scaling import HALF_WIDTH, fit_power_law, fit_scaling, optimum
from unmask.evaluation.tables.workspace import Workspace, training_flops
from unmask.likelihood import Bound

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
    assert fitted["sizes"][0][0].value == pytest.approx(np.exp(SIZES.mean()), rel=1e-3)
    low, high = fit_scaling(SIZES, BUDGETS, both, np.full_like(both, 0.002))["ratio"].interval
    assert low < 4.0 < high
    assert high - low > 0.05
    rising = np.stack([losses(30.0, 0.08), losses(1.0, -0.01)])
    assert fit_scaling(SIZES, BUDGETS, rising, np.zeros_like(rising))["ratio"] is None


def test_intervals_contain_the_law_as_often_as_they_say(monkeypatch):
    monkeypatch.setattr(scaling, "RESAMPLES", 200)
    both, error, inside = np.stack([losses(30.0, 0.08), losses(30.0, 0.08)]), 0.01, []
    for noise in np.random.Generator(np.random.Philox(1)).normal(0.0, error, size=(60, *both.shape)):
        fitted = fit_scaling(SIZES, BUDGETS, both + noise, np.full_like(both, error))
        low, high = fitted["alpha"][0].interval
        inside.append(low <= 0.08 <= high)
    assert 0.85 <= np.mean(inside) <= 1.0


class Bounds:
    """A workspace whose bounds follow a law, with a spread over training seeds."""

    bounds = Workspace.bounds

    def bound(self, run, protocol, documents):
        model, width, budget = run.label.split(", ")
        compute = float(budget.split()[0]) / (1 if model == "AR" else 4)
        size = 24 * int(width.split()[1]) ** 2
        bits = 3.0 * (compute / 1e10) ** -0.08 * (1 + 0.05 * np.log(size / 2e4) ** 2) + 0.01 * (run.seed - 0.5)
        nats = float(bits * np.log(2) * 1000)
        return Bound("b", nats, 1000, 1000, 1000, 0.0, None, 8, exact=model == "AR")


def test_seeds_give_both_models_intervals():
    experiment = get_experiment("scaling")
    scale = replace(experiment.scale("tiny"), seeds=2)
    protocol = get_protocol(scale.protocol)
    table = experiment.measure(Bounds(), scale, protocol, experiment.runs(scale, protocol))
    assert {curve.x_axis for curve in table.curves} == {"", "parameters in millions"}
    for row in table.rows.values():
        assert row["width 32"].errors["seeds"] == pytest.approx(0.01 / 2**0.5)
        low, high = row["optimal"].interval
        assert low < row["optimal"].value < high
        assert row["parameters, millions"].value == pytest.approx(0.02, rel=0.1)
    assert "needs 4.0" in " ".join(table.notes)
    assert "No minimum" not in " ".join(table.notes)


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


def test_scarce_text_is_tuned_by_validation_and_tested(tmp_path):
    experiment = get_experiment("data-scarce")
    tiny = experiment.scale("tiny")
    small = {"model": {"hidden_size": 16, "layers": 1, "heads": 2}, "training": {"steps": 4}}
    tuned = ("no regularisation", HALF_WIDTH)
    scale = replace(tiny, recipe=merge(tiny.recipe, small), documents=2, characters=(2_000,), lengths=(1 / 2, 1))
    protocol = get_protocol(scale.protocol)
    runs = experiment.runs(scale, protocol)
    assert [run.recipe.training.steps for run in runs[:4]] == [2, 4, 2, 4]
    assert [run.recipe.model.hidden_size for run in runs[:4]] == [16, 16, 8, 8]
    table = experiment.measure(Workspace(tmp_path), scale, protocol, runs)
    assert list(table.rows) == ["MDLM, 2,000 characters", "AR, 2,000 characters"]
    rows_of_text = -(-2000 // 64)
    for model, row in table.rows.items():
        assert row["best validation"].value <= row["longest"].value
        assert row["epochs"].value in (2 * 16 / rows_of_text, 4 * 16 / rows_of_text)
        assert row["tuned"] in tuned
        assert ("mc" in row["best validation"].errors) == model.startswith("MDLM")
        assert row["test: bits per byte"].bound == model.startswith("MDLM")
    by_epochs = [curve for curve in table.curves if curve.x_axis == "epochs"]
    assert [(curve.label, len(curve.x)) for curve in by_epochs] == [("MDLM, 2,000", 2), ("AR, 2,000", 2)]
