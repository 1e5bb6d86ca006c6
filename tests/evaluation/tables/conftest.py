"""Experiments at a size below `tiny`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unmask.evaluation.tables import get_experiment
from unmask.evaluation.tables.base import TINY, Scale, Workspace, merge, run_experiment

SMALLEST = merge(
    TINY,
    {
        "data": {"length": 16},
        "model": {"hidden_size": 16, "layers": 1, "heads": 1},
        "optimizer": {"learning_rate": 0.01},
        "training": {"steps": 20, "save_every": 20, "validate_every": 20, "validation_rows": 2},
    },
)


@pytest.fixture(scope="module")
def reproduce(tmp_path_factory):
    """Make the table of an experiment twice; the second time nothing is trained or measured."""
    folder = tmp_path_factory.mktemp("reproduced")

    def make(name, **options):
        done = []
        scale = Scale("stdlib", SMALLEST, **{"documents": 2, "samples": 4, **options})
        experiment = replace(get_experiment(name), scales={"tiny": scale})
        workspace = Workspace(folder, lambda label: done.append(label) or (), lambda label: done.append(label))
        table = run_experiment(experiment, "tiny", None, workspace)
        assert done
        done.clear()
        assert run_experiment(experiment, "tiny", None, workspace).markdown() == table.markdown()
        assert not done
        assert (folder / name / "figure.png").stat().st_size > 1000
        assert all(set(table.columns) & set(row) for label, row in table.rows.items() if "published" not in label)
        return table

    return make
