"""Fixed-seed results of the whole package. Only the first section names modules inside it."""

from __future__ import annotations

import bz2
import gzip
import inspect
import io
import json
import lzma
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import typer
import yaml
from safetensors.torch import load_file, save_file

import unmask
from unmask import registry

# ---- names inside the package: edit only this section after a rename ------------------------------------------------
from unmask.checkpoint import CheckpointConfig, save_checkpoint
from unmask.cli import app, main
from unmask.config import read_recipe, shipped_recipes
from unmask.data.encoding import encode
from unmask.data.rows import permute as shuffled
from unmask.data.split import prepare
from unmask.models.build import PlannerConfig, attach_planner
from unmask.objectives.base import Noise
from unmask.process import (
    Batch,
    mask_tokens,
    posterior,
    prior,
    remask_limit,
    reveal_probability,
    sample_mask,
    sample_mask_of_size,
)
from unmask.random import Purpose, bits, exponential, uniform
from unmask.schedules import draw_times, low_discrepancy, van_der_corput

from tests.golden.harness import HERE, array, case, scrub, sha256, tensors, workplace  # isort: skip

AXES = registry.AXES
build = registry.build
UNIFORM_ORDER = "reveal"
"""The sampler of uniform order."""
OLD = HERE / "old_run"


def schedule_values(schedule: Any, t: torch.Tensor) -> dict[str, torch.Tensor]:
    """alpha, its derivative, the weight, the mask rate and the inverse."""
    values = {name: getattr(schedule, name)(t) for name in ("alpha", "dalpha", "weight", "mask_rate")}
    return {**values, "inverse": schedule.inverse(values["alpha"])}


def network_for(objective: Any, **options: Any) -> Any:
    """A tiny network with weights that depend on their names alone."""
    name = "causal" if objective.causal else "dit"
    shape = {"hidden_size": 16, "layers": 2, "heads": 2, "dropout": 0.0}
    extra = {} if objective.causal else {"mask_logit": objective.needs_mask_logit}
    network = build("model", {"name": name, **shape, **options}).build(12, 11, 20, **extra)
    return filled(attach_planner(network, PlannerConfig(width=8)) if objective.trains_planner else network)


def make_checkpoint(folder: str, model: str = "dit", objective: Any = None, **options: Any) -> str:
    """A random byte-level model of two layers."""
    card = {"policy": options.pop("policy", "packed"), "schedule": options.pop("schedule", "loglinear")}
    objective = build("objective", objective or ("ar" if model == "causal" else "subs"))
    tokenizer = build("tokenizer", "byte").build(lambda: iter(()))
    spec = build("model", {"name": model, "hidden_size": 32, "layers": 2, "heads": 2, "dropout": 0.0, **options})
    extra = {} if model == "causal" else {"mask_logit": objective.needs_mask_logit}
    network = filled(spec.build(len(tokenizer), tokenizer.mask_token_id, 48, **extra))
    save_checkpoint(Path(folder), network, tokenizer, CheckpointConfig(objective=objective, length=48, **card))
    return folder


def corpus_of(source: Any, tokenizer: Any, **options: Any) -> Any:
    """Token caches of both parts of a source."""
    built = build("tokenizer", tokenizer) if isinstance(tokenizer, str | dict) else tokenizer
    return prepare(build("source", source), built, **options)


def rows_of(corpus: Any, policy: Any, length: int) -> list[dict[str, Any]]:
    """The rows of both parts of a corpus."""
    return [table_of(rows) for rows in corpus.rows(build("policy", policy), length)]


# ---- helpers --------------------------------------------------------------------------------------------------------


def filled(network: Any) -> Any:
    """Give every parameter random values that depend on its name alone."""
    for name, parameter in network.named_parameters():
        draw = torch.Generator().manual_seed(int(sha256(name)[:8], 16))
        with torch.no_grad():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=draw) + (1.0 if parameter.ndim == 1 else 0.0))
    return network.eval()


