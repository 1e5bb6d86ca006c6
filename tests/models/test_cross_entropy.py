"""The vocabulary projection on chosen rows, against the plain dense one: values, gradients, memory."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from unmask.models import cross_entropy as linear
from unmask.models import cross_entropy as losses
from unmask.models.cross_entropy import Projection, cross_entropy, reduce_rows, scatter_rows, weighted_cross_entropy

B, L, D, V = 3, 5, 8, 13
CLOSED = 4


class Net:
    """A bare projection; without `projection` it is a network of which nothing is known but its head."""

    config = SimpleNamespace(vocab_size=V)

    def __init__(self, weight, bias, dtype=torch.float32):
        self.weight, self.bias, self.dtype = weight, bias, dtype

    def head(self, rows):
        return F.linear(rows, self.weight, self.bias)


class Projecting(Net):
    def projection(self):
        return Projection(self.weight, self.bias, self.dtype)


@pytest.fixture
def problem():
    """Hidden rows, weight, bias with one closed token, targets, chosen positions, weights of rows."""
    torch.manual_seed(0)
    hidden = torch.randn(B, L, D, requires_grad=True)
    weight = torch.randn(V, D, requires_grad=True)
    bias = torch.randn(V, requires_grad=True)
    targets = torch.randint(CLOSED, (B, L))
    rows = (torch.rand(B, L) < 0.6).flatten().nonzero()[:, 0]
    return hidden, weight, bias, targets, rows, torch.rand(len(rows)) + 0.1


def closed(bias):
    return bias.masked_fill(torch.arange(V) == CLOSED, -math.inf)


def dense(hidden, weight, bias, targets, rows, weights):
    logits = F.linear(hidden, weight, closed(bias)).flatten(0, 1)
    nll = F.cross_entropy(logits, targets.flatten(), reduction="none")[rows]
    return (nll * weights).sum(), nll


def by_rows(net, hidden, weight, bias, targets, rows, weights):
    return weighted_cross_entropy(net(weight, closed(bias)), hidden, rows, targets, weights)


def small_chunks(monkeypatch, logits):
    monkeypatch.setattr(losses, "LOGITS_PER_REDUCTION", logits)
    monkeypatch.setitem(linear.LOGITS_PER_CHUNK, "cpu", logits)


@pytest.mark.parametrize("net", [Net, Projecting])
@pytest.mark.parametrize("logits_per_chunk", [1, V, 3 * V, 1 << 24])
def test_rows_equal_dense(problem, monkeypatch, net, logits_per_chunk):
    small_chunks(monkeypatch, logits_per_chunk)
    (total, nll), (should_be, nll_dense) = by_rows(net, *problem), dense(*problem)
    assert torch.allclose(nll, nll_dense, atol=1e-6)
    assert total.item() == pytest.approx(should_be.item(), rel=1e-6)
    made = torch.autograd.grad(3.0 * total, problem[:3])
    for one, other in zip(made, torch.autograd.grad(3.0 * should_be, problem[:3]), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("net", [Net, Projecting])
def test_gradients_flow_through_the_sum_alone(problem, net):
    total, nll = by_rows(net, *problem)
    assert total.requires_grad
    assert not nll.requires_grad


@pytest.mark.parametrize("net", [Net, Projecting])
@pytest.mark.parametrize("chosen", [torch.arange(0), torch.arange(B * L)])
def test_no_rows_and_all_rows(problem, net, chosen):
    hidden, weight, bias, targets, *_ = problem
    weights = torch.ones(len(chosen))
    total, nll = by_rows(net, hidden, weight, bias, targets, chosen, weights)
    should_be, _ = dense(hidden, weight, bias, targets, chosen, weights)
    assert nll.shape == (len(chosen),)
    assert total.item() == pytest.approx(should_be.item(), rel=1e-6)
    gradients = torch.autograd.grad(total, problem[:3], allow_unused=True, materialize_grads=True)
    expected = torch.autograd.grad(should_be, problem[:3], allow_unused=True, materialize_grads=True)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(gradients, expected, strict=True))


def test_gradients_are_those_of_finite_differences(problem):
    hidden, weight, bias, targets, rows, weights = problem
    inputs = [x.detach().double().requires_grad_() for x in (hidden.flatten(0, 1), weight, bias)]

    def total(h, w, b):
        projection = Projection(w, closed(b), torch.float64)
        return linear.linear_cross_entropy(h, rows, projection, targets.flatten()[rows], weights.double())[0]

    assert torch.autograd.gradcheck(total, inputs)


def test_kernels_for_a_compiler_compute_the_same(problem):
    hidden, weight, bias, targets, rows, weights = problem
    logits = (hidden.flatten(0, 1)[rows] @ weight.T).detach()
    chosen, closed_bias = targets.flatten()[rows], closed(bias).detach()
    nll, grad = linear._reduction_and_gradient(logits, closed_bias, chosen, weights)
    assert torch.equal(linear._reduction(logits, closed_bias, chosen), nll)
    plain_nll, plain_grad = linear._reduce(logits, closed_bias, chosen, weights)
    assert torch.allclose(nll, plain_nll, atol=1e-6)
    assert torch.allclose(grad, plain_grad, atol=1e-6)


def test_a_vocabulary_filled_up_changes_nothing(problem, monkeypatch):
    """What a GPU gets: tokens that cannot be, up to a round number."""

    def filled(weight, bias):
        return F.pad(weight, (0, 0, 0, 3)), F.pad(bias, (0, 3), value=-math.inf)

    plain = by_rows(Projecting, *problem)
    monkeypatch.setattr(linear, "_pad_vocabulary", filled)
    made = by_rows(Projecting, *problem)
    assert torch.allclose(made[1], plain[1])
    for one, other in zip(*(torch.autograd.grad(x[0], problem[:3]) for x in (made, plain)), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_no_gradient_no_work_for_it(problem, monkeypatch):
    monkeypatch.setattr(linear, "_Gradients", None)
    with torch.no_grad():
        total, nll = by_rows(Projecting, *problem)
    assert total.item() == pytest.approx((nll * problem[-1]).sum().item())


def test_chunks_bound_the_rows_that_meet_the_vocabulary(problem, monkeypatch):
    small_chunks(monkeypatch, 4 * V)
    hidden, weight, _, targets, *_ = problem
    seen = []

    def head(rows):
        seen.append(rows.shape[0])
        return F.linear(rows, weight)

    with torch.no_grad():
        reduce_rows(head, hidden.flatten(0, 1), targets.flatten(), cross_entropy, V)
    assert seen == [4, 4, 4, 3]


@pytest.mark.parametrize("net", [Net, Projecting])
def test_nothing_as_wide_as_the_vocabulary_is_kept_for_the_backward_pass(problem, monkeypatch, net):
    small_chunks(monkeypatch, 4 * V)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        by_rows(net, *problem)
    assert not any(len(shape) == 2 and shape[-1] == V for shape in kept)


@pytest.mark.parametrize("net", [Net, Projecting])
def test_logits_are_reduced_in_float32(problem, net):
    hidden, weight, bias, targets, rows, weights = problem
    _, exact = dense(*problem)
    half = net(weight.bfloat16(), closed(bias).bfloat16(), torch.bfloat16)
    _, nll = weighted_cross_entropy(half, hidden.bfloat16(), rows, targets, weights)
    assert nll.dtype == torch.float32
    assert torch.allclose(nll, exact, atol=0.2)


def test_several_numbers_a_row_keep_their_shape(problem, monkeypatch):
    small_chunks(monkeypatch, 2 * V)
    hidden, weight, _, targets, *_ = problem
    two = lambda logits, target: torch.stack([logits.logsumexp(-1), logits.amax(-1)], 1)  # noqa: E731
    made = reduce_rows(lambda rows: F.linear(rows, weight), hidden.flatten(0, 1), targets.flatten(), two, V)
    logits = F.linear(hidden.flatten(0, 1), weight)
    assert torch.allclose(made, torch.stack([logits.logsumexp(-1), logits.amax(-1)], 1))


def test_scatter_puts_values_back_at_their_places():
    out = scatter_rows(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 2, 3]), torch.Size((2, 3)))
    assert out.tolist() == [[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]]


@pytest.mark.parametrize("net", [Net, Projecting])
def test_a_token_that_cannot_be_costs_nothing_where_it_has_no_weight(problem, net):
    """Rows that fill up a batch may stand at the mask token: the loss is that of the others, and so are gradients."""
    hidden, weight, bias, targets, rows, weights = problem
    inputs = (hidden, weight, bias)
    expected, _ = by_rows(net, *inputs, targets, rows[1:], weights[1:])
    gradients = torch.autograd.grad(expected, inputs)
    impossible = targets.flatten().index_fill(0, rows[:1], CLOSED).view(B, L)
    found, nll = by_rows(net, *inputs, impossible, rows, weights.index_fill(0, torch.tensor([0]), 0.0))
    assert torch.isinf(nll[0])
    torch.testing.assert_close(found, expected)
    for one, other in zip(torch.autograd.grad(found, inputs), gradients, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        found, _ = by_rows(net, *inputs, impossible, rows, weights.index_fill(0, torch.tensor([0]), 0.0))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("learns", [False, True])
def test_one_compiled_kernel_does_for_any_number_of_rows(monkeypatch, learns):
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    torch._dynamo.reset()
    kernels = [torch.compile(one, backend=backend) for one in (linear._reduction, linear._reduction_and_gradient)]
    monkeypatch.setattr(linear, "_compiled_kernels", lambda: kernels)
    projection = Projection(torch.randn(V, D, requires_grad=True), torch.randn(V), fused=True)
    for count in (12, 9, 2):
        hidden, rows, targets = torch.randn(12, D), torch.arange(count), torch.randint(V, (count,))
        with torch.set_grad_enabled(learns):
            linear.linear_cross_entropy(hidden, rows, projection, targets, torch.rand(count))
    assert len(made) == 1
