"""Random calls of the library on random models: a right result, or `UnmaskError` with one sentence.

`UNMASK_FUZZ_SEEDS=1000:9000 pytest tests/integration/test_fuzz_library.py` tries other seeds.
"""

# ruff: noqa: SIM905  (long lists of words are shorter as one string)

from __future__ import annotations

import math
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

import unmask
from tests.conftest import LENGTH
from unmask.constraints import Allowed, Banned, Characters, Fixed, NoWords, Regex, Words
from unmask.generation_config import Order
from unmask.pipeline import MaskedDiffusionLM
from unmask.samplers.token_sampling import TokenSampler
from unmask.text_processor import BLANK

START, STOP = map(int, os.environ.get("UNMASK_FUZZ_SEEDS", "0:600").split(":"))
BLOCK = 100
SECONDS = 30
"""CPU time of one call, and a tenth of the time that it may wait."""
MIN_SHARE = 0.25
"""Of the calls that must return a result; otherwise only the checks of arguments are tested."""

NONSENSE = [None, True, "", "x", b"x", [], [None], {}, (), object(), -1, 0, 10**9, 10**30, -(10**30), 1.5, 2.0, 1j]
NONSENSE += [float("nan"), float("inf"), -float("inf"), np.int64(3), np.float32(0.5), np.float64("nan"), np.array([1])]
NONSENSE += [torch.tensor(2), torch.tensor(0.5), torch.tensor([1, 2]), "\ud800", "\N{GRINNING FACE}", Path("x"), print]
TEXTS = ["", "a", "ab cd", "The cat.", "é\N{GRINNING FACE}", "a\nb", " ", "%s {}", "[mask]", "\x00"]
TEXTS += ["\N{COMBINING ACUTE ACCENT}"]
BLANKS = "[MASK] [MASK:3] [MASK:2-4] [MASK:1-1] [MASK:0] [MASK:4-2] [MASK:] [MASK:99999999] [MASK".split()
SAMPLERS: list[Any] = "ancestral ordered threshold entropy_bounded remdm remdm-conf corrector analytic ar x".split()
SAMPLERS += [
    {"name": "remdm", "strategy": "cap", "eta": 0.1},
    {"name": "ordered", "order": "entropy"},
    {"name": "remdm", "eta": -1},
]
SAMPLERS += [{"name": "threshold", "above": 0.5}, {"nam": 1}, {"name": "corrector", "fraction": 0.5}, {"name": None}]
SENSIBLE: dict[str, list[Any]] = {
    "steps": [None, 1, 3, 8, 100, np.int64(4)],
    "seed": [0, 1, 2**31, np.int64(5), torch.tensor(6)],
    "temperature": [None, 0.0, 0.5, 1, np.float32(2)],
    "top_k": [None, 1, 5, 1000],
    "top_p": [None, 0.5, 1.0],
    "min_p": [None, 0.1],
    "greedy_tail": [None, 0.2],
    "greedy_above": [None, 0.9],
    "rule": [None, TokenSampler(top_k=3)],
    "batch_size": [None, 1, 2, 64],
    "particles": [1, 2, 3],
    "order": [None, *get_args(Order)],
    "sampler": [None, *SAMPLERS],
    "exact": [False, True],
    "eos_rule": [True, False],
    "guidance": [0.0, 1.0],
    "best_of": [1, 2],
    "score": [None, len],
    "window": [None, 16],
    "stride": [None, 8, 24],
}