def run(*words: object, stdin: str = "") -> tuple[int, str, str]:
    """Run a verb in this process: exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    typed = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
    command = mock.patch.multiple(sys, argv=["unmask", *map(str, words)], stdin=typed)
    handler = signal.getsignal(signal.SIGINT)
    try:
        with command, redirect_stdout(out), redirect_stderr(err):
            main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        signal.signal(signal.SIGINT, handler)
    return code, out.getvalue(), err.getvalue()


def verb(*words: object, stdin: str = "") -> Any:
    """The output of a verb with --json; exit codes other than 0 and 1 are errors."""
    code, out, err = run(*words, "--json", stdin=stdin)
    assert code in (0, 1), f"unmask {' '.join(map(str, words))} exits with {code}: {err}"
    return json.loads(out) if code == 0 else {"exit": code, "found": json.loads(out)}


@cache
def model(name: str) -> Any:
    return unmask.load(name, device="cpu")


def write_cats(name: str = "cats.txt", lines: int = 120) -> str:
    Path(name).write_text("\n".join(f"the {i} cats sat on {i * i} mats" for i in range(lines)) + "\n")
    return name


NARROW = ["model.hidden_size=16", "model.layers=1", "model.heads=1", "training.batch_size=4"]
TINY = [*NARROW, "data.length=16"]
AR = ["model={name: causal, size: nano, hidden_size: 16, layers: 1, heads: 1}", "objective=ar"]
SHORT = ["training.steps=2", "training.log_every=1", "training.validate_every=2", "training.validation_rows=4"]


def train(what: str, *words: object, out: str = "run") -> dict[str, Any]:
    return verb("train", what, *words, "--out", out)


def folder_of(out: str, *keys: str) -> dict[str, Any]:
    """Everything a run has left (files, log, weights, training state, card), or only some of it."""
    root = Path(out)
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() or path.is_symlink())
    links = {str(path.relative_to(root)): str(path.readlink()) for path in root.rglob("*") if path.is_symlink()}
    log = [json.loads(line) for line in (root / "log.jsonl").read_text().splitlines()]
    newest = root / "latest"
    card = json.loads((newest / "unmask.json").read_text())
    state = {path.name: tensors(load_file(path)) for path in sorted((newest / "state").glob("*.safetensors"))}
    found = {
        "files": files,
        "links": links,
        "log": log,
        "log_keys": [sorted(entry) for entry in log],
        "ema": tensors(load_file(newest / "model.safetensors")),
        "state": state,
        "trainer": json.loads((newest / "state" / "trainer.json").read_text()),
        "config": json.loads((newest / "config.json").read_text()) | {"transformers_version": None},
        "card": card,
        "card_keys": sorted(card),
        "recipe": yaml.safe_load((root / "recipe.yaml").read_text()),
    }
    return {key: found[key] for key in keys} if keys else found


def files_of(folder: str) -> dict[str, Any]:
    """A checkpoint: its files, the text of small ones, the tensors of weights."""
    found: dict[str, Any] = {}
    for path in sorted(Path(folder).rglob("*")):
        if not path.is_file():
            continue
        name = str(path.relative_to(folder))
        if path.suffix == ".safetensors":
            loaded = load_file(path)
            found[name] = {"tensors": tensors(loaded), "dtypes": sorted({str(one.dtype) for one in loaded.values()})}
        elif path.suffix == ".json":
            values = json.loads(path.read_text())
            found[name] = {**values, "transformers_version": None} if name == "config.json" else values
            if name == "tokenizer.json":
                found[name] = sha256(json.dumps(values, sort_keys=True))
        elif name == "README.md":
            lines = path.read_text().splitlines()
            found[name] = [line for line in lines if "seconds" not in line and "with unmask" not in line]
        else:
            found[name] = path.read_text().splitlines()
    return found


# ---- surface --------------------------------------------------------------------------------------------------------


@case("surface")
def command_line() -> Any:
    def describe(command: Any) -> Any:
        options = {
            one.name: {
                "words": sorted([*one.opts, *one.secondary_opts]),
                "multiple": getattr(one, "multiple", False),
                "nargs": one.nargs,
                "required": one.required,
                "default": None if callable(one.default) else repr(one.default),
                "flag": getattr(one, "is_flag", False),
            }
            for one in command.params
        }
        below = {name: describe(one) for name, one in getattr(command, "commands", {}).items()}
        return {"options": options, **({"commands": below} if below else {})}

    return describe(typer.main.get_command(app))


@case("surface")
def registry_members() -> Any:
    def default(one: Any) -> str:
        value = one.get_default(call_default_factory=True)
        return repr(value.model_dump(mode="json") if hasattr(value, "model_dump") else value)

    return {
        axis: {
            name: {field: default(one) for field, one in registry.get(axis, name).model_fields.items()}
            for name in registry.names(axis)
        }
        for axis in AXES
    }


@case("surface")
def recipes() -> Any:
    return {name: read_recipe(name).model_dump(mode="json") for name in shipped_recipes()}


@case("surface")
def listing() -> Any:
    return {axis: verb("list", axis) if axis else verb("list") for axis in ("", "schedule", "shipped", "recipe")}


@case("surface")
def python_names() -> Any:
    def words(function: Any) -> dict[str, str]:
        return {name: repr(one.default) for name, one in inspect.signature(function).parameters.items()}

    lm = unmask.MaskedDiffusionLM
    public = ("generate", "fill", "edit", "rewrite", "score", "stream")
    return {
        "names": sorted(unmask.__all__),
        "load": list(words(unmask.load)),
        "methods": {name: {k: v for k, v in words(getattr(lm, name)).items() if "<" not in v} for name in public},
        "bound": sorted(one for one in dir(unmask.Bound) if not one.startswith("_")),
        "frame": sorted(unmask.Frame.__dataclass_fields__),
        "generation": sorted(unmask.Generation.__dataclass_fields__),
        "constraints": sorted(one for one in unmask.constraints.__all__ if one[0].isupper()),
        "shipped": {
            name: {
                "card": json.loads((Path(str(model(name).path)) / "unmask.json").read_text()),
                "config": json.loads((Path(str(model(name).path)) / "config.json").read_text()),
            }
            for name in ("smoke", "stories", "stories-ar")
        },
    }


REFUSED = [
    ["train", "nowhere.txt"],
    ["train", "smoke", "training.stepz=3"],
    ["train", "smoke", "schedule={name: polynomial, power: -1}"],
    ["sample", "nowhere"],
    ["sample", "smoke", "--length", "0"],
    ["sample", "smoke", "--top-p", "1.5"],
    ["sample", "smoke", "--order", "confidense"],
    ["fill", "smoke", "abc"],
    ["score", "smoke", "xyz"],
    ["eval", "smoke", "--rows", "0"],
    ["convert", "nowhere", "out"],
    ["ship", "nowhere", "out"],
]


@case("surface")
def refusals() -> Any:
    """Exit codes, and that there is one line of error; the sentences themselves may be rewritten."""
    found = {}
    for words in REFUSED:
        code, out, err = run(*words)
        found[" ".join(words)] = {"code": code, "out": out, "lines": err.count("\n")}
    return {**found, "left": sorted(path.name for path in Path().iterdir() if path.name != "cache")}


# ---- schedules, random numbers, process -----------------------------------------------------------------------------

SCHEDULES: list[Any] = [
    *AXES["schedule"],
    {"name": "polynomial", "power": 3.5},
    {"name": "geometric", "sigma_min": 0.01, "sigma_max": 5.0},
    {"name": "linear-sigma", "sigma_max": 3.0},
]


@case("mathematics")
def schedules() -> Any:
    t = torch.tensor([0.0, 1e-6, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999, 1.0])
    found = {}
    for spec in SCHEDULES:
        one = build("schedule", spec)
        fine = schedule_values(one, torch.linspace(0, 1, 101).double())
        found[str(spec)] = {
            "float32": {name: array(value) for name, value in schedule_values(one, t).items()},
            "float64": {name: array(value) for name, value in fine.items()},
            "bends": len(one.breakpoints()),
            "spec": one.model_dump(mode="json"),
        }
    return found


@case("mathematics")
def learned_schedule() -> Any:
    shaped = build("schedule", "learned").with_density([1.0 + (i % 7) for i in range(64)])
    return {"knots": list(shaped.knots), **{k: array(v) for k, v in schedule_values(shaped, torch.rand(50)).items()}}


@case("mathematics")
def random_numbers() -> Any:
    place = torch.arange(33)
    found: dict[str, Any] = {"purposes": {one.name: one.value for one in Purpose}}
    for one in Purpose:
        found[one.name] = {
            "bits": array(bits(7, one, 3, place[:, None], place[None])),
            "uniform": array(uniform(-5, one, place[:, None], 2, place[None])),
            "exponential": array(exponential(2**40 + 1, one, 0, place, 9)),
        }
    return found


@case("mathematics")
def times() -> Any:
    place = torch.arange(12)
    return {
        "strata": {str(n): van_der_corput(n).tolist() for n in (1, 2, 5, 8, 12)},
        "times": {f"step {step}": draw_times(3, step, place, 12).tolist() for step in range(3)},
        "part": draw_times(3, 1, place[4:8], 12).tolist(),
        "offset": low_discrepancy(torch.tensor(0.37), torch.arange(6), 6).tolist(),
        "large": array(draw_times(9, 5, torch.arange(300), 300)),
    }


def small_batch() -> Batch:
    ids = torch.arange(5)[:, None] * 3 + torch.arange(20)[None] * 7
    attended = torch.arange(20)[None] < torch.tensor([20, 13, 1, 20, 8])[:, None]
    frozen = torch.zeros(5, 20, dtype=torch.bool)
    frozen[0, :4] = frozen[3, ::3] = True
    return Batch.of(ids % 11, attended, frozen)


@case("mathematics")
def processes() -> Any:
    batch = small_batch()
    noise = uniform(1, Purpose.MASK, 0, torch.arange(5)[:, None], torch.arange(20)[None])
    rate = torch.tensor([0.1, 0.5, 0.9, 1.0, 0.3])
    masked = sample_mask(batch, rate, noise)
    counted, level = sample_mask_of_size(batch, torch.tensor([3, 5, 1, 12, 8]), noise)
    x = torch.softmax(torch.arange(36.0).reshape(3, 12) % 5, -1)
    x[:, 11] = 0
    after = posterior(torch.tensor([11, 4, 11]), x / x.sum(-1, keepdim=True), 0.25, 0.75, 11)
    s, t = rate * 0.5, rate
    return {
        "masked": masked.int().tolist(),
        "counted": counted.int().tolist(),
        "level": level.tolist(),
        "corrupt": mask_tokens(batch, masked, 11).tolist(),
        "posterior": after.tolist(),
        "prior": prior((2, 3), 11).tolist(),
        "reveal": reveal_probability(s, t).tolist(),
        "reveal_remasking": reveal_probability(s, t, 0.1).tolist(),
        "remask_limit": remask_limit(s, t).tolist(),
    }


# ---- objectives -----------------------------------------------------------------------------------------------------

OBJECTIVES: list[dict[str, Any]] = [
    {"name": "subs"},
    {"name": "subs", "weight": "flat"},
    {"name": "subs", "steps": 4},
    {"name": "mask-count"},
    *({"name": "d3pm", "steps": 8, "carry_over": c, "zero_masking": z} for c in (False, True) for z in (False, True)),
    {"name": "sedd"},
    {"name": "ar"},
    {"name": "planner"},
    {"name": "mlm"},
]


@case("mathematics")
def objectives() -> Any:
    assert {one["name"] for one in OBJECTIVES} == set(AXES["objective"])
    found = {}
    batch = small_batch()
    for spec in OBJECTIVES:
        objective = build("objective", spec)
        for options, schedule in [({}, "cosine"), *((options, "loglinear") for options in network_options(objective))]:
            network = network_for(objective, **options)
            noise = Noise.draw(0, 1, torch.arange(5), draw_times(0, 1, torch.arange(5), 5), 20)
            terms = objective.loss(network, batch, build("schedule", schedule), noise)
            terms.loss.backward()
            kept = ("diffusion", "reconstruction", "prior", "cross_entropy", "counted", "masked", "mask_rate")
            values = {name: getattr(terms, name) for name in kept}
            found[f"{spec} {options} {schedule}"] = {
                **{name: None if value is None else array(value) for name, value in values.items()},
                "trained": float(terms.loss.detach()),
                "total": float(terms.total.detach()),
                "count": int(terms.count),
                "per_token": float(terms.per_token.detach()),
                "gradients": tensors({n: p.grad for n, p in network.named_parameters() if p.grad is not None}),
                "estimators": {k: v.model_dump(mode="json") for k, v in objective.estimators().items()},
                "needs": [objective.needs_mask_logit, objective.needs_visible_rows, objective.causal],
            }
    return found


def network_options(objective: Any) -> list[dict[str, Any]]:
    """The kinds of network that an objective trains."""
    bidirectional = [{"conditioned": True, "cond_dim": 8}, {"absolute_positions": True}]
    return [{}, {"qk_norm": True}, *([] if objective.causal else bidirectional)]


@case("mathematics")
def networks() -> Any:
    """Logits of every kind of network, with and without pads."""
    found = {}
    batch = small_batch()
    for name, objective in {"dit": build("objective", "subs"), "causal": build("objective", "ar")}.items():
        for options in network_options(objective):
            network = network_for(objective, **options)
            more = {} if objective.causal else {"alpha": torch.tensor([0.1, 0.4, 0.5, 0.9, 1.0])}
            with torch.no_grad():
                logits = network(batch.input_ids, attention_mask=batch.attention_mask, **more).logits
                plain = network(batch.input_ids, **more).logits
            found[f"{name} {options}"] = {
                "padded": array(logits[batch.attention_mask]),
                "plain": array(plain),
                "parameters": {name: list(one.shape) for name, one in network.state_dict().items()},
            }
    return found


# ---- samplers -------------------------------------------------------------------------------------------------------

SAMPLERS: list[dict[str, Any]] = [
    {},
    {"steps": 5},
    {"steps": 64},
    *({"order": order} for order in ("confidence", "margin", "entropy", "left_to_right", "uniform")),
    *({"order": order, "steps": 5} for order in ("confidence", "margin", "entropy", "left_to_right", "uniform")),
    {"order": "threshold"},
    {"order": "entropy_bounded"},
    {"sampler": {"name": "threshold", "above": 0.3}},
    {"sampler": {"name": "entropy_bounded", "gamma": 2.0}},
    {"sampler": {"name": "ordered", "order": "confidence", "steps": 6, "pace": "cosine"}},
    {"sampler": {"name": UNIFORM_ORDER, "steps": 6, "schedule": "cosine"}},
    {"sampler": {"name": UNIFORM_ORDER, "steps": 6, "schedule": {"name": "polynomial", "power": 3}}},
    *(
        {"sampler": {"name": "remdm", "strategy": one, "steps": 12, "eta": 0.2}}
        for one in ("cap", "rescale", "conf", "loop")
    ),
    {"sampler": {"name": "remdm", "steps": 6, "schedule": "cosine"}},
    {"sampler": {"name": "corrector", "steps": 8}},
    {"sampler": {"name": "corrector", "steps": 5, "fraction": 0.4, "schedule": "cosine"}},
]
RULES: list[dict[str, Any]] = [
    {"temperature": 0.5},
    {"temperature": 0},
    {"temperature": 1.7},
    {"top_k": 2},
    {"top_p": 0.6},
    {"min_p": 0.4},
    {"top_k": 5, "top_p": 0.9, "min_p": 0.05, "temperature": 0.8},
    {"greedy_tail": 0.5},
    {"greedy_above": 0.4},
]


def generated(lm: Any, n: int = 2, **options: Any) -> list[dict[str, Any]]:
    """Generations with their trajectories."""
    done = lm.generate(n, return_trajectory=True, **{"length": 24, "seed": 11, **options})
    return [{**asdict(one), "trajectory": array(np.array(one.trajectory))} for one in done]


@case("samplers")
def every_sampler() -> Any:
    lm = model("smoke")
    return {str(options): generated(lm, **options) for options in SAMPLERS}


@case("samplers")
def every_sampler_with_prompts() -> Any:
    lm = model("smoke")
    given = {"prompts": ["abc", "", "hgfedcba"], "suffix": "gg", "length": 20}
    return {str(options): generated(lm, 1, **given, **options) for options in SAMPLERS}


@case("samplers")
def token_rules() -> Any:
    lm = model("smoke")
    how: list[dict[str, Any]] = [{}, {"steps": 4}, {"order": "confidence", "steps": 6}, {"order": "threshold"}]
    how += [{"sampler": {"name": "remdm", "steps": 6, "eta": 0.1}}]
    found = {}
    for rule in RULES:
        for options in how:
            found[f"{rule} {options}"] = [one["text"] for one in generated(lm, 2, prompt="ab", **rule, **options)]
    return found


@case("samplers")
def guidance_particles_windows() -> Any:
    lm = model("smoke")
    score = {"score": lambda text: float(text.count("a"))}
    return {
        "guidance": generated(lm, prompt="aaab", guidance=1.5),
        "guidance in steps": generated(lm, prompt="aaab", suffix="h", guidance=0.5, steps=4, temperature=0.7),
        "guidance by order": generated(lm, prompt="aaab", guidance=2.0, order="margin", steps=6),
        "best of": generated(lm, best_of=3, **score),
        "particles": generated(lm, particles=4, **score),
        "particles in steps": generated(lm, particles=4, steps=5, **score),
        "windows": generated(lm, length=150),
        "windows, stride": generated(lm, length=100, stride=20, prompt="abcd", steps=6),
        "windows, order": generated(lm, length=90, stride=50, order="confidence", steps=9),
        "batches": generated(lm, 5, length=16, batch_size=2),
        "batches at once": generated(lm, 5, length=16),
        "large seed": generated(lm, 1, seed=2**62, length=10),
        "negative seed": generated(lm, 1, seed=-3, length=10),
    }


@case("samplers")
def stories() -> Any:
    lm = model("stories")
    return {
        "steps": generated(lm, 1, exact=True, length=32, steps=4, prompt="Once upon a time"),
        "confidence": generated(lm, 1, exact=True, length=24, steps=4, order="confidence", top_p=0.9),
        "short": generated(lm, 1, exact=True, length=12),
        "suffix": generated(lm, 1, exact=True, length=20, steps=3, prompt="The cat", suffix=" the end."),
    }


@case("samplers")
def stories_left_to_right() -> Any:
    lm = model("stories-ar")
    return {
        "plain": generated(lm, 2, length=12),
        "prompts": generated(lm, 1, length=14, prompts=["Once upon", "The little dog was"], top_k=20),
        "greedy": generated(lm, 1, length=12, prompt="Tom", temperature=0),
        "best of": generated(lm, 1, length=8, best_of=2, score=lambda text: -float(len(text))),
        "score": lm.score(["Once upon a time there was a dog."]).as_dict(),
    }


@case("samplers")
def analytic_and_other_objectives() -> Any:
    found: dict[str, Any] = {}
    for spec in ({"name": "sedd"}, {"name": "d3pm", "steps": 8}, {"name": "mask-count"}):
        lm = unmask.load(make_checkpoint(spec["name"], objective=spec), device="cpu")
        found[str(spec)] = {"plain": generated(lm, length=12), "steps": generated(lm, length=12, steps=3)}
        if spec["name"] == "sedd":
            found["analytic"] = generated(lm, length=12, prompt="ab", sampler={"name": "analytic", "steps": 6})
            found["analytic, cosine"] = generated(
                lm, length=12, sampler={"name": "analytic", "steps": 4, "schedule": "cosine"}, temperature=0.8
            )
    lm = unmask.load(make_checkpoint("conditioned", conditioned=True, cond_dim=8, schedule="cosine"), device="cpu")
    found["conditioned"] = {str(o): generated(lm, length=12, **o) for o in ({}, {"steps": 3}, {"order": "entropy"})}
    lm = unmask.load(make_checkpoint("causal", model="causal"), device="cpu")
    found["causal"] = generated(lm, length=12, prompts=["a", "bcd"])
    return found


# ---- constraints ----------------------------------------------------------------------------------------------------


def constrained_texts(constraints: dict[str, Any]) -> dict[str, list[str]]:
    """Two texts of the smoke model for every constraint, drawn in four ways."""
    how: list[dict[str, Any]] = [{}, {"steps": 4}, {"particles": 3}, {"order": "confidence", "steps": 4}]
    return {
        f"{name} {options}": [
            one["text"] for one in generated(model("smoke"), length=16, constraint=constraint, **options)
        ]
        for name, constraint in constraints.items()
        for options in how
    }


@case("constraints")
def every_constraint() -> Any:
    c = unmask.constraints
    return constrained_texts(
        {
            "characters": c.Characters(3, 20),
            "words": c.Words("abc", whole=False),
            "no words": c.NoWords("a", "bb", whole=False),
            "token run": c.Words([0, 1, 2]),
            "allowed": c.Allowed(["a", "b", "c"]),
            "allowed at": c.Allowed(["h"], positions=[0, 5]),
            "banned": c.Banned("a"),
            "banned at": c.Banned(["a", "b", "c"], positions=[0, 1, 2]),
            "fixed": c.Fixed({1: "h", 4: "a"}),
            "several": [c.NoWords("hh", whole=False), c.Fixed({0: "a"}), c.Words("gg", whole=False)],
        }
    )


@case("constraints")
def constraints_with_prompts_and_fill() -> Any:
    lm = model("smoke")
    c = unmask.constraints
    prompted = {"prompt": "ab", "suffix": "cd", "length": 14}
    return {
        "prompt": generated(lm, 2, constraint=c.NoWords("e", "f", whole=False), **prompted),
        "particles": generated(lm, 2, constraint=c.Words("hhh", whole=False), particles=4, **prompted),
        "fill": lm.fill("ab[MASK:4]cd", constraint=c.NoWords("e", whole=False), seed=3),
        "fill open length": lm.fill("ab[MASK:2-6]cd", constraint=c.Characters(7, 8), seed=3),
        "edit": lm.edit("abcdefgh", spans=[(2, 6)], constraint=c.Allowed(["g", "h"], positions=[2, 3]), seed=1),
    }


@case("constraints")
def regexes() -> Any:
    lm, c = model("smoke"), unmask.constraints
    several = [c.NoWords("hh", whole=False), c.Fixed({0: "a"}), c.Regex("[a-h]*gg[a-h]*")]
    story = {"length": 12, "steps": 4, "constraint": c.Regex("Once [a-z ]+\\.")}
    return {
        **constrained_texts({"regex": c.Regex("(ab|cd)+[e-h]*"), "several": several}),
        "prompt": generated(lm, 2, constraint=c.Regex("ab[gh]*.*cd"), prompt="ab", suffix="cd", length=14),
        "fill open length": lm.fill("ab[MASK:2-6]cd", constraint=c.Regex("ab(gh)+cd"), seed=3),
        "stories": generated(model("stories"), 1, exact=True, **story),
        "cli": verb(*shlex.split("sample smoke -n 2 --length 16 --match [a-d]+ --particles 2 --device cpu")),
    }


@case("constraints")
def constrained_stories() -> Any:
    lm = model("stories")
    c = unmask.constraints
    return {
        "words": generated(lm, 1, exact=True, length=16, steps=4, constraint=c.Words("dog", "ball")),
        "characters": generated(lm, 1, exact=True, length=16, steps=4, constraint=c.Characters(30, 40)),
        "none of": generated(lm, 1, exact=True, length=16, steps=4, constraint=c.NoWords("the", "a", "was")),
        "cli": verb(
            *shlex.split("sample stories --exact -n 1 --length 16 --steps 3 --with cat --without dog --device cpu")
        ),
    }


# ---- likelihoods and length policies --------------------------------------------------------------------------------


@case("likelihood")
def scores() -> Any:
    lm = model("smoke")
    texts = ["abcdefgh" * 8, "hgfedcba" * 2, "a"]
    return {
        "plain": lm.score(texts).as_dict(),
        "one": lm.score(texts[0]).as_dict(),
        "given": lm.score(["cdef", "gh"], given=["ab", "cdefab"]).as_dict(),
        "precise": lm.score(texts[1:], precision=0.05, seed=5, batch_size=7).as_dict(),
        "one draw": lm.score(texts, precision=None).as_dict(),
        "cli": verb("score", "smoke", *texts[:2], "--steps", 4, "--steps", 16, "--device", "cpu"),
        "stdin": verb("score", "smoke", "-", "--device", "cpu", stdin="abc\nhhh\n"),
        "stories": model("stories").score(["Once upon a time."], precision=None).as_dict(),
    }


@case("likelihood")
def scores_of_objectives_and_policies() -> Any:
    found = {}
    texts = ["a few words", "and more words than those"]
    variants = {str(one): {"objective": one} for one in OBJECTIVES if one["name"] not in ("ar", "planner")}
    variants |= {one: {"policy": one} for one in ("packed", "padded", "supervised_eos")}
    variants |= {f"ar {one}": {"policy": one, "model": "causal"} for one in ("packed", "padded", "supervised_eos")}
    variants |= {"conditioned": {"conditioned": True, "cond_dim": 8, "schedule": "cosine"}}
    for number, (name, options) in enumerate(variants.items()):
        lm = unmask.load(make_checkpoint(f"m{number}", **options), device="cpu")
        steps = () if lm.causal else ("--steps", 4)
        found[name] = {
            "score": verb("score", f"m{number}", *texts, *steps, "--device", "cpu", "--precision", 0.5),
            "given": lm.score([" words"], given="a few", precision=None).as_dict(),
        }
    return found


@case("likelihood")
def policies_write() -> Any:
    found = {}
    for policy in ("packed", "padded", "supervised_eos", "overlaid", "prompted"):
        lm = unmask.load(make_checkpoint(policy, policy=policy), device="cpu")
        found[policy] = {
            "generate": generated(lm, length=20, prompt="ab"),
            "steps": generated(lm, length=20, steps=4, suffix="."),
            "order": generated(lm, length=20, steps=4, order="confidence"),
            "fill": lm.fill(["x[MASK:5]y", "[MASK:3-6] end", "open [MASK:4]"], seed=2),
            "edit": lm.edit("some words here", seed=2),
        }
    return found


# ---- fill, edit, stream ---------------------------------------------------------------------------------------------


@case("writing")
def fills() -> Any:
    lm = model("smoke")
    ragged = ["ab[MASK]d", "[MASK:12]h", "abc[MASK:2]fgh[MASK:3]a", "[MASK:1-4]ab[MASK:2-5]"]
    return {
        "ragged": lm.fill(ragged, seed=4),
        "alone": [lm.fill(one, seed=4) for one in ragged],
        "greedy": lm.fill(ragged, greedy=True),
        "steps": lm.fill(ragged, steps=2, seed=1, top_p=0.8),
        "orders": [lm.fill(ragged[1], order=one) for one in ("confidence", "margin", "entropy", "threshold")],
        "remdm": lm.fill(ragged[1], sampler={"name": "remdm", "steps": 8, "eta": 0.2}),
        "details": verb("fill", "smoke", ragged[2], "--device", "cpu"),
        "open": verb("fill", "smoke", ragged[3], "--greedy", "--device", "cpu"),
        "stdin": verb("fill", "smoke", "-", "--device", "cpu", stdin="ab[MASK:3]\n[MASK:2]cd\n"),
        "stories": model("stories").fill(
            ["The [MASK] sat on the [MASK:2].", "Tom [MASK:1-3] happy."], greedy=True, exact=True
        ),
    }


@case("writing")
def edits() -> Any:
    lm, text = model("smoke"), "abcdefghabcdefghhhhh"
    return {
        "strength": [lm.edit(text, strength=one, seed=2) for one in (0.1, 0.3, 0.8, 1.0)],
        "default": lm.edit(text),
        "spans": lm.edit(text, spans=[(0, 3), (10, 15)], seed=3),
        "nothing": lm.edit(text, spans=[]),
        "how": lm.edit(text, strength=0.5, steps=3, order="confidence", temperature=0.7),
        "rewrite": lm.rewrite(text, ["cde", "hh"], seed=5),
        "rewrite all": lm.rewrite(text, [], steps=4),
        "details": verb("edit", "smoke", text, "--strength", 0.4, "--device", "cpu"),
        "keep": verb("edit", "smoke", text, "--keep", "cde", "--device", "cpu"),
        "stories": model("stories").edit("Once upon a time there was a little dog.", steps=3, seed=1, exact=True),
        "stories rewrite": model("stories").rewrite(
            "The dog ran to the park with Tom.", ["dog", "park"], steps=3, exact=True
        ),
    }


@case("writing")
def streams() -> Any:
    def frames(lm: Any, *words: Any, **options: Any) -> list[Any]:
        seen = [asdict(frame) for frame in lm.stream(*words, **options)]
        return [{**one, "pieces": one["pieces"][:24]} for one in seen]

    class Streamer:
        def __init__(self) -> None:
            self.received: list[Any] = []

        def put(self, value: Any) -> None:
            self.received.append(value.tolist() if isinstance(value, torch.Tensor) else value)

        def end(self) -> None:
            self.received.append("end")

    streamers = {}
    for name, options in {"uniform": {}, "order": {"order": "left_to_right"}, "steps": {"steps": 3}}.items():
        streamers[name] = Streamer()
        model("smoke").generate(1, length=10, prompt="ab", streamer=streamers[name], **options)
    return {
        "smoke": frames(model("smoke"), "abc", length=12, steps=4, seed=3),
        "remasked": frames(model("smoke"), length=10, sampler={"name": "remdm", "steps": 5, "eta": 0.3}),
        "stories": frames(model("stories"), "Once", suffix=" end.", length=12, steps=3, exact=True),
        "left to right": frames(model("stories-ar"), "Once", length=8),
        "streamers": {name: one.received for name, one in streamers.items()},
    }


@case("writing")
def sample_verb() -> Any:
    common = ("sample", "smoke", "-n", 2, "--length", 16, "--device", "cpu")
    return {
        "plain": verb(*common, "--seed", 3),
        "prompt": verb(*common, "--prompt", "ab", "--suffix", "h", "--steps", 3, "--guidance", 1.0),
        "sampler": verb(*common, "--sampler", "name: remdm, strategy: loop, steps: 6", "--top-p", 0.9),
        "constraint": verb(*common, "--characters", "12-20", "--particles", 2),
        "words": run(*common, "--seed", 3)[:2],
        "left to right": verb("sample", "stories-ar", "-n", 1, "--length", 8, "--device", "cpu"),
    }


# ---- data -----------------------------------------------------------------------------------------------------------

WORDS = "The quick brown fox — naïve, 東京 😀 — jumps over 42 lazy dogs.\tAgain\nand again.\n"


@contextmanager
def small_library() -> Iterator[None]:
    """A standard library of three modules, so that nothing depends on the version of Python."""
    body = '''
def {name}(value, other=None):
    """Return what {name} makes of a value, number {number} of its kind, whatever the other one may be."""
    result = value * {number} + len(str(other))
    if other is not None:
        result = max(result, other.count(value))
        print(result, other, {number})
    return [result, value]

'''
    place = Path("library")
    place.mkdir(exist_ok=True)
    for module, names in {"json": "abcdefgh", "zipfile": "stuvw", "heapq": "klm"}.items():
        texts = [body.format(name=name, number=i) for i, name in enumerate(names)]
        (place / f"{module}.py").write_text(f'"""The module {module}."""\n' + "".join(texts))
    with mock.patch("sysconfig.get_path", return_value=str(place.resolve())):
        yield


def tokenized(tokenizer: Any, text: str) -> dict[str, Any]:
    ids = encode(tokenizer, [text, text[:7], ""])
    return {
        "ids": ids,
        "back": [tokenizer.decode(one) for one in ids],
        "size": len(tokenizer),
        "special": [tokenizer.mask_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id],
        "vocabulary": sha256(json.dumps(sorted(tokenizer.get_vocab().items()))),
    }


@case("data")
def tokenizers() -> Any:
    documents = {"name": "text", "paths": write_cats(), "separator": "line"}
    nothing = {name: build("tokenizer", name).build(lambda: iter(())) for name in ("byte", "dna")}
    char = build("tokenizer", {"name": "char", "alphabet": "abc def"}).build(lambda: iter(()))
    corpus = corpus_of(documents, {"name": "bpe", "vocab_size": 300})
    corpus.tokenizer.save_pretrained("saved")
    published = build("tokenizer", {"name": "huggingface", "path": "saved"}).build(lambda: iter(()))
    shipped = {name: tokenized(model(name).tokenizer, "Once upon a time.") for name in ("stories", "stories-ar")}
    return {
        "byte": tokenized(nothing["byte"], WORDS),
        "dna": tokenized(nothing["dna"], "ACGTNNACGTTT"),
        "char": tokenized(char, "abc fed cab"),
        "bpe": tokenized(corpus.tokenizer, WORDS + "the 12 cats sat on 144 mats"),
        "huggingface": tokenized(published, "the 12 cats sat on 144 mats"),
        "smoke": tokenized(model("smoke").tokenizer, "abcdefgh"),
        **shipped,
    }


def documents_of(spec: Any) -> dict[str, Any]:
    source = build("source", spec)
    found = list(source.documents())
    return {
        "count": len(found),
        "first": [(one.name, one.text[:80], one.more) for one in found[:6]],
        "all": sha256(json.dumps([(one.name, one.text, one.more) for one in found])),
        "held_out": [source.held_out(one.name) for one in found[:4]],
        "keys": [source.split_key(one.name) for one in found[:4]],
        "bits": source.bits_per_character(),
    }


def write_formats() -> dict[str, dict[str, Any]]:
    """A file of every format, and the options to read it with."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard
    from pyarrow import feather

    records = [{"text": f'text {i}, "quoted"\nand {i * i}', "other": str(i)} for i in range(7)]
    raw = "\n\n".join(one["text"] for one in records).encode()
    lines = "".join(json.dumps(one) + "\n" for one in records).encode()
    table = "".join(f'"{one["text"].replace(chr(34), chr(34) * 2)}",{one["other"]}\n' for one in records)
    contents = {
        "a.txt": raw,
        "a.md": raw,
        "a.jsonl": lines,
        "a.json": json.dumps(records).encode(),
        "strings.json": json.dumps([one["text"] for one in records]).encode(),
        "a.csv": b"text,other\n" + table.encode(),
        "a.tsv": b"text\tother\n" + b"".join(b"line %d\t%d\n" % (i, i) for i in range(5)),
        "a.fasta": b">one first\nACGTNACGT\nGGGTTT\n>two\nACCA\nacgt\n>three\n" + b"ACGT" * 30 + b"\n",
        "a.txt.gz": gzip.compress(raw),
        "a.jsonl.gz": gzip.compress(lines),
        "a.txt.bz2": bz2.compress(raw),
        "a.txt.xz": lzma.compress(raw),
        "a.jsonl.zst": zstandard.ZstdCompressor().compress(lines),
    }
    for name, content in contents.items():
        Path(name).write_bytes(content)
    pq.write_table(pa.Table.from_pylist(records), "a.parquet")
    feather.write_feather(pa.Table.from_pylist(records), "a.arrow", compression="uncompressed")
    Path("folder/inner").mkdir(parents=True)
    for name in ("a.txt", "a.csv", "a.jsonl.gz"):
        shutil.copy(name, "folder/inner")
    shutil.copy("a.md", "folder/z.md")
    Path("folder/left.bin").write_bytes(b"\0\1")
    Path("records").mkdir()
    Path("records/train.jsonl").write_bytes(lines)
    return {
        **{name: {"name": "text", "paths": name} for name in (*contents, "a.parquet", "a.arrow")},
        "paragraphs": {"name": "text", "paths": "a.txt", "separator": "paragraph"},
        "lines": {"name": "text", "paths": "a.txt", "separator": "line"},
        "field": {"name": "text", "paths": "a.jsonl", "field": "other"},
        "folder": {"name": "text", "paths": "folder"},
        "two, one held out": {"name": "text", "paths": ["a.txt", "a.csv"], "validation_files": "*.csv"},
        "genome": {"name": "fasta", "paths": "a.fasta"},
        "genome, both strands": {"name": "fasta", "paths": "a.fasta", "reverse_complement": True},
        "hub": {"name": "huggingface", "path": "records", "split": "train", "field": "text"},
    }


