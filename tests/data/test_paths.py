"""Paths through stars: what an item says is a star, its answer the only way, and the sides have no answer in common."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import yaml

from unmask import registry
from unmask.data.puzzles import PathsSource
from unmask.errors import UnmaskError

SOURCE = PathsSource(degree=4, arm=4, names=20, count=50, validation=20, seed=2)


def items(held_out: bool, number: int = 200) -> list[str]:
    return list(islice(SOURCE.items(held_out), number))


def test_an_item_is_a_star_and_the_way_to_the_end_of_an_arm():
    for item in items(False):
        question, way = item.split("=")
        listed, ends = question.split("/")
        edges = [tuple(edge) for edge in listed.split(",")]
        out, into = Counter(a for a, _ in edges), Counter(b for _, b in edges)
        assert len(edges) == 12
        assert out[ends[0]] == 4
        assert ends[0] not in into
        assert set(into.values()) == {1}
        assert sorted(n for node, n in out.items() if node != ends[0]) == [1] * 8
        assert ends[1] not in out
        parent = {b: a for a, b in edges}
        back = [ends[1]]
        while back[-1] in parent:
            back.append(parent[back[-1]])
        assert "".join(reversed(back)) == way
        assert len(way) == 4
        assert SOURCE.is_correct(item)


def test_nothing_in_a_question_but_its_edges_tells_the_way():
    """The first edge listed, and names, are no better than chance: one arm of four, one name of twenty."""
    several = items(False, 4000)
    first = sum(item[:2] in item.split("=")[1] for item in several) / 4000
    assert abs(first - 1 / 4) < 4 * (0.1875 / 4000) ** 0.5
    starts = Counter(item.split("=")[1][0] for item in several)
    assert len(starts) == 20
    assert max(starts.values()) < 4000 / 20 * 1.6


def test_what_leads_elsewhere_is_not_right():
    item = items(True)[0]
    question, way = item.split("=")
    listed, _ = question.split("/")
    elsewhere = next(edge for edge in listed.split(",") if edge[0] == way[0] and edge[1] != way[1])
    assert not SOURCE.is_correct(f"{question}={way[0]}{elsewhere[1]}{way[2:]}")
    assert not SOURCE.is_correct(f"{question}={way[:-1]}{way[0]}")
    assert not SOURCE.is_correct(f"{question}={way[1]}{way[1:]}")
    assert not SOURCE.is_correct(f"{question}====")
    follower = dict(listed.split(","))
    along = way[0] + elsewhere[1]
    while along[-1] in follower:
        along += follower[along[-1]]
    assert len(along) == len(way)
    assert not SOURCE.is_correct(f"{question}={along}")


def test_an_item_depends_on_the_seed_and_its_number_alone():
    texts = [document.text for document in SOURCE.documents()]
    assert texts == [*items(False, 50), *items(True, 20)]
    fewer = SOURCE.model_copy(update={"count": 5, "validation": 2})
    assert [document.text for document in fewer.documents()] == [*texts[:5], *texts[50:52]]
    assert next(SOURCE.model_copy(update={"seed": 3}).items(held_out=False)) != texts[0]
    assert len(set(texts)) == len(texts)


def test_no_way_is_on_both_sides():
    small = PathsSource(degree=2, arm=2, names=6)
    train, held_out = ({item.split("=")[1] for item in islice(small.items(side), 4000)} for side in (False, True))
    assert not train & held_out
    assert len(train | held_out) == 30


def test_a_star_needs_names_enough():
    with pytest.raises(UnmaskError, match="5 arms of 5 nodes need 21 names"):
        registry.build("source", {"name": "paths", "names": 20})


def test_the_length_in_the_guide_is_that_of_its_rows() -> None:
    guide = Path(__file__).parents[2] / "docs" / "guide.md"
    command = r"unmask train paths data.source='(\{name: paths, .*\})' data.length=(\d+)"
    options, length = re.findall(command, guide.read_text(encoding="utf-8"))[0]
    source = registry.build("source", {**yaml.safe_load(options), "count": 4, "validation": 2})
    assert {len(document.text) for document in source.documents()} == {int(length)}
