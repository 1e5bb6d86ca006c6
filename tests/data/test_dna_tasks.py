"""Classification of DNA: the layouts of GUE and of the Genomic Benchmarks."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import pytest

from unmask.data.dna_tasks import MOTIF, motif_task, read_genomic_benchmarks, read_gue
from unmask.errors import UnmaskError

DATA = os.environ.get("UNMASK_DATA")


def test_gue_sets_have_a_part_that_chooses_and_one_that_is_reported(tmp_path):
    for name, labels in (("binary", 2), ("splice", 3)):
        (tmp_path / name).mkdir()
        for part, count in (("train", 9), ("dev", 3), ("test", 6)):
            lines = ["sequence,label", *(f"acgr{'ACGT'[i % 4]},{i % labels}" for i in range(count))]
            with lzma.open(tmp_path / name / f"{part}.csv.xz", "wt") as file:
                file.write("\r\n".join(lines) + "\r\n")
    (tmp_path / "incomplete").mkdir()
    binary, splice = read_gue(tmp_path)
    assert (binary.task.name, binary.task.classes, splice.task.classes) == ("binary", ("0", "1"), ("0", "1", "2"))
    assert [len(part) for part in (binary.train, *binary.dev)] == [9, 3, 6]
    assert binary.train.texts[1] == ("ACGNC",)
    assert binary.train.labels[:3] == [0.0, 1.0, 0.0]
    assert binary.task.selection_scores == ("Matthews, dev",)
    assert binary.task.reported_scores == ("Matthews", "accuracy")
    assert binary.task.all_scores == ("Matthews, dev", "Matthews", "accuracy, dev", "accuracy")
    few = read_gue(tmp_path, limit=2)[1]
    assert (len(few.train), few.task.classes) == (2, ("0", "1", "2")), "classes that the first examples lack, too"


def test_genomic_benchmarks_hold_out_a_tenth_of_the_training_part(tmp_path):
    for part, count in (("train", 20), ("test", 5)):
        for name in ("positive", "negative"):
            folder = tmp_path / "demo" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                (folder / f"{i}.txt").write_text("ACGT" + ("T" if name == "positive" else "G") * i + "\n")
    (demo,) = read_genomic_benchmarks(tmp_path)
    assert demo.task.classes == ("negative", "positive")
    assert [len(part) for part in (demo.train, *demo.dev)] == [36, 4, 10]
    for part in (demo.train, *demo.dev):
        for (text,), label in zip(part.texts, part.labels, strict=True):
            assert text.endswith("GT"[int(label)]) or text == "ACGT"
    assert not set(zip(demo.train.texts, demo.train.labels, strict=True)) & set(
        zip(demo.dev[0].texts, demo.dev[0].labels, strict=True)
    )
    (tmp_path / "demo/test/negative/0.txt").write_text("AC!T")
    with pytest.raises(UnmaskError, match="'!' in a sequence"):
        read_genomic_benchmarks(tmp_path)


def test_the_made_up_task_is_a_motif():
    task = motif_task()
    shares = [
        sum(MOTIF in text for (text,), label in zip(part.texts, part.labels, strict=True) if label) / sum(part.labels)
        for part in (task.train, *task.dev)
    ]
    assert shares == [1.0, 1.0, 1.0]


@pytest.mark.skipif(not (DATA and Path(DATA, "dna/gue").is_dir()), reason="UNMASK_DATA has no dna/gue")
def test_the_offline_sets_are_complete():
    sizes = {one.task.name: (len(one.train), len(one.dev[1])) for one in read_gue(Path(str(DATA), "dna/gue"))}
    assert sizes["tf_0"] == (32_378, 1000)
    assert sizes["prom_prom_core_all"] == (47_356, 5920)