@case("data")
def formats() -> Any:
    found = {}
    for name, spec in write_formats().items():
        try:
            found[name] = documents_of(spec)
        except unmask.UnmaskError as error:
            found[name] = {"error": type(error).__name__}
    return found


@case("data")
def made_sources() -> Any:
    specs: dict[str, Any] = {
        "markov": {"name": "markov", "alphabet": "abcd", "count": 20, "length": 12, "seed": 3},
        "sudoku": {"name": "sudoku", "box": 2, "bases": 6, "count": 12, "validation": 5},
        "sudoku, nine": {"name": "sudoku", "bases": 1, "count": 2, "validation": 1},
        "paths": {"name": "paths", "count": 12, "validation": 5, "degree": 3, "arm": 3, "names": 20},
    }
    specs |= {"stdlib": "stdlib", "functions": "functions"}
    with small_library():
        return {name: documents_of(spec) for name, spec in specs.items()}


def table_of(rows: Any) -> dict[str, Any]:
    batch = rows[np.arange(len(rows))]
    two_epochs = np.arange(2 * len(rows))
    return {
        "rows": len(rows),
        "counted": rows.counted,
        "documents": rows.documents,
        "bytes": None if rows.byte_counts is None else int(rows.byte_counts.sum()),
        "characters": None if rows.character_counts is None else int(rows.character_counts.sum()),
        "ids": array(batch.input_ids),
        "attended": array(batch.attention_mask),
        "document": array(batch.document),
        "frozen": array(batch.frozen),
        "order": array(rows.sample(7, two_epochs)),
        "spread": array(rows.spread(3)[np.arange(min(3, len(rows)))].input_ids),
    }


