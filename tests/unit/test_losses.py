"""The vocabulary projection on selected rows, against the plain dense one: values, gradients, memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from unmask import losses
from unmask.losses import cross_entropy, reduce_rows, scatter_rows

B, L, D, V = 3, 5, 8, 13


@pytest.fixture
def problem():
    torch.manual_seed(0)
    hidden = torch.randn(B, L, D, requires_grad=True)
    weight = torch.randn(V, D, requires_grad=True)
    targets = torch.randint(V, (B, L))
    selected = torch.rand(B, L) < 0.6
    return hidden, weight, targets, selected


def dense(hidden, weight, targets, selected):
    logits = F.linear(hidden, weight)
    nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(B, L)
    return nll * selected


def by_rows(hidden, weight, targets, selected):
    head = lambda rows: F.linear(rows, weight)  # noqa: E731
    nll = reduce_rows(head, hidden[selected], targets[selected], cross_entropy, V)
    return scatter_rows(nll, selected)


@pytest.mark.parametrize("logits_per_chunk", [1, V, 3 * V, 1 << 24])
def test_rows_equal_dense(problem, monkeypatch, logits_per_chunk):
    monkeypatch.setattr(losses, "LOGITS_PER_CHUNK", logits_per_chunk)
    hidden, weight, *_ = problem
    coefficient = torch.randn(B, L)
    made, should = by_rows(*problem), dense(*problem)
    assert torch.allclose(made, should, atol=1e-6)
    for parameter in (hidden, weight):
        one = torch.autograd.grad((made * coefficient).sum(), parameter, retain_graph=True)[0]
        other = torch.autograd.grad((should * coefficient).sum(), parameter, retain_graph=True)[0]
        assert torch.allclose(one, other, atol=1e-5)


def test_chunks_bound_the_rows_that_meet_the_vocabulary(problem, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_PER_CHUNK", 4 * V)
    hidden, weight, targets, _ = problem
    seen = []

    def head(rows):
        seen.append(rows.shape[0])
        return F.linear(rows, weight)

    with torch.no_grad():
        reduce_rows(head, hidden.flatten(0, 1), targets.flatten(), cross_entropy, V)
    assert seen == [4, 4, 4, 3]


def test_chunks_keep_no_logits_for_the_backward_pass(problem, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_PER_CHUNK", 4 * V)
    hidden, weight, targets, _ = problem
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        reduce_rows(lambda rows: F.linear(rows, weight), hidden.flatten(0, 1), targets.flatten(), cross_entropy, V)
    assert not any(shape[-1:] == (V,) for shape in kept)


def test_no_rows_are_no_loss(problem):
    hidden, weight, targets, _ = problem
    nothing = torch.zeros(B, L, dtype=torch.bool)
    made = by_rows(hidden, weight, targets, nothing)
    assert torch.equal(made, torch.zeros(B, L))
    assert torch.autograd.grad(made.sum(), weight, materialize_grads=True, allow_unused=True)[0].abs().sum() == 0


def test_logits_are_reduced_in_float32(problem):
    hidden, weight, targets, selected = problem
    half = by_rows(hidden.bfloat16(), weight.bfloat16(), targets, selected)
    assert half.dtype == torch.float32


def test_several_numbers_a_row_keep_their_shape(problem, monkeypatch):
    monkeypatch.setattr(losses, "LOGITS_PER_CHUNK", 2 * V)
    hidden, weight, targets, _ = problem
    two = lambda logits, target: torch.stack([logits.logsumexp(-1), logits.amax(-1)], 1)  # noqa: E731
    made = reduce_rows(lambda rows: F.linear(rows, weight), hidden.flatten(0, 1), targets.flatten(), two, V)
    logits = F.linear(hidden.flatten(0, 1), weight)
    assert torch.allclose(made, torch.stack([logits.logsumexp(-1), logits.amax(-1)], 1))


def test_scatter_puts_values_back_in_their_order():
    selected = torch.tensor([[False, True, True], [True, False, False]])
    out = scatter_rows(torch.tensor([1.0, 2.0, 3.0]), selected)
    assert out.tolist() == [[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]]
