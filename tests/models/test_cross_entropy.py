"""Cross-entropy of selected rows against the dense one: values, gradients, memory."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from unmask.models import cross_entropy as module
from unmask.models.cross_entropy import Projection, cross_entropy, reduce_rows, weighted_cross_entropy

B, L, D, V = 3, 5, 8, 13
EXCLUDED = 4


class HeadOnly:
    """A network of which only the head is known."""

    config = SimpleNamespace(vocab_size=V)

    def __init__(self, weight, bias, dtype=torch.float32):
        self.weight, self.bias, self.dtype = weight, bias, dtype

    def head(self, rows):
        return F.linear(rows, self.weight, self.bias)


class Linear(HeadOnly):
    def projection(self):
        return Projection(self.weight, self.bias, self.dtype)


NETWORKS = pytest.mark.parametrize("net", [HeadOnly, Linear])


@pytest.fixture
def problem():
    """Hidden rows, weight, bias, targets, selected rows, weights of rows."""
    torch.manual_seed(0)
    hidden = torch.randn(B, L, D, requires_grad=True)
    weight = torch.randn(V, D, requires_grad=True)
    bias = torch.randn(V, requires_grad=True)
    targets = torch.randint(EXCLUDED, (B, L))
    rows = (torch.rand(B, L) < 0.6).flatten().nonzero()[:, 0]
    return hidden, weight, bias, targets, rows, torch.rand(len(rows)) + 0.1


def without_excluded(bias):
    return bias.masked_fill(torch.arange(V) == EXCLUDED, -math.inf)


def dense(hidden, weight, bias, targets, rows, weights):
    logits = F.linear(hidden, weight, without_excluded(bias)).flatten(0, 1)
    nll = F.cross_entropy(logits, targets.flatten(), reduction="none")[rows]
    return (nll * weights).sum(), nll


def by_rows(net, hidden, weight, bias, targets, rows, weights):
    return weighted_cross_entropy(net(weight, without_excluded(bias)), hidden, rows, targets, weights)


def gradients(total, inputs):
    return torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)


def set_chunks(monkeypatch, logits):
    monkeypatch.setattr(module, "LOGITS_PER_REDUCTION", logits)
    monkeypatch.setitem(module.LOGITS_PER_CHUNK, "cpu", logits)


@NETWORKS
@pytest.mark.parametrize("logits_per_chunk", [1, V, 3 * V, 1 << 24])
@pytest.mark.parametrize("selection", ["some", "none", "all"])
def test_rows_equal_dense(problem, monkeypatch, net, logits_per_chunk, selection):
    set_chunks(monkeypatch, logits_per_chunk)
    hidden, weight, bias, targets, rows, weights = problem
    if selection != "some":
        rows = torch.arange(0 if selection == "none" else B * L)
        weights = torch.ones(len(rows))
    problem = (hidden, weight, bias, targets, rows, weights)
    (total, nll), (expected, nll_dense) = by_rows(net, *problem), dense(*problem)
    assert torch.allclose(nll, nll_dense, atol=1e-6)
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    assert not nll.requires_grad
    for one, other in zip(gradients(3.0 * total, problem[:3]), gradients(3.0 * expected, problem[:3]), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_gradients_equal_finite_differences(problem):
    hidden, weight, bias, targets, rows, weights = problem
    inputs = [x.detach().double().requires_grad_() for x in (hidden.flatten(0, 1), weight, bias)]

    def total(h, w, b):
        projection = Projection(w, without_excluded(b), torch.float64)
        return module.linear_cross_entropy(h, rows, projection, targets.flatten()[rows], weights.double())[0]

    assert torch.autograd.gradcheck(total, inputs)


def test_compiled_kernels_compute_the_same(problem):
    hidden, weight, bias, targets, rows, weights = problem
    logits = (hidden.flatten(0, 1)[rows] @ weight.T).detach()
    chosen, bias = targets.flatten()[rows], without_excluded(bias).detach()
    nll, grad = module._reduction_and_gradient(logits, bias, chosen, weights)
    assert torch.equal(module._reduction(logits, bias, chosen), nll)
    plain_nll, plain_grad = module._reduce(logits, bias, chosen, weights)
    assert torch.allclose(nll, plain_nll, atol=1e-6)
    assert torch.allclose(grad, plain_grad, atol=1e-6)


def test_a_padded_vocabulary_changes_nothing(problem, monkeypatch):
    def padded(weight, bias):
        return F.pad(weight, (0, 0, 0, 3)), F.pad(bias, (0, 3), value=-math.inf)

    plain = by_rows(Linear, *problem)
    monkeypatch.setattr(module, "_pad_vocabulary", padded)
    made = by_rows(Linear, *problem)
    assert torch.allclose(made[1], plain[1])
    for one, other in zip(*(gradients(x[0], problem[:3]) for x in (made, plain)), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_chunks_bound_the_rows_in_the_head(problem, monkeypatch):
    set_chunks(monkeypatch, 4 * V)
    hidden, weight, _, targets, *_ = problem
    seen = []

    def head(rows):
        seen.append(rows.shape[0])
        return F.linear(rows, weight)

    def two(logits, target):
        return torch.stack([logits.logsumexp(-1), logits.amax(-1)], 1)

    with torch.no_grad():
        made = reduce_rows(head, hidden.flatten(0, 1), targets.flatten(), two, V)
    assert seen == [4, 4, 4, 3]
    assert torch.allclose(made, two(F.linear(hidden.flatten(0, 1), weight), None))
    whole = reduce_rows(head, hidden.flatten(0, 1)[:3], targets.flatten()[:3], cross_entropy, V)
    assert whole.shape == (3,)


@NETWORKS
def test_no_logits_are_kept_for_the_backward_pass(problem, monkeypatch, net):
    set_chunks(monkeypatch, 4 * V)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        by_rows(net, *problem)
    assert not any(len(shape) == 2 and shape[-1] == V for shape in kept)


@NETWORKS
def test_logits_are_reduced_in_float32(problem, net):
    hidden, weight, bias, targets, rows, weights = problem
    _, exact = dense(*problem)
    half = net(weight.bfloat16(), without_excluded(bias).bfloat16(), torch.bfloat16)
    _, nll = weighted_cross_entropy(half, hidden.bfloat16(), rows, targets, weights)
    assert nll.dtype == torch.float32
    assert torch.allclose(nll, exact, atol=0.2)


@NETWORKS
def test_an_impossible_target_of_weight_zero_changes_nothing(problem, net):
    """Padding rows may be at the mask token: loss and gradients are those of the other rows."""
    hidden, weight, bias, targets, rows, weights = problem
    inputs = (hidden, weight, bias)
    expected, _ = by_rows(net, *inputs, targets, rows[1:], weights[1:])
    impossible = targets.flatten().index_fill(0, rows[:1], EXCLUDED).view(B, L)
    weights = weights.index_fill(0, torch.tensor([0]), 0.0)
    found, nll = by_rows(net, *inputs, impossible, rows, weights)
    assert torch.isinf(nll[0])
    torch.testing.assert_close(found, expected)
    for one, other in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(by_rows(net, *inputs, impossible, rows, weights)[0], expected)


@pytest.mark.parametrize("gradient", [False, True])
def test_one_compiled_kernel_serves_any_number_of_rows(monkeypatch, gradient):
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    torch._dynamo.reset()
    kernels = [torch.compile(one, backend=backend) for one in (module._reduction, module._reduction_and_gradient)]
    monkeypatch.setattr(module, "_compiled_kernels", lambda: kernels)
    projection = Projection(torch.randn(V, D, requires_grad=True), torch.randn(V), fused=True)
    for count in (12, 9, 2):
        hidden, rows, targets = torch.randn(12, D), torch.arange(count), torch.randint(V, (count,))
        with torch.set_grad_enabled(gradient):
            module.linear_cross_entropy(hidden, rows, projection, targets, torch.rand(count))
    assert len(made) == 1
