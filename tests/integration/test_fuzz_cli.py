"""Random command lines on the smoke model: exit code 0 or 2, one sentence, no traceback, nothing half-written.

A command that certainly has a bad value must be refused, and a refused command changes no file.
`UNMASK_FUZZ_SEEDS=1000:3000 pytest tests/integration/test_fuzz_cli.py` tries other seeds.
"""

# ruff: noqa: SIM905  (long lists of words are shorter as one string)

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import typer

from unmask.checkpoint import SHIPPED
from unmask.cli import app
from unmask.config import read_recipe
from unmask.training import train

START, STOP = map(int, os.environ.get("UNMASK_FUZZ_SEEDS", "0:60").split(":"))
SECONDS = 60
"""CPU time of one command, and a tenth of the time that it may wait."""
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
SMALL |= {
    "--tokenizer": ["smoke", "folder", "a.txt", "x/y"],
    "--weights": ["ema", "raw", "x"],
    "--heads": ["1", "2", "0", "7"],
    "--objective": ["subs", "sedd", "x"],
    "--policy": ["packed", "padded", "x"],
    "--bound": FILES,
    "--judged": FILES,
    "--entropy": FILES,
    "--about": FILES,
    "--shard-mb": ["1", "0"],
    "--tasks": ["nope", "sst2", "cola,sst2", "", ","],
    "--include": ["folder", "nowhere"],
    "--limit": ["2", "0", "x"],
    "--num-fewshot": ["0", "-1"],
    "--on": ["nope", "ptb", "multi30k", ""],
    "--learning-rates": ["1e-4", "x", "0", "nan", ""],
    "--seeds": ["1", "0"],
    "--epochs": ["1", "0"],
    "--scale": ["x", ""],
    "--text": ["abcabc", "", "z" * 900],
    "--checkpoint": ["smoke", "nowhere", "run", "folder"],
    "--size": ["nano", "huge"],
    "--vocab": ["8", "1"],
    "--repeats": ["1", "0"],
    "--warmup": ["0", "-1"],
    "--batch": ["1", "0"],
    "--against": ["plain", "x"],
    "--optimizer": ["adamw", "x"],
    "--from": ["smoke", "run", "nowhere", "folder", "a.txt"],
    "--kind": ["x"],
    "--documents": ["2", "0"],
    "--json-schema": ["schema.json", *FILES],
    "--calls": ["1", "0", "x"],
    "--draws": ["1", "2", "0"],
    "--jobs": ["1", "0"],
    "--vcf": ["a.vcf", *FILES],
    "--fasta": ["a.fa", *FILES],
    "--runtime": FILES,
    "--mauve": ["nowhere", "x/y"],
    "--host": ["127.0.0.1", "localhost", "0.0.0.0", "nowhere", "", "\udcff"],
    "--port": ["0", "99999", "-1", "x"],
    "--api-key": TEXTS,
}
BAD = [("--seed", "x"), ("--seed", "0.5"), ("--steps", "0"), ("--length", "0"), ("--length", "-3"), ("-n", "0")]
BAD += [("--device", "cuda:9"), ("--device", "x"), ("--dtype", "x"), ("--match", "["), ("--characters", "5-3")]
BAD += [("--particles", "0"), ("--batch-size", "0"), ("--count", "0"), ("--rows", "0"), ("--sampler", "name: x")]
BAD += [("--json-schema", "bad.json"), ("--tasks", ""), ("--shard-mb", "0"), ("--size", "huge")]
"""Options that no verb takes, if it has them at all."""
RUNS = ["run", "run", "smoke", "damaged", "nowhere", "folder", "a.txt"]
TARGETS = ["new", "new/below", "folder", "a.txt", "run", "/dev/null/x", "x" * 300]
TINY = ["data.length=8", "model.hidden_size=16", "model.layers=1", "model.heads=1", "training.batch_size=2"]
OVERRIDES = "schedule=cosine schedule=cosin objective=d3pm objective.steps=3 data.policy=padded = a.b=c".split()
OVERRIDES += "data.policy.framed=true model=causal objective=ar optimizer=adamw model.size=x data.length=1".split()
OVERRIDES += "data.tokenizer=char training.steps=0 training.validate_every=1 data.validation=0.5 model.x=1".split()
OVERRIDES += "model.layers=999999999 model.hidden_size=999999999999 data.length=999999999999".split()
OVERRIDES += 'training.batch_size=999999999999 data.tokenizer={"name":"bpe","vocab_size":999999999}'.split()
OVERRIDES += "data.source.field=body model.dropout=nan training.trackers=[x] data.policy=overlaid objective=mlm".split()
POSITIONAL: dict[str, list[list[str]]] = {
    "convert": [[*RUNS, "weights.safetensors", "pipe"], TARGETS],
    "ship": [RUNS, TARGETS],
    "export onnx": [RUNS, TARGETS],
    "export web": [RUNS, TARGETS],
    "serve": [[*RUNS, "x=smoke", "=", "a=b=c"]],
    "train": [["a.txt", "a.txt", *FILES]],
    "train planner": [["a.txt", "a.txt", *FILES]],
    "reproduce": [["list", "list", "nope", "", "table1"], ["training.steps=0", "a.b=1", "=", "x"]],
    **{
        f"bench {one}": [["smoke", "run", "nowhere", "a.txt", "model.layers=1", "default"]]
        for one in ("train", "eval", "sample")
    },
}
"""Arguments of verbs that do not take a checkpoint first."""
ALWAYS: dict[str, list[str]] = {
    "doctor": ["--quick"],
    "demo": ["--out", "a.txt"],
    "serve": ["--port", "0"],
    "train": ["training.steps=1", "training.validation_rows=2", *TINY],
    "train planner": ["training.steps=1", "training.validation_rows=2", "training.batch_size=2", "--from", "run"],
    "reproduce": ["--scale", "tiny"],
    "bench train": ["--repeats", "1", "--warmup", "0", "--steps", "1", "--length", "8", "--batch", "1"],
    "bench eval": ["--repeats", "1", "--warmup", "0", "--calls", "1", "--length", "8", "--batch", "1"],
    "bench sample": [
        "--repeats",
        "1",
        "--warmup",
        "0",
        "--steps",
        "2",
        "--length",
        "8",
        "--batch",
        "1",
        "--limit",
        "0.1",
    ],
    "eval glue": ["--limit", "4", "--seeds", "1", "--epochs", "1"],
    "eval translation": ["--count", "2"],
    "eval zero-shot": ["--documents", "2"],
    "eval code": ["--count", "1"],
}
"""Arguments that keep a command short; later ones of the same name replace them."""
HEAVY = "train|train planner|convert|ship|export onnx|export web|doctor|demo|serve|reproduce|bench train|bench eval"
HEAVY = [*HEAVY.split("|"), *"bench sample|eval harness|eval translation|eval glue|eval zero-shot|eval code".split("|")]
"""Verbs that take seconds."""
COMMON = "--steps --seed --length --temperature --top-k --top-p --min-p --greedy-tail --json --order --sampler".split()
COMMON += "--match --with --without --characters --json-schema --device --dtype --nope --help".split()
"""Options that a verb is given whether it has them or not."""


