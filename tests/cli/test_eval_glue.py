"""`unmask eval glue`: the report of several checkpoints, its files, and bad input."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("scipy")


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    rows = "".join(f"{'ab'[n % 2] * (n % 5 + 1)} {n}\t{n % 2}\n" for n in range(24))
    pairs = "".join(f"{n}\tthe {n}\tthat {n % 3}\t{n % 6}.5\n" for n in range(24))
    for task, text in (("SST-2", f"sentence\tlabel\n{rows}"), ("STS-B", f"n\tsentence1\tsentence2\tscore\n{pairs}")):
        (tmp_path / "glue" / task).mkdir(parents=True)
        for name in ("train", "dev"):
            (tmp_path / "glue" / task / f"{name}.tsv").write_text(text)
    return tmp_path


QUICK = ("--epochs", 1, "--learning-rates", "1e-3,1e-4", "--seeds", 2)


def test_report_compares_checkpoints_and_is_resumed(data, mdlm_folder, ar_folder, run, printed, tmp_path):
    command = ("eval", "glue", mdlm_folder, ar_folder, *QUICK, "--limit", 10)
    code, out, err = run(*command, "--json")
    assert code == 0, err
    assert "QNLI is left out" in err
    report = json.loads(out)
    assert json.loads((tmp_path / "glue/table.json").read_text()) == report
    assert report["columns"] == ["mdlm", "ar"]
    assert list(report["rows"]) == ["SST-2, accuracy", "STS-B, Spearman", "STS-B, Pearson", "average"]
    assert all(set(row) == {"mdlm", "ar"} for row in report["rows"].values())
    assert all(cell["errors"]["seeds"] >= 0 for row in report["rows"].values() for cell in row.values())
    assert len(report["results"]) == 2 * 2 * 2 * 2
    assert {one["examples"] for one in report["results"]} == {10}
    assert report["command"].endswith("--tasks SST-2,STS-B --learning-rates 0.0001,0.001 --seeds 2 --epochs 1 "
                                      "--batch-size 16 --limit 10")  # fmt: skip
    assert report["versions"]["torch"]
    assert len(report["left_out"]) == 6
    kept = sorted((tmp_path / "glue/measurements").iterdir())
    times = [path.stat().st_mtime_ns for path in kept]
    out = printed(*command)
    assert [path.stat().st_mtime_ns for path in kept] == times
    assert "STS-B, Spearman" in out
    assert "Of the learning rates 0.0001, 0.001 the one with the highest mean score on the same set" in out
    markdown = (tmp_path / "glue/table.md").read_text()
    assert "| SST-2, accuracy |" in markdown
    assert "unmask eval glue" in markdown
    assert (tmp_path / "glue/figure.png").stat().st_size > 1000


def test_lines_that_are_left_out_are_told(data, mdlm_folder, run):
    file = data / "glue" / "SST-2" / "dev.tsv"
    file.write_text(file.read_text() + "a line of one field\n")
    (data / "glue").rename(data / "elsewhere")
    code, out, err = run("eval", "glue", mdlm_folder, *QUICK, "--tasks", "SST-2", "--data", "elsewhere", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["malformed"] == {"SST-2": 1}
    assert report["notes"][-1] == "Lines with too few or too many fields that are left out: 1 of SST-2."
    assert report["command"].endswith(" --data elsewhere")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tasks", "SST-3"), "no task 'SST-3' in GLUE. Did you mean 'SST-2'?"),
        (("--tasks", "QNLI"), "QNLI/train.tsv"),
        (("--learning-rates", "1e-4,fast"), "--learning-rates must be positive numbers such as 2e-5,5e-5, got 'fast'."),
        (("--learning-rates", "0"), "got '0'"),
        (("--learning-rates", "inf"), "got 'inf'"),
        (("--seeds", "0"), "--seeds"),
        (("--epochs", "0"), "--epochs"),
        (("--limit", "1"), "--limit"),
        (("--data", "nowhere"), "no folder 'nowhere'"),
        (("--out", "a-file"), "--out must be a folder, got the file 'a-file'"),
        (("nothing-here",), "no checkpoint at 'nothing-here'"),
    ],
)
def test_bad_input_is_one_sentence(data, mdlm_folder, run, tmp_path, options, message):
    (tmp_path / "a-file").write_text("")
    code, _, err = run("eval", "glue", mdlm_folder, *options)
    assert code == 2
    assert message in err.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-file", "glue"]
    assert not (tmp_path / "glue/measurements").exists()
