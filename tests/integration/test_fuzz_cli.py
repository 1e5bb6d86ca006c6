"""Random command lines on the smoke model: exit code 0 or 2, one sentence, no traceback, nothing half-written.

`UNMASK_FUZZ_SEEDS=1000:3000 pytest tests/integration/test_fuzz_cli.py` tries other seeds.
"""

# ruff: noqa: SIM905  (long lists of words are shorter as one string)

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

START, STOP = map(int, os.environ.get("UNMASK_FUZZ_SEEDS", "0:150").split(":"))
SECONDS = 60
TEXTS = ["", "é \N{GRINNING FACE}", "--", "\udcff", "abc" * 200, "a\nb", " ", "%s {} [bold]"]
TEXTS += "abcabcd a a[MASK]c [MASK:3] [MASK:2-4]b [MASK: [MASK:0] [MASK:99999999] - smoke nowhere . /dev/null ~".split()
NUMBERS = ["", "9" * 30, *"0 1 2 3 -1 7 1e3 0.5 nan inf -inf 1_0 x 0x10 2.0 ½".split()]
FILES = "a.txt a.csv a.jsonl bad.json deep.json latin1.txt pipe folder empty.txt README *.txt nowhere.txt".split()
FILES += [*"/dev/zero nowhere/x.png x.png x.svg x.gif x.html x.json /dev/full".split(), "x" * 300]
SPECS = ["name: remdm, strategy: cap", "name: remdm, eta: -1", "name: x", "name: [", "name: ancestral, steps: 1e99"]
SPECS += "ancestral remdm { ordered 3 confidence left_to_right threshold uniform planner entropy".split()
VALUES = TEXTS + NUMBERS + FILES + SPECS
SMALL: dict[str, list[str]] = {
    **{f"--{name}": FILES for name in ("out", "plot", "html", "gif", "png", "data", "texts")},
    **{"--sampler": SPECS, "--order": SPECS, "--keep": TEXTS, "--given": TEXTS, "--seed": NUMBERS},
    "-n": "1 2 0 x".split(),
    "--length": "1 4 9 64 65 0 -3".split(),
    "--particles": "1 2 0".split(),
    "--count": "1 0".split(),
    "--rows": "1 2 0".split(),
    "--precision": "1 0 x".split(),
    "--steps": "1 3 0 none".split(),
    "--judge": "smoke nowhere/x/y ./x".split(),
    "--device": ["cpu", "cuda:9", "x", ""],
    "--dtype": ["float32", "x"],
    "--batch-size": ["1", "2", "0", "9" * 30],
    "--field": ["text", "body", "", "x"],
    "--match": ["[a-h]*", "[", "(?P<x>a)", "a{9999}", "", "z+"],
    "--with": ["a", "", "z"],
    "--without": ["a", "", " "],
    "--characters": ["3", "3-5", "5-3", "-1", "x", "9" * 30],
    "--span": "0-2 2-0 0-99 x".split(),
    "--separator": ["line", "", "a\nb"],
}
VERBS = {
    "sample": "-n --prompt --suffix --stride --guidance --watch --html --gif --png".split(),
    "fill": "--greedy --batch-size --particles".split(),
    "edit": "--strength --span --keep".split(),
    "score": "--given --precision --batch-size".split(),
    "eval": "--data --separator --field --precision --rows".split(),
    "eval generation": "--judge -n --texts --data --out --plot".split(),
    "eval puzzles": "--twin --rule --count --out --plot".split(),
    "plot order": "--order --sampler --prompt --out".split(),
    "plot run": "--x --out".split(),
    "list": [],
    "train": "--from --out --resume".split(),
}
COMMON = "--steps --seed --length --temperature --top-k --top-p --min-p --greedy-tail --json --order --sampler".split()
COMMON += "--match --with --without --characters --device --dtype --nope --help".split()
FLAGS = {"--json", "--watch", "--greedy", "--help", "--resume"}
DISAGREES = "unmask: The estimators disagree"


def command(rng: random.Random) -> list[str]:
    """A random verb with arguments and options, often those it has, and values, often those that fit."""
    verb = rng.choice(list(VERBS))
    words = verb.split()
    if verb == "train":  # only what is refused, or a run of one step
        words += [
            rng.choice(FILES),
            *rng.choices(["training.steps=1", "model.size=x", "=", "data.length=1", "a.b=c"], k=2),
        ]
        words += ["training.steps=0"]
    elif rng.random() < 0.8:
        words.append("smoke")
    if verb in ("fill", "edit", "score") or rng.random() < 0.2:
        words += rng.choices(TEXTS if rng.random() < 0.8 else VALUES, k=rng.choice([1, 1, 2]))
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        option = rng.choice(VERBS[verb] or COMMON) if rng.random() < 0.6 else rng.choice(COMMON)
        words.append(option)
        if option not in FLAGS:
            words.append(rng.choice(SMALL.get(option, VALUES if rng.random() < 0.3 else NUMBERS)))
    if verb.startswith(("sample", "plot order", "eval generation")) and "--length" not in words:
        words += ["--length", "8"]
    if verb == "eval generation" and "-n" not in words:
        words += ["-n", "1"]
    return words


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "a.txt": b"abcdefgh\nabc\n",
        "README": b"abc",
        "a.csv": b"text,n\nabc,1\n",
        "a.jsonl": b'{"text": "abc"}\n{"text": 1}\n',
        "bad.json": b"[1",
        "deep.json": b"[" * 100_000,
        "latin1.txt": b"caf\xe9",
        "empty.txt": b"",
    }.items():
        Path(name).write_bytes(content)
    Path("folder").mkdir()
    os.mkfifo("pipe")
    return tmp_path


def too_slow(*_: object) -> None:
    raise TimeoutError(f"The command took more than {SECONDS} seconds.")


@pytest.mark.parametrize("block", range(START, STOP, 50))
def test_random_command_lines(run, place, block):
    signal.signal(signal.SIGALRM, too_slow)
    failures = []
    for seed in range(block, min(block + 50, STOP)):
        words = command(random.Random(seed))
        before = set(place.rglob("*"))
        signal.alarm(SECONDS)
        try:
            code, out, err = run(*words)
        finally:
            signal.alarm(0)
        lines = [line for line in err.splitlines() if line.startswith("unmask: ")]
        hidden = [path for path in set(place.rglob("*")) - before if path.name.startswith(".")]
        refused = code == 2 and (err.splitlines()[-1:] == lines[-1:] != [] or "Usage:" in out)
        fine = code == 0 or refused or (code == 1 and DISAGREES in err)
        if not fine or "Traceback" in out + err or hidden:
            failures.append((seed, words, code, err[-300:], hidden))
    assert not failures, "\n".join(map(str, failures))
