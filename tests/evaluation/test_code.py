"""Blanks in functions, filled by planted networks that know the functions, or write one token wherever they can."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from unmask import registry
from unmask.checkpoint import CheckpointConfig
from unmask.data import stdlib
from unmask.data.encoding import encode
from unmask.data.sources import Document
from unmask.data.stdlib import FunctionsSource
from unmask.errors import UnmaskError
from unmask.evaluation.code import (
    PIECES,
    SIZES,
    Blank,
    Body,
    CodeEvaluation,
    blank_in,
    blanks_of,
    check_twin,
    code_of,
    fill,
    panels,
    parse_kinds,
    row_of,
    text_with,
)
from unmask.evaluation.tasks import ORDERS, Strategy, ways_of
from unmask.laws.tables import TableConfig
from unmask.pipeline import MaskedDiffusionLM

TOKENIZER = registry.build("tokenizer", "byte").build(lambda: iter(()))
LENGTH, MASK, EOS = 160, TOKENIZER.mask_token_id, TOKENIZER.eos_token_id
HELD_OUT = '''
def first(a, b=(1, 2)):
    """Says "é" and more."""
    c = a + b[0]
    if c:
        d = f"{a}-{b}"
        return "ü" + d
    return c

def second(x):
    ÿ = x * 2
    z = ÿ - 1
    return ÿ / z

class Box:
    def put(self, what):
        # for later
        self.what = what
        self.count += 1

def lone(m): return m + 1

def long(k):
    ''' + "\n    ".join(f"k{i} = k + {i}" for i in range(40)) + "\n"  # fmt: skip


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A standard library of two modules; the hash of its name holds `zipfile` out."""
    (tmp_path / "zipfile.py").write_text(HELD_OUT)
    (tmp_path / "json.py").write_text("def trained(a):\n    return a + a + a\n")
    monkeypatch.setattr(stdlib, "sysconfig", SimpleNamespace(get_path=lambda name: str(tmp_path)))


class Planted(torch.nn.Module):
    """Knows all functions of the library, and yet writes `always` wherever it can, if it is given."""

    def __init__(self, always: int | None = None) -> None:
        super().__init__()
        self.config = TableConfig(len(TOKENIZER), MASK, LENGTH, bos_token_id=MASK)
        self.always = always
        self.seen: list[list[int]] = []
        self.known = known()

    def head(self, rows, mask_logit=False):
        return rows

    def rows(self, tokens: list[list[int]]) -> torch.Tensor:
        ids = torch.tensor(tokens)
        ids = ids if self.always is None else torch.full_like(ids, self.always)
        return 40.0 * torch.nn.functional.one_hot(ids, len(TOKENIZER)) - 20.0


class Knows(Planted):
    """Sees a canvas, and knows the function that fits."""

    def hidden(self, input_ids, alpha=None, attention_mask=None):
        self.seen += input_ids.tolist()
        return self.rows([self._whole(ids) for ids in input_ids.tolist()])

    def _whole(self, ids: list[int]) -> list[int]:
        (whole,) = (w for w in self.known if all(a in (MASK, b) for a, b in zip(ids, w, strict=False)))
        return whole[: len(ids)]


class KnowsBefore(Planted):
    """Reads from left to right, and knows how the function goes on."""

    def new_cache(self, capacity=None):
        return []

    def hidden(self, input_ids, attention_mask=None, past_key_values=None):
        past_key_values.append(input_ids)
        read = torch.cat(past_key_values, dim=1)[:, 1:].tolist()
        self.seen += read
        nexts = [next((w[len(ids)] for w in self.known if w[: len(ids)] == ids), EOS) for ids in read]
        return self.rows([[token] for token in nexts])


class Wavers(KnowsBefore):
    """Finds x a little likelier than y."""

    def rows(self, tokens):
        logits = torch.full((len(tokens), 1, len(TOKENIZER)), -20.0)
        logits[..., ord("x")], logits[..., ord("y")] = 0.2, 0.0
        return logits


def known() -> list[list[int]]:
    texts = [document.text for document in FunctionsSource().documents()]
    return [(ids + [EOS] * LENGTH)[: max(LENGTH, len(ids))] for ids in encode(TOKENIZER, texts)]


def model(network: Planted, **card: object) -> MaskedDiffusionLM:
    objective = "ar" if isinstance(network, KnowsBefore) else "subs"
    protocol = {"data": {"source": {"name": "functions"}}}
    told = {"policy": "supervised_eos", "length": LENGTH, "protocol": protocol, "objective": objective, **card}
    return MaskedDiffusionLM(network, TOKENIZER, CheckpointConfig(**told), Path("planted"))


def pieces(kind: str) -> list[str]:
    """What may be blanked in the held-out functions, as text."""
    held_out = [one.text for one in FunctionsSource().documents() if "zipfile" in one.name]
    return [text[a:b] for text in held_out for a, b in PIECES[kind](Body.of(text))]


