"""`unmask bench`: speed and memory of training, sampling and likelihoods on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from unmask.cli.common import Device, Json, option_groups, print_json, progress
from unmask.errors import UnmaskError


class LikelihoodBaseline(str, Enum):
    """Values of `bench eval --against`; an enum because Typer takes no lists of literals."""

    plain = "plain"
    training = "training"


What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[WHAT] [KEY=VALUE]...",
        help="A recipe (name or .yaml) or a checkpoint folder, and overrides such as model.size=tiny. Data are "
        "synthetic. The default on a GPU is the small network with 50,258 tokens, length 1,024 and batch 64; on a CPU "
        "nano with 257 tokens, length 128 and batch 16.",
    ),
]
Length = Annotated[int | None, typer.Option(min=2, help="Tokens per row.")]
Lengths = Annotated[list[int] | None, typer.Option(min=2, help="Tokens per text; repeatable. 128 to 8192 on a GPU.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Rows per batch.")]
Batches = Annotated[list[int] | None, typer.Option(min=1, help="Texts per batch; repeatable. 1, 16, 64 on a GPU.")]
StepCounts = Annotated[list[int] | None, typer.Option(min=1, help="Sampling steps T; repeatable. 1000 on a GPU.")]
Limit = Annotated[
    float,
    typer.Option(min=0, help="Seconds per sampler; a longer run is estimated from a part of it, marked ~. inf: never."),
]
Repeats = Annotated[int, typer.Option(min=1, help="Measured rounds; every implementation runs once per round.")]
Optimizer = Annotated[
    Literal["adamw", "muon"] | None, typer.Option(help="Optimizer; the plain implementation always uses AdamW.")
]
Against = Annotated[Literal["plain"] | None, typer.Option(help="Compare with the plain dense implementation.")]
LikelihoodBaselines = Annotated[
    list[LikelihoodBaseline] | None,
    typer.Option(
        help="Compare with the plain dense implementation, or with training by the recipe's optimizer and "
        "accumulation; repeatable."
    ),
]


@dataclass(frozen=True)
class Options:
    """Options of every benchmark."""

    size: Annotated[Literal["nano", "tiny", "small", "medium"] | None, typer.Option(help="Size of the network.")] = None
    vocab: Annotated[int | None, typer.Option(min=2, help="Vocabulary size, mask token included.")] = None
    precision: Annotated[
        Literal["auto", "bf16", "float32"] | None, typer.Option(help="Precision of matrix products.")
    ] = None
    warmup: Annotated[int, typer.Option(min=0, help="Warm-up rounds, which are not measured.")] = 1
    memory: Annotated[
        bool | None, typer.Option(help="Measure the peak memory of each implementation, on a CPU in a new process.")
    ] = None
    device: Device = None
    as_json: Json = False


app = typer.Typer(no_args_is_help=True, help="Measure speed and memory: unmask bench train|sample|eval.")


@app.command("train")
@option_groups
def train(
    what: What = None,
    *,
    length: Length = None,
    batch: Batch = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps per run; 20 on a GPU, 3 on a CPU.")] = None,
    optimizer: Optimizer = None,
    against: Against = None,
    repeats: Repeats = 5,
    options: Options,
) -> None:
    """Measure training on random tokens: tokens per second, peak memory, MFU.

    Figures are medians over the rounds, with quartiles. MFU is relative to the measured speed of a large matrix product
    on the same device.

    Examples:

        unmask bench train

        unmask bench train --against plain --json

        unmask bench train --size small --vocab 50258 --length 1024 --batch 64 --optimizer muon

        unmask bench train paper/owt --vocab 50258 training.batch_size=32
    """
    module, device = _import("train"), _device(options)
    module.check_training_device(device)
    overrides = {"data.length": length, "training.batch_size": batch, "optimizer": optimizer}
    baselines = [against] if against else []
    work = _workload(options, what, overrides, device, baselines, steps or (20 if device.type == "cuda" else 3))
    _compare(module.compare_training, work, baselines, repeats, options)


@app.command("eval")
@option_groups
def evaluate(
    what: What = None,
    *,
    length: Length = None,
    batch: Batch = None,
    calls: Annotated[int | None, typer.Option(min=1, help="Batches per run; 20 on a GPU, 5 on a CPU.")] = None,
    against: LikelihoodBaselines = None,
    repeats: Repeats = 5,
    options: Options,
) -> None:
    """Measure a likelihood bound with one noise draw per row, as 'unmask eval' computes each draw, on random tokens.

    Examples:

        unmask bench eval

        unmask bench eval --against plain --against training --json

        unmask bench eval runs/mine --batch 64
    """
    device = _device(options)
    baselines = list(dict.fromkeys(one.value for one in against or []))
    if "training" in baselines:
        _import("train").check_training_device(device)
    overrides = {"data.length": length, "training.batch_size": batch}
    work = _workload(options, what, overrides, device, baselines, calls or (20 if device.type == "cuda" else 5))
    _compare(_import("likelihood").compare_likelihood, work, baselines, repeats, options)


@app.command("sample")
@option_groups
def sample(
    what: What = None,
    *,
    length: Lengths = None,
    batch: Batches = None,
    steps: StepCounts = None,
    limit: Limit = 10.0,
    against: Against = None,
    repeats: Repeats = 3,
    options: Options,
) -> None:
    """Measure masked diffusion in T steps and one token at a time against an autoregressive model with a cache.

    Weights are random; the time does not depend on them. Memory is measured on a GPU, and on a CPU with --memory.

    Examples:

        unmask bench sample

        unmask bench sample --length 1024 --batch 1 --batch 16 --steps 1000 --limit inf --against plain

        unmask bench sample runs/mine --steps 64 --json
    """
    device = _device(options)
    gpu = device.type == "cuda"
    if not length and not _import("setup").is_named(what or []):
        length = [128, 512, 1024, 2048, 8192] if gpu else [64, 128, 256]
    baselines = [against] if against else []
    setup = _workload(options, what, {"data.length": max(length or [], default=None)}, device, baselines).setup
    lengths = sorted(set(length or [setup.length]))
    batches = sorted(set(batch or ([1, 16, 64] if gpu else [1, 4])))
    step_counts = sorted(set(steps or ([1000] if gpu else [16])))
    with progress("sampling", len(lengths) * len(batches), quiet=options.as_json, even=False) as advance:
        report = _import("sample").measure_sweep(
            setup,
            lengths,
            batches,
            step_counts,
            ("one by one", "ar", *baselines),
            repeats=repeats,
            warmup=options.warmup,
            limit=limit,
            memory=gpu if options.memory is None else options.memory,
            progress=advance,
        )
    if options.as_json:
        print_json(report.as_dict())
    else:
        _import("tables").print_sweep(report, setup)


def _import(module: str) -> Any:
    """Import a module of the benchmarks, from the installed wheel or from the source checkout."""
    try:
        return import_module(f"unmask.benchmarks.{module}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("unmask.benchmarks"):
            raise
    checkout = Path(__file__).parents[3]
    if not (checkout / "benchmarks" / f"{module}.py").is_file():
        raise UnmaskError("The benchmarks are missing from this installation; reinstall unmask.")
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    return import_module(f"benchmarks.{module}")


def _device(options: Options) -> Any:
    from unmask.models.inference import select_device

    return select_device(options.device)


def _workload(
    options: Options,
    what: list[str] | None,
    overrides: dict[str, Any],
    device: Any,
    baselines: Sequence[str],
    count: int = 1,
) -> Any:
    """Read the recipe, and check that it can be compared with the baselines."""
    module = _import("setup")
    overrides |= {"model.size": options.size, "training.precision": options.precision}
    given = [f"{key}={value}" for key, value in overrides.items() if value is not None]
    recipe = module.read_bench_recipe(what or [], given, device)
    setup = module.make_setup(recipe, module.is_named(what or []), options.vocab, device)
    objective = setup.objective
    if "plain" in baselines and (objective.causal or objective.needs_visible_rows or objective.needs_mask_logit):
        raise UnmaskError(
            f"The plain implementation trains with SUBS and cannot be compared with the objective '{objective.name}'; "
            "leave --against out."
        )
    return module.Workload(setup, count, recipe.optimizer, recipe.training.accumulation)


def _compare(compare: Callable[..., Any], work: Any, baselines: Sequence[str], repeats: int, options: Options) -> None:
    memory = options.memory is not False
    rounds = (1 + len(baselines)) * (repeats + options.warmup + memory)
    with progress("measuring", rounds, quiet=options.as_json) as advance:
        report = compare(work, baselines, repeats=repeats, warmup=options.warmup, memory=memory, progress=advance)
    if options.as_json:
        print_json(report.as_dict())
    else:
        _import("tables").print_report(report, work.setup)
