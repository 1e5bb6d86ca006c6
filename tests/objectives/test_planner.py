"""The planner head, its loss, its metrics, and its effect on ordered sampling."""

from __future__ import annotations

import math

import pytest
import torch

from tests.conftest import make_checkpoint
from unmask.checkpoint import load_checkpoint, save_checkpoint
from unmask.data.rows import RowBatch
from unmask.errors import UnmaskError
from unmask.laws.tables import random_table
from unmask.models import DiT, DiTConfig
from unmask.models import cross_entropy as losses
from unmask.models.build import PlannerConfig, attach_planner
from unmask.models.inference import InferenceEngine
from unmask.models.layers import log_odds
from unmask.objectives.base import Noise
from unmask.objectives.planner import Planner
from unmask.process import Batch
from unmask.registry import build
from unmask.samplers.base import Canvas, sample
from unmask.samplers.guidance import GuidedDenoiser, NoEosDenoiser
from unmask.samplers.ordered import OrderedSampler
from unmask.schedules import LogLinear
from unmask.training.advice import Advisor, Baseline
from unmask.training.validation import auc, planner_metrics

V, MASK = 12, 11


def network(planner: int | None = 8, dropout: float = 0.0) -> DiT:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_length": 32}
    config = DiTConfig(vocab_size=V, dropout=dropout, planner_width=planner, **shape)
    net = DiT(config).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return net


def prompted(rows: int = 3, length: int = 10) -> Canvas:
    """Two given tokens and masks; without given tokens all positions would look alike."""
    ids = torch.full((rows, length), MASK)
    ids[:, :2] = torch.arange(2 * rows).view(rows, 2)
    return Canvas.of(ids, MASK)


def test_an_untrained_planner_orders_by_confidence():
    net = attach_planner(network(planner=None), PlannerConfig(width=4))
    by_planner, by_confidence = (
        sample(OrderedSampler(order=o, steps=4), net, prompted()) for o in ("planner", "confidence")
    )
    assert torch.equal(by_planner.order, by_confidence.order)
    assert torch.equal(by_planner.ids, by_confidence.ids)
    with torch.no_grad():
        net.planner.outer.weight.normal_(std=2.0)
    assert not torch.equal(sample(OrderedSampler(order="planner", steps=4), net, prompted()).order, by_confidence.order)


def test_positions_are_revealed_in_the_order_of_a_planner_which_must_exist():
    net = network()
    canvas = prompted(1)
    with torch.no_grad():
        rows = net.hidden(canvas.ids)[0, 2:]
        worth = net.planner(rows, net.head(rows).log_softmax(-1).amax(-1))
    order = sample(OrderedSampler(order="planner", steps=2), net, canvas).order[0, 2:]
    assert order.tolist() == (worth.argsort().argsort() < 4).long().tolist()
    p = torch.tensor([0.5, 0.9, 1.0])
    assert torch.allclose(log_odds(p.log()), torch.tensor([0.0, math.log(9.0), math.log(1e6)]), atol=1e-4)
    with pytest.raises(UnmaskError, match=r"has no planner .* 'unmask train planner --from CKPT'"):
        sample(OrderedSampler(order="planner"), network(planner=None), canvas)


def test_wrappers_pass_the_planner_its_rows():
    net, ids = network(), torch.tensor([[3, MASK, MASK, 5]])
    closed, condition = torch.tensor([[False, True, False, False]]), torch.tensor([[True, False, False, False]])
    log_top = torch.full((1, 4), -0.3)
    with torch.no_grad():
        plain = net.plan(net.hidden(ids), log_top)
        for view in (NoEosDenoiser(net, closed, eos=0), GuidedDenoiser(net, condition, 1.5), InferenceEngine(net)):
            assert torch.allclose(view.plan(view.hidden(ids), log_top), plain, atol=1e-5)
        both = NoEosDenoiser(GuidedDenoiser(net, condition, 1.5), closed, eos=0)
        assert torch.allclose(both.plan(both.hidden(ids), log_top), plain, atol=1e-5)


def test_attaching_a_planner_freezes_the_network():
    net = attach_planner(network(planner=None, dropout=0.5), PlannerConfig()).train()
    assert [name for name, weight in net.named_parameters() if weight.requires_grad] == [
        f"planner.{name}"
        for name in ("norm.weight", "norm.bias", "inner.weight", "inner.bias", "outer.weight", "outer.bias")
    ]
    assert torch.equal(net.hidden(prompted().ids), net.eval().hidden(prompted().ids))
    assert net.config.dropout == 0.5
    assert net.config.planner_width == 128


def test_chunks_and_padding_rows_change_nothing(monkeypatch):
    net, objective = network(), Planner()
    batch = Batch.of(torch.arange(4 * 32).view(4, 32) % MASK)
    noise = Noise(torch.tensor([0.2, 0.5, 0.8, 0.9]), torch.rand(4, 32, generator=torch.Generator().manual_seed(0)))
    corruption = objective.corrupt(batch, LogLinear(), noise, net.config)
    assert len(corruption.pad_rows().rows) > len(corruption.rows)
    plain = objective.terms(net, batch, corruption)
    padded = objective.terms(net, batch, corruption.pad_rows())
    monkeypatch.setattr(losses, "LOGITS_PER_REDUCTION", 3 * V)
    chunked = objective.terms(net, batch, corruption)
    for other in (padded, chunked):
        assert torch.allclose(other.nelbo, plain.nelbo, atol=1e-6)
        assert torch.allclose(other.loss, plain.loss, atol=1e-5)
        assert torch.equal(other.counted, plain.counted)
    assert int(plain.count) == len(corruption.rows)