def find_verbs() -> dict[str, dict[str, bool]]:
    """Every verb of the command line, with its options and whether they take no value."""
    verbs: dict[str, dict[str, bool]] = {}

    def visit(command: Any, words: list[str]) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            visit(inner, [*words, name])
        if not hasattr(command, "commands"):
            options = [param for param in command.params if param.opts[0].startswith("-")]
            verbs[" ".join(words)] = {one: param.is_flag for param in options for one in param.opts}

    visit(typer.main.get_command(app), [])
    verbs["eval"] = verbs.pop("eval perplexity")  # what 'unmask eval' without a further word does
    verbs["train planner"] = verbs["train"]
    del verbs["demo"]["--out"]  # into a new folder it trains for half a minute
    return verbs


VERBS = find_verbs()
FLAGS = {"--nope", "--help", "--resume"} | {
    option for options in VERBS.values() for option in options if options[option]
}
DISAGREES = "unmask: The estimators disagree"


def command(rng: random.Random) -> list[str]:
    """A random verb with arguments and options, often those it has, and values, often those that fit."""
    verb = rng.choice(HEAVY if rng.random() < 0.3 else [verb for verb in VERBS if verb not in HEAVY])
    words = verb.split()
    if verb in POSITIONAL:
        words += [rng.choice(places) for places in POSITIONAL[verb]]
        words += ALWAYS.get(verb, [])
        words += rng.choices(OVERRIDES, k=rng.choice([0, 1, 2])) if verb.startswith("train") else []
    elif verb in ("doctor", "demo"):
        words += ALWAYS[verb]
    else:
        words += ["smoke"] if rng.random() < 0.8 else []
        words += ALWAYS.get(verb, [])
    if verb in ("fill", "edit", "score") or (rng.random() < 0.2 and verb not in HEAVY):
        words += rng.choices(TEXTS if rng.random() < 0.8 else VALUES, k=rng.choice([1, 1, 2]))
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        option = rng.choice(list(VERBS[verb]) if rng.random() < 0.7 else COMMON)
        words.append(option)
        if option not in FLAGS:
            words.append(rng.choice(SMALL.get(option, VALUES if rng.random() < 0.3 else NUMBERS)))
    if verb.startswith(("sample", "plot order", "eval generation")) and "--length" not in words:
        words += ["--length", "8"]
    if verb == "eval generation" and "-n" not in words:
        words += ["-n", "1"]
    return words


def is_certainly_bad(words: list[str]) -> bool:
    """Whether a command must be refused. After '--' all words are texts, and --help wins."""
    if "--" in words or "--help" in words or words[0] == "list":
        return False
    last = dict(zip(words, [*words[1:], ""], strict=True))  # a later value replaces an earlier one
    return "--nope" in words or any(last.get(option) == value for option, value in BAD)


