"""The absorbing process: mask rates, exact counts, the posterior, and positions that are never masked."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from unmask.process import Batch, mask_tokens, posterior, prior, reveal_probability, sample_mask, sample_mask_of_size
from unmask.random import Purpose, uniform

MASK = 1


def batch_of(rows: int, length: int = 6) -> Batch:
    """Tokens 2, 3, ...; the first position is frozen and the last is padding."""
    ids = torch.arange(2, 2 + length).expand(rows, -1)
    attention = torch.ones_like(ids, dtype=torch.bool)
    attention[:, -1] = False
    frozen = torch.zeros_like(attention)
    frozen[:, 0] = True
    return Batch.of(ids, attention, frozen)


def noise_of(rows: int, length: int = 6) -> torch.Tensor:
    return uniform(4, Purpose.MASK, sample=torch.arange(rows)[:, None], position=torch.arange(length))


def test_targets_are_masked_at_the_rate():
    rate = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0]).repeat_interleave(4000)
    batch, noise = batch_of(20000), noise_of(20000)
    masked = sample_mask(batch, rate, noise)
    assert torch.equal(masked, (noise < rate[:, None]) & batch.target_mask)
    assert torch.equal(mask_tokens(batch, masked, MASK), torch.where(masked, MASK, batch.input_ids))
    assert not masked[:, [0, 5]].any()
    share = masked.view(5, 4000, 6)[..., 1:5].float().mean(dim=(1, 2))
    assert torch.allclose(share, torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0]), atol=0.015)
    assert share[0] == 0
    assert share[-1] == 1


def test_an_exact_count_masks_the_targets_with_the_smallest_noise():
    batch, noise = batch_of(5), noise_of(5)
    count = torch.tensor([1, 2, 3, 4, 0])
    masked, rate = sample_mask_of_size(batch, count, noise)
    assert torch.equal(masked.sum(dim=1), count)
    for row in range(4):
        smallest = noise[row, 1:5].sort().values
        assert rate[row] == smallest[count[row] - 1]
        assert noise[row][masked[row]].max() == rate[row]
    assert not masked[:, [0, 5]].any()
    nothing = Batch.of(torch.tensor([[2, 3]]), frozen=torch.ones(1, 2, dtype=torch.bool))
    masked, rate = sample_mask_of_size(nothing, torch.tensor([0]), noise_of(1, 2))
    assert (masked.any().item(), rate.item()) == (False, 1.0), "a row without targets"


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_rate_of_a_count_is_a_beta_draw_independent_of_the_mask(count):
    rows = 4000
    masked, rate = sample_mask_of_size(batch_of(rows), torch.full((rows,), count), noise_of(rows))
    assert stats.kstest(rate.numpy(), stats.beta(count, 4 - count + 1).cdf).pvalue > 1e-3
    chosen = masked[:, 1]
    if count < 4:
        assert abs(chosen.float().mean() - count / 4) < 0.03
        assert stats.ks_2samp(rate[chosen].numpy(), rate[~chosen].numpy()).pvalue > 1e-3


def test_posterior_in_numbers():
    """alpha_s = 0.8, alpha_t = 0.5: a mask is revealed with 0.3/0.5 and stays with 0.2/0.5; a token stays."""
    x, z = torch.tensor([[0.25, 0.0, 0.75], [1.0, 0.0, 0.0]]), torch.tensor([MASK, 0])
    before = x.clone()
    step = posterior(z, x, mask_rate_s=0.2, mask_rate_t=0.5, mask_token_id=MASK)
    assert torch.allclose(step, torch.tensor([[0.15, 0.4, 0.45], [1.0, 0.0, 0.0]]))
    assert reveal_probability(torch.tensor(0.2), torch.tensor(0.5)).item() == pytest.approx(0.6)
    assert torch.equal(x, before)
    assert prior((2, 3), MASK).tolist() == [[MASK] * 3] * 2