def has_word(text: str, word: str) -> bool:
    """Whether a text has a word between characters that are no ASCII letters; others are classified by blocks."""
    return re.search(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", text, re.ASCII) is not None


def random_constraint(rng: random.Random) -> tuple[Callable[[], Any], Callable[[str, list[int]], bool]]:
    """A function that builds a constraint, and whether a text with these ids satisfies it."""
    pattern = rng.choice(["[a-e]*", ".*", "(?s:.*)a(?s:.*)", "[^z]+", "a{2,50}", "(ab|c)*"])
    low, high = rng.choice([(0, 60), (3, 20), (5, None), (2, 2), (0, 0)])
    word = rng.choice(["a", "cat", "é", "a b"])
    at, byte = rng.randrange(4), rng.randrange(97, 110)
    return rng.choice(
        [
            (lambda: Regex(pattern), lambda text, ids: re.fullmatch(pattern, text, re.ASCII) is not None),
            (lambda: Characters(low, high), lambda text, ids: low <= len(text) <= (math.inf if high is None else high)),
            (lambda: Words(word), lambda text, ids: has_word(text, word)),
            (lambda: NoWords(word, whole=False), lambda text, ids: word not in text),
            (lambda: Allowed([byte, byte + 1]), lambda text, ids: set(ids) <= {byte, byte + 1}),
            (lambda: Banned(byte, positions=[at]), lambda text, ids: len(ids) <= at or ids[at] != byte),
            (lambda: Fixed({at: byte}), lambda text, ids: ids[at] == byte),
            (lambda: [Fixed({0: 97}), Characters(1, 30)], lambda text, ids: ids[0] == 97 and 1 <= len(text) <= 30),
            (lambda: rng.choice([Regex, Words, Allowed, Fixed])(rng.choice(NONSENSE)), lambda *_: True),
            (lambda: Characters(rng.choice(NONSENSE), rng.choice(NONSENSE)), lambda *_: True),
            (lambda: rng.choice(NONSENSE), lambda *_: True),
            (lambda: Regex(rng.choice(["[", "(?P<x>a)\\1", "a{99999}", "\\", "*", "(?=a)"])), lambda *_: True),
        ]
    )


def random_options(rng: random.Random, nonsense: float, without: tuple[str, ...] = ()) -> dict[str, Any]:
    names = rng.sample([name for name in SENSIBLE if name not in without], rng.choice([0, 0, 1, 1, 2, 4]))
    options = {name: rng.choice(NONSENSE if rng.random() < nonsense else SENSIBLE[name]) for name in names}
    if rng.random() < 0.8:  # leave out what excludes each other
        for name in (
            ("temperature", "top_k", "top_p", "min_p", "greedy_tail", "greedy_above") if "rule" in options else ()
        ):
            options.pop(name, None)
        if options.get("score") is len or "best_of" in options:
            options |= {"score": len, "best_of": 2}
            options.pop("particles", None)
        if "sampler" in options:
            options.pop("order", None)
    return options


def random_text(rng: random.Random, blanks: int = 0) -> str:
    parts = [rng.choice(TEXTS)]
    for _ in range(blanks):
        parts += [rng.choice(BLANKS[:3] if rng.random() < 0.8 else BLANKS), rng.choice(TEXTS)]
    return "".join(parts)


def check_generation(lm: MaskedDiffusionLM, one: Any, options: dict[str, Any], satisfied: Any) -> None:
    mask = lm.text_processor.mask_token_id
    assert mask not in one.ids, "a mask is left"
    assert len(one.ids) == len(one.order) == len(one.confidence)
    assert all(0 <= p <= 1 + 1e-6 for p in one.confidence)
    assert one.text == lm.decode(one.ids)
    if isinstance(options.get("steps"), int) and len(one.ids) <= LENGTH:
        assert one.calls <= options["steps"], "more calls than steps"
    assert satisfied(one.text, one.ids), f"the constraint is violated by {one.text!r}"


def fits_template(text: str, template: str) -> bool:
    """Whether the text is the template with something in its blanks."""
    pieces = [re.escape(piece) for piece in re.split(r"\[MASK(?::\d+(?:-\d+)?)?\]", template)]
    return re.fullmatch("(?s:.*)".join(pieces), text) is not None


def call(rng: random.Random, lm: MaskedDiffusionLM, folder: Path) -> str:
    """Make a random call and check its result; return the name of the method."""
    nonsense = rng.choice([0.0, 0.0, 0.3])
    odd = rng.random() < nonsense / 3
    build, satisfied = lambda: None, lambda text, ids: True
    if rng.random() < 0.35:
        build, satisfied = random_constraint(rng)
    method = rng.choice(
        ["generate", "sample", "fill", "fill", "top", "edit", "rewrite", "score", "stream", "rows", "files"]
    )

    def ids_of(text: str) -> list[int]:
        return lm.text_processor.encode([text])[0]

    if method in ("generate", "sample"):
        options = random_options(rng, nonsense)
        prompt = rng.choice(NONSENSE) if odd else random_text(rng, rng.choice([0, 0, 0, 1]))
        length = rng.choice(NONSENSE) if rng.random() < nonsense / 3 else rng.choice([None, 16, 40, 70, np.int64(20)])
        n = rng.choice(NONSENSE) if rng.random() < nonsense / 3 else rng.choice([1, 2])
        canvas = {"prompt": prompt, "length": length, "suffix": rng.choice(["", "", "", "b."])}
        results = lm.sample(n, **canvas, constraint=build(), **options)
        assert len(results) == n
        for one in results:
            check_generation(lm, one, options, satisfied)
            assert len(one.ids) == (LENGTH if length is None else length)
            if not BLANK.search(prompt):
                assert one.ids[: len(ids_of(prompt))] == ids_of(prompt), "the prompt changed"
            assert one.ids[len(one.ids) - len(ids_of(canvas["suffix"])) :] == ids_of(canvas["suffix"])
        if rng.random() < 0.4:
            assert lm.generate(n, **canvas, constraint=build(), **options) == [one.text for one in results]
    elif method == "fill":
        options = random_options(rng, nonsense, without=("guidance", "best_of", "score", "window", "stride"))
        texts = [random_text(rng, rng.choice([1, 1, 1, 2] * 4 + [0])) for _ in range(rng.choice([1, 1, 2]))]
        given = rng.choice(NONSENSE) if odd else texts
        results = lm.fill_details(given, constraint=build(), **options)
        for one, template in zip(results, texts, strict=True):
            check_generation(lm, one, options, satisfied)
            assert fits_template(one.text, template), "given tokens changed"
            if not re.search(r"\[MASK:\d+-", template):
                assert len(one.ids) == len(
                    ids_of(re.sub(r"\[MASK(:\d+)?\]", lambda m: "x" * int((m[1] or ":1")[1:]), template))
                )
        if len(texts) == 1 and rng.random() < 0.4:
            assert lm.fill(texts[0], constraint=build(), **options) == results[0].text
    elif method == "top":
        top = rng.choice(NONSENSE) if odd else rng.choice([1, 5, 1000])
        text = random_text(rng, 2)
        for blank in lm.fill(text, top=top):
            chances = [p for _, p in blank]
            assert chances == sorted(chances, reverse=True)
            assert sum(chances) <= 1 + 1e-4
            assert len(blank) == min(top, lm.text_processor.vocab_size - 1)
    elif method in ("edit", "rewrite"):
        options = random_options(rng, nonsense, without=("guidance", "best_of", "score", "window", "stride"))
        text = rng.choice(NONSENSE) if odd else random_text(rng, rng.choice([0, 0, 0, 1])) + "The cat sat."
        if method == "rewrite":
            keep = rng.choice([["cat"], "The", ["The", "sat"], [], ["dog"], *NONSENSE[:9]])
            result = lm.rewrite(text, keep, constraint=build(), **options)
            assert all(word in result for word in ([keep] if isinstance(keep, str) else keep) if word in text)
            return method
        how = rng.choice(
            [
                {},
                {"strength": 0.5},
                {"spans": [(0, 3)]},
                {"strength": rng.choice(NONSENSE)},
                {"spans": rng.choice(NONSENSE)},
            ]
        )
        how |= rng.choice([{}, {}, {}, {"spans": [(2, 900)]}])
        one = lm.edit_details(text, constraint=build(), **how, **options)
        check_generation(lm, one, options, satisfied)
        assert len(one.ids) == len(ids_of(text))
        kept = [new == old for new, old, order in zip(one.ids, ids_of(text), one.order, strict=True) if order < 0]
        assert all(kept)
        assert how != {"spans": [(0, 3)]} or one.text.endswith(text[3:])
    elif method == "score":
        texts = rng.choice(NONSENSE) if odd else [random_text(rng) for _ in range(rng.choice([1, 2]))]
        given = rng.choice([None, None, "a", rng.choice(NONSENSE)])
        options = {"precision": rng.choice([1.0, None, *NONSENSE]), "seed": rng.choice(SENSIBLE["seed"] + NONSENSE)}
        options = {name: value for name, value in options.items() if rng.random() < 0.5}
        bound = lm.score(texts, given, **options)
        again = lm.score(texts, given, **options)
        assert 1 <= bound.perplexity < math.inf
        assert bound.perplexity == again.perplexity
    elif method == "stream":
        options = random_options(rng, nonsense)
        frames = list(
            lm.stream(
                rng.choice(TEXTS), length=rng.choice([12, 48, rng.choice(NONSENSE)]), constraint=build(), **options
            )
        )
        assert lm.text_processor.mask_token_id not in frames[-1].ids
        assert satisfied(lm.decode(frames[-1].ids), frames[-1].ids)
        written = [sum(token != lm.text_processor.mask_token_id for token in frame.ids) for frame in frames]
        assert written[-1] == max(written)
    elif method == "rows":
        options = random_options(rng, nonsense, without=("guidance", "best_of", "score", "window", "stride"))
        mask = lm.text_processor.mask_token_id
        rows = [[rng.choice([mask, 97, 98]) for _ in range(rng.choice([1, 5, LENGTH]))] for _ in range(2)]
        given = rng.choice([rng.choice(NONSENSE), [rng.choice(NONSENSE)], [[rng.choice(NONSENSE)]]]) if odd else rows
        for one, row in zip(lm.fill_rows(given, constraint=build(), **options), given, strict=True):
            check_generation(lm, one, options, satisfied)
            assert all(new == old for new, old in zip(one.ids, row, strict=True) if old != mask)
    else:
        files(rng, lm, folder)
    return method


def files(rng: random.Random, lm: MaskedDiffusionLM, folder: Path) -> None:
    """Save, open or train."""
    what = rng.choice(["save", "load", "train"])
    if what == "save":
        target = rng.choice([folder / "saved", folder / "saved", folder / "a.txt", folder / "new" / "x", *NONSENSE[:8]])
        lm.save_pretrained(target)
        assert unmask.load(target, device="cpu").generate(length=8) == lm.generate(length=8)
    elif what == "load":
        path = rng.choice([lm.path, lm.path, folder, folder / "a.txt", "nowhere", *NONSENSE])
        options = {
            "device": rng.choice(["cpu", *NONSENSE, "cuda:9"]),
            "dtype": rng.choice(["auto", "float32", *NONSENSE]),
        }
        if path is None:  # the default model is large
            return
        unmask.load(path, **{name: value for name, value in options.items() if rng.random() < 0.5})
    else:
        overrides = {
            "model.layers": 1,
            "model.hidden_size": 16,
            "model.heads": 2,
            "data.tokenizer": "byte",
            "data.length": 8,
        }
        overrides |= {"training.batch_size": 2, "training.steps": 2}
        if rng.random() < 0.6:
            overrides[rng.choice([*overrides, "schedule", "objective", "nope", ""])] = rng.choice(NONSENSE)
        text = rng.choice(["a.txt", "a.txt", "a.txt", "nowhere.txt", *NONSENSE])
        text = folder / text if text in ("a.txt",) else text
        out = folder / f"run{rng.random()}"
        result = unmask.train(text, overrides, out=out, callbacks=[])
        assert unmask.load(result.path, device="cpu").generate(length=4)


def too_slow(*_: object) -> None:
    raise TimeoutError(f"The call took more than {SECONDS} seconds.")


def limit_time(seconds: int) -> None:
    """Raise `TimeoutError` when a call exceeds its time; 0 ends the limit."""
    signal.alarm(10 * seconds)
    signal.setitimer(signal.ITIMER_PROF, seconds)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", range(START, STOP, BLOCK))
def test_random_calls(mdlm, ar, tmp_path, monkeypatch, block):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("abc abd\n" * 40)
    signal.signal(signal.SIGALRM, too_slow)
    signal.signal(signal.SIGPROF, too_slow)
    failures, counts = [], Counter()
    for seed in range(block, min(block + BLOCK, STOP)):
        rng = random.Random(seed)
        limit_time(SECONDS)
        try:
            call(rng, rng.choice([mdlm] * 7 + [ar]), tmp_path)
            counts["returned"] += 1
        except unmask.UnmaskError as error:
            message = str(error)
            counts["refused"] += 1
            if "\n" in message or not message.endswith((".", "?")):
                failures.append((seed, message))
        except Exception as error:
            where = error.__traceback__
            while where.tb_next is not None:
                where = where.tb_next
            place = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}"
            failures.append((seed, type(error).__name__, str(error)[:300], place))
        finally:
            limit_time(0)
    assert not failures, "\n".join(map(str, failures))
    if STOP - block >= BLOCK:
        assert counts["returned"] >= MIN_SHARE * BLOCK, counts


PAIR, HALF = torch.tensor([1, 2]), torch.tensor(0.5)


@pytest.mark.parametrize(
    "refused",
    [
        lambda lm: lm.generate(PAIR),
        lambda lm: lm.generate(True),
        lambda lm: lm.fill("a[MASK]", top=True),
        lambda lm: lm.generate(seed=PAIR),
        lambda lm: lm.generate(top_k=PAIR),
        lambda lm: lm.generate(particles=PAIR),
        lambda lm: lm.generate(exact=PAIR),
        lambda lm: lm.generate(constraint=Allowed(HALF)),
        lambda lm: lm.generate(constraint=Allowed("a", positions=HALF)),
        lambda lm: lm.fill_rows([HALF]),
        lambda lm: lm.score("a", given=HALF),
        lambda lm: lm.save_pretrained(None),
        lambda lm: unmask.load(lm.path, device=PAIR),
        lambda lm: unmask.load(lm.path, device=10**30),
        lambda lm: unmask.train("demo", {"training.steps": 1j}),
    ],
)
def test_values_of_the_wrong_type_are_refused(mdlm, refused):
    with pytest.raises(unmask.UnmaskError, match=r"must|cannot"):
        refused(mdlm)
