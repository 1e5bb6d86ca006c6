"""Advice from logs: runs that go wrong get one sentence, healthy ones none."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import rows_of_texts
from unmask.data.length_policies import Packed, Padded, SupervisedEOS
from unmask.data.rows import TEXT_TOKENS
from unmask.objectives.subs import Subs
from unmask.optimizers.base import AdamW
from unmask.training.advice import CALM, Advisor, Baseline, History, advice_on_data, entropy_bits, noise

LOGS = Path(__file__).parents[1] / "logs"
BYTES = Baseline(uniform_bits=8.006, unigram_bits=4.734, warmup=100, clip=1.0)
"""Of the runs in tests/logs: the default recipe on the standard library's documentation, other rates and objectives."""
BASELINE = Baseline(uniform_bits=8.0, unigram_bits=4.5, warmup=20, clip=1.0)


def trained(step: int, level: float, excess: float = 0.0, grad_norm: float = 0.5, blind: float | None = None) -> Any:
    """A training record: all cross-entropies are `level` bits, the last one `blind`; the loss is `excess` higher."""
    buckets = [level * math.log(2.0)] * 9 + [(level if blind is None else blind) * math.log(2.0)]
    bits = level + excess
    return {
        "step": step, "loss": bits * math.log(2.0), "bits_per_token": bits, "grad_norm": grad_norm,
        "cross_entropy": buckets,
    }  # fmt: skip


def validated(step: int, bits: float, error: float = 0.01) -> Any:
    return {"step": step, "validation": {"bits_per_token": bits, "bits_per_token_mc_stderr": error}}


def advise(records: Iterable[Any], baseline: Baseline = BASELINE) -> list[tuple[int, str]]:
    """All advice on a log, with its step."""
    advisor = Advisor(baseline)
    return [(record["step"], sentence) for record in records for sentence in advisor.look(record)]


def course(levels: Iterable[float], sigma: float = 0.03) -> list[Any]:
    """Training records every ten steps, with noise."""
    rng = np.random.default_rng(0)
    return [trained(10 * (i + 1), level + sigma * rng.normal()) for i, level in enumerate(levels)]


def with_validations(bounds: list[float], slope: float, error: float = 0.01) -> list[Any]:
    """Ten records, falling by `slope` bits each, before each validation."""
    rng = np.random.default_rng(1)
    records = []
    for i, bits in enumerate(bounds):
        for line in range(10 * i + 1, 10 * i + 11):
            records.append(trained(10 * line, 4.0 - slope * line + 0.005 * rng.normal()))
        records.append(validated(100 * (i + 1), bits, error))
    return records


