"""Advice from logs: sick runs are told what to do, once; healthy ones are left in peace."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.data.length_policies import Packed, Padded, SupervisedEOS, rows_of_texts
from unmask.training.advice import CALM, Advisor, Baseline, advice_on_data, entropy_bits, noise

LOGS = Path(__file__).parents[1] / "logs"
BYTES = Baseline(uniform_bits=8.006, unigram_bits=4.734, warmup=100, clip=1.0)
"""Of the runs in tests/logs: the recipe default on the standard library's documentation, other rates and objectives."""
MADE_UP = Baseline(uniform_bits=8.0, unigram_bits=4.5, warmup=20, clip=1.0)


def trained(step: int, level: float, excess: float = 0.0, grad_norm: float = 0.5, blind: float | None = None) -> Any:
    """A training line whose cross-entropies are all `level` bits, the last bucket `blind`, and its loss off by some."""
    buckets = [level * math.log(2.0)] * 9 + [(level if blind is None else blind) * math.log(2.0)]
    bits = level + excess
    return {
        "step": step, "loss": bits * math.log(2.0), "bits_per_token": bits, "grad_norm": grad_norm,
        "cross_entropy": buckets,
    }  # fmt: skip


def validated(step: int, bits: float, error: float = 0.01) -> Any:
    return {"step": step, "validation": {"bits_per_token": bits, "bits_per_token_mc_stderr": error}}


def said(records: Iterable[Any], yardstick: Baseline = MADE_UP) -> list[tuple[int, str]]:
    """Everything an advisor says while it looks through a log, with the step."""
    advisor = Advisor(yardstick)
    return [(record["step"], sentence) for record in records for sentence in advisor.look(record)]


def course(levels: Iterable[float], sigma: float = 0.03, every: int = 10) -> list[Any]:
    """Training lines around a course, with noise."""
    draw = np.random.default_rng(0)
    return [trained(every * (i + 1), level + sigma * draw.normal()) for i, level in enumerate(levels)]


