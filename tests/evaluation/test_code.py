"""Blanks in functions, filled by planted networks that know the functions, or that always write one token."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from unmask import registry
from unmask.checkpoint import CheckpointConfig
from unmask.data.documents import Document
from unmask.data.encoding import encode
from unmask.data.sources import stdlib
from unmask.data.sources.stdlib import FunctionsSource
from unmask.evaluation.code import (
    SIZES,
    Blank,
    CodeEvaluation,
    body_spans,
    fill_blanks,
    filled_text,
    make_blank,
    make_blanks,
    masked_row,
)
from unmask.evaluation.tasks import ORDERS, Strategy, make_strategies
from unmask.laws.tables import TableConfig
from unmask.pipeline import MaskedDiffusionLM, build_pipeline

TOKENIZER = registry.build("tokenizer", "byte").build()
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
    """A standard library of two modules; `zipfile` is held out."""
    (tmp_path / "zipfile.py").write_text(HELD_OUT)
    (tmp_path / "json.py").write_text("def trained(a):\n    return a + a + a\n")
    monkeypatch.setattr(stdlib, "sysconfig", SimpleNamespace(get_path=lambda name: str(tmp_path)))


class Planted(torch.nn.Module):
    """Knows all functions of the library, or writes the token `always`, with logits of this scale."""

    def __init__(self, always: int | None = None, scale: float = 40.0) -> None:
        super().__init__()
        self.config = TableConfig(len(TOKENIZER), MASK, LENGTH, bos_token_id=MASK)
        self.always, self.scale = always, scale
        self.seen: list[list[int]] = []
        texts = [document.text for document in FunctionsSource().documents()]
        self.functions = [(ids + [EOS] * LENGTH)[: max(LENGTH, len(ids))] for ids in encode(TOKENIZER, texts)]

    def head(self, rows, mask_logit=False):
        return rows

    def logits(self, tokens: list[list[int]]) -> torch.Tensor:
        ids = torch.tensor(tokens)
        ids = ids if self.always is None else torch.full_like(ids, self.always)
        return self.scale * torch.nn.functional.one_hot(ids, len(TOKENIZER))


class Knows(Planted):
    """A masked model that knows the function that fits a canvas."""

    def hidden(self, input_ids, alpha=None, attention_mask=None):
        self.seen += input_ids.tolist()
        return self.logits([self._fit(ids) for ids in input_ids.tolist()])

    def _fit(self, ids: list[int]) -> list[int]:
        (fit,) = (f for f in self.functions if all(a in (MASK, b) for a, b in zip(ids, f, strict=False)))
        return fit[: len(ids)]


class KnowsBefore(Planted):
    """An autoregressive model that knows how a function continues."""

    def new_cache(self, capacity=None):
        return []

    def hidden(self, input_ids, attention_mask=None, past_key_values=None):
        past_key_values.append(input_ids)
        read = torch.cat(past_key_values, dim=1)[:, 1:].tolist()
        self.seen += read
        nexts = [next((f[len(ids)] for f in self.functions if f[: len(ids)] == ids), EOS) for ids in read]
        return self.logits([[token] for token in nexts])


def model(network: Planted, **card: object) -> MaskedDiffusionLM:
    objective = "ar" if isinstance(network, KnowsBefore) else "subs"
    protocol = {"data": {"source": {"name": "functions"}}}
    options = {"policy": "supervised_eos", "length": LENGTH, "protocol": protocol, "objective": objective, **card}
    return build_pipeline(network, TOKENIZER, CheckpointConfig(**options), Path("planted"))


def function(name: str) -> str:
    return next(one.text for one in FunctionsSource().documents() if one.name == f"zipfile:{name}")


def pieces(kind: str) -> set[str]:
    """Everything that may be blanked in the held-out functions."""
    held_out = [one.text for one in FunctionsSource().documents() if "zipfile" in one.name]
    return {text[a:b] for text in held_out for a, b in body_spans(text, kind)[0]}


def blank_at(text: str, word: str) -> Blank:
    """A blank at the last occurrence of a word."""
    start = text.rindex(word)
    return Blank("zipfile:f", "line", text, tuple(encode(TOKENIZER, [text])[0]), start, start + len(word))


def test_blanks_are_expressions_and_statements():
    found = pieces("expression")
    assert {"a + b[0]", "b[0]", 'f"{a}-{b}"', '"ü"', "self.what", "ÿ / z"} <= found
    assert not found & {'"""Says "é" and more."""', "(1, 2)", "m + 1", "m"}
    text = function("first")
    start = text.index('f"{a}')
    inside = range(start + 1, start + len('f"{a}-{b}"'))
    assert not [span for span in body_spans(text, "expression")[0] if span[0] in inside]
    lines = pieces("line")
    assert {"c = a + b[0]", "return c", 'return "ü" + d', "self.count += 1"} <= lines
    assert not [line for line in lines if "\n" in line or '"""' in line or "lone" in line]
    several = pieces("lines")
    assert {"ÿ = x * 2\n    z = ÿ - 1", "self.what = what\n    self.count += 1"} <= several
    assert 'if c:\n        d = f"{a}-{b}"\n        return "ü" + d' in several
    assert all("\n" in one for one in several)


