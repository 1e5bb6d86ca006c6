"""The command line: one module per verb, which parses, calls the library and prints. Torch is imported by the verbs."""

from __future__ import annotations

import io
import math
import os
import platform
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import typer

from unmask import __version__
from unmask.cli import (
    bench,
    convert,
    demo,
    doctor,
    edit,
    export,
    fill,
    plot,
    reproduce,
    sample,
    score,
    serve,
    ship,
    train,
)
from unmask.cli import eval as eval_verbs
from unmask.cli import list as list_verb
from unmask.cli.common import ASCII_ERRORS
from unmask.errors import LoneError, UnmaskError
from unmask.io import cache_dir

INTERRUPTED = 130
LOOKS, LOOK_SECONDS = 10, 0.005
"""How often running processes are counted, and the time between; one that waits for a disk is not always running."""
UsageError: Any = typer.BadParameter.__base__  # click's class; some versions of Typer bundle their own click

app = typer.Typer(
    name="unmask",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("train", cls=train.TrainCommand)(train.train)
app.add_typer(eval_verbs.app, name="eval")
app.command("sample")(sample.sample)
app.command("fill")(fill.fill)
app.command("edit")(edit.edit)
app.command("score")(score.score)
app.command("serve")(serve.serve)
app.command("reproduce")(reproduce.reproduce)
app.command("convert")(convert.convert)
app.command("ship")(ship.ship)
app.add_typer(export.app, name="export")
app.add_typer(bench.app, name="bench")
app.add_typer(plot.app, name="plot")
app.command("list")(list_verb.list_members)
app.command("doctor")(doctor.doctor)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Masked diffusion language models: train, score, generate, fill, serve."""
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line. Bad input prints one sentence and exits with 2, a bug with 1, Ctrl-C with 130."""
    for name in ("stdout", "stderr"):  # None if the caller has closed it
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ASCII_ERRORS)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    warnings.formatwarning = _format_warning
    if "torch" not in sys.modules:  # OpenMP reads this once
        trains = sys.argv[1:2] in (["train"], ["reproduce"]) or sys.argv[1:3] == ["eval", "glue"]
        os.environ.setdefault("OMP_NUM_THREADS", str(choose_threads(trains)))
    try:
        code = app(prog_name="unmask", standalone_mode=False)
        sys.stdout.flush()
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help is printed already
            sys.exit(2)
        message = error.format_message()
        message = message if message[-1] in ".?" else f"{message}."
        _exit_with(message if error.ctx is None else f"{message} See '{error.ctx.command_path} --help'.")
    except UnmaskError as error:
        _exit_with(str(error), every_process=isinstance(error, LoneError))
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for the flush when Python ends
        sys.exit(1)
    except OSError as error:
        file = f"'{error.filename}': " if error.filename else ""
        _exit_with(f"{file}{error.strerror or error}; free some space or choose another path.")
    except MemoryError:
        _exit_with("This machine does not have enough memory for that; use less text or a smaller model.")
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # panics of libraries written in Rust are no Exceptions
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        _exit_with(f"Internal error ({reason}); please report it together with {_write_log()}.", code=1)
    if code == INTERRUPTED:
        sys.stderr.write("\nunmask: interrupted.\n")
    sys.exit(code)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format warnings of this package as one sentence, others as Python does."""
    ours = Path(filename).is_relative_to(Path(__file__).parents[1])
    return f"unmask: {message}\n" if ours else f"{filename}:{lineno}: {category.__name__}: {message}\n"


def choose_threads(training: bool) -> int:
    """The CPUs that this process may use and, unless it trains, that other processes leave free; at least one.

    Training does not look at other processes because its rounding errors depend on the number of threads.
    """
    cpus = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cpus
    with suppress(OSError, ValueError):  # the limit of a container; "max" is none
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        allowed = min(allowed, math.ceil(int(quota) / int(period)))
    busy = 0.0
    if not training:
        with suppress(OSError, AttributeError):  # not on Windows
            busy = os.getloadavg()[0]
        with suppress(OSError, ValueError):  # processes that run now, this one included: the average lags behind
            running = []
            for _ in range(LOOKS):
                running.append(int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1)
                time.sleep(LOOK_SECONDS)
            busy = min(busy, max(running))
    return max(1, min(allowed, cpus - round(busy)))


def _exit_with(message: str, every_process: bool = False, code: int = 2) -> NoReturn:
    """Print an error on one line and exit; only the first of several processes prints, unless `every_process`."""
    if every_process or os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"unmask: {' '.join(message.splitlines())}\n")
    sys.exit(code)


def _write_log() -> str:
    """Write the traceback of the current exception to a file in the cache or else the temporary folder."""
    about = f"unmask {__version__}, Python {platform.python_version()}, {platform.platform()}\n{sys.argv}\n\n"
    for folder in (cache_dir() / "errors", None):
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix="unmask-", suffix=".log", dir=folder)
        except OSError:
            continue
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as log:
            log.write(about + traceback.format_exc())
        return name
    return "what you ran"
