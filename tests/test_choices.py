"""Probabilities of given answers at a blank: exact for one token, bounds with errors otherwise."""

from __future__ import annotations

import pytest
import torch

from unmask.choices import answer_nats
from unmask.errors import UnmaskError
from unmask.laws import exact
from unmask.laws.tables import random_table
from unmask.schedules import LogLinear


class Processor:
    mask_token_id = 1


def test_answers_of_one_token_are_exact(mdlm):
    answers = mdlm.choose("a[MASK]c", ["b", "d", "e"])
    row = torch.tensor([[97, mdlm.text_processor.mask_token_id, 99]])
    with torch.no_grad():
        log_p = mdlm.denoiser.head(mdlm.denoiser.hidden(row)[:, 1])[0].double().log_softmax(-1)
    expected = log_p[[98, 100, 101]].softmax(-1)
    assert [one.probability for one in answers] == pytest.approx(expected.tolist(), rel=1e-5)
    assert all(one.exact and one.error == 0 for one in answers)
    assert answers[1].nats == pytest.approx(-float(log_p[100]), rel=1e-5)


def test_one_call_serves_all_answers_of_one_token(mdlm, monkeypatch):
    calls = []
    original = mdlm.denoiser.hidden
    monkeypatch.setattr(
        mdlm.denoiser, "hidden", lambda ids, **options: calls.append(len(ids)) or original(ids, **options)
    )
    mdlm.choose("a[MASK]c", list("bdefgh"))
    assert calls == [1]


def test_longer_answers_have_the_bound_of_the_likelihood():
    """The mean over many seeds is the any-order bound: the mean over orders of the sum of -log p."""
    table = random_table(length=3, mask_token_id=1)
    row, open_ = [2, 0, 3], range(1, 3)
    draws = torch.stack([answer_nats(table, LogLinear(), Processor(), [(row, open_)], seed) for seed in range(40)])
    conditionals = {}
    for masked in ((1, 2), (1,), (2,)):
        canvas = torch.tensor([[1 if place in masked else token for place, token in enumerate(row)]])
        conditionals[masked] = -exact.log_conditionals(table, canvas, 1.0)[0]
    first = [conditionals[1, 2][place, row[place]] for place in open_]
    bound = 0.5 * (first[0] + conditionals[(2,)][2, row[2]]) + 0.5 * (first[1] + conditionals[(1,)][1, row[1]])
    error = float(draws.mean(dim=(1, 2)).std()) / 40**0.5
    assert float(draws.mean()) == pytest.approx(float(bound), abs=4 * error + 1e-9)


def test_probabilities_add_up_and_have_errors(mdlm):
    answers = mdlm.choose("The [MASK] sat.", ["cat", "dog", "x"], seed=1)
    assert sum(one.probability for one in answers) == pytest.approx(1)
    assert [one.exact for one in answers] == [False, False, True]
    assert all(one.error > 0 for one in answers)
    assert mdlm.choose("The [MASK] sat.", ["cat", "dog", "x"], seed=1) == answers


def test_an_autoregressive_model_compares_likelihoods(ar):
    answers = ar.choose("The [MASK] sat.", ["cat", "horse"])
    nats = [ar.score(f"The {word} sat.").nats for word in ("cat", "horse")]
    assert [one.nats for one in answers] == pytest.approx(nats)
    assert all(one.exact for one in answers)


@pytest.mark.parametrize(
    ("text", "choices", "message"),
    [
        ("no blank", ["a", "b"], "one \\[MASK\\]"),
        ("[MASK] and [MASK]", ["a", "b"], "one \\[MASK\\]"),
        ("[MASK:2]", ["a", "b"], "one \\[MASK\\]"),
        ("[MASK]", ["a"], "at least two"),
        ("[MASK]", ["a", "a"], "different"),
        ("[MASK]", "ab", "list"),
        ("[MASK]", ["a", " "], "blank"),
        ("[MASK]", ["a", 3], "string"),
    ],
)
def test_bad_choices_are_refused(mdlm, text, choices, message):
    with pytest.raises(UnmaskError, match=message):
        mdlm.choose(text, choices)