def snapshot(place: Path) -> dict[str, tuple[int, int]]:
    """The size and time of every file, and the folders, without following links."""
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) if not path.is_dir() else (0, 0)
        for path in place.rglob("*")
    }


def find_fault(words: list[str], code: int, out: str, err: str, before: dict, after: dict) -> str | None:
    """What is wrong with the outcome of a command."""
    last = err.splitlines()[-1:]
    if "Traceback" in out + err or "Internal error" in err:
        return "traceback"
    if code == 2 and not ((last and last[0].startswith("unmask: ")) or "Usage:" in out):
        return "no sentence"
    if code == 1 and not (DISAGREES in err or words[0] == "doctor"):
        return "exit code 1"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if code == 0 and is_certainly_bad(words):
        return "bad input is accepted"
    changed = {path for path in before | after if before.get(path) != after.get(path)}
    if code == 2 and changed:
        return f"a refused command changes {changed}"
    if hidden := [
        path for path in changed if Path(path).name.startswith(".") and Path(path).name not in (".lock", ".lock.json")
    ]:
        return f"half-written {hidden}"
    return None


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step."""
    folder = tmp_path_factory.mktemp("run") / "run"
    short = ["data.source.count=64", "training.steps=1", "training.validation_rows=2", *TINY]
    train(read_recipe("smoke", short), folder)
    return folder


@pytest.fixture
def place(tmp_path: Path, small_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: sockets[0].close())  # it would serve for ever
    fill_place(small_run)
    return tmp_path


def fill_place(small_run: Path) -> None:
    """Write the files that commands name into the working folder."""
    for name, content in {
        "a.txt": b"abcdefgh\nabc\n" * 20,
        "README": b"abc",
        "a.csv": b"text,n\nabc,1\n",
        "a.jsonl": b'{"text": "abc"}\n{"text": 1}\n',
        "bad.json": b"[1",
        "deep.json": b"[" * 100_000,
        "latin1.txt": b"caf\xe9",
        "empty.txt": b"",
        "a.vcf": b"##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n1\t3\t.\tA\tC\t.\t.\t.\n",
        "a.fa": b">1\nACGTACGTACGT\n",
        "schema.json": json.dumps({"enum": ["ab", "abc"]}).encode(),
    }.items():
        Path(name).write_bytes(content)
    Path("folder").mkdir()
    Path("folder", "notes").write_text("abc")
    os.mkfifo("pipe")
    shutil.copytree(small_run, "run", symlinks=True)
    shutil.copytree(SHIPPED / "smoke", "damaged")
    weights = next(Path("damaged").glob("*.safetensors"))
    shutil.copyfile(weights, "weights.safetensors")
    weights.write_bytes(weights.read_bytes()[:-7] + b"damaged")


class TooSlow(BaseException):
    """Not a `TimeoutError`, which the command line reports as an error of the system."""


def too_slow(*_: object) -> None:
    raise TooSlow(f"The command took more than {SECONDS} seconds.")


@pytest.mark.parametrize("block", range(START, STOP, 10))
def test_random_command_lines(run, place, small_run, block):
    signal.signal(signal.SIGALRM, too_slow)
    signal.signal(signal.SIGPROF, too_slow)
    failures = []
    before = snapshot(place)
    for seed in range(block, min(block + 10, STOP)):
        words = command(random.Random(seed))
        signal.alarm(10 * SECONDS)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            code, out, err = run(*words)
        finally:
            signal.alarm(0)
            signal.setitimer(signal.ITIMER_PROF, 0)
        after = snapshot(place)
        fault = find_fault(words, code, out, err, before, after)
        if fault is not None:
            failures.append((seed, fault, words, code, err[-300:]))
        before = after
    assert not failures, "\n".join(map(str, failures))


FAULTS = [
    (["sample"], 2, "", "Traceback (most recent call last)\nunmask: x.", {}, "traceback"),
    (["sample"], 1, "", "unmask: Internal error (TimeoutError: x); please report it.", {}, "traceback"),
    (["sample"], 1, "", "", {}, "exit code 1"),
    (["sample"], 2, "", "what", {}, "no sentence"),
    (["sample", "--nope"], 0, "", "", {}, "bad input is accepted"),
    (["sample", "--device", "cuda:9"], 0, "", "", {}, "bad input is accepted"),
    (["ship", "run", "new"], 2, "", "unmask: x.", {"new": (0, 0)}, "a refused command changes"),
    (["ship", "run", "new"], 2, "", "unmask: x.", {"a.txt": (1, 2)}, "a refused command changes"),
    (["sample"], 0, "", "", {".x.html": (1, 2)}, "half-written"),
]


@pytest.mark.parametrize(("words", "code", "out", "err", "changes", "fault"), FAULTS)
def test_faults_are_noticed(words, code, out, err, changes, fault):
    before = {"a.txt": (3, 1)}
    assert find_fault(words, 2, "", "unmask: x.", before, before) is None
    assert fault in (find_fault(words, code, out, err, before, before | changes) or "")
