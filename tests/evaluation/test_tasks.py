"""What contests share: how many items are done at a time, who becomes one line, and where the line is drawn."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from unmask.evaluation.statistics import Estimate
from unmask.evaluation.tasks import AT_ONCE, AT_ONCE_ELSEWHERE, Row, Rule, at_once, contenders
from unmask.plots import tasks as code
from unmask.plots.style import drawing
from unmask.plots.tasks import MARKS, Contender, Trial, draw_line


def row(rule: Rule, calls: float, share: float, causal: bool = False) -> Row:
    figures = {"calls": Estimate(calls), "exact": Estimate(share, share - 0.1, share + 0.05), "other": Estimate(0.0)}
    return Row("run", "ar" if causal else "margin", rule, None, 10, {}, figures, causal)


def test_as_many_at_once_as_told_or_as_the_device_likes():
    cpu, gpu = (SimpleNamespace(device=torch.device(name)) for name in ("cpu", "cuda"))
    assert at_once(cpu, 3) == at_once(gpu, 3) == 3
    assert (at_once(cpu, None), at_once(gpu, None)) == (AT_ONCE_ELSEWHERE, AT_ONCE["cuda"])


def test_a_line_is_one_model_way_and_rule():
    rows = [row("greedy", 1, 0.2), row("stochastic", 1, 0.3), row("greedy", 4, 0.6), row("greedy", 9, 0.5, causal=True)]
    found = contenders(rows, "exact")
    assert [(one.name, one.rule, one.is_twin) for one in found] == [
        ("margin", "greedy", False), ("margin", "stochastic", False), ("AR twin", "greedy", True),
    ]  # fmt: skip
    assert [(trial.calls, trial.share[0]) for trial in found[0].trials] == [(1, 0.2), (4, 0.6)]
    assert found[0].trials[0].share == pytest.approx((0.2, 0.1, 0.25))


@pytest.mark.parametrize(
    ("wrong", "heights", "first_bar"), [(False, [0.2, 0.6], (0.1, 0.25)), (True, [0.8, 0.4], (0.75, 0.9))]
)
def test_a_line_goes_through_shares_or_what_they_leave(wrong, heights, first_bar):
    one = Contender("margin", "greedy", [Trial(4, (0.6, 0.5, 0.65)), Trial(1, (0.2, 0.1, 0.25))])
    with drawing() as plt:
        axis = plt.figure().subplots()
        draw_line(axis, one, "black", "margin", wrong=wrong)
        (line, _, (bars,)), *_ = axis.containers
        assert line.get_xdata().tolist() == [1, 4]
        assert line.get_ydata().tolist() == pytest.approx(heights)
        assert [end[1] for end in bars.get_segments()[0]] == pytest.approx(first_bar)
        assert len(axis.lines) == 1
        plt.close("all")


def test_the_twin_is_a_level_too():
    with drawing() as plt:
        axis = plt.figure().subplots()
        twin = Contender("AR twin", "greedy", [Trial(9, (0.7, 0.6, 0.8))], is_twin=True)
        draw_line(axis, twin, "black", "", wrong=True)
        level, _ = axis.lines
        assert list(level.get_ydata()) == pytest.approx([0.3, 0.3])
        plt.close("all")


def test_names_of_contenders_are_all_inside_a_narrow_picture(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(code, "write_figure", lambda figure, path: drawn.append(figure))
    names = ("uniform", "left_to_right", "confidence", "AR twin")
    everyone = [Contender(name, rule, [Trial(1, (0.5, 0.2, 0.8))]) for name in names for rule in MARKS]
    code.draw_code([[code.Panel("line", "functions that parse", everyone)]], tmp_path / "a.png")
    (figure,) = drawn
    figure.draw_without_rendering()
    place = figure.legends[0].get_window_extent()
    assert 0 <= place.x0 < place.x1 <= figure.bbox.width
