"""Blanks of open length by enumeration, probabilities of given answers, and which tokens edits and rewrites replace."""

from __future__ import annotations

import re
from itertools import combinations, product
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import LENGTH, make_checkpoint
from unmask import registry
from unmask.checkpoint import CheckpointConfig, save_checkpoint
from unmask.constraints import NoWords, Regex
from unmask.constraints.members import can_accept
from unmask.data.documents import Document
from unmask.data.encoding import encode
from unmask.errors import UnmaskError
from unmask.infilling import (
    TemplateLayout,
    WordBoundary,
    answer_nats,
    choose_lengths,
    compare_answers,
    known_nats,
    mask_around,
    mask_spans,
    token_log_probs,
)
from unmask.laws import exact
from unmask.laws.tables import random_table
from unmask.pipeline import build_pipeline, load
from unmask.schedules import LogLinear
from unmask.text_processor import TextProcessor

TEXT = "One day é went to the ☃ park."


# ---- blanks of open length ------------------------------------------------------------------------------------------


def make_processor(policy: str = "packed") -> TextProcessor:
    """Two letters and EOS, in rows of five tokens."""
    tokenizer = registry.build("tokenizer", {"name": "char", "alphabet": "ab"}).build(lambda: iter(()))
    tokenizer.add_special_tokens({"eos_token": "[EOS]"})
    config = SimpleNamespace(mask_token_id=tokenizer.mask_token_id, max_length=5, vocab_size=len(tokenizer))
    return TextProcessor(tokenizer, config, CheckpointConfig(length=5, policy=policy))


@pytest.fixture
def processor():
    return make_processor()


@pytest.fixture
def table(processor):
    return random_table(4, vocab_size=processor.vocab_size, length=5, mask_token_id=processor.mask_token_id)


def exact_bound(table, row: list[int], mask: int) -> float:
    """The mean over n of L/n times the cross-entropy of n masked tokens, over all sets of n known tokens."""
    known = [i for i, token in enumerate(row) if token != mask]
    total = 0.0
    for n in range(1, len(known) + 1):
        sets = list(combinations(known, n))
        for masked in sets:
            z = torch.tensor([[mask if i in masked else token for i, token in enumerate(row)]])
            log_p = table.head(table.hidden(z)).log_softmax(-1)[0]
            total -= sum(float(log_p[i, row[i]]) for i in masked) / n / len(sets)
    return total


def test_the_bound_of_known_tokens_is_the_enumerated_one(processor, table):
    for n in (1, 2, 3):
        ids = processor.join(processor.parse(f"a[MASK:{n}]b"))
        nats = known_nats(table, LogLinear(), processor, ids, torch.arange(3200)) / 3200
        assert nats == pytest.approx(exact_bound(table, ids, processor.mask_token_id), rel=0.03)


@pytest.mark.parametrize("text", ["a[MASK:1-3]b", "[MASK:1-4]a", "ab[MASK:1-3]", "[MASK:1-2]b[MASK:1-2]"])
def test_the_length_with_the_lowest_bound_is_chosen(processor, table, text):
    template = processor.parse(text)
    choices = [list(part) if isinstance(part, range) else [part] for part in template]
    rows = [processor.join(list(one)) for one in product(*choices)]
    bounds = sorted((exact_bound(table, row, processor.mask_token_id), row) for row in rows)
    assert bounds[1][0] - bounds[0][0] > 0.02, "the candidates differ"
    assert TemplateLayout(processor, table, None).text_row(template) == bounds[0][1]


def test_a_known_token_has_the_same_draws_whatever_the_blank_before_it(processor, table):
    """A network that ignores its input gives the same bound for every length of a blank, draw by draw."""
    table.logits[:] = torch.linspace(-1, 1, table.logits.shape[-1])
    nats = [
        known_nats(table, LogLinear(), processor, processor.join(processor.parse(text)), torch.arange(5))
        for text in ("a[MASK]ab", "a[MASK:2]ab")
    ]
    assert nats[0] == pytest.approx(nats[1], rel=1e-6)