def test_blanks_are_what_the_parser_calls_expressions_and_statements():
    found = set(pieces("expression"))
    assert {"a + b[0]", "b[0]", 'f"{a}-{b}"', '"ü"', "self.what", "ÿ / z"} <= found
    assert not found & {'"""Says "é" and more."""', "(1, 2)", "m + 1", "m"}
    text = next(one.text for one in FunctionsSource().documents() if one.name == "zipfile:first")
    start = text.index('f"{a}')
    assert not [span for span in Body.of(text).expressions() if start < span[0] < start + len('f"{a}-{b}"')]
    lines = set(pieces("line"))
    assert {"c = a + b[0]", "return c", 'return "ü" + d', "self.count += 1"} <= lines
    assert not [line for line in lines if "\n" in line or '"""' in line or "lone" in line]
    several = set(pieces("lines"))
    assert {"ÿ = x * 2\n    z = ÿ - 1", "self.what = what\n    self.count += 1"} <= several
    assert 'if c:\n        d = f"{a}-{b}"\n        return "ü" + d' in several
    assert all("\n" in one for one in several)


@pytest.mark.parametrize("kind", list(SIZES))
def test_blanks_are_the_same_for_a_seed_fit_and_leave_the_def_line_alone(kind):
    lm = model(Knows())
    found = blanks_of(lm, kind, 100)
    assert found == blanks_of(lm, kind, 100)
    assert found[:2] == blanks_of(lm, kind, 2)
    others = [blank for seed in range(8) for blank in blanks_of(lm, kind, 100, seed)]
    assert len({(blank.name, blank.start) for blank in others}) > len(found)
    assert {blank.name for blank in others} <= {"zipfile:first", "zipfile:second", "zipfile:Box.put"}
    assert len({blanks_of(lm, kind, 1, seed)[0].name for seed in range(8)}) > 1
    for blank in others:
        assert len(blank.truth) in SIZES[kind]
        assert "def " in TOKENIZER.decode(list(blank.ids[: blank.start])).partition("\n")[0]
        assert "\n" in TOKENIZER.decode(list(blank.ids[: blank.start]))
        assert TOKENIZER.decode(list(blank.truth)) in pieces(kind)
        assert TOKENIZER.decode(list(blank.ids)) == blank.text


def test_a_function_must_fit_into_a_row_with_its_end():
    size = len(next(one.text for one in FunctionsSource().documents() if one.name == "zipfile:Box.put"))
    asked = [{blank.name for blank in blanks_of(model(Knows(), length=n), "line", 9)} for n in (size, size + 1)]
    assert asked[1] - asked[0] == {"zipfile:Box.put"}


def test_a_token_that_holds_the_end_of_the_def_line_is_never_blanked():
    words = ["def f(x):", "\n    y = x", " + 1", "\n    return", " y", " + x", "\n"]
    told = SimpleNamespace(eos_token_id=None, decode=lambda ids, **_: "".join(words[i] for i in ids))
    lm = SimpleNamespace(text_processor=SimpleNamespace(tokenizer=told, mask=99))
    document = Document("zipfile:f", "".join(words))
    (found,) = {blank_in(lm, document, list(range(7)), "expression", seed) for seed in range(20)}
    assert (found.start, found.end) == (4, 6)


@pytest.mark.parametrize("rule", ["greedy", "stochastic"])
def test_who_knows_the_functions_fills_every_blank(rule):
    contest = CodeEvaluation.of(model(Knows()))
    contest.enter(contest.home, ways_of(contest.home, ORDERS, [], [rule], [2, None]))
    contest.enter(model(KnowsBefore()), [Strategy(rule)])
    assert len(contest.rows) == 3 * (11 + 1)
    for row in contest.rows:
        assert [row.figures[name].value for name in ("parses", "exact", "same_tokens", "tokens")] == [1.0] * 4
        asked = sum(len(blank.truth) for blank in contest.blanks[row.kind]) / row.items
        expected = row.figures["calls"].value if row.adaptive else 2 if row.steps == 2 else asked
        assert row.figures["calls"].value == pytest.approx(expected)
    assert {row.way for row in contest.rows if row.causal} == {"ar"}
    assert [[len(panel.contenders) for panel in line] for line in panels(contest.rows)] == [[7, 7, 7]] * 2


def test_a_masked_model_sees_the_function_and_its_end_and_the_twin_what_stands_before():
    (blank,) = blanks_of(model(Knows()), "line", 1)
    masks = [MASK] * len(blank.truth)
    before, behind = list(blank.ids[: blank.start]), list(blank.ids[blank.end :])
    shown = row_of(model(Knows()), blank)
    assert shown == before + masks + behind + [EOS] * (LENGTH - len(blank.ids))
    assert row_of(model(KnowsBefore()), blank) == before + masks
    assert row_of(model(Knows(), policy="padded"), blank) == [*before, *masks, *behind, EOS]
    twin = KnowsBefore(always=ord("x"))
    filled = fill(model(twin), [blank], Strategy())
    assert filled.calls.tolist() == [len(blank.truth)]
    written = [before + [ord("x")] * n for n in range(len(blank.truth))]
    assert twin.seen == written


