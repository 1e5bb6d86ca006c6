"""Experiments at a size below `tiny`."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from unmask.evaluation.tables import get_experiment
from unmask.evaluation.tables.base import TINY, Scale, Unfinished, merge
from unmask.evaluation.tables.workspace import Workspace, run_experiment

SMALLEST = merge(
    TINY,
    {
        "data": {"length": 16},
        "model": {"hidden_size": 16, "layers": 1, "heads": 1},
        "optimizer": {"learning_rate": 0.01},
        "training": {"steps": 20, "save_every": 20, "validate_every": 20, "validation_rows": 2},
    },
)


def make_table(folder, name, scale):
    """The table of an experiment, and the runs trained for it. A second time nothing is trained or measured."""
    trained = []
    workspace = Workspace(folder, lambda label: trained.append(label) or ())
    experiment = replace(get_experiment(name), scales={"tiny": scale})

    def measured():
        return {path: path.stat().st_mtime_ns for path in folder.glob("measurements/*.json")}

    table, labels = run_experiment(experiment, "tiny", None, workspace), list(trained)
    before = measured()
    assert run_experiment(experiment, "tiny", None, workspace).markdown() == table.markdown()
    assert (trained, measured()) == (labels, before)
    assert (folder / name / "figure.png").stat().st_size > 1000
    check_unfinished_tables(folder, experiment)
    return table, labels


def check_unfinished_tables(folder, experiment):
    """With a part of the measurements the table has the other cells, and nothing is measured or trained."""
    measurements, away = folder / "measurements", folder / "away"
    for part in range(2):
        shutil.move(measurements, away)
        measurements.mkdir()
        for path in sorted(away.iterdir())[part::2]:
            shutil.copy2(path, measurements)
        there = sorted(measurements.iterdir())
        try:
            table = run_experiment(experiment, "tiny", None, Workspace(folder, missing="skip"))
            assert any(note.startswith("Not finished: ") for note in table.notes)
            assert json.loads((folder / experiment.name / "table.json").read_text())["unfinished"]
        except Unfinished as error:
            assert f"Nothing of '{experiment.name}' is finished" in str(error)  # noqa: PT017
        assert sorted(measurements.iterdir()) == there
        shutil.rmtree(measurements)
        shutil.move(away, measurements)


@pytest.fixture(scope="module")
def reproduce(tmp_path_factory):
    """Make the table of an experiment at a size below `tiny`."""
    folder = tmp_path_factory.mktemp("reproduced")

    def make(name, **options):
        table, _ = make_table(folder, name, Scale("stdlib", SMALLEST, **{"documents": 2, "samples": 4, **options}))
        assert all(set(table.columns) & set(row) for label, row in table.rows.items() if "published" not in label)
        return table

    return make