def test_few_blanks_are_chosen_jointly_and_many_one_by_one():
    calls: list[tuple[int, int, int]] = []

    def nats(candidates, draws):
        calls.append((len(candidates), draws.start, draws.stop))
        return [abs(sum(part for part in one if isinstance(part, int)) - 12) for one in candidates]

    assert choose_lengths([range(1, 9), [0], range(1, 9)], nats) == [4, [0], 8]
    assert calls == [(64, 0, 4), (16, 4, 16)]
    calls.clear()
    assert choose_lengths([range(1, 9), [0], range(1, 10)], nats) == [8, [0], 4]
    assert calls == [(8, 0, 4), (2, 4, 16), (9, 0, 4), (3, 4, 16)], "from the left, the others as short as possible"
    calls.clear()
    assert choose_lengths([[0], 3, [1]], nats) == [[0], 3, [1]]
    assert calls == []


def test_all_draws_count_also_the_first():
    """The longer blank has the lower bound over all draws, the shorter one over those after the first."""
    bounds = {1: (8.0, 1.0), 2: (1.0, 2.0), 3: (9.0, 9.0)}

    def nats(candidates, draws):
        return [bounds[length][draws.start > 0] for (length,) in candidates]

    assert choose_lengths([range(1, 4)], nats) == [2]


def test_lengths_fit_together():
    def nats(candidates, draws):
        return [-sum(part for part in one if isinstance(part, int)) + 0.1 * one[0] for one in candidates]

    assert choose_lengths([range(1, 9), [0], range(1, 9)], nats, room=10) == [2, [0], 8]
    assert choose_lengths([range(1, 9), [0], 3, range(1, 10)], nats, room=13) == [8, [0], 3, 2]
    with pytest.raises(UnmaskError, match=r"room for 1 tokens.*\[MASK:1-8\]"):
        choose_lengths([range(1, 9), [0], range(1, 9)], nats, room=1)
    blanks = [range(1, 61), [0], range(1, 61), [0], range(1, 61)]
    with pytest.raises(UnmaskError, match=r"None of the first 4096 combinations.*narrow"):
        choose_lengths(blanks, nats, accepts=lambda template: sum(template[::2]) > 150)


@pytest.mark.parametrize("most", [8, 9], ids=["jointly", "one by one"])
def test_only_accepted_lengths_are_compared(most):
    compared: list[list] = []

    def nats(candidates, draws):
        compared.extend(candidates)
        return [one[0] + abs(one[2] - 6) for one in candidates]

    def accepts(template):
        return template[0] + template[2] >= 10 and template[0] % 2 == 1

    blanks = [range(1, 9), [0], range(1, most + 1)]
    assert choose_lengths(blanks, nats, accepts=accepts) == {8: [3, [0], 7], 9: [1, [0], 9]}[most]
    assert all(map(accepts, compared))
    assert choose_lengths(blanks, nats, room=10, accepts=accepts) in ([5, [0], 5], [3, [0], 7], [1, [0], 9])
    compared.clear()
    with pytest.raises(UnmaskError, match=f"No length of the blanks .* with the longest: too short, 8 and {most}"):
        choose_lengths(blanks, nats, accepts=lambda _: False, reason=lambda one: f"too short, {one[0]} and {one[2]}")
    assert compared == []


@pytest.mark.parametrize(("policy", "after"), [("padded", "eos"), ("supervised_eos", "masks")])
def test_the_end_of_a_row_is_seen_and_not_counted(table, policy, after):
    """The network sees EOS if the policy appends it, and masks if padding is learned, since the text may go on."""
    processor = make_processor(policy)
    mask, eos = processor.mask_token_id, processor.eos_token_id
    lm = build_pipeline(table, processor.tokenizer, processor.config)
    lm.text_processor, lm.row_length = processor, 5
    ids = processor.join(processor.parse("a[MASK]"))
    nats = known_nats(lm.text_processor.as_trained(table), LogLinear(), processor, ids, torch.arange(1))
    z = torch.tensor([[mask, mask, eos] if after == "eos" else [mask] * 5])
    expected = -float(table.head(table.hidden(z)).log_softmax(-1)[0, 0, ids[0]])
    assert nats == pytest.approx(expected, rel=1e-4)