@pytest.mark.parametrize("kind", list(SIZES))
def test_blanks_depend_on_the_seed_and_have_the_right_size(kind):
    lm = model(Knows())
    found = make_blanks(lm, kind, 100)
    assert found == make_blanks(lm, kind, 100)
    assert found[:2] == make_blanks(lm, kind, 2)
    blanks = [blank for seed in range(8) for blank in make_blanks(lm, kind, 100, seed)]
    assert len({(blank.name, blank.start) for blank in blanks}) > len(found)
    assert {blank.name for blank in blanks} <= {"zipfile:first", "zipfile:second", "zipfile:Box.put"}
    assert len({make_blanks(lm, kind, 1, seed)[0].name for seed in range(8)}) > 1, "functions are shuffled"
    for blank in blanks:
        assert len(blank.target) in SIZES[kind]
        first_line, newline, _ = TOKENIZER.decode(list(blank.ids[: blank.start])).partition("\n")
        assert "def " in first_line
        assert newline, "the line of the def is never blanked"
        assert TOKENIZER.decode(list(blank.target)) in pieces(kind)
        assert TOKENIZER.decode(list(blank.ids)) == blank.text


def test_a_function_must_fit_into_a_row_with_its_eos():
    size = len(function("Box.put"))
    names = [{blank.name for blank in make_blanks(model(Knows(), length=n), "line", 9)} for n in (size, size + 1)]
    assert names[1] - names[0] == {"zipfile:Box.put"}


def test_a_token_that_includes_the_end_of_the_def_line_is_never_blanked():
    words = ["def f(x):", "\n    y = x", " + 1", "\n    return", " y", " + x", "\n"]
    tokenizer = SimpleNamespace(eos_token_id=None, decode=lambda ids, **_: "".join(words[i] for i in ids))
    lm = SimpleNamespace(text_processor=SimpleNamespace(tokenizer=tokenizer, mask_token_id=99))
    document = Document("zipfile:f", "".join(words))
    (found,) = {make_blank(lm, document, list(range(7)), "expression", seed) for seed in range(20)}
    assert (found.start, found.end) == (4, 6)


@pytest.mark.parametrize("rule", ["greedy", "stochastic"])
def test_a_model_that_knows_the_functions_fills_every_blank(rule):
    evaluation = CodeEvaluation.of(model(Knows()))
    evaluation.run(evaluation.lm, make_strategies(evaluation.lm, ORDERS, [], [rule], [2, None]))
    evaluation.run(model(KnowsBefore()), [Strategy(rule)])
    assert len(evaluation.rows) == 3 * (11 + 1)
    for row in evaluation.rows:
        assert [row.metrics[name].value for name in ("parses", "exact", "same_tokens", "tokens")] == [1.0] * 4
        tokens = sum(len(blank.target) for blank in evaluation.groups[row.kind]) / row.items
        expected = row.metrics["calls"].value if row.adaptive else 2 if row.steps == 2 else tokens
        assert row.metrics["calls"].value == pytest.approx(expected)
    assert {row.strategy for row in evaluation.rows if row.causal} == {"ar"}


def test_a_masked_model_sees_the_whole_function_and_an_autoregressive_one_the_prefix():
    (blank,) = make_blanks(model(Knows()), "line", 1)
    size = len(blank.target)
    before, after = list(blank.ids[: blank.start]), list(blank.ids[blank.end :])
    eos = [EOS] * (LENGTH - len(blank.ids))
    for policy, end in (("supervised_eos", eos), ("padded", [EOS])):
        network = Knows()
        lm = model(network, policy=policy)
        filled = fill_blanks(lm, [blank], Strategy(order="left_to_right"))
        assert masked_row(lm, blank) == before + [MASK] * size + after + end
        assert network.seen[0] == masked_row(lm, blank)
        assert filled["calls"].tolist() == [size]
    network = KnowsBefore(always=ord("x"))
    assert fill_blanks(model(network), [blank], Strategy())["calls"].tolist() == [size]
    assert network.seen == [before + [ord("x")] * n for n in range(size)]


COLUMNS = ("parses", "exact", "same_tokens", "right_tokens", "tokens")


@pytest.mark.parametrize(
    ("text", "word", "token", "expected"),
    [
        ("def f(x):\n    return xy\n", "xy", ord("x"), (1, 0, 0, 1, 2)),
        ("def f(x):\n    return xy\n", "xy", ord("("), (0, 0, 0, 0, 2)),
        ("def f(x):\n    return  x\n", "  ", ord("\t"), (1, 1, 0, 0, 2)),
        ("def f(x):\n    return x + 1\n", " + 1", EOS, (1, 0, 0, 0, 4)),
    ],
    ids=["one right token", "a syntax error", "other white space", "EOS ends the blank"],
)
def test_a_filled_blank_is_parsed_and_compared(text, word, token, expected):
    filled = fill_blanks(model(KnowsBefore(always=token)), [blank_at(text, word)], Strategy())
    assert tuple(filled[name][0] for name in COLUMNS) == expected


def test_tokens_after_the_first_eos_of_a_blank_are_dropped():
    blank = blank_at("def f(x):\n    return x + 1\n", " + 1")
    assert filled_text(model(KnowsBefore()), blank, [ord("y"), EOS, ord("(")]) == "def f(x):\n    return xy\n"


def test_greedy_tokens_are_the_most_likely_and_stochastic_ones_are_drawn():
    blanks = [blank_at("def f(x):\n    return xx\n", "xx")] * 40
    lm = model(KnowsBefore(ord("x"), scale=6.0))
    greedy, drawn = (fill_blanks(lm, blanks, Strategy(rule))["right_tokens"] for rule in ("greedy", "stochastic"))
    assert greedy.tolist() == [2.0] * 40
    assert 0.4 < drawn.mean() / 2 < 0.8
