"""The command line as a whole: help, defaults, bad input and exit codes."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.table import Table

import unmask
from unmask.cli import choose_threads
from unmask.cli.common import print_fitting, progress
from unmask.models import DiT

UNMASK = (sys.executable, "-m", "unmask")
VERBS = ("demo", "train", "eval", "sample", "fill", "edit", "score", "convert", "ship", "list", "doctor")
GROUPED = ("eval generation", "eval puzzles", "eval code", "plot run", "plot order")
BENCH = ("bench train", "bench sample", "bench eval")


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("a few words to be scored\n" * 8)
    return path


@pytest.mark.parametrize("verb", [*VERBS, *GROUPED, *BENCH])
def test_help_has_examples_and_json(printed, verb):
    out = printed(*verb.split(), "--help")
    for words in (f"unmask {verb}", "Examples", "--json"):
        assert words in out


@pytest.mark.parametrize("group", [(), ("bench",), ("plot",)])
def test_help_is_printed_once_without_arguments(run, group):
    code, out, err = run(*group)
    assert (code, err) == (2, "")
    assert out.count("Usage:") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sampel"], "Did you mean 'sample'? See 'unmask --help'."),
        (["--nope"], "No such option: --nope. See 'unmask --help'."),
        (["sample", "--nope"], "--nope"),
        (["sample", "--steps"], "requires an argument."),
        (["fill"], "See 'unmask fill --help'."),
        (["train"], "See 'unmask train --help'."),
        (["plot", "run"], "DIR"),
        (["bench", "nope"], "No such command 'nope'. See 'unmask bench --help'."),
        (["list", "schedul"], "Did you mean 'schedule'"),
        (["convert", "nowhere.ckpt", "out"], "nowhere.ckpt"),
        (["ship", "nowhere", "out"], "'nowhere'"),
        (["ship", "{mdlm}", "out"], "run"),
        (["fill", "{mdlm}"], "is a checkpoint; add the text to fill"),
        (["fill", "no blanks"], "has no blank"),
        (["edit", "{mdlm}"], "is a checkpoint; add the text to edit"),
        (["score", "{mdlm}"], "is a checkpoint; add the text to score"),
    ],
)
def test_bad_commands_are_one_sentence_and_exit_2(refused, mdlm_folder, arguments, words):
    assert words in refused(*[one.format(mdlm=mdlm_folder) for one in arguments])


def test_torch_is_imported_only_by_verbs():
    """`import unmask` takes under half a second, in the best of three attempts, and help needs no torch either."""
    timed = (
        "import sys, time; start = time.perf_counter(); import unmask; unmask.__version__; "
        "print(time.perf_counter() - start, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    results = [subprocess.check_output([sys.executable, "-c", timed], text=True).split() for _ in range(3)]
    assert min(float(seconds) for seconds, _, _ in results) < 0.5
    assert results[0][1:] == ["False", "False"]
    helped = "import sys, unmask.cli; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", helped], text=True) == "False\n"


@pytest.mark.parametrize(
    ("before", "environment", "policy"),
    [
        ("", {}, "passive"),
        ("", {"OMP_WAIT_POLICY": "active"}, "active"),
        ("", {"GOMP_SPINCOUNT": "10"}, "None"),
        ("sys.modules['torch'] = None;", {}, "None"),
    ],
)
def test_threads_wait_passively_unless_the_user_chose(before, environment, policy):
    program = f"import os, sys; {before} import unmask; print(os.environ.get('OMP_WAIT_POLICY'))"
    clean = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"} | environment
    assert subprocess.check_output([sys.executable, "-c", program], env=clean, text=True).strip() == policy


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("load", "running", "quota", "threads", "training"),
    [
        (0.0, 1, "max 100000", 8, 8),
        (3.2, 4, "max 100000", 5, 8),
        (7.9, 1, "max 100000", 8, 8),
        (20.0, 30, "max 100000", 1, 8),
        (0.0, 1, "150000 100000", 2, 2),
        (20.0, 30, "150000 100000", 1, 2),
    ],
)
def test_threads_are_the_free_cpus_within_the_limit_of_a_container(
    monkeypatch, load, running, quota, threads, training
):
    looks = itertools.cycle([1, running])
    files = {"/sys/fs/cgroup/cpu.max": lambda: quota, "/proc/loadavg": lambda: f"{load} 0 0 {next(looks)}/99 1"}
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: files[str(path)]())
    assert (choose_threads(training=False), choose_threads(training=True)) == (threads, training)


EARLY = [
    (["sample", "nowhere"], "no checkpoint at 'nowhere'"),
    (["fill", "nowhere", "a [MASK]"], "no checkpoint at 'nowhere'"),
    (
        ["fill", "a [MASK]", "--match", "a.*"],
        "--match needs the package interegular; run: pip install 'unmask[regex]'.",
    ),
    (["fill", "a [MASK]", "--json-schema", "nowhere.json"], "it is not a file); give a file with a JSON schema"),
    (["sample", "--json-schema", "a.json"], "JSON schemas need the package jsonschema"),
    (["edit", "nowhere", "a"], "no checkpoint at 'nowhere'"),
    (["score", "nowhere", "a"], "no checkpoint at 'nowhere'"),
    (["eval", "nowhere"], "no checkpoint at 'nowhere'"),
    (["eval", "--data", "nowhere.txt"], "nowhere.txt does not exist"),
    (["eval", "--data", "a.csv", "--field", "bdy"], "a.csv has no field 'bdy'. Did you mean 'body'?"),
    (["eval", "generation", "nowhere", "--judge", "x"], "no checkpoint at 'nowhere'"),
    (["eval", "puzzles", "nowhere"], "no checkpoint at 'nowhere'"),
    (["eval", "code", "nowhere"], "no checkpoint at 'nowhere'"),
    (["plot", "order", "nowhere"], "no checkpoint at 'nowhere'"),
    (["plot", "run", "nowhere"], "'nowhere'"),
    (["train", "nowhere.txt"], "'nowhere.txt' is neither"),
    (["train", "no*.txt"], "No file with text matches no*.txt"),
    (["train", "a.txt", "--from", "nowhere"], "no checkpoint at 'nowhere'"),
    (["train", "a.txt", "model.sise=nano"], "The model 'dit' has no option 'model.sise'. Did you mean 'model.size'?"),
    (
        ["train", "a.txt", "data.source.fild=body"],
        "no option 'data.source.fild'. Did you mean 'data.source.field'?",
    ),
    (
        ["train", "a.txt", "schedule=cosin"],
        "schedule must be the name of a schedule, got 'cosin'. Did you mean 'cosine'?",
    ),
    (["train", "a.txt", "data.policy=pack"], "data.policy must be the name of a policy, got 'pack'. Did you mean"),
    (["train", "a.txt", "model.size=huge"], "model.size must be 'nano', 'tiny', 'small' or 'medium', got 'huge'."),
    (["train", "a.txt", "model.heads=0"], "model.heads must be greater than or equal to 1, got 0."),
    (["train", "a.txt", "optimizer.warmup=x"], "optimizer.warmup must be a valid integer, got 'x'."),
    (["train", "a.txt", "modle.size=nano"], "A recipe has no key 'modle'. Did you mean 'model'?"),
    (["train", "a.txt", "schedule.powr=2"], "has no option 'schedule.powr'"),
    (["train", "a.txt", "optimizer.learnig_rate=2"], "Did you mean 'optimizer.learning_rate'?"),
    (["train", "a.txt", "training.steps=0"], "training.steps must be greater than or equal to 1, got 0"),
    (["train", "a.csv"], "name one, as in data.source.field=body (or --field body)."),
    (["train", "a.csv", "data.source.field=bdy"], "a.csv has no field 'bdy'. Did you mean 'body'?"),
    (["train", "a.parquet"], "needs the package pyarrow; run: pip install 'unmask[data]'."),
]


def test_missing_files_fields_and_extras_are_told_before_torch_is_imported(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "a.csv").write_text("body,title\ntwo,one\n")
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "a.parquet").write_bytes(b"x")
    program = """
