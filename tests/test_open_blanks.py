"""Blanks of open length: the number of tokens with which the known ones are likeliest, by enumeration."""

from __future__ import annotations

import math
from itertools import combinations, product
from types import SimpleNamespace

import pytest
import torch

from unmask.checkpoint import CheckpointConfig
from unmask.errors import UnmaskError
from unmask.infilling import Demand, _noise, nats_of_known, settle
from unmask.laws.tables import random_table
from unmask.registry import build
from unmask.schedules import LogLinear
from unmask.text_processor import TextProcessor

CPU = torch.device("cpu")


@pytest.fixture
def world():
    """A random table over two letters, with the text_processor of its tokenizer."""
    tokenizer = build("tokenizer", {"name": "char", "alphabet": "ab"}).build(lambda: iter(()))
    tokenizer.add_special_tokens({"eos_token": "[EOS]"})
    mask, size = tokenizer.mask_token_id, len(tokenizer)
    table = random_table(4, vocab_size=size, length=5, mask_token_id=mask)
    config = SimpleNamespace(mask_token_id=mask, max_length=5, vocab_size=size)
    return table, TextProcessor(tokenizer, config, CheckpointConfig(length=5))


def exact_bound(table, row: list[int], mask: int) -> float:
    """The mean over n of L/n times the cross-entropy of n hidden tokens, over all sets of n of them."""
    known = [i for i, token in enumerate(row) if token != mask]
    total = 0.0
    for n in range(1, len(known) + 1):
        sets = list(combinations(known, n))
        for hidden in sets:
            z = torch.tensor([[mask if i in hidden else token for i, token in enumerate(row)]])
            log_p = table.head(table.hidden(z)).log_softmax(-1)[0]
            total -= sum(float(log_p[i, row[i]]) for i in hidden) / n / len(sets)
    return total


def test_the_bound_of_known_tokens_holds_the_gap_masked(world):
    """By many draws it is the enumerated one, whatever the gap."""
    table, text_processor = world
    nats = nats_of_known(table, LogLinear(), text_processor, CPU)
    candidates = [["a", n, "b"] for n in (1, 2, 3)]
    for said, parts in zip(nats(candidates, range(3200)), candidates, strict=True):
        assert said / 3200 == pytest.approx(
            exact_bound(table, text_processor.blank_ids(parts), text_processor.mask), rel=0.03
        )


def test_the_likeliest_length_is_taken(world):
    table, text_processor = world
    for text in ("a[MASK:1-3]b", "[MASK:1-4]a", "ab[MASK:1-3]", "[MASK:1-2]b[MASK:1-2]"):
        parts = text_processor.parts(text)
        chosen = settle(parts, nats_of_known(table, LogLinear(), text_processor, CPU))
        every = [list(one) for one in product(*map(_choices, parts))]
        best = min(every, key=lambda one: exact_bound(table, text_processor.blank_ids(one), text_processor.mask))
        values = sorted(exact_bound(table, text_processor.blank_ids(one), text_processor.mask) for one in every)
        assert values[1] - values[0] > 0.02, "there is something to tell apart"
        assert chosen == best


def _choices(part):
    return list(part) if isinstance(part, range) else [part]


def test_few_blanks_are_settled_together_and_many_one_by_one():
    asked: list[tuple[int, int, int]] = []

    def nats(candidates, draws):
        asked.append((len(candidates), draws.start, draws.stop))
        return [abs(sum(part for part in one if isinstance(part, int)) - 12) for one in candidates]

    assert settle([range(1, 9), "x", range(1, 9)], nats) == [4, "x", 8]
    assert asked == [(64, 0, 4), (16, 4, 16)]
    asked.clear()
    assert settle([range(1, 9), "x", range(1, 10)], nats) == [8, "x", 4]
    assert asked == [(8, 0, 4), (2, 4, 16), (9, 0, 4), (3, 4, 16)], "from the left, the others as short as they may be"
    asked.clear()
    assert settle(["a", 3, "b"], nats) == ["a", 3, "b"]
    assert asked == []


def test_lengths_must_fit_together():
    def nats(candidates, draws):
        return [-sum(part for part in one if isinstance(part, int)) + 0.1 * one[0] for one in candidates]

    assert settle([range(1, 9), "x", range(1, 9)], nats, room=10) == [2, "x", 8]
    assert settle([range(1, 9), "x", 3, range(1, 10)], nats, room=13) == [8, "x", 3, 2]
    assert settle([range(1, 9), "x", range(1, 9)], nats, room=2) == [1, "x", 1]
    with pytest.raises(UnmaskError, match=r"room for 1 tokens.*\[MASK:1-8\]"):
        settle([range(1, 9), "x", range(1, 9)], nats, room=1)