def read(name: str) -> list[Any]:
    return [json.loads(line) for line in (LOGS / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["healthy", "healthy-flat", "healthy-ar"])
def test_real_healthy_runs_are_left_in_peace(name: str) -> None:
    assert said(read(name), BYTES) == []


@pytest.mark.parametrize(
    ("name", "warmup", "step", "seen"),
    [
        ("rate-0.3", 100, 120, "has risen from 4.84 to 6.63"),
        ("rate-0.3-no-warmup", 0, 50, "is at 13.49 bits per token, and equal chances for all tokens give 8.01"),
    ],
)
def test_real_runs_with_a_rate_too_high_hear_of_it_once(name: str, warmup: int, step: int, seen: str) -> None:
    ((at, sentence),) = said(read(name), Baseline(8.006, 4.734, warmup, 1.0))
    assert at == step
    assert seen in sentence
    assert "lower optimizer.learning_rate" in sentence


def healthy(seed: int, lines: int = 150) -> Iterable[Any]:
    """A power law down from the uniform level, with a batch's noise and the heavy tails of 1/t weights."""
    draw = np.random.default_rng(seed)
    for i in range(1, lines + 1):
        rates = draw.random(320)
        counts = draw.binomial(64, rates)
        excess = np.mean(counts / 64 / rates) - 1.0
        level = 2.0 + 6.0 * (1 + i / 3) ** -0.5 + 0.03 * draw.standard_t(3)
        yield trained(10 * i, level, excess * level, 0.5 * draw.lognormal(0, 0.4) * (1 + 3 * max(0.0, excess)))
        if i % 10 == 0:
            yield validated(10 * i, 2.1 + 6.0 * (1 + i / 3) ** -0.5 + 0.005 * draw.normal())


def test_alarms_are_not_false() -> None:
    assert [said(healthy(seed)) for seed in range(15)] == [[]] * 15


def test_a_loss_above_token_frequencies_is_too_high_a_rate() -> None:
    levels = [8.0, 7.0, 6.0, 5.5, *[5.0] * 30]
    ((step, sentence),) = said(course(levels))
    assert step == 230
    assert "stays at 5." in sentence
    assert "token frequencies alone give 4.50" in sentence
    assert said(course([8.0, 7.0, 6.0, 5.5, *[4.55] * 30])) == []
    assert said(course(np.linspace(8.0, 4.8, 60), sigma=0.01)) == []


def test_gradients_far_above_the_clip_are_mentioned() -> None:
    lines = [trained(10 * i, 5.0 if i < 12 else 9.0, grad_norm=20.0 + i) for i in range(1, 20)]
    ((_, sentence),) = said(lines)
    assert "times optimizer.clip" in sentence


def test_a_rate_too_low_is_told_from_one_too_high() -> None:
    ((_, sentence),) = said(course([8.0] * 40, sigma=1e-4))
    assert "hardly moved" in sentence
    assert "raise optimizer.learning_rate" in sentence


def test_masked_tokens_that_are_known_are_suspicious() -> None:
    seen = [trained(10 * i, 3.0, blind=1.0 + 0.01 * (i % 3)) for i in range(1, 40)]
    ((_, sentence),) = said(seen)
    assert "more than 90% of a row is masked" in sentence
    learnt_pads = Baseline(8.0, 4.5, 20, 1.0, blind_at_full_mask=False)
    assert said(seen, learnt_pads) == []
    assert said([trained(10 * i, 3.0, blind=4.0) for i in range(1, 40)]) == []


def run_with_validations(bounds: list[float], slope: float, error: float = 0.01) -> list[Any]:
    """Ten lines between two validations, falling by `slope` bits a line."""
    draw = np.random.default_rng(1)
    records = []
    for i, bits in enumerate(bounds):
        for j in range(10):
            line = 10 * i + j + 1
            records.append(trained(10 * line, 4.0 - slope * line + 0.005 * draw.normal()))
        records.append(validated(100 * (i + 1), bits, error))
    return records


RISING = [3.5, 3.2, 3.0, 2.95, 2.98, 3.05, 3.15, 3.25]


@pytest.mark.parametrize("error", [0.01, 0.0])
def test_overfitting_is_said_when_validation_rises_and_training_falls(error: float) -> None:
    ((step, sentence),) = said(run_with_validations(RISING, 0.01, error))
    assert step > 600
    assert "(step 400)" in sentence
    assert "by heart" in sentence


def test_a_rise_without_learning_is_no_overfitting() -> None:
    assert said(run_with_validations(RISING, 0.0)) == []


def test_a_rise_within_the_noise_is_no_overfitting() -> None:
    assert said(run_with_validations([3.5, 3.2, 3.0, 2.95, 2.96, 2.97, 2.97, 2.98], 0.01)) == []
    wobbling = [3.5, 3.2, 3.05, 2.95, 3.02, 2.97, 3.03, 2.96]
    assert said(run_with_validations(wobbling, 0.01, error=0.0)) == []


def test_a_validation_that_stands_still_is_said() -> None:
    bounds = [3.5, 3.2, 3.05, 3.0, 2.99, *[2.992, 2.991, 2.989, 2.99, 2.99]]
    ((step, sentence),) = said(run_with_validations(bounds, 0.0))
    assert step == 1000
    assert "since step 500 (2.990 bits per token)" in sentence
    falling = [3.5, 3.2, 3.05, 3.0, 2.97, 2.95, 2.93, 2.92, 2.91, 2.90]
    assert said(run_with_validations(falling, 0.0)) == []


def test_the_unigram_plateau_is_said_when_it_lasts() -> None:
    levels = [8.0, 6.0, 5.0, *[4.5] * 300]
    ((step, sentence),) = said(course(levels))
    assert step == 2000
    assert "for 1000 steps, the entropy of single tokens (4.50)" in sentence
    assert said(course(levels[:120])) == []
    assert said(course([8.0, 6.0, 5.0, *np.linspace(4.6, 4.3, 300)])) == []


def test_jumps_behind_calm_cross_entropies_are_the_weights() -> None:
    draw = np.random.default_rng(2)
    lines = [trained(10 * i, 4.0 + 0.02 * draw.normal(), 0.05 * draw.normal()) for i in range(1, 40)]
    assert said(lines) == []
    for i in (5, 15, 25):
        lines[i] = trained(10 * (i + 1), 4.0, excess=2.5)
    ((step, sentence),) = said(lines)
    assert step == 260
    assert "jumped in 3 of the last 26 lines (to 6.50 bits per token" in sentence
    assert "objective.weight=flat" in sentence
    assert said(lines, Baseline(8.0, 4.5, 20, 1.0, weighted=False)) == []
    for i in (5, 15, 25):
        lines[i] = trained(10 * (i + 1), 4.0, grad_norm=30.0)
    assert "a norm of 30" in said(lines)[0][1]


def test_an_episode_that_comes_back_is_said_again() -> None:
    calm = [3.0] * (CALM + 20)
    levels = [*[3.0] * 15, *[6.0] * 8, *calm, *[6.0] * 8]
    assert [step for step, _ in said(course(levels))] == [10 * 18, 10 * (15 + 8 + len(calm) + 3)]


def test_what_explains_less_is_not_said_beside_what_explains_more() -> None:
    records = run_with_validations([3.0] * 12, -0.02)
    sentences = [sentence for _, sentence in said(records)]
    assert len(sentences) == 1
    assert "learning rate is too high" in sentences[0]


def test_samples_and_advice_are_no_news() -> None:
    assert said([{"step": 1, "samples": ["a"]}, {"step": 1, "advice": "b"}]) == []


def test_noise_is_that_of_a_line_around_its_course() -> None:
    draw = np.random.default_rng(3)
    values = np.linspace(0, 20, 4000) + 0.5 * draw.normal(size=4000)
    assert noise(values) == pytest.approx(0.5, rel=0.05)
    values[::100] = 1e6
    assert noise(values) == pytest.approx(0.5, rel=0.1)
    assert noise(np.arange(50.0) ** 1, order=2) == pytest.approx(0.0)
    assert noise(draw.normal(size=4000), order=2) == pytest.approx(1.0, rel=0.1)


def test_entropy_of_single_tokens() -> None:
    assert entropy_bits(np.arange(8).repeat(10_000)) == pytest.approx(3.0, abs=1e-3)
    draw = np.random.default_rng(4)
    estimates = [entropy_bits(draw.integers(0, 256, 2000)) for _ in range(50)]
    assert np.mean(estimates) == pytest.approx(8.0, abs=0.01)


EOS, MASK = 9, 10


def facts(policy: Any, texts: list[list[int]], length: int = 8, batch_size: int = 2, steps: int = 1) -> list[str]:
    return advice_on_data(rows_of_texts(policy, texts, length, EOS), policy, MASK, EOS, batch_size, steps)


def test_rows_that_are_mostly_learnt_ends() -> None:
    (sentence,) = facts(SupervisedEOS(), [[1], [2, 3], [4]])
    assert "71% of the learned tokens" in sentence  # 6 + 5 + 6 of 24; the first EOS of each row ends its text
    assert "supervised_eos" in sentence
    assert facts(SupervisedEOS(), [[1, 2, 3, 4, 5]] * 3) == []


def test_rows_that_are_mostly_pads() -> None:
    (sentence,) = facts(Padded(), [[1], [2], [3]])
    assert "75% of the positions are pads" in sentence
    assert facts(Padded(), [[1, 2, 3, 4]] * 3) == []


def test_a_mask_token_in_the_text() -> None:
    (sentence,) = facts(Packed(), [[1, MASK, 2, 3, 4, 5, 6], [1] * 7, [2] * 7])
    assert "mask token (id 10) stands in the training text itself, in 1 of 3 rows" in sentence


def test_too_few_rows_and_too_many_passes() -> None:
    few, many = facts(Packed(), [[1] * 7] * 3, batch_size=4, steps=100)
    assert "3 training rows, fewer than one batch of 4" in few
    assert "passes 133 times over its 3 training rows" in many
    assert facts(Packed(), [[1] * 7] * 4, batch_size=4, steps=50) == []
