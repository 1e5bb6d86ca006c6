"""GLUE files: columns, quoting, classes, compressed and malformed files, and tasks that are not there."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import pytest

from unmask.data.glue import TASKS, Examples, find_tasks, glue_folder, parse_tasks, read_examples, read_task
from unmask.errors import UnmaskError


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize(
    ("task", "text", "texts", "labels"),
    [
        ("CoLA", 'gj04\t1\t\tShe said "no.\ngj04\t0\t*\tHim left.\r\n', [('She said "no.',), ("Him left.",)], [1, 0]),
        ("SST-2", "sentence\tlabel\nfine \t1\n\n", [("fine",)], [1]),
        ("MRPC", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\ta \u2028 b\t\" c\n",
         [("a \u2028 b", '" c')], [1]),
        ("RTE", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tnot_entailment\n1\tc\td\tentailment\n",
         [("a", "b"), ("c", "d")], [0, 1]),
        ("STS-B", "sentence1\tsentence2\tother\tscore\na\tb\t1\t3.800\n", [("a", "b")], [3.8]),
        ("MNLI", "sentence1\tsentence2\tlabel1\tgold_label\na\tb\tneutral\tcontradiction\n", [("a", "b")], [0]),
    ],
)  # fmt: skip
def test_files_are_read_as_distributed(tmp_path, task, text, texts, labels):
    found = read_examples(TASKS[task], write(tmp_path, "train.tsv", text))
    assert (found.texts, found.labels, found.malformed) == (texts, labels, 0)


def test_lines_with_another_number_of_fields_are_left_out_and_counted(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    path = write(tmp_path, "train.tsv", f"{header}0\t1\t2\ta\tb\t1\n3\t4\t5\thalf a line\n\tof\t1\n6\t7\t8\tc\td\t0\n")
    found = read_examples(TASKS["QQP"], path)
    assert (found.texts, found.labels, found.malformed) == ([("a", "b"), ("c", "d")], [1, 0], 2)


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("SST-2", "sentence\tlabel\ngood\t2\n", "line 2: label must be one of 0, 1, got '2'"),
        ("STS-B", "sentence1\tsentence2\tscore\na\tb\thigh\n", "line 2: score must be a number, got 'high'"),
        ("STS-B", "sentence1\tsentence2\tscore\na\tb\tnan\n", "score must be a number, got 'nan'"),
        ("RTE", "sentence1\tlabel\na\tentailment\n", "no column 'sentence2'"),
        ("SST-2", "", "no column 'sentence'"),
        ("SST-2", "sentence\tlabel\n", "has no examples"),
    ],
)
def test_bad_files_are_reported(tmp_path, task, text, message):
    with pytest.raises(UnmaskError, match=message):
        read_examples(TASKS[task], write(tmp_path, "train.tsv", text))


def test_bytes_that_are_not_utf8_are_reported(tmp_path):
    path = write(tmp_path, "train.tsv", "")
    path.write_bytes(b"sentence\tlabel\n\xff\t1\n")
    with pytest.raises(UnmaskError, match=r"not valid UTF-8 at byte 15 \(.*\); convert it to UTF-8\.$"):
        read_examples(TASKS["SST-2"], path)


def test_missing_files_leave_a_task_out(tmp_path):
    write(tmp_path, "SST-2/dev.tsv", "sentence\tlabel\ngood\t1\n")
    (tmp_path / "SST-2/train.tsv.xz").write_bytes(lzma.compress(b"sentence\tlabel\nbad\t0\n"))
    write(tmp_path, "QNLI/dev.tsv", "question\tsentence\tlabel\n")
    complete, missing = find_tasks(parse_tasks("QNLI,sst2"), tmp_path)
    assert [task.name for task in complete] == ["SST-2"]
    assert missing == [f"QNLI is left out: '{tmp_path}' has no QNLI/train.tsv."]
    data = read_task(complete[0], tmp_path)
    assert (data.train.texts, data.dev[0].texts) == ([("bad",)], [("good",)])
    with pytest.raises(UnmaskError, match=r"QNLI/train\.tsv; add the files"):
        find_tasks(parse_tasks("QNLI"), tmp_path)


def test_tasks_are_named_and_ordered_as_in_table_4():
    assert [task.name for task in parse_tasks("rte, cola,MNLI,rte")] == ["MNLI", "CoLA", "RTE"]
    assert len(parse_tasks(None)) == 8
    assert TASKS["MNLI"].scores == ("accuracy, matched", "accuracy, mismatched")
    assert (TASKS["MRPC"].scores, TASKS["MRPC"].all_scores) == (("F1",), ("F1", "accuracy"))
    with pytest.raises(UnmaskError, match=r"no task 'CoLLA' in GLUE. Did you mean 'CoLA'"):
        parse_tasks("CoLLA")


def test_the_folder_is_named_or_below_unmask_data(tmp_path, monkeypatch):
    monkeypatch.delenv("UNMASK_DATA", raising=False)
    with pytest.raises(UnmaskError, match="set UNMASK_DATA"):
        glue_folder(None)
    with pytest.raises(UnmaskError, match="no folder"):
        glue_folder(tmp_path / "glue")
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    (tmp_path / "glue").mkdir()
    assert glue_folder(None) == tmp_path / "glue"


def test_a_limit_spreads_over_all_examples():
    ten = Examples([(str(i),) for i in range(10)], [float(i) for i in range(10)])
    assert ten.spread(4).labels == [0, 2, 5, 7]
    assert ten.spread(20) == ten


@pytest.mark.skipif(
    not Path(os.environ.get("UNMASK_DATA", ""), "glue/SST-2").is_dir(), reason="needs GLUE in UNMASK_DATA"
)
def test_the_distributed_files_are_read_completely():
    folder = glue_folder(None)
    complete, _ = find_tasks(parse_tasks("SST-2,CoLA,STS-B,MRPC,RTE"), folder)
    sizes = {task.name: (len(data.train), len(data.dev[0])) for task in complete for data in [read_task(task, folder)]}
    expected = {"SST-2": (67349, 872), "CoLA": (8551, 1043), "STS-B": (5749, 1500), "RTE": (2490, 277)}
    assert {name: size for name, size in sizes.items() if name != "MRPC"} == expected