def wrong(text: str, out: str) -> Blank:
    """A blank where a text has the word `out`."""
    ids = tuple(encode(TOKENIZER, [text])[0])
    start = text.rindex(out)
    return Blank("zipfile:f", "line", text, ids, start, start + len(out))


@pytest.mark.parametrize(
    ("token", "parses", "right"), [("x", 1, 1), ("y", 1, 1), ("1", 1, 0), (" ", 1, 0), ("(", 0, 0), ("=", 0, 0)]
)
def test_a_function_parses_when_the_parser_says_so(token, parses, right):
    blank = wrong("def f(x):\n    return xy\n", "xy")
    filled = fill(model(KnowsBefore(always=ord(token))), [blank], Strategy())
    assert (filled.parses[0], filled.right_tokens[0]) == (parses, right)
    assert (filled.exact[0], filled.same_tokens[0]) == (0, 0)


def test_greedy_tokens_are_the_likeliest_and_stochastic_ones_are_drawn():
    blanks = [wrong("def f(x):\n    return xx\n", "xx")] * 40
    greedy, drawn = (fill(model(Wavers()), blanks, Strategy(rule)) for rule in ("greedy", "stochastic"))
    assert greedy.right_tokens.tolist() == [2.0] * 40
    assert 0.3 < drawn.right_tokens.mean() / 2 < 0.8


def test_white_space_does_not_count_for_an_exact_blank_but_for_its_tokens():
    blank = wrong("def f(x):\n    return  x\n", "  ")
    lm = model(Knows())
    assert text_with(lm, blank, [ord(" "), EOS]) == "def f(x):\n    return x\n"
    filled = fill(model(KnowsBefore(always=ord("\t"))), [blank], Strategy())
    assert (filled.exact[0], filled.same_tokens[0], filled.parses[0], filled.right_tokens[0]) == (1, 0, 1, 0)


def test_who_ends_inside_a_blank_has_written_less():
    blank = wrong("def f(x):\n    return x + 1\n", " + 1")
    lm = model(KnowsBefore(always=EOS))
    assert text_with(lm, blank, [ord("y"), EOS, ord("(")]) == "def f(x):\n    return xy\n"
    filled = fill(lm, [blank], Strategy())
    assert (filled.parses[0], filled.exact[0], filled.right_tokens[0], filled.tokens[0]) == (1, 0, 0, 4)


def test_rows_of_ids_are_shown_as_they_are():
    network = Knows()
    lm = model(network)
    (blank,) = blanks_of(lm, "line", 1)
    row = row_of(lm, blank)
    (done,) = lm.fill_rows([row], order="left_to_right", seed=3)
    assert network.seen[0] == row
    assert done.ids[: len(blank.ids)] == list(blank.ids)
    assert (done.calls, done.seed) == (len(blank.truth), 3)
    lm.fill_rows([row[: len(blank.ids)]])
    assert network.seen[-1][len(blank.ids) :] == [lm.text_processor.mask] * (len(row) - len(blank.ids)), "it may go on"
    with pytest.raises(UnmaskError, match="no rows to fill"):
        lm.fill_rows([])
    with pytest.raises(UnmaskError, match=f"has {LENGTH + 1} tokens and this model reads {LENGTH}"):
        lm.fill_rows([[MASK] * (LENGTH + 1)])
    with pytest.raises(UnmaskError, match="cannot see what stands after a blank"):
        model(KnowsBefore()).fill_rows([row])


def test_what_was_trained_on_something_else_is_refused():
    with pytest.raises(UnmaskError, match="was trained on the source 'stdlib', not on functions; make one with"):
        code_of(model(Knows(), protocol={"data": {"source": {"name": "stdlib"}}}))
    with pytest.raises(UnmaskError, match="does not say what it was trained on"):
        code_of(model(Knows(), protocol={}))
    other = model(KnowsBefore())
    tokenizer = registry.build("tokenizer", {"name": "char", "alphabet": "abc"}).build(lambda: iter(()))
    other = MaskedDiffusionLM(other.denoiser, tokenizer, other.config)
    with pytest.raises(UnmaskError, match="was trained on other functions or tokens"):
        check_twin(model(Knows()), other)
    with pytest.raises(UnmaskError, match="was trained on other functions or tokens"):
        CodeEvaluation.of(model(Knows()), ["line"]).enter(other, [Strategy()])
    with pytest.raises(UnmaskError, match="blank of the kind 'line' fits into the 20 tokens"):
        blanks_of(model(Knows(), length=20), "line", 5)
    with pytest.raises(UnmaskError, match=r"no blank of the kind 'linse'\. Did you mean 'line"):
        parse_kinds(["linse"])