def test_head_and_planner_compute_in_float32():
    net, objective = network(), Planner()
    batch = Batch.of(torch.arange(32)[None] % MASK)
    corruption = objective.corrupt(batch, LogLinear(), Noise(torch.tensor([0.5]), torch.rand(1, 32)), net.config)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        prediction = objective.predict(net, batch, corruption)
        rows = net.hidden(batch.input_ids.masked_fill(corruption.predicted, MASK))[0][corruption.rows]
    assert rows.dtype == torch.bfloat16
    with torch.no_grad():
        log_top = net.head(rows.float()).log_softmax(-1).amax(-1)
        assert torch.equal(prediction.log_top, log_top)
        assert torch.equal(prediction.log_odds, net.plan(rows.float(), log_top))


def test_auc_is_the_share_of_ordered_pairs():
    right = torch.tensor([True, True, False, False, False])
    assert auc(torch.tensor([0.9, 0.8, 0.1, 0.2, 0.3]), right) == 1.0
    assert auc(torch.tensor([0.1, 0.2, 0.8, 0.9, 0.7]), right) == 0.0
    assert auc(torch.tensor([0.5, 0.2, 0.1, 0.5, 0.3]), right) == pytest.approx((2.5 + 1) / 6)
    assert math.isnan(auc(torch.tensor([0.5, 0.2]), torch.tensor([True, True])))


class FewRows:
    """Rows of three tokens."""

    length = 3

    def __init__(self, ids: torch.Tensor) -> None:
        self.ids = ids.numpy()

    def __len__(self) -> int:
        return len(self.ids)

    def spread(self, count: int) -> FewRows:
        return self

    def __getitem__(self, index):
        ids = self.ids[index]
        return RowBatch(ids, ids >= 0, ids * 0, ids < 0, ids < 0)


class TrueOutcomes:
    """A denoiser with a planner that knows the true outcome, times `sign`."""

    def __init__(self, table, text: torch.Tensor, sign: float) -> None:
        self.table, self.config, self.text, self.sign = table, table.config, text, sign

    def hidden(self, input_ids, **kwargs):
        rows = self.table.hidden(input_ids, **kwargs)
        return torch.cat([rows, self.text.expand(len(rows), -1)[..., None].to(rows.dtype)], dim=-1)

    def head(self, rows, mask_logit=False):
        return self.table.head(rows[..., :-1], mask_logit)

    def plan(self, rows, log_top):
        return self.sign * ((self.head(rows).argmax(-1) == rows[..., -1]).float() - 0.5)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_metrics_of_a_planner_that_knows_the_outcome(sign):
    text = torch.tensor([2, 0, 3])
    denoiser, rows = TrueOutcomes(random_table(seed=1), text, sign), FewRows(text.expand(200, -1))
    metrics = planner_metrics(denoiser, Planner(), LogLinear(), rows)
    assert planner_metrics(denoiser, Planner(), LogLinear(), rows, batch_size=7) == metrics
    assert metrics.planner == (sign + 1) / 2
    assert metrics.planner_stderr == 0.0
    assert 0 < metrics.confidence < 1
    assert metrics.gain == pytest.approx(metrics.planner - metrics.confidence)
    assert metrics.gain_stderr == pytest.approx(metrics.confidence_stderr)
    assert 20 < metrics.canvases < 200
    assert 0 < metrics.right < 1


def test_advice_treats_a_planner_as_a_binary_classifier():
    """Half a bit at every mask rate is no sign of a leak; two bits are worse than a coin."""
    optimizer = build("optimizer", {"name": "adamw", "warmup": 10})
    same_text = FewRows(torch.tensor([[2, 0, 3]]).expand(50, -1))
    baseline = Baseline.of(same_text, build("policy", "padded"), 300, Planner(), optimizer)
    for bits, sentences in ((0.5, 0), (2.0, 1)):
        advisor = Advisor(baseline)
        line = {"loss": bits, "bits_per_token": bits, "grad_norm": 0.1, "cross_entropy": [bits * math.log(2.0)] * 10}
        advice = [advisor.look({"step": 100 + 10 * i, **line}) for i in range(40)]
        assert sum(len(some) for some in advice) == sentences


def test_a_checkpoint_with_a_planner_loads(tmp_path):
    loaded = load_checkpoint(make_checkpoint(tmp_path / "base"))
    net = attach_planner(loaded.model, PlannerConfig(width=5))
    with torch.no_grad():
        net.planner.outer.weight.normal_()
    save_checkpoint(tmp_path / "planned", net, loaded.tokenizer, loaded.config)
    again = load_checkpoint(tmp_path / "planned").model
    assert again.planner.inner.out_features == 5
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in net.state_dict().items())
