"""A workspace trains and measures once, goes on after an interruption, and writes complete tables."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.evaluation.tables.conftest import SMALLEST
from tests.runs import StopAt
from unmask.data.protocols import get_protocol
from unmask.errors import UnmaskError
from unmask.evaluation.glue import GlueSettings
from unmask.evaluation.tables import experiments, get_experiment
from unmask.evaluation.tables.base import TINY, Cell, Scale, Table, Unfinished, bound_cell, make_run, merge
from unmask.evaluation.tables.side_by_side import make_side_by_side
from unmask.evaluation.tables.workspace import Workspace, plan, run_experiment, training_flops, write_report
from unmask.likelihood import Bound
from unmask.training import Callback, Interrupted

TOY = get_protocol("toy-dna")
"""Its documents are made in no time, also in each process that trains."""


def tiny_run(label="MDLM", seed=0, **changes):
    small = {"model": {"hidden_size": 16, "layers": 1, "heads": 1}, "training": {"steps": 4, "save_every": 2}}
    return make_run(label, TOY, merge(TINY, small, changes), seed=seed)


def test_merging_keeps_sizes_and_replaces_other_members():
    merged = merge(
        TINY, {"model": {"name": "causal"}, "objective": {"name": "d3pm", "steps": 8}}, {"objective": "subs"}
    )
    assert merged["model"]["hidden_size"] == 64
    assert merged["model"]["name"] == "causal"
    assert merged["objective"] == "subs"
    assert merge({"a": {"name": "x", "p": 1}}, {"a": {"name": "y"}}) == {"a": {"name": "y"}}


def test_runs_and_measurements_are_made_once(tmp_path):
    started = []

    def on_run(label):
        started.append(label)
        return []

    run = tiny_run()
    first = Workspace(tmp_path, on_run).bound(run, TOY, documents=2)
    again = Workspace(tmp_path, on_run).bound(run, TOY, documents=2)
    assert again == first
    assert started == ["MDLM, seed 0"]
    other = Workspace(tmp_path, on_run).bound(run, TOY, documents=3)
    assert other.tokens != first.tokens
    assert started == ["MDLM, seed 0"]
    assert tiny_run(seed=1).folder != run.folder


def test_an_interrupted_run_goes_on(tmp_path):
    run, steps = tiny_run(), []

    class Count(Callback):
        def on_step(self):
            steps.append(1)

    with pytest.raises(Interrupted):
        Workspace(tmp_path, lambda label: [StopAt(2)]).train(run)
    path = Workspace(tmp_path, lambda label: [Count()]).train(run)
    assert len(steps) == 2
    assert (path / "model.safetensors").exists()


def test_runs_side_by_side_are_trained_and_measured_once(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.delenv("UNMASK_DATA", raising=False)  # one task instead of those of GLUE
    done = []
    experiment, protocol = get_experiment("table4"), get_protocol("stdlib")
    settings = GlueSettings(learning_rates=(1e-3,), seeds=2, epochs=1, limit=24)
    still = {"optimizer": {"learning_rate": 1e-3}, "training": {"steps": 2}}
    recipe = merge(experiment.scale("tiny").recipe, {name: SMALLEST[name] for name in ("data", "training")})
    sizes = {"recipe": recipe, "documents": 2, "samples": 2}
    scale = replace(experiment.scale("tiny"), **sizes, settings=settings, fine_tuning=still)
    runs = experiment.runs(scale, protocol)
    workspace = Workspace(tmp_path, jobs=2, on_trained=lambda *report: done.append(report))
    make_side_by_side(workspace, experiment, scale, "stdlib", runs)
    assert [report[1:] for report in done] == [(1, 3), (2, 3), (3, 3)]
    assert [label for label, *_ in done][-1] == "BERT + MDLM, seed 0"  # which starts from BERT

    def made():
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "measurements").iterdir()}

    before = made()
    assert len([path for path in before if path.name.startswith("glue-")]) == 2 * 3  # seeds and models
    experiment.measure(Workspace(tmp_path, missing="skip"), scale, protocol, runs)
    make_side_by_side(workspace, experiment, scale, "stdlib", runs)
    assert (len(done), made()) == (3, before)


def test_an_error_side_by_side_ends_the_others(tmp_path):
    experiment = experiments()["weights"]
    scale = replace(experiment.scale("tiny"), recipe=merge(SMALLEST, {"training": {"steps": 100_000}}), seeds=2)
    runs = experiment.runs(scale, TOY)
    folder = tmp_path / "runs" / runs[1].folder
    folder.parent.mkdir()
    folder.write_text("a file")
    with pytest.raises(UnmaskError, match="is a file, not a folder"):
        make_side_by_side(Workspace(tmp_path, jobs=2), experiment, scale, "toy-dna", runs)


def test_timed_figures_are_left_to_the_process_that_is_alone(tmp_path):
    run, timed = tiny_run(), {"alone": True, "of": [tiny_run()]}
    sharing = Workspace(tmp_path, missing="share")
    with pytest.raises(Unfinished):
        sharing.measure("seconds", lambda: {"seconds": 1.0}, **timed)
    assert sharing.training_seconds(run) is not None
    assert not sharing.unfinished
    assert Workspace(tmp_path).measure("seconds", lambda: {"seconds": 1.0}, **timed) == {"seconds": 1.0}


def test_figures_outlive_the_runs_they_are_of(tmp_path):
    experiment = replace(
        experiments()["weights"], runs=lambda scale, protocol: [tiny_run("bound"), tiny_run("flat", 1)]
    )
    tables = [run_experiment(experiment, "tiny", "toy-dna", Workspace(tmp_path))]
    shutil.rmtree(tmp_path / "runs")
    tables.append(run_experiment(experiment, "tiny", "toy-dna", Workspace(tmp_path)))
    assert tables[0] == tables[1]
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_saves_runs_side_by_side(tmp_path):
    command = [sys.executable, "-m", "unmask", "reproduce", "table1", "--scale", "tiny", "--on", "toy-dna"]
    command += ["--jobs", "2", "--out", "out", "training.steps=100000", "training.save_every=100000"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    logs = tmp_path / "out/tiny/runs"
    while sum('"loss"' in log.read_text() for log in logs.glob("*/log.jsonl")) < 2 and process.poll() is None:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    message = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGINT
    assert "The same command continues from there." in message
    assert "Traceback" not in message
    assert len(list(logs.glob("*/latest"))) == 2


def test_cells_average_seeds_and_keep_every_error():
    def bound(nats, exact=False):
        return Bound("b", nats, 100, 100, 100, 0.0 if exact else 2.0, 5.0, 16, exact=exact)

    cell = bound_cell([bound(100.0), bound(120.0)], "bits_per_token")
    assert cell.value == pytest.approx(1.1 / 0.6931471805599453)
    assert cell.errors["seeds"] == pytest.approx(0.2 / 2**0.5 / 0.6931471805599453)
    assert set(cell.errors) == {"mc", "data", "seeds"}
    assert str(Cell(22.5, {"mc": 0.25}, bound=True)) == "≤ 22.50 ± 0.25"
    assert str(Cell(20.12, interval=(18.9, 21.4))) == "20.1 (18.9–21.4)"
    assert set(bound_cell([bound(100.0, exact=True)], "perplexity").errors) == {"data"}


def test_a_table_shows_published_figures_beside_their_column():
    table = Table(
        "T", ["perplexity", "bits"], {"A": {"perplexity": Cell(2.0), "bits": "n/a"}, "B": {}}, {"A": {"bits": 3}}
    )
    assert table.header() == ["", "perplexity", "bits", "published"]
    assert table.lines() == [["A", "2.000", "n/a", "3"], ["B", "-", "-", "-"]]
    assert "| A | 2.000 | n/a | 3 |" in table.markdown()


def test_every_experiment_has_valid_recipes_at_every_scale():
    found = experiments()
    assert {"table1", "table2", "table3", "table8", "weights", "time-conditioning"} <= set(found)
    for experiment in found.values():
        assert "tiny" in experiment.scales
        for scale in experiment.scales.values():
            runs = experiment.runs(scale, get_protocol(scale.protocol))
            assert len({run.folder for run in runs}) == len(runs)


def test_equal_recipes_are_one_run():
    def folders(name):
        experiment, protocol = experiments()[name], get_protocol("stdlib")
        return {run.label: run.folder for run in experiment.runs(experiment.scale("tiny"), protocol) if run.seed == 0}

    table1, table8 = folders("table1"), folders("table8")
    assert table1["MDLM"] == table8["MDLM"]
    assert table1["D3PM"] == table8["& w/o zero-masking"]


def test_hours_grow_with_the_steps():
    slow, fast = tiny_run(training={"steps": 8}), tiny_run()
    assert training_flops(slow.recipe) == pytest.approx(2 * training_flops(fast.recipe))


def test_one_network_has_no_other_seeds(run, refused, tmp_path):
    message = refused("reproduce", "steps", "--scale", "tiny", "--seeds", "3", "--out", tmp_path)
    assert "'steps' trains each network with one seed, got --seeds 3" in message
    seeded = {name for name, one in experiments().items() if one.takes_seeds("tiny")}
    assert {"table1", "table8", "scaling", "translation", "table6"} <= seeded
    assert seeded.isdisjoint({"figure2", "sampling", "steps", "rao-blackwell", "table4"})


def test_a_plan_counts_shared_runs_once_and_takes_the_speed_of_trained_ones(tmp_path):
    run = tiny_run()
    one = replace(experiments()["weights"], runs=lambda scale, protocol: [run, tiny_run(seed=1)])
    both = [one, replace(one, name="other", runs=lambda scale, protocol: [run])]
    workspace = Workspace(tmp_path)
    workspace.train(run)
    found = plan(both, "tiny", None, workspace)
    assert [(row["runs"], row["trained"]) for row in found["experiments"]] == [(2, 1), (1, 1)]
    assert (found["all"]["runs"], found["left"]["runs"], found["timed_runs"]) == (2, 1, 1)
    assert found["left"]["hours"] == pytest.approx(workspace.training_seconds(run) / 3600)


def test_all_goes_on_without_the_experiments_that_lack_data(run, tmp_path, monkeypatch):
    monkeypatch.delenv("UNMASK_DATA", raising=False)
    code, _, err = run("reproduce", "all", "--scale", "small", "--on", "text8-74m", "--out", tmp_path)
    assert code == 2
    for name in ("table1", "data-scarce"):
        assert f"{name} is left out: The train part of 'text8-74m' is not on the Hugging Face hub" in err
    assert "experiments are left out" in err
    assert not (tmp_path / "small/report.html").exists()


def test_data_that_stand_in_or_are_kept_back_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    (tmp_path / "wiki").mkdir()
    for part in ("train", "validation"):
        (tmp_path / f"wiki/wiki-{part}.txt").write_text("An article.\n<|endofdocument|>\nAnother.\n" * 20)
    experiment = replace(
        experiments()["weights"],
        scales={"tiny": Scale("wiki", TINY)},
        runs=lambda scale, protocol: [],
        measure=lambda *_: Table("T", ["x"], {"A": {"x": Cell(1.0)}}),
    )
    table = run_experiment(experiment, "tiny", None, Workspace(tmp_path / "out"))
    assert table.notes == ["The test part of wiki is kept back: figures on it are of its validation part."]
    report = json.loads((tmp_path / "out/weights/table.json").read_text())
    assert (report["protocol"], report["part"]) == ("wiki", "validation")
    table = run_experiment(experiment, "tiny", "chr20", Workspace(tmp_path / "out"))
    assert table.notes == ["chr20 stands in for hg38."]


def test_reproduce_writes_table_figure_and_report(run, refused, tmp_path):
    """The smallest experiment of all, as a user runs it, with settings and seeds."""
    settings = ("model.hidden_size=16", "model.layers=1", "model.heads=1", "training.steps=4")
    arguments = ("reproduce", "weights", *settings, "--seeds", "2", "--scale", "tiny", "--out", tmp_path)
    code, out, err = run(*arguments)
    assert code == 0, err
    assert "flat" in out
    assert "±" in out
    report = json.loads((tmp_path / "tiny/weights/table.json").read_text())
    command = f"unmask reproduce weights --scale tiny --seeds 2 {' '.join(settings)}"
    assert report["command"] == command
    assert set(report["rows"]["flat"]["bits per byte"]["errors"]) == {"mc", "data", "seeds"}
    logs = [(folder / "log.jsonl").read_text() for folder in (tmp_path / "tiny/runs").iterdir()]
    assert len(logs) == 4
    assert all('"step": 4' in log and '"step": 5' not in log for log in logs)
    assert "no key 'training.stepz'" in refused("reproduce", "weights", "training.stepz=4", "--out", tmp_path)
    assert (report["protocol"], report["part"], report["training_seeds"]) == ("stdlib", "test", [0, 1])
    assert set(report["rows"]) == {"bound", "flat"}
    assert (tmp_path / "tiny/weights/figure.png").read_bytes()[:4] == b"\x89PNG"
    page = write_report(tmp_path / "tiny", ["weights"]).read_text()
    assert command in page
    assert "data:image/png;base64," in page
    assert "Training seeds: 0, 1." in page
    assert "Training" not in run(*arguments)[2]
    assert run(*arguments, "--finished")[1] == run(*arguments)[1]
    message = refused("reproduce", "table8", "--scale", "tiny", "--finished", "--out", tmp_path)
    assert "Nothing of 'table8' is finished" in message
    assert "no experiment named 'wieghts'. Did you mean 'weights'?" in refused(
        "reproduce", "wieghts", "--out", tmp_path
    )
    assert "no scale named 'huge'" in refused("reproduce", "weights", "--scale", "huge", "--out", tmp_path)