def test_fill_takes_blanks_of_open_length(mdlm):
    one = mdlm.fill_details(["The [MASK:2-6] sat."], seed=1)[0]
    size = sum(order >= 0 for order in one.order)
    assert 2 <= size <= 6
    assert bytes(one.ids[:4] + one.ids[-5:]) == b"The  sat."
    assert mdlm.fill_details([f"The [MASK:{size}] sat."], seed=1)[0].ids == one.ids
    *_, frame = mdlm.stream("The [MASK:2-6] sat", length=40, steps=3)
    assert frame.text.startswith("The ")
    (one,) = mdlm.fill_details(["ab[MASK:44-60]"])
    assert 46 <= len(one.ids) <= LENGTH, "lengths that do not fit are not tried"
    for length in (6, 90):
        (one,) = mdlm.sample(1, prompt="ab[MASK:1-60]", length=length, steps=2)
        assert len(one.ids) == length


# ---- given answers --------------------------------------------------------------------------------------------------


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
    row, open_, processor = [2, 0, 3], range(1, 3), SimpleNamespace(mask_token_id=1)
    draws = torch.stack([answer_nats(table, LogLinear(), processor, [(row, open_)], seed) for seed in range(40)])
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


def test_errors_of_probabilities_are_those_of_the_jackknife():
    nats = torch.rand(16, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left_out = torch.stack([(-torch.cat([nats[:r], nats[r + 1 :]]).mean(dim=0)).softmax(-1) for r in range(16)])
    expected = (15 * left_out.var(dim=0, correction=0)).sqrt()
    answers = compare_answers(["a", "b", "c"], nats, [False] * 3)
    assert [one.error for one in answers] == pytest.approx(expected.tolist())
    assert [one.probability for one in answers] == pytest.approx((-nats.mean(dim=0)).softmax(-1).tolist())


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
        ("[MASK]", ["a", " "], "must not be empty"),
        ("[MASK]", ["a", 3], "string"),
    ],
)
def test_bad_choices_are_refused(mdlm, text, choices, message):
    with pytest.raises(UnmaskError, match=message):
        mdlm.choose(text, choices)


# ---- edits ----------------------------------------------------------------------------------------------------------


def written(one) -> list[int]:
    return [place for place, order in enumerate(one.order) if order >= 0]


def test_the_tokens_of_a_span_are_replaced(mdlm):
    one = mdlm.edit_details(TEXT, spans=[(0, 3), (12, 13)])
    assert written(one) == [0, 1, 2, 13]
    assert bytes(one.ids[3:13] + one.ids[14:]) == TEXT.encode()[3:13] + TEXT.encode()[14:]
    assert mdlm.edit(TEXT, spans=[(0, 3), (12, 13)]) == one.text
    assert mdlm.edit("abc def", spans=[]) == "abc def"
    for span, places in (((8, 9), [8, 9]), ((22, 23), [23, 24, 25]), ((21, 22), [22])):
        assert written(mdlm.edit_details(TEXT, spans=[span])) == places, "all bytes of a character"


def log_probs_one_by_one(lm, ids):
    """[n] log p of each token with it alone masked."""
    found = []
    for place, token in enumerate(ids):
        z = torch.tensor([[*ids[:place], lm.text_processor.mask_token_id, *ids[place + 1 :]]])
        found.append(float(lm.denoiser(z).logits.detach()[0, place].log_softmax(-1)[token]))
    return found


def test_token_log_probs_are_conditional_on_the_tokens_that_are_not_masked_with_them(mdlm):
    ids = list(b"abc de")
    found = token_log_probs(mdlm.denoiser, torch.tensor(ids), len(ids))
    assert found.tolist() == pytest.approx(log_probs_one_by_one(mdlm, ids), rel=1e-4), "few tokens are masked alone"
    ids, mask = list(b"a longer text of many tokens"), mdlm.text_processor.mask_token_id
    found = token_log_probs(mdlm.denoiser, torch.tensor(ids), len(ids))
    for group in range(8):
        z = torch.tensor([[mask if place % 8 == group else token for place, token in enumerate(ids)]])
        log_p = mdlm.denoiser(z).logits.detach()[0].log_softmax(-1)
        for place in range(group, len(ids), 8):
            assert float(found[place]) == pytest.approx(float(log_p[place, ids[place]]), rel=1e-4)