def caches() -> dict[str, Any]:
    """Every file of the token cache."""
    root = Path("cache")
    return {
        str(path.relative_to(root)): sha256(path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "meta.json" and "lock" not in path.name
    }


@case("data")
def corpora() -> Any:
    lines = {"name": "text", "paths": write_cats(lines=60), "separator": "line"}
    found = {}
    for seed in (0, 1):
        corpus = corpus_of(lines, "byte", fraction=0.2, seed=seed)
        found[f"split {seed}"] = {
            "parts": [
                {
                    "ids": array(np.asarray(one.ids)),
                    "offsets": array(np.asarray(one.offsets)),
                    "names": [one.name(i) for i in range(len(one))][:12],
                    "bytes": int(one.byte_counts.sum()),
                    "characters": int(one.character_counts.sum()),
                }
                for one in (*corpus.train_parts, *corpus.validation_parts)
            ],
            "cut": corpus.cut,
        }
    truncated = [{"name": name, "overflow": "truncate"} for name in ("padded", "supervised_eos")]
    for policy in ("packed", "padded", "supervised_eos", *truncated):
        for length in (16, 48):
            found[f"{policy} {length}"] = dict(
                zip(("train", "validation"), rows_of(corpus, policy, length), strict=True)
            )
    alone = corpus_of({"name": "text", "paths": "cats.txt"}, "byte", fraction=0.1)
    found["one document"] = {"cut": alone.cut, "rows": rows_of(alone, "packed", 32)}
    bpe = corpus_of(lines, {"name": "bpe", "vocab_size": 280}, fraction=0.1, seed=3)
    found["bpe"] = {"rows": rows_of(bpe, "packed", 12)}
    return {**found, "cache": caches()}


@case("data")
def items_and_mixtures() -> Any:
    grid = corpus_of(
        {"name": "sudoku", "box": 2, "bases": 6, "count": 12, "validation": 5}, {"name": "char", "alphabet": "1234.="}
    )
    paths = corpus_of({"name": "paths", "count": 12, "validation": 5, "degree": 2, "arm": 3, "names": 9}, "byte")
    parts = [
        {"source": {"name": "text", "paths": write_cats(lines=40), "separator": "line"}, "weight": 3},
        {"source": {"name": "markov", "alphabet": "abcd", "count": 30, "length": 20}, "weight": 1},
    ]
    mixed = corpus_of({"name": "mixture", "parts": parts}, "byte", fraction=0.2)
    held_out = corpus_of(
        {"name": "text", "paths": "cats.txt"}, "byte", validation=build("source", {"name": "text", "paths": "cats.txt"})
    )
    return {
        "overlaid": rows_of(grid, "overlaid", 16),
        "overlaid, asks": rows_of(grid, {"name": "overlaid", "asks": True}, 33),
        "prompted": rows_of(paths, "prompted", 40),
        "mixture": rows_of(mixed, "packed", 16),
        "mixture, padded": rows_of(mixed, "padded", 40),
        "held out": rows_of(held_out, "packed", 16),
        "cache": caches(),
    }


@case("data")
def shuffles() -> Any:
    sizes = (1, 2, 7, 64, 1000)
    return {
        str(n): [array(shuffled(seed, epoch, n, np.arange(n))) for seed in (0, 5) for epoch in (0, 1)] for n in sizes
    }


# ---- training -------------------------------------------------------------------------------------------------------


@case("training")
def training_default() -> Any:
    return {"said": train(write_cats(), *TINY, *SHORT), **folder_of("run")}


@case("training")
def training_resumed() -> Any:
    words = [write_cats(), *TINY, *SHORT, "training.save_every=2"]
    train(*words, "training.steps=4", out="unbroken")
    train(*words, out="stopped")
    train(*words, "training.steps=4", "--resume", out="stopped")
    train(*words, "training.steps=4", "training.save_every=1", "training.keep=2", "--resume", "auto", out="fresh")
    return {"unbroken": folder_of("unbroken"), "resumed": folder_of("stopped"), "fresh": folder_of("fresh")["files"]}


VARIANTS: dict[str, list[str]] = {
    "accumulation": ["training.accumulation=2", "training.batch_size=6"],
    "adamw": ["optimizer={name: adamw, learning_rate: 0.003, warmup: 1, weight_decay: 0.1}"],
    "muon": ["optimizer={name: muon, learning_rate: 0.02, warmup: 1, cooldown: 0.5, weight_decay: 0.1, ema: 0.5}"],
    "cooldown": ["optimizer.cooldown=1.0", "optimizer.cooldown_shape=cosine", "optimizer.cooldown_to=0.1"],
    "bound weight": ["objective={name: subs}", "schedule=cosine"],
    "mask-count": ["objective=mask-count"],
    "d3pm": ["objective={name: d3pm, steps: 10}"],
    "sedd": ["objective=sedd"],
    "conditioned": ["model.conditioned=true", "model.cond_dim=8", "schedule={name: polynomial, power: 2}"],
    "ar": AR,
    "padded": ["data.policy=padded", "data.source.separator=line"],
    "supervised_eos": ["data.policy=supervised_eos", "data.source.separator=line", "data.length=40"],
    "bpe": ["data.tokenizer={name: bpe, vocab_size: 280}"],
    "learned": ["schedule={name: learned, every: 1, warmup: 0}", "objective={name: subs}"],
    "samples": ["training.sample_every=1", "training.samples=1"],
    "seed": ["training.seed=5", "data.seed=7", "data.validation=0.2"],
    "bf16": ["training.precision=bf16"],
}


@case("training")
def training_variants() -> Any:
    text, found = write_cats(), {}
    for number, (name, words) in enumerate(VARIANTS.items()):
        report = train(text, *TINY, *SHORT, *words, out=f"r{number}")
        found[name] = {**folder_of(f"r{number}", "log", "ema", "state", "card"), "said": report}
    return found


@case("training")
def training_longer() -> Any:
    """Twelve steps with dropout: enough for cooldown, averages, several epochs and pruned checkpoints."""
    train(
        write_cats(lines=12), *TINY, *SHORT, "training.steps=12", "training.save_every=3", "training.validate_every=4"
    )
    return folder_of("run")


@case("training")
def fine_tuning() -> Any:
    text, base, found = write_cats(), make_checkpoint("base"), {}
    short = ["training.batch_size=4", *SHORT]
    for name, words in {"whole": [], "lora": ["model.lora={rank: 2}"], "dropout": ["model.dropout=0.2"]}.items():
        train(text, "--from", base, *short, *words, out=name)
        found[name] = folder_of(name, "log", "ema", "state", "files", "recipe")
    train(text, "--from", "whole", *short, out="again")
    train(text, "--from", base, *short, "model.lora={rank: 2}", "training.steps=4", "--resume", out="lora")
    return {**found, "again": folder_of("again")["ema"], "lora resumed": folder_of("lora")["ema"]}


@case("training")
def planner() -> Any:
    words = ["training.batch_size=8", "data.source.count=100", *SHORT, "optimizer.warmup=1", "training.steps=8"]
    train("planner", "--from", "smoke", *words, out="planned")
    lm = unmask.load("planned", device="cpu")
    return {
        **folder_of("planned", "log", "ema", "state", "card"),
        "order": generated(lm, order="planner", steps=6),
        "threshold": generated(lm, sampler={"name": "threshold", "by": "planner", "above": 0.4}),
        "score": lm.score("abcdefgh", precision=None).as_dict(),
    }


@case("training")
def training_from_stdin() -> Any:
    text = Path(write_cats()).read_text()
    report = verb("train", "-", *TINY, *SHORT, "--out", "run", stdin=text)
    return {"said": report, "ema": folder_of("run")["ema"]}


@case("training")
def training_mixture() -> Any:
    write_cats()
    cats, chain = "{name: text, paths: cats.txt}", "{name: markov, count: 30, length: 20}"
    parts = f"[{{source: {cats}, weight: 2}}, {{source: {chain}, weight: 1}}]"
    train("default", f"data.source={{name: mixture, parts: {parts}}}", *TINY, *SHORT)
    return folder_of("run", "log", "ema", "recipe")


# ---- evaluation -----------------------------------------------------------------------------------------------------


@case("evaluation")
def eval_perplexity() -> Any:
    text = write_cats()
    train(text, *TINY, *SHORT)
    Path("held.txt").write_text("the 7 cats sat\n\non 8 mats\n")
    common = ("--device", "cpu")
    return {
        "run": verb("eval", "run", *common),
        "data": verb("eval", "run", "--data", "held.txt", "--separator", "paragraph", "--steps", 4, *common),
        "rows": verb("eval", "run", "--rows", 3, "--seed", 2, *common),
        "precision": verb("eval", "run", "--rows", 2, "--precision", 0.05, "--batch-size", 2, *common),
    }


@case("evaluation")
def eval_generation() -> Any:
    make_checkpoint("mdlm")
    make_checkpoint("causal", model="causal")
    Path("book.txt").write_text("a few words to be judged\n" * 8)
    Path("own.json").write_text(json.dumps(["one text", "another text of mine"]))
    common = shlex.split("--judge causal -n 3 --length 16 --data book.txt --device cpu --texts own.json")
    ways = ("--steps", 2, "--steps", "none")
    return {
        "all": verb("eval", "generation", "mdlm", "causal", *common, *ways),
        "orders": verb("eval", "generation", "mdlm", *common, "--steps", 3, "--order", "margin", "--top-p", 0.9),
    }


@case("evaluation")
def eval_puzzles() -> Any:
    grid = "data.source={name: sudoku, box: 2, bases: 8, count: 40, validation: 12}"
    stars = ["data.source.count=40", "data.source.validation=12"]
    sources = {"sudoku": [grid, "data.length=16"], "sudoku-ar": [grid, "data.length=33"]}
    sources |= {"paths": stars, "paths-ar": stars}
    for name, source in sources.items():
        train(name, *NARROW, *SHORT, *source, out=name)
    common = ("--count", 4, "--steps", 2, "--steps", "none", "--device", "cpu")
    return {
        "sudoku": verb("eval", "puzzles", "sudoku", "--twin", "sudoku-ar", *common),
        "paths": verb("eval", "puzzles", "paths", "--twin", "paths-ar", *common, "--order", "margin"),
        "runs": {name: folder_of(name)["ema"] for name in sources},
        "bounds": verb("eval", "sudoku", "--rows", 4, "--device", "cpu"),
    }


@case("evaluation")
def eval_code() -> Any:
    short = ["data.length=260", "data.tokenizer={name: bpe, vocab_size: 300}"]
    with small_library():
        train("code", *NARROW, *SHORT, *short, out="code")
        train("code-ar", *NARROW, *SHORT, *short, out="code-ar")
        return {
            "all": verb(
                *("eval", "code", "code", "--twin", "code-ar", "--count", 2, "--rule", "greedy", "--steps", 2),
                *("--device", "cpu", "--order", "margin", "--order", "uniform"),
            ),
            "runs": {name: folder_of(name)["ema"] for name in ("code", "code-ar")},
        }


@case("evaluation")
def doctor() -> Any:
    """The names of the checks, and what they find in the shipped model."""
    found = verb("doctor", "--quick", "--checkpoint", "smoke", "--device", "cpu")
    checks = found["checkpoint"]
    return {"keys": sorted(found), "passed": found["passed"], "checkpoint": without_prose(checks)}


def without_prose(value: Any) -> Any:
    """A report without its sentences, which may be rewritten."""
    if isinstance(value, dict):
        return {
            key: without_prose(one) for key, one in value.items() if key not in ("words", "remedy", "about", "help")
        }
    return [without_prose(one) for one in value] if isinstance(value, list) else value


# ---- convert and ship -----------------------------------------------------------------------------------------------


def published_weights(causal: bool = False) -> dict[str, torch.Tensor]:
    """A published network of two blocks under its published keys, in the order of its parameters."""
    width, cond = 32, 8
    shapes: dict[str, tuple[int, ...]] = {"vocab_embed.embedding": (258, width)}
    if not causal:
        shapes |= {"sigma_map.mlp.0.weight": (cond, 256), "sigma_map.mlp.0.bias": (cond,)}
        shapes |= {"sigma_map.mlp.2.weight": (cond, cond), "sigma_map.mlp.2.bias": (cond,)}
    for block in ("blocks.0", "blocks.1"):
        shapes |= {f"{block}.norm1.weight": (width,), f"{block}.attn_qkv.weight": (3 * width, width)}
        shapes |= {f"{block}.attn_out.weight": (width, width), f"{block}.norm2.weight": (width,)}
        shapes |= {f"{block}.mlp.0.weight": (4 * width, width), f"{block}.mlp.0.bias": (4 * width,)}
        shapes |= {f"{block}.mlp.2.weight": (width, 4 * width), f"{block}.mlp.2.bias": (width,)}
        if not causal:
            modulation = f"{block}.adaLN_modulation"
            shapes |= {f"{modulation}.weight": (6 * width, cond), f"{modulation}.bias": (6 * width,)}
    shapes |= {"output_layer.norm_final.weight": (width,)}
    shapes |= {"output_layer.linear.weight": (258, width), "output_layer.linear.bias": (258,)}
    if not causal:
        modulation = "output_layer.adaLN_modulation"
        shapes |= {f"{modulation}.weight": (2 * width, cond), f"{modulation}.bias": (2 * width,)}
    draw = torch.Generator().manual_seed(5)
    noise = {name: 0.3 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    return {f"backbone.{name}": 1 + value if "norm" in name else value for name, value in noise.items()}


@case("formats")
def conversions() -> Any:
    """Our checkpoints written with published names and read back; published files of every kind read in."""
    make_checkpoint("plain")
    make_checkpoint("conditioned", conditioned=True, cond_dim=8)
    found: dict[str, Any] = {}
    for name in ("plain", "conditioned"):
        found[f"{name} out"] = convert(name, f"{name}-out", "--reverse")
        timed = ("--time-conditioning",) if name == "conditioned" else ()
        found[f"{name} back"] = convert(f"{name}-out", f"{name}-back", "--length", 48, "--heads", 2, *timed)
        found[f"{name} back"] |= {"used": used(f"{name}-back")}
    for kind in ("masked", "causal"):
        weights = published_weights(kind == "causal")
        save_file(weights, f"{kind}.safetensors")
        torch.save(weights, f"{kind}.pt")
        averages = {"decay": 0.9, "num_updates": 7, "shadow_params": [0.5 * one for one in weights.values()]}
        torch.save({"epoch": 3, "state_dict": weights, "ema": averages}, f"{kind}.ckpt")
        common = ("--heads", 2, "--length", 48, "--tokenizer", "plain")
        for suffix in ("safetensors", "pt", "ckpt"):
            into = f"{kind}-{suffix}"
            found[f"{kind}.{suffix}"] = convert(f"{kind}.{suffix}", into, *common) | {"used": used(into)}
        found[f"{kind} raw"] = convert(f"{kind}.ckpt", f"{kind}-raw", "--weights", "raw", *common)
        found[f"{kind} and out"] = convert(f"{kind}-raw", f"{kind}-out", "--reverse")
    more = ("--time-conditioning", "--objective", "sedd", "--policy", "padded", "--heads", 2)
    found["scores"] = convert("masked.pt", "scores", *more)
    return found


def used(folder: str) -> dict[str, Any]:
    lm = unmask.load(folder, device="cpu")
    return {"score": lm.score("some words", precision=None).as_dict(), "texts": lm.generate(1, prompt="so", length=10)}


def convert(src: str, dst: str, *words: object) -> dict[str, Any]:
    return {"said": verb("convert", src, dst, *words), "files": files_of(dst)}


@case("formats")
def shipping() -> Any:
    train(write_cats(), *TINY, *SHORT)
    Path("bound.json").write_text(json.dumps(verb("eval", "run", "--rows", 3, "--device", "cpu")))
    Path("about.md").write_text("Lines about cats.\n")
    report = verb("ship", "run", "shipped")
    again = verb("ship", "run", "described", "--about", "about.md", "--bound", "bound.json")
    lm = unmask.load("shipped", device="cpu")
    return {
        "said": {**report, "bytes": 0},
        "again": {**again, "bytes": 0},
        "files": files_of("shipped"),
        "described": files_of("described")["README.md"],
        "writes": generated(lm, length=12),
        "score": lm.score("the 3 cats", precision=None).as_dict(),
    }


@case("formats")
def auto_classes() -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    ids = torch.arange(12)[None] % 7
    found = {}
    for kind, opener in {"dit": AutoModelForMaskedLM, "causal": AutoModelForCausalLM}.items():
        network = opener.from_pretrained(make_checkpoint(kind, model=kind)).eval()
        with torch.no_grad():
            found[kind] = array(network(ids).logits)
        found[f"{kind} tokenizer"] = AutoTokenizer.from_pretrained(kind)("some words")["input_ids"]
    return found


# ---- folders written by an earlier version --------------------------------------------------------------------------

KEPT = ["data.source.count=60", *SHORT, "training.save_every=2"]


def write_old_runs() -> None:
    """Train, ship and convert the folders that later versions have to open."""
    with workplace():
        train("smoke", *KEPT, *NARROW, out="masked")
        train("smoke", *KEPT, *AR, "training.batch_size=4", out="causal")
        verb("ship", "masked", "shipped")
        verb("convert", "masked", "published", "--reverse")
        verb("convert", "published", "converted", "--tokenizer", "masked", "--length", 64, "--heads", 1)
        shutil.rmtree(OLD, ignore_errors=True)
        OLD.mkdir()
        for name in ("masked", "causal", "shipped", "published", "converted"):
            shutil.copytree(name, OLD / name, symlinks=True)


@case("old_run")
def old_run_continues() -> Any:
    for name in ("masked", "causal"):
        shutil.copytree(OLD / name, name, symlinks=True)
    train("smoke", *KEPT, *NARROW, "training.steps=4", "--resume", out="masked")
    train("smoke", *KEPT, *AR, "training.batch_size=4", "training.steps=4", "--resume", out="causal")
    return {name: folder_of(name, "log", "ema", "state", "files") for name in ("masked", "causal")}


@case("old_run")
def old_run_opens() -> Any:
    found: dict[str, Any] = {}
    for name in ("masked", "causal", "shipped", "converted"):
        lm = unmask.load(OLD / name, device="cpu")
        found[name] = {
            "texts": generated(lm, length=16, prompt="ab"),
            "score": lm.score(["abcd", "hhgg"], precision=None).as_dict(),
            "files": sorted(path.name for path in (OLD / name).iterdir()),
        }
        if not lm.causal:
            found[name]["fill"] = lm.fill("ab[MASK:3]c")
    found["eval"] = verb("eval", OLD / "masked", "--rows", 4, "--device", "cpu")
    found["published"] = convert(
        str(OLD / "published"), "again", "--tokenizer", OLD / "masked", "--length", 64, "--heads", 1
    )
    return scrub(found, str(HERE))


# ---- pictures and benchmarks ----------------------------------------------------------------------------------------


@case("pictures", slow=True)
def pictures() -> Any:
    """Pixels of pictures, which depend on the fonts and libraries of the machine."""
    from PIL import Image

    common = ("sample", "smoke", "-n", 1, "--length", 16, "--steps", 4, "--device", "cpu")
    verb(*common, "--png", "a.png", "--gif", "a.gif", "--html", "a.html")
    train(write_cats(), *TINY, *SHORT)
    for words in (("plot", "run", "run", "--out", "run.png"), ("plot", "order", "smoke", "--out", "order.png")):
        code, _, err = run(*words)
        assert code == 0, err
    pixels = {name: array(np.asarray(Image.open(name).convert("RGB"))) for name in ("a.png", "a.gif")}
    return {**pixels, "html": sha256(Path("a.html").read_text()), "files": sorted(p.name for p in Path().glob("*.*"))}


@case("pictures")
def benchmark_keys() -> Any:
    """The shape of what benchmarks report; their values are timings."""

    def keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: keys(one) for name, one in value.items()}
        return [keys(one) for one in value[:1]] if isinstance(value, list) else type(value).__name__

    sizes = shlex.split("--size nano --vocab 32 --length 16 --batch 2")
    once = shlex.split("--repeats 1 --warmup 0 --no-memory --against plain --device cpu")
    calls = {"train": ("--steps", 1), "eval": ("--calls", 1), "sample": ("--steps", 4)}
    return {name: keys(verb("bench", name, *sizes, *once, *count)) for name, count in calls.items()}