def read(name: str) -> list[Any]:
    return [json.loads(line) for line in (LOGS / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["healthy", "healthy-flat", "healthy-ar"])
def test_healthy_real_runs_get_no_advice(name: str) -> None:
    assert advise(read(name), BYTES) == []


@pytest.mark.parametrize(
    ("name", "warmup", "step", "seen"),
    [
        ("rate-0.3", 100, 120, "has risen from 4.84 to 6.63"),
        ("rate-0.3-no-warmup", 0, 50, "is at 13.49 bits per token, above the 8.01 of a uniform guess"),
    ],
)
def test_real_runs_with_a_high_learning_rate_get_one_advice(name: str, warmup: int, step: int, seen: str) -> None:
    ((at, sentence),) = advise(read(name), Baseline(8.006, 4.734, warmup, 1.0))
    assert at == step
    assert seen in sentence
    assert "lower optimizer.learning_rate" in sentence


def healthy(seed: int) -> Iterable[Any]:
    """A power law down from the uniform level, with the noise of a batch and the heavy tails of 1/t weights."""
    rng = np.random.default_rng(seed)
    for i in range(1, 151):
        rates = rng.random(320)
        excess = np.mean(rng.binomial(64, rates) / 64 / rates) - 1.0
        trend = 6.0 * (1 + i / 3) ** -0.5
        level = 2.0 + trend + 0.03 * rng.standard_t(3)
        yield trained(10 * i, level, excess * level, 0.5 * rng.lognormal(0, 0.4) * (1 + 3 * max(0.0, excess)))
        if i % 10 == 0:
            yield validated(10 * i, 2.1 + trend + 0.005 * rng.normal())


def test_there_are_no_false_alarms() -> None:
    assert [advise(healthy(seed)) for seed in range(15)] == [[]] * 15


RISING = [3.5, 3.2, 3.0, 2.95, 2.98, 3.05, 3.15, 3.25]
STALLED = [3.5, 3.2, 3.05, 3.0, 2.99, 2.992, 2.991, 2.989, 2.99, 2.99]
PLATEAU = [8.0, 6.0, 5.0, *[4.5] * 300]
VISIBLE = [trained(10 * i, 3.0, blind=1.0 + 0.01 * (i % 3)) for i in range(1, 40)]


@pytest.mark.parametrize(
    ("records", "step", "parts"),
    [
        (course([8.0, 7.0, 6.0, 5.5, *[5.0] * 30]), 230, ["stays at 5.", "above the 4.50 of token frequencies alone"]),
        ([trained(10 * i, 5.0 if i < 12 else 9.0, grad_norm=20.0 + i) for i in range(1, 20)], 140, ["optimizer.clip"]),
        (course([8.0] * 40, sigma=1e-4), 220, ["hardly moved", "raise optimizer.learning_rate"]),
        (VISIBLE, 200, ["more than 90% of a row is masked", "only 1.01 bits"]),
        (with_validations(RISING, 0.01), 800, ["(step 400)", "overfits"]),
        (with_validations(RISING, 0.01, error=0.0), 800, ["(step 400)", "overfits"]),
        (with_validations(STALLED, 0.0), 1000, ["since step 500 (2.990 bits per token)"]),
        (course(PLATEAU), 2000, ["for 1000 steps, the entropy of single tokens (4.50)"]),
        # a rising loss explains a validation that stalls
        (with_validations([3.0] * 12, -0.02), 100, ["learning rate is too high"]),
    ],
)
def test_each_symptom_is_advised_on_once(records: list[Any], step: int, parts: list[str]) -> None:
    ((at, sentence),) = advise(records)
    assert at == step
    assert all(part in sentence for part in parts), sentence


@pytest.mark.parametrize(
    "records",
    [
        course([8.0, 7.0, 6.0, 5.5, *[4.55] * 30]),
        course(np.linspace(8.0, 4.8, 60), sigma=0.01),
        [trained(10 * i, 3.0, blind=4.0) for i in range(1, 40)],
        with_validations(RISING, 0.0),
        with_validations([3.5, 3.2, 3.0, 2.95, 2.96, 2.97, 2.97, 2.98], 0.01),
        with_validations([3.5, 3.2, 3.05, 2.95, 3.02, 2.97, 3.03, 2.96], 0.01, error=0.0),
        with_validations([3.5, 3.2, 3.05, 3.0, 2.97, 2.95, 2.93, 2.92, 2.91, 2.90], 0.0),
        course(PLATEAU[:120]),
        course([8.0, 6.0, 5.0, *np.linspace(4.6, 4.3, 300)]),
        [{"step": 1, "samples": ["a"]}, {"step": 1, "advice": "b"}],
    ],
)
def test_similar_healthy_runs_get_no_advice(records: list[Any]) -> None:
    assert advise(records) == []


def test_learned_padding_may_be_known_at_full_mask() -> None:
    assert advise(VISIBLE, Baseline(8.0, 4.5, 20, 1.0, blind_at_full_mask=False)) == []


def test_figures_of_earlier_versions_are_converted() -> None:
    rows = rows_of_texts(SupervisedEOS(), [[1, 2, 3]] * 8, 16, eos_id=0)
    baseline = Baseline.of(rows, SupervisedEOS(), 9, Subs(), AdamW())
    assert baseline.positions_per_token == 4
    assert baseline.uniform_bits == pytest.approx(4 * 3)
    history = History(baseline)
    for record in (trained(1, 2.0), {**trained(2, 2.0), "bits_per_token": 8.0, "denominator": TEXT_TOKENS}):
        history.add(record)
    assert history.losses.tolist() == pytest.approx([8.0, 8.0])
    assert history.levels.tolist() == pytest.approx([8.0, 8.0])
    history.add(validated(3, 2.0))
    assert history.validations == []


def test_jumps_over_steady_cross_entropies_come_from_the_weights() -> None:
    rng = np.random.default_rng(2)
    lines = [trained(10 * i, 4.0 + 0.02 * rng.normal(), 0.05 * rng.normal()) for i in range(1, 40)]
    assert advise(lines) == []
    for i in (5, 15, 25):
        lines[i] = trained(10 * (i + 1), 4.0, excess=2.5)
    ((step, sentence),) = advise(lines)
    assert step == 260
    assert "jumped in 3 of the last 26 records (to 6.50 bits per token" in sentence
    assert "objective.weight=flat" in sentence
    assert advise(lines, Baseline(8.0, 4.5, 20, 1.0, weighted=False)) == []
    for i in (5, 15, 25):
        lines[i] = trained(10 * (i + 1), 4.0, grad_norm=30.0)
    assert "a norm of 30" in advise(lines)[0][1]


def test_a_symptom_that_returns_is_advised_on_again() -> None:
    calm = [3.0] * (CALM + 20)
    levels = [*[3.0] * 15, *[6.0] * 8, *calm, *[6.0] * 8]
    assert [step for step, _ in advise(course(levels))] == [10 * 18, 10 * (15 + 8 + len(calm) + 3)]


def test_noise_is_a_standard_deviation_without_trend_and_outliers() -> None:
    rng = np.random.default_rng(3)
    values = np.linspace(0, 20, 4000) + 0.5 * rng.normal(size=4000)
    for order in (1, 2):
        assert noise(values, order) == pytest.approx(0.5, rel=0.1)
    values[::100] = 1e6
    assert noise(values) == pytest.approx(0.5, rel=0.1)


def test_the_entropy_of_tokens_is_unbiased() -> None:
    assert entropy_bits(np.arange(8).repeat(10_000)) == pytest.approx(3.0, abs=1e-3)
    rng = np.random.default_rng(4)
    estimates = [entropy_bits(rng.integers(0, 256, 2000)) for _ in range(50)]
    assert np.mean(estimates) == pytest.approx(8.0, abs=0.01)


EOS, MASK = 9, 10


@pytest.mark.parametrize(
    ("policy", "texts", "batch_size", "steps", "messages"),
    [
        # 6 + 5 + 6 of 24; the first EOS of each row ends its text
        (SupervisedEOS(), [[1], [2, 3], [4]], 2, 1, ["71% of the learned tokens are EOS"]),
        (SupervisedEOS(), [[1, 2, 3, 4, 5]] * 3, 2, 1, []),
        (Padded(), [[1], [2], [3]], 2, 1, ["75% of the positions are padding"]),
        (Padded(), [[1, 2, 3, 4]] * 3, 2, 1, []),
        (Packed(), [[1, MASK, 2, 3, 4, 5, 6], [1] * 7, [2] * 7], 2, 1, ["mask token (id 10), in 1 of 3 rows"]),
        (Packed(), [[1] * 7] * 3, 4, 100, ["3 training rows, fewer than one batch of 4", "133 epochs over its 3"]),
        (Packed(), [[1] * 7] * 4, 4, 50, []),
    ],
)
def test_advice_on_data(policy: Any, texts: list[list[int]], batch_size: int, steps: int, messages: list[str]) -> None:
    rows = rows_of_texts(policy, texts, 8, EOS)
    tokenizer = SimpleNamespace(mask_token_id=MASK, eos_token_id=EOS)
    found = advice_on_data(rows, policy, tokenizer, batch_size, steps)
    assert len(found) == len(messages)
    assert all(message in sentence for message, sentence in zip(messages, found, strict=True))