def test_the_rest_of_a_row_is_seen_and_a_conditioned_network_gets_alpha():
    table, row = random_table(conditioned=True), torch.tensor([2, 0, 3])
    found = token_log_probs(table, row, 2)
    for place in range(2):
        z = row.clone()
        z[place] = 1
        log_p = exact.log_conditionals(table, z[None], torch.tensor([2 / 3], dtype=torch.float64))[0]
        assert float(found[place]) == pytest.approx(float(log_p[place, row[place]]), rel=1e-5)


def test_the_least_likely_tokens_are_replaced(mdlm, monkeypatch):
    calls, run = [], mdlm.denoiser._run
    order = sorted(range(8), key=log_probs_one_by_one(mdlm, list(b"abc defg")).__getitem__)
    for strength, count in ((0.01, 1), (0.25, 2), (0.5, 4), (1.0, 8)):
        assert written(mdlm.edit_details("abc defg", strength=strength)) == sorted(order[:count])
    assert len(written(mdlm.edit_details("abcdefghij"))) == 3, "the default is 0.3"
    assert 8 not in written(mdlm.edit_details("abc defg.", strength=1.0)), "the final full stop stays"
    assert written(mdlm.edit_details("?!", strength=1.0)) == [0, 1], "unless there is nothing else"
    monkeypatch.setattr(mdlm.denoiser, "_run", lambda *a, **k: calls.append(1) or run(*a, **k))
    one = mdlm.edit_details("some longer text to be scored", strength=0.2)
    assert len(calls) == 1 + one.calls == 7, "one call scores all tokens"


def test_edits_take_the_options_of_generate(mdlm):
    text, progress = "some text to be changed", []
    assert mdlm.edit(text, seed=1, temperature=0.0) == mdlm.edit(text, seed=2, temperature=0.0)
    assert mdlm.edit_details(text, strength=1.0, steps=3, progress=progress.append).calls <= 3
    assert sum(progress) == pytest.approx(1)
    assert mdlm.edit(text, seed=1, strength=1.0) != mdlm.edit(text, seed=2, strength=1.0)


def test_the_eos_of_an_edited_text_stays(tmp_path):
    lm = load(make_checkpoint(tmp_path / "padded", policy="padded"), device="cpu")
    one = lm.edit_details("abcdef", strength=0.5)
    assert one.ids[-1] == lm.tokenizer.eos_token_id
    assert len(written(one)) == 3
    assert max(written(one)) < 6


def test_tokens_are_scored_with_masks_after_the_text_if_padding_is_learned(tmp_path, monkeypatch):
    lm = load(make_checkpoint(tmp_path / "learned", policy="supervised_eos"), device="cpu")
    seen, run = [], lm.denoiser._run
    monkeypatch.setattr(lm.denoiser, "_run", lambda ids, *a, **k: seen.append(ids) or run(ids, *a, **k))
    lm.edit("abcdef", strength=0.5)
    assert seen[0].shape == (6, LENGTH)
    assert (seen[0][:, 6:] == lm.text_processor.mask_token_id).all()


# ---- rewrites -------------------------------------------------------------------------------------------------------