import json, sys
from unmask.cli import main
sys.modules["interegular"] = sys.modules["jsonschema"] = sys.modules["pyarrow"] = None
for words in json.loads(sys.argv[1]):
    sys.argv = ["unmask", *words]
    try:
        main()
    except SystemExit as stop:
        assert stop.code == 2, words
    assert "torch" not in sys.modules, words
"""
    command = [sys.executable, "-c", program, json.dumps([words for words, _ in EARLY])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for (words, message), line in zip(EARLY, done.stderr.splitlines(), strict=True):
        assert message in line, words


def test_a_message_is_one_line_whatever_a_name_holds(refused):
    assert "no checkpoint at 'a b'" in refused("sample", "a\nb")


def test_a_pipe_gets_no_progress_bar(mdlm_folder):
    command = [*UNMASK, "sample", str(mdlm_folder), "--length", "6", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    json.loads(done.stdout)
    assert done.stderr == ""


class Panic(BaseException):
    """A panic of a Rust library, which is not an `Exception`."""


@pytest.mark.parametrize("error", [IndexError("list index\nout of range"), Panic("unreachable code")])
@pytest.mark.parametrize("cache", [".", "/dev/null"])
def test_a_bug_is_one_sentence_and_a_log(run, monkeypatch, tmp_path, error, cache):
    def fail() -> list[str]:
        raise error

    monkeypatch.setattr("unmask.config.shipped_recipes", fail)
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / cache))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, out, err = run("list")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"{type(error).__name__}: {' '.join(str(error).split())}" in err
    (log,) = tmp_path.rglob("unmask-*.log")
    assert f"report it together with {log}." in err
    text = log.read_text()
    assert "Traceback" in text
    assert "'list'" in text


def test_closed_streams_are_no_error():
    command = [*UNMASK, "list"]
    for streams in (">&-", "2>&-", "<&- >&- 2>&-"):
        subprocess.run(["sh", "-c", f'"$0" "$@" {streams}', *command], check=True)
    refused = subprocess.run(["sh", "-c", '"$0" "$@" >&- 2>&-', *UNMASK, "list", "nothing"], check=False)
    assert refused.returncode == 2


def test_a_closed_pipe_is_silent():
    with subprocess.Popen([*UNMASK, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as verb:
        verb.stdout.close()
        assert verb.stderr.read() == b""
        assert verb.wait() == 1


@pytest.mark.parametrize(
    ("encoding", "filled", "sign"),
    [
        ("ascii", '"naive" ?', "+-"),
        ("cp437", '"na\u00efve" ?', "\u00b1"),
        ("cp1252", "\u201cna\u00efve\u201d ?", "\u00b1"),
    ],
)
def test_output_that_is_not_utf8_is_replaced_by_ascii(run, monkeypatch, mdlm_folder, encoding, filled, sign):
    def output(verb: str, text: str, *options: object) -> str:
        written = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding, write_through=True))
        assert run(verb, mdlm_folder, text, *options)[0] == 0
        return written.getvalue().decode(encoding)

    assert output("fill", "\u201cna\u00efve\u201d \N{GRINNING FACE}[MASK]").startswith(filled)
    assert f" {sign} " in output("score", "a text", "--precision", 1)
    (text,) = json.loads(output("fill", "\N{GRINNING FACE}[MASK]", "--json"))["texts"]
    assert text["text"].startswith("\N{GRINNING FACE}")


@pytest.mark.parametrize(
    ("verb", "rest"),
    [
        ("sample", ("--length", 12, "--steps", 3)),
        ("fill", ("a[MASK]c", "[MASK:2]z")),
        ("score", ("some text", "--precision", 0.2)),
        ("eval", ("--data", "{book}")),
    ],
)
def test_the_default_checkpoint_is_stories(run, shipped_models, book, verb, rest):
    rest = [str(one).format(book=book) for one in rest]
    results = [run(verb, *model, *rest, "--json") for model in ((), ("stories",), (shipped_models / "stories",))]
    assert [code for code, _, _ in results] == [0, 0, 0], results
    assert len({out for _, out, _ in results}) == 1
    assert run(verb, "smoke", *rest, "--json")[1] != results[0][1]


def test_texts_are_read_from_standard_input(printed, refused, shipped_models, monkeypatch):
    for words in (("fill", "-"), ("fill", "stories", "-")):
        monkeypatch.setattr("sys.stdin", io.StringIO("a[MASK]c\r\n\nb[MASK]d\r\n", newline=""))
        out = printed(*words, "--json")
        texts = [one["text"] for one in json.loads(out)["texts"]]
        assert [(text[0], text[-1]) for text in texts] == [("a", "c"), ("b", "d")]
    for empty in (io.StringIO("\n"), None):
        monkeypatch.setattr("sys.stdin", empty)
        assert "Standard input has no text to score" in refused("score", "-")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
@pytest.mark.parametrize("verb", ["fill", "edit", "score"])
def test_standard_input_must_be_utf8(refused, shipped_models, monkeypatch, verb, errors):
    stdin = io.TextIOWrapper(io.BytesIO(b"\xff\xfe [MASK]\n"), encoding="utf-8", errors=errors)
    monkeypatch.setattr("sys.stdin", stdin)
    assert refused(verb, "-") == "unmask: Standard input is not valid UTF-8; convert it first.\n"


@pytest.fixture
def limit_memory(monkeypatch):
    """Let the network run out of memory in batches of more than so many sequences."""
    forward = DiT._run

    def limit(sequences: int) -> None:
        def limited(self, input_ids, *args, **kwargs):
            if len(input_ids) > sequences:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return forward(self, input_ids, *args, **kwargs)

        monkeypatch.setattr(DiT, "_run", limited)

    return limit


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval", "{mdlm}", "--data", "{book}"),
        ("score", "{mdlm}", "one", "two", "three"),
        ("sample", "{mdlm}", "-n", "5", "--length", "8"),
        ("fill", "{mdlm}", "a[MASK]", "b[MASK]", "c[MASK]"),
    ],
)
def test_a_batch_that_does_not_fit_names_the_option_to_lower(
    printed, refused, limit_memory, mdlm_folder, book, arguments
):
    arguments = [one.format(mdlm=mdlm_folder, book=book) for one in arguments]
    limit_memory(2)
    assert "lower --batch-size" in refused(*arguments)
    printed(*arguments, "--batch-size", 2)
    limit_memory(0)
    message = refused(*arguments, "--batch-size", 1)
    assert "A batch of 1 does not fit" in message
    assert "--batch-size" not in message


@pytest.mark.parametrize("words", [("sample", "--length", 8), ("fill", "a[MASK:8]"), ("edit", "abc", "--span", "0-3")])
def test_particles_that_do_not_fit_are_to_be_lowered(refused, shipped_models, limit_memory, words):
    limit_memory(0)
    message = refused(*words, "--particles", 50, "--with", "b")
    assert message == "unmask: 50 particles do not fit into memory; lower --particles.\n"


def test_list_shows_members_with_their_options(reported, printed):
    axes = reported("list")
    assert "loglinear" in axes["schedule"]
    assert "demo" in axes["recipe"]
    assert "smoke" in axes["shipped"]
    out = printed("list", "schedule")
    polynomial = next(line for line in out.splitlines() if line.strip().startswith("polynomial"))
    assert polynomial.endswith("(power)") or "(power)" in out
    shipped = " ".join(printed("list", "shipped").split())
    assert "57,129 parameters" in shipped
    assert "(0.1 MB)" in shipped
    protocols = " ".join(printed("list", "protocol").split())
    assert "the genome of S. cerevisiae by chromosome" in protocols
    recipes = " ".join(printed("list", "recipe").split())
    assert "trained in less than a minute of CPU time. (nano, 500 steps of 8 rows)" in recipes


def test_lists_named_in_the_source_exist(reported):
    package = Path(unmask.__file__).parent
    sources = [path.read_text(encoding="utf-8") for path in package.rglob("*.py")]
    named = {name for source in sources for name in re.findall(r"'unmask list (\w+)'", source)}
    assert {"protocol", "sampler", "shipped"} <= named <= set(reported("list"))


def test_names_are_whole_at_40_columns(printed, monkeypatch, tmp_path):
    monkeypatch.setattr("unmask.cli.common.console.width", 40)
    for line in printed("list").splitlines():
        assert len(line) <= 40
    out = printed("list", "recipe")
    assert all(f"  {name} " in out for name in ("stories-ar", "text8-speedrun", "paper/lm1b"))
    (tmp_path / "a.txt").write_text("abcabcd" * 6)
    out = printed("eval", "smoke", "--data", tmp_path / "a.txt", "--precision", 1)
    rows = [line for line in out.splitlines() if not line.startswith(" ")]
    assert rows[:5] == ["42 tokens", "bits/token", "bits/byte", "bits/char", "perplexity"]


@pytest.mark.parametrize("width", [40, 59, 80])
def test_wide_tables_lose_nothing_on_narrow_terminals(capsys, monkeypatch, width):
    console = Console(width=width, color_system=None)
    monkeypatch.setattr("unmask.cli.common.console", console)
    table = Table(box=None, title="a title")
    table.add_column("", no_wrap=True)
    for heading in ("perplexity", "entropy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in ("a-checkpoint, 16 steps", "another-checkpoint"):
        table.add_row(name, "12.34 (11.00-13.00)", "4.5 (4.4-4.6)")
    print_fitting(table)
    out = capsys.readouterr().out
    assert "…" not in out
    for name in ("a-checkpoint, 16 steps", "another-checkpoint"):
        assert sum(line.strip().startswith(name) for line in out.splitlines()) == 1
    assert out.count("12.34 (11.00-13.00)") == out.count("4.5 (4.4-4.6)") == 2
    assert ("  perplexity: 12.34 (11.00-13.00)\n" in out) == (width < 60)
    assert all(len(line) <= width for line in out.splitlines())


@pytest.mark.parametrize(
    ("total", "even", "parts", "shown"),
    [
        (4, True, (0.5, 0.5, 1), True),
        (4, False, (1, 1, 1), False),
        (None, True, (1, 1, 1), False),
        (2, True, (1, 2), False),
    ],
)
def test_the_time_left_is_shown_where_parts_take_equally_long(monkeypatch, total, even, parts, shown):
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100, legacy_windows=False)
    monkeypatch.setattr("unmask.cli.common.error_console", console)
    monkeypatch.setattr("unmask.training.callbacks.MEASURED_SECONDS", 0.0)
    with progress("scoring", total, even=even) as advance:
        for part in parts:
            advance(part)
    assert "scoring" in text.getvalue()
    assert ("0:00:00 left" in text.getvalue()) is shown