@pytest.mark.parametrize("most", [8, 9], ids=["together", "one by one"])
def test_of_the_lengths_that_fit_the_likeliest_are_taken(most):
    """What is judged has all that is asked for; without any such length nobody is asked."""
    judged: list[list] = []

    def nats(candidates, draws):
        judged.extend(candidates)
        return [one[0] + abs(one[2] - 6) for one in candidates]

    def fits(parts):
        return parts[0] + parts[2] >= 10 and parts[0] % 2 == 1

    blanks = [range(1, 9), "x", range(1, most + 1)]
    assert settle(blanks, nats, demand=Demand(fits, str)) == {8: [3, "x", 7], 9: [1, "x", 9]}[most]
    assert all(map(fits, judged))
    assert settle(blanks, nats, room=10, demand=Demand(fits, str)) in ([5, "x", 5], [3, "x", 7], [1, "x", 9])
    judged.clear()
    with pytest.raises(
        UnmaskError, match=f"No length of the blanks will do; with the longest: too short, 8 and {most}"
    ):
        settle(blanks, nats, demand=Demand(lambda parts: False, lambda parts: f"too short, {parts[0]} and {parts[2]}"))
    assert judged == []


def test_who_has_not_tried_all_lengths_does_not_say_that_none_will_do():
    """Only three long blanks would do, and the first 4,096 combinations leave the leftmost one short."""
    blanks = [range(1, 61), "x", range(1, 61), "x", range(1, 61)]
    long_enough = Demand(lambda parts: sum(parts[::2]) > 150, str)
    with pytest.raises(UnmaskError, match=r"None of the 4096 lengths of the blanks that were tried.*narrow"):
        settle(blanks, lambda *_: pytest.fail("nobody is asked"), demand=long_enough)
    with pytest.raises(UnmaskError, match="No length of the blanks will do"):
        settle([range(1, 65), "x", range(1, 65)], lambda *_: pytest.fail("nobody is asked"), demand=long_enough)


def test_a_known_token_is_hidden_by_the_same_draws_whatever_the_gap_before_it():
    draws = torch.arange(5)
    short = _noise(draws, torch.tensor([True, False, True, True]))
    wide = _noise(draws, torch.tensor([True, False, False, False, True, True]))
    assert torch.equal(short.t, wide.t)
    assert torch.equal(short.u[:, [0, 2, 3]], wide.u[:, [0, 4, 5]])


def test_fill_takes_blanks_of_open_length(mdlm):
    one = mdlm.fill_details(["The [MASK:2-6] sat."], seed=1)[0]
    written = sum(order >= 0 for order in one.order)
    assert 2 <= written <= 6
    assert bytes(one.ids[:4] + one.ids[-5:]) == b"The  sat."
    fixed = mdlm.fill_details([f"The [MASK:{written}] sat."], seed=1)[0]
    assert fixed.ids == one.ids
    *_, frame = mdlm.stream("The [MASK:2-6] sat", length=40, steps=3)
    assert frame.text.startswith("The ")


@pytest.mark.parametrize(("policy", "behind"), [("padded", "end"), ("supervised_eos", "mask")])
def test_what_stands_behind_a_text_is_seen_and_not_counted(world, policy, behind):
    """Its end where the policy shows one; masks where the rest of a row was learnt, since the text may go on."""
    table, text_processor = world
    nats = nats_of_known(table, LogLinear(), text_processor, CPU)
    with_end = TextProcessor(
        text_processor.tokenizer,
        SimpleNamespace(mask_token_id=text_processor.mask, max_length=5, vocab_size=4),
        CheckpointConfig(length=5, policy=policy),
    )
    framed = nats_of_known(with_end.goes_on(table), LogLinear(), with_end, CPU)
    (said,), (plain,) = framed([["a", 1]], range(1)), nats([["a", 1]], range(1))
    mask, eos = text_processor.mask, text_processor.end_token
    z = torch.tensor([[mask, mask, eos] if behind == "end" else [mask] * 5])
    first = -float(table.head(table.hidden(z)).log_softmax(-1)[0, 0, text_processor.blank_ids(["a"])[0]])
    assert said == pytest.approx(first, rel=1e-4)
    assert not math.isclose(said, plain, rel_tol=1e-3)
