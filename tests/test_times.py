"""Low-discrepancy times: every stratum once, every micro-batch stratified, every time uniform on its own."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from unmask.random import Purpose
from unmask.schedules import draw_times, low_discrepancy, van_der_corput


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 12, 100, 512, 1000])
def test_van_der_corput_deals_every_stratum_once(size):
    assert van_der_corput(size).sort().values.tolist() == list(range(size))


def test_van_der_corput_is_the_reversed_bits():
    assert van_der_corput(8).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert van_der_corput(16).tolist() == [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15]
    assert van_der_corput(6).tolist() == [0, 3, 2, 5, 1, 4]


@pytest.mark.parametrize("size", [64, 512])
@pytest.mark.parametrize("micro", [2, 4, 8, 32])
def test_aligned_micro_batches_hit_every_coarse_stratum_once(size, micro):
    coarse = van_der_corput(size) * micro // size
    for part in coarse.split(micro):
        assert part.sort().values.tolist() == list(range(micro))


@pytest.mark.parametrize("size", [96, 100, 384])
def test_micro_batches_of_other_global_batches_are_nearly_stratified(size):
    t = low_discrepancy(torch.tensor(0.0), van_der_corput(size), size)
    for part in t.split(size // 4):
        assert stats.kstest(part.numpy(), "uniform").statistic < 2.5 / len(part)


def test_times_fill_the_unit_interval_evenly():
    t = draw_times(seed=1, step=3, index=torch.arange(64), batch_size=64)
    gaps = t.sort().values.diff()
    assert (gaps - 1 / 64).abs().max() < 1e-6
    assert ((t >= 0) & (t < 1)).all()


def test_micro_batches_of_ranks_are_slices_of_the_global_batch():
    whole = draw_times(seed=2, step=9, index=torch.arange(24), batch_size=24)
    parts = [draw_times(seed=2, step=9, index=index, batch_size=24) for index in torch.arange(24).split(5)]
    assert torch.equal(whole, torch.cat(parts))


def test_each_time_is_uniform_over_steps_and_seeds():
    many = torch.arange(4000)
    for index in (0, 3, 7):
        here = torch.full_like(many, index)
        for t in (draw_times(0, many, here, 8), draw_times(many, 0, here, 8)):
            assert stats.kstest(t.numpy(), "uniform").pvalue > 1e-3


def test_steps_seeds_and_purposes_have_their_own_offset():
    index = torch.arange(4)
    first = draw_times(0, 0, index, 4)
    for other in (draw_times(0, 1, index, 4), draw_times(1, 0, index, 4), draw_times(0, 0, index, 4, Purpose.OFFSET)):
        assert not torch.equal(first, other)


def test_wraps_round_at_one():
    t = low_discrepancy(torch.tensor(0.75), torch.arange(4), 4)
    assert t.tolist() == [0.75, 0.0, 0.25, 0.5]
    largest = low_discrepancy(torch.tensor(1 - 2.0**-24), torch.arange(4096), 4096)
    assert ((largest >= 0) & (largest < 1)).all()