def test_kept_words_stay_and_the_rest_is_replaced(mdlm):
    text = "One day Tim went to see Tim's dog."
    one = mdlm.edit_details(text, keep=["Tim", " dog."])
    kept = [*range(8, 11), *range(24, 27), *range(29, 34)]
    assert written(one) == [place for place in range(34) if place not in kept]
    assert bytes(one.ids[place] for place in kept) == b"TimTim dog."
    assert mdlm.rewrite(text, keep=["Tim", " dog."]) == one.text
    assert written(mdlm.edit_details("xabcax", keep=["abc", "ca"])) == [0, 5], "occurrences may overlap"
    assert min(mdlm.edit_details("abc def", keep=[]).order) == 0
    text = "Tim went. Time is up."
    assert mdlm.rewrite(text, "Tim") == mdlm.rewrite(text, ["Tim"]) != mdlm.rewrite(text, list("Tim"))
    assert "kept" in mdlm.rewrite("it is kept now", keep="kept", particles=2, steps=2), "a boundary weights particles"


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    """A random model of a byte-pair tokenizer in which ' time' is one token."""
    folder = tmp_path_factory.mktemp("bpe")
    tokenizer = registry.build("tokenizer", {"name": "bpe", "vocab_size": 300}).build(
        lambda: iter([Document("one", "a time and a time and a time again " * 9)])
    )
    torch.manual_seed(0)
    spec = registry.build("model", {"name": "dit", "hidden_size": 32, "layers": 1, "heads": 2})
    network = spec.build(len(tokenizer), tokenizer.mask_token_id, 32)
    save_checkpoint(folder, network, tokenizer, CheckpointConfig(policy="padded", length=32))
    return load(folder, device="cpu")


def test_words_of_a_byte_pair_tokenizer_include_the_space_before_them(bpe):
    processor, text = bpe.text_processor, "a time and a time again"
    ids, _ = mask_around(processor, text, ["time"])
    assert [i for i in ids if i != processor.mask_token_id] == 2 * encode(bpe.tokenizer, [" time"])[0]
    for seed in range(20):
        assert len(re.findall(r" time(?![^\W_])", bpe.rewrite(text, keep=["time"], seed=seed))) >= 2
    ids, _ = mask_around(processor, "time and time", ["time"])
    assert ids[: ids.index(processor.mask_token_id)] == encode(bpe.tokenizer, ["time"])[0]
    ids = mask_spans(processor, text, processor.encode([text])[0], [(2, 6)])
    assert bpe.tokenizer.decode([i for i in ids if i != processor.mask_token_id]) == "a and a time again"
    assert ids.count(processor.mask_token_id) == 1


@pytest.mark.parametrize(("side", "words"), [(-1, [" ", "."]), (0, [" ", ".", " time", " a"])])
def test_no_letter_is_next_to_a_word_boundary(bpe, side, words):
    automaton = WordBoundary((0,), side).automaton(bpe.text_processor.vocabulary)
    for word in (" ", ".", "t", "tim", " time", " a"):
        (token,) = encode(bpe.tokenizer, [word])[0]
        assert can_accept(automaton, [token], bpe.text_processor.mask_token_id) == (word in words)
    _, boundaries = mask_around(bpe.text_processor, "(time) and", ["time"])
    end = len(encode(bpe.tokenizer, ["time"])[0]) + 1
    assert boundaries == [WordBoundary((0,), -1), WordBoundary((end,), 0)]


def is_letter(token: int) -> bool:
    """Whether a byte is a letter or a part of one."""
    return 128 <= token < 256 or (chr(token).isascii() and chr(token).isalnum())


def test_a_kept_word_stays_a_word_if_it_is_one_in_the_text(mdlm):
    for seed in range(20):
        ids = mdlm.edit_details("One day Tim, or not", keep="Tim", seed=seed, steps=3).ids
        assert not is_letter(ids[7])
        assert not is_letter(ids[11])
    inside = [mdlm.edit_details("One Timothy, or not", keep="Tim", seed=seed).ids for seed in range(20)]
    assert any(is_letter(ids[7]) for ids in inside), "here it begins a longer word"
    assert not any(is_letter(ids[3]) for ids in inside)


def test_kept_words_and_a_constraint_hold_together(mdlm):
    for constraint in (Regex("[aTim .]+"), [Regex("[aTim.]+"), NoWords("aa")]):
        for seed in range(5):
            text = mdlm.rewrite("one Tim and", keep="Tim", constraint=constraint, seed=seed)
            assert re.fullmatch(r"[aTim .]{3}[ .]Tim[ .][aTim .]{3}", text)
            assert isinstance(constraint, Regex) or not re.search("aa| ", text)
