"""The likelihood of an autoregressive model, with and without a begin token."""

from __future__ import annotations

import pytest
import torch

from tests.published import randomise
from unmask.models import CausalConfig, CausalLM
from unmask.objectives.autoregressive import AR
from unmask.objectives.base import Noise
from unmask.process import Batch
from unmask.schedules import LogLinear

V, MASK, L = 23, 21, 8


@pytest.mark.parametrize("begin", [MASK, None])
def test_each_token_is_predicted_from_those_before_it(begin):
    size = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "max_length": L}
    network = randomise(CausalLM(CausalConfig(vocab_size=V, mask_token_id=MASK, bos_token_id=begin, **size)))
    ids = torch.randint(0, MASK, (3, L), generator=torch.Generator().manual_seed(1))
    first = 1 if begin is None else 0
    noise = Noise(torch.full((3,), 0.5), torch.full((3, L), 0.5))
    with torch.no_grad():
        terms = AR().loss(network, Batch.of(ids), LogLinear(), noise)
        for position in range(first, L):
            before = ids[:, :position]
            if begin is not None:
                before = torch.cat([torch.full((3, 1), begin), before], dim=1)
            log_p = network(before, use_cache=False).logits[:, -1].log_softmax(-1)
            nll = -log_p.gather(1, ids[:, position, None])[:, 0]
            torch.testing.assert_close(terms.nelbo[:, position], nll, rtol=0, atol=1e-5)
    assert terms.counted.sum() == 3 * (L - first)
    torch.testing.assert_close(terms.loss, terms.nelbo.sum())
