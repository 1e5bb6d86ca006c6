"""The frontier: figures of rows as counted by hand, the form of held-out texts, the plan and the picture."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from tests.conftest import make_checkpoint
from tests.judges import save_judge
from unmask.data.sources import Document
from unmask.errors import UnmaskError
from unmask.evaluation import generation as room
from unmask.evaluation.generation import (
    Draw,
    Frontier,
    Texts,
    Way,
    curves,
    draw,
    held_out_texts,
    make_plan,
    measure,
    parse_steps,
    read_texts,
    write,
)
from unmask.evaluation.judge import open_judge
from unmask.generation_config import token_rule
from unmask.pipeline import load
from unmask.plots import frontier as picture


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    return open_judge(str(save_judge(tmp_path_factory.mktemp("judges") / "llama")), "cpu")


def test_perplexity_is_per_token_of_all_texts_together():
    texts = Texts(["ab", "", "abcdef"])
    figures = measure(texts, [[1, 2], [], [1, 2, 3, 4, 5, 6]], np.array([4.0, 0.0, 12.0]))
    assert figures["perplexity"].value == pytest.approx(math.exp(16 / 8))
    assert figures["entropy"].value == pytest.approx((math.log(2) + 0 + math.log(6)) / 3)
    assert figures["repetition"].value == 0
    assert figures["distinct_1"].value == pytest.approx(6 / 8)
    assert figures["distinct_2"].value == pytest.approx(5 / 6)
    assert figures["distinct_3"].value == pytest.approx(4 / 4)
    assert (figures["tokens"].value, figures["characters"].value) == pytest.approx((8 / 3, 8 / 3))
    assert figures["calls"] is None
    assert figures["seconds"] is None


def test_texts_without_a_token_have_no_perplexity_and_no_nan(judge):
    frontier = Frontier(judge, Draw(2))
    frontier.add_texts("nothing", "texts", Texts(["", ""]))
    (row,) = frontier.rows
    assert (row.texts, row.empty) == (2, 2)
    assert row.figures["perplexity"] is None
    assert row.figures["entropy"].value == 0
    json.dumps(frontier.as_dict(), allow_nan=False)
    assert curves(frontier.rows) == []


def test_a_row_holds_what_the_model_writes(judge, mdlm_folder, mdlm):
    frontier = Frontier(judge, Draw(5, seed=3, rule=token_rule(0.7), length=20, batch_size=2))
    (part,) = make_plan([str(mdlm_folder)], [4, None], 20)
    done = []
    frontier.add_model(part, mdlm, done.append)
    assert sum(done) == 5 * part.work == 5 * (4 + 20 + 2)
    for row, steps in zip(frontier.rows, (4, None), strict=True):
        written = mdlm.sample(5, length=20, steps=steps, seed=3, rule=token_rule(0.7))
        ids = judge.encode([one.text for one in written])
        expected = math.exp(judge.nats(ids).sum() / sum(map(len, ids)))
        assert row.figures["perplexity"].value == pytest.approx(expected, rel=1e-4)
        assert row.figures["calls"].value == np.mean([one.calls for one in written])
        assert (row.name, row.steps, row.sampler["steps"]) == ("mdlm", steps, steps)
        assert row.figures["seconds"].low is not None


def test_seconds_are_shared_out_and_one_batch_has_no_interval(judge, mdlm, monkeypatch):
    alone = write(mdlm, mdlm.sampler(2), Draw(3, length=8))
    monkeypatch.setattr(room, "time", SimpleNamespace(perf_counter=iter([10.0, 12.0, 15.0]).__next__))
    several = write(mdlm, mdlm.sampler(2), Draw(3, length=8, batch_size=2))
    assert (alone.batches, several.batches) == (1, 2)
    assert several.seconds.tolist() == [1, 1, 3]
    ids = judge.encode(alone.texts)
    assert measure(alone, ids, np.zeros(3))["seconds"].low is None
    assert measure(several, ids, np.zeros(3))["seconds"].low is not None


def test_held_out_texts_have_the_form_of_samples(tmp_path, mdlm):
    book = tmp_path / "book.txt"
    book.write_text("".join(chr(97 + i % 26) for i in range(480)))
    texts = held_out_texts(mdlm, 5, [str(book)]).texts
    assert texts == [book.read_text()[i * 11 // 5 * 48 :][:48] for i in range(5)]
    assert held_out_texts(mdlm, 2, [str(book)], length=7).texts[0] == "abcdefg"


def test_held_out_texts_end_where_their_documents_end(tmp_path):
    lm = load(make_checkpoint(tmp_path / "stories", policy="supervised_eos"), device="cpu")
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo two\nthree\nfour\n")
    assert held_out_texts(lm, 9, [str(lines)], "line").texts == ["one", "two two", "three", "four"]
    assert held_out_texts(None, 2, [str(lines)], "line").texts == ["one", "three"]
    with pytest.raises(UnmaskError, match="--data"):
        held_out_texts(lm, 2)


def test_the_pieces_of_a_long_document_are_one_text(monkeypatch):
    pieces = [Document("a", "one ", more=True), Document("a", "text"), Document("b", "another")]
    monkeypatch.setattr(room, "documents_in", lambda data, **options: lambda: iter(pieces))
    assert held_out_texts(None, 9, ["some.txt"]).texts == ["one text", "another"]


def test_texts_are_read_from_lists_lines_and_our_own_output(tmp_path):
    contents = {
        "list.json": '["a b", "c\\nd"]',
        "ours.json": '{"texts": [{"text": "a b", "seed": 0}, {"text": "c\\nd"}]}',
        "lines.txt": "a b\n\nc",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    assert read_texts(tmp_path / "list.json").texts == read_texts(tmp_path / "ours.json").texts == ["a b", "c\nd"]
    assert read_texts(tmp_path / "lines.txt").texts == ["a b", "", "c"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("bad.json", "[1, 2]", "no list of strings"), ("bad.json", "[", "no JSON"), ("none.txt", "", "no texts")],
)
def test_files_without_texts_are_refused(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(UnmaskError, match=words):
        read_texts(tmp_path / name)
    with pytest.raises(UnmaskError, match="cannot be read"):
        read_texts(tmp_path / "nowhere.txt")


def test_the_plan_knows_calls_and_names(mdlm_folder, ar_folder, tmp_path):
    other = make_checkpoint(tmp_path / "mdlm")
    plan = make_plan([str(mdlm_folder), str(ar_folder), str(other)], [16, 100, None])
    assert [part.name for part in plan] == [str(mdlm_folder), "ar", str(other)]
    assert [[course.steps for course in part.courses] for part in plan] == [[16, 100, None], [None], [16, 100, None]]
    assert [[course.calls for course in part.courses] for part in plan] == [[16, 48, 48], [48], [16, 48, 48]]
    assert plan[1].work == 49


def test_every_way_is_a_curve_of_its_own_and_some_know_their_calls_themselves(judge, mdlm_folder, mdlm, ar_folder):
    ways = [
        Way("margin", name="margin"),
        Way("threshold", name="threshold"),
        Way(sampler={"name": "remdm", "steps": 60}, name="sixty"),
    ]
    part, causal = make_plan([str(mdlm_folder), str(ar_folder)], [2, 5], 12, ways)
    assert [(course.name, course.steps, course.calls) for course in part.courses] == [
        ("mdlm, margin", 2, 2),
        ("mdlm, margin", 5, 5),
        ("mdlm, threshold", None, 12),
        ("mdlm, sixty", None, 60),
    ]
    assert len(causal.courses) == 1
    frontier = Frontier(judge, Draw(2, length=12))
    frontier.add_model(part, mdlm)
    assert [len(curve.points) for curve in curves(frontier.rows)] == [2, 1, 1]
    assert [row.sampler["name"] for row in frontier.rows] == ["ordered", "ordered", "threshold", "remdm"]
    assert [row.figures["calls"].value for row in frontier.rows if row.name != "mdlm, threshold"] == [2, 5, 60]


def test_steps_are_numbers_or_none():
    assert parse_steps(["16", "none", "64", "16"]) == [16, None, 64]
    for word in ("0", "-3", "1.5", "many", ""):
        with pytest.raises(UnmaskError, match="'none' for one token a call"):
            parse_steps([word])


def test_a_line_of_many_points_is_named_at_its_ends(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(picture, "write_figure", lambda figure, path: drawn.append(figure))
    points = [picture.Point((9.0 - n, None, None), (4.0, None, None), (n, None, None), f"T={n}") for n in (2, 4, 8)]
    picture.draw_frontier([picture.Curve("model", points)], tmp_path / "a.png")
    (figure,) = drawn
    assert [text.get_text() for text in figure.axes[1].texts] == ["T=2", "T=8"]


def test_a_label_stands_on_no_line_and_no_bar(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(picture, "write_figure", lambda figure, path: drawn.append(figure))
    eight = picture.Point((87.8, 53.9, 123), (3.46, 3.38, 3.52), (8, None, None), "T=8")
    sixteen = picture.Point((40.8, 9.52, 207), (3.468, 3.40, 3.54), (16, None, None), "T=16")
    picture.draw_frontier([picture.Curve("model", [eight, sixteen])], tmp_path / "a.png")
    panel = drawn[0].axes[1]
    drawn[0].draw_without_rendering()
    labels = panel.texts
    assert [label.get_text() for label in labels] == ["T=8", "T=16"]
    bars = [path for some in panel.collections for path in some.get_paths()]
    for path in (panel.lines[0].get_path(), *bars):
        stroke = panel.transData.transform_path(path)
        assert not any(stroke.intersects_bbox(label.get_window_extent(), filled=False) for label in labels)


def test_texts_that_took_no_calls_have_no_numbers_of_calls(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(picture, "write_figure", lambda figure, path: drawn.append(figure))
    picture.draw_frontier(
        [picture.Curve("texts", [picture.Point((9.0, 8.0, 10.0), (4.0, 3.9, 4.1))])], tmp_path / "a.png"
    )
    assert list(drawn[0].axes[0].get_xticks()) == []


def test_curves_of_one_colour_are_told_apart(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(picture, "write_figure", lambda figure, path: drawn.append(figure))
    point = picture.Point((9.0, None, None), (4.0, None, None), (2.0, None, None))
    picture.draw_frontier([picture.Curve(f"model {n}", [point]) for n in range(14)], tmp_path / "a.png")
    dots = [bars[0] for bars in drawn[0].axes[1].containers]
    assert len({(dot.get_color(), dot.get_markerfacecolor(), dot.get_linestyle()) for dot in dots}) == 14
    assert len({(dot.get_color(), dot.get_markerfacecolor()) for dot in dots}) == 14


def test_the_picture_shows_the_figures(judge, mdlm_folder, mdlm, ar_folder, ar, tmp_path, monkeypatch):
    frontier = Frontier(judge, Draw(4, length=12))
    frontier.add_texts("held-out data", "data", Texts(["some words", "and others", "more"]))
    for folder, lm in ((mdlm_folder, mdlm), (ar_folder, ar)):
        frontier.add_model(make_plan([str(folder)], [2, 8], 12)[0], lm)
    drawn = []
    monkeypatch.setattr(picture, "write_figure", lambda figure, path: drawn.append(figure))
    draw(frontier.rows, tmp_path / "frontier.png")
    by_calls, by_entropy = drawn[0].axes
    data, two, eight, left = frontier.rows
    line = by_calls.containers[0].lines[0]
    assert line.get_xdata() == pytest.approx([row.figures["calls"].value for row in (two, eight)])
    assert line.get_ydata() == pytest.approx([row.figures["perplexity"].value for row in (two, eight)])
    assert by_calls.containers[1].lines[0].get_xdata() == pytest.approx([left.figures["calls"].value])
    level = [one for one in by_calls.lines if one.get_linestyle() == "--"]
    assert [one.get_ydata()[0] for one in level] == [data.figures["perplexity"].value]
    bars = by_entropy.containers[1].lines[2]
    ends = [segment[:, axis] for bar, axis in zip(bars, (0, 1), strict=True) for segment in bar.get_segments()[:1]]
    for found, name in zip(ends, ("entropy", "perplexity"), strict=True):
        assert found == pytest.approx([two.figures[name].low, two.figures[name].high])
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["held-out data", "mdlm", "ar"]
    assert [text.get_text() for text in by_entropy.texts] == ["", "T=2", "T=8", ""]
