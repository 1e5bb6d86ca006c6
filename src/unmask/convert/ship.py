"""Export a run as a small checkpoint: bf16 shards, the recipe and a model card."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import hypot
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from unmask.checkpoint import Checkpoint, is_checkpoint, load_checkpoint, write_checkpoint
from unmask.config import Recipe, read_recipe
from unmask.errors import UnmaskError
from unmask.evaluation.statistics import Estimate, format_estimate
from unmask.io import atomic_folder, check_new_folder, unique_names
from unmask.likelihood import LEARNED_PADDING_NOTE, Bound, format_tokens, format_with_errors
from unmask.models.inference import cast_to_bf16
from unmask.training.callbacks import LOG, read_log
from unmask.training.checkpointing import RECIPE, TrainerState, find_latest, read_trainer_state

README = "README.md"
TEMPLATE = Path(__file__).with_name("model_card.md")
UNITS = {"bits_per_char": "bits/char", "bits_per_token": "bits/token", "perplexity": "perplexity"}
METRICS = ("perplexity", "entropy", "repetition", "distinct_1", "characters", "calls")
"""Columns of the table of generated texts."""

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Export:
    """A shipped model; `bytes` is the size of the whole folder."""

    path: str
    parameters: int
    shards: int
    bytes: int


def ship(
    run: str | Path,
    out: str | Path,
    *,
    bounds: Sequence[str | Path] = (),
    judged: str | Path | None = None,
    entropy: str | Path | None = None,
    about: str | Path | None = None,
    shard_megabytes: int = 10,
) -> Export:
    """Write the newest checkpoint of a run, without its training state, into a new folder.

    Args:
        run: A folder written by `unmask train`.
        out: A new folder, or one written by `ship`, which is replaced.
        bounds: Files written by `unmask eval --json`; the model card lists them after the run's validation.
        judged: A file written by `unmask eval generation --json`.
        entropy: JSON with the `bits_per_char` of the source, and optionally `stderr` and `how` it is known.
        about: Markdown that describes the data.
        shard_megabytes: Size of the largest weight file.
    """
    run, out = Path(run), Path(out)
    if (out / "checkpoints").exists():
        raise UnmaskError(f"'{out}' is the folder of a run; name another one.")
    if not (is_checkpoint(out) and (out / README).is_file()):
        check_new_folder(out, "name a new folder, or one written by 'unmask ship'")
    measured = read_measurements(bounds, judged, entropy, about)
    record = read_run(run)
    checkpoint = record.checkpoint
    with atomic_folder(out) as folder:
        others = [path for path in checkpoint.path.iterdir() if path.is_file() and ".safetensors" not in path.name]
        for file in (*others, run / RECIPE):
            shutil.copyfile(file, folder / file.name)
        network: Any = checkpoint.model
        cast_to_bf16(network, getattr(network, "_keep_in_fp32_modules_strict", None))
        write_checkpoint(
            folder, network, checkpoint.tokenizer, checkpoint.config, max_shard_size=f"{shard_megabytes}MB"
        )
        shards = [path.stat().st_size for path in sorted(folder.glob("*.safetensors"))]
        (folder / README).write_text(model_card(out.name, record, measured, shards), encoding="utf-8")
        size = sum(path.stat().st_size for path in folder.iterdir())
    parameters = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    return Export(str(out), parameters, len(shards), size)


# ---- what a card is made of ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRecord:
    """A run's recipe, progress and newest checkpoint; `validation` is the bound of its last weights."""

    recipe: Recipe
    state: TrainerState
    checkpoint: Checkpoint
    validation: Bound | None


class SourceEntropy(BaseModel):
    """Entropy of the source in bits per character, a lower bound for every model, and how it is known."""

    model_config = ConfigDict(extra="forbid")

    bits_per_char: float
    stderr: float | None = None
    how: str = ""


class EvaluationFile(BaseModel):
    """The part of `unmask eval --json` that a model card shows."""

    headline: Bound


class JudgeModel(BaseModel):
    """The judge of generated texts."""

    name: str


class JudgedRow(BaseModel):
    """Metrics of one set of generated texts."""

    name: str
    steps: int | None
    perplexity: Estimate | None
    entropy: Estimate | None
    repetition: Estimate | None
    distinct_1: Estimate | None
    characters: Estimate | None
    calls: Estimate | None


class JudgedTexts(BaseModel):
    """The part of `unmask eval generation --json` that a model card shows."""

    judge: JudgeModel
    n: int
    seed: int
    rule: dict[str, Any] | None
    rows: list[JudgedRow]


@dataclass(frozen=True)
class Measurements:
    """Measurements made after the run. `bounds` are named by their files; `about` describes the data in Markdown."""

    bounds: dict[str, Bound] = field(default_factory=dict)
    judged: JudgedTexts | None = None
    entropy: SourceEntropy | None = None
    about: str = ""


def read_run(run: Path) -> RunRecord:
    """Read the newest checkpoint of a run and its records."""
    path = find_latest(run)
    if path is None or not (run / LOG).is_file() or not (run / RECIPE).is_file():
        raise UnmaskError(f"'{run}' is not a run with a checkpoint; give a folder written by 'unmask train'.")
    state = read_trainer_state(path)
    validated = [line["validation"] for line in read_log(run) if "validation" in line and line["step"] == state.step]
    validation = Bound.from_dict(validated[-1]) if validated else None
    return RunRecord(read_recipe(run / RECIPE), state, load_checkpoint(path), validation)


def read_measurements(
    bounds: Sequence[str | Path] = (),
    judged: str | Path | None = None,
    entropy: str | Path | None = None,
    about: str | Path | None = None,
) -> Measurements:
    """Read the files that other commands wrote about a model."""
    names = unique_names([Path(path).stem for path in bounds], [str(path) for path in bounds])
    evaluation = "a bound; give a file written by 'unmask eval --json'"
    generation = "judged texts; give a file written by 'unmask eval generation --json'"
    known = "the entropy of a source; give bits_per_char and optionally stderr and how"
    return Measurements(
        bounds={n: _read(p, EvaluationFile, evaluation).headline for n, p in zip(names, bounds, strict=True)},
        judged=None if judged is None else _read(judged, JudgedTexts, generation),
        entropy=None if entropy is None else _read(entropy, SourceEntropy, known),
        about="" if about is None else _read_text(about).strip(),
    )


def _read(path: str | Path, kind: type[Model], content: str) -> Model:
    try:
        return kind.model_validate_json(_read_text(path))
    except ValidationError as error:
        raise UnmaskError(f"'{path}' does not contain {content}.") from error


def _read_text(path: str | Path) -> str:
    if not Path(path).is_file():
        raise UnmaskError(f"There is no file '{path}'; check the path.")
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UnmaskError(f"'{path}' is not UTF-8 text; convert it first.") from error


# ---- the card --------------------------------------------------------------------------------------------------------


def model_card(name: str, run: RunRecord, measured: Measurements, weight_bytes: Sequence[int]) -> str:
    """Render the card of a model with weight files of these sizes."""
    from huggingface_hub import ModelCard, ModelCardData

    recipe, state, judged = run.recipe, run.state, measured.judged
    causal = recipe.objective.causal
    network = run.checkpoint.model.config
    bits = recipe.data.source.bits_per_character()
    entropy = measured.entropy
    if entropy is None and bits is not None:
        entropy = SourceEntropy(bits_per_char=bits, how="computed from its distribution")
    card = ModelCard.from_template(
        ModelCardData(
            library_name="unmask", tags=["autoregressive" if causal else "masked-diffusion", "language-model"]
        ),
        template_path=str(TEMPLATE),
        name=name,
        kind="An autoregressive" if causal else "A masked diffusion",
        causal=causal,
        recipe=recipe,
        network=network,
        parameters=sum(parameter.numel() for parameter in run.checkpoint.model.parameters()),
        version=run.checkpoint.config.version,
        continued=recipe.model.name == "checkpoint",
        about=measured.about,
        data_table=_data_table(recipe, state.rows, network.vocab_size),
        budget_table=_budget_table(recipe, state),
        weight_bytes=sum(weight_bytes),
        weight_files="one file" if len(weight_bytes) == 1 else f"{len(weight_bytes)} files",
        averaged="the EMA of the weights" if recipe.optimizer.ema else "the last weights",
        likelihood_table=_likelihood_table(run.validation, measured.bounds, entropy),
        padding_note=LEARNED_PADDING_NOTE if recipe.data.policy.supervises_padding else "",
        entropy=entropy,
        judged=judged,
        judged_table=judged and _judged_table(judged),
        judge_name=judged and _judge_name(judged),
        sampling_rule=judged and _sampling_rule(judged),
        gap=_gap([*measured.bounds.values(), run.validation], entropy),
    )
    return str(card) + "\n"


def _data_table(recipe: Recipe, rows: int, vocab_size: int) -> str:
    data = recipe.data
    files = getattr(data.source, "validation_files", None)
    held_out = f"{data.validation:.1%} of the documents, unless the source defines a split"
    return _table(
        ("", ""),
        [
            ("source", _component(data.source)),
            ("tokenizer", f"{_component(data.tokenizer)}, {vocab_size:,} tokens including the mask"),
            ("rows", f"{rows:,} for training, {data.length} tokens each, {_component(data.policy)}"),
            ("held out", held_out if files is None else f"the files `{files}`"),
        ],
    )


def _budget_table(recipe: Recipe, state: TrainerState) -> str:
    return _table(
        ("", ""),
        [
            ("steps", f"{state.step:,} with batch size {recipe.training.batch_size:,}"),
            ("tokens", f"{state.samples * recipe.data.length:,}"),
            ("epochs", f"{state.samples / state.rows:.1f}"),
            ("seconds", f"{state.seconds:.0f}, including validation and saving"),
            ("optimizer", _component(recipe.optimizer)),
            ("objective", f"{_component(recipe.objective)}, schedule {_component(recipe.schedule)}"),
        ],
    )


def _likelihood_table(validation: Bound | None, bounds: dict[str, Bound], entropy: SourceEntropy | None) -> str:
    named = {} if validation is None else {"validation at the end of training": validation}
    named |= bounds
    rows = [
        (name, format_tokens(bound), *(format_with_errors(bound, unit) for unit in UNITS))
        for name, bound in named.items()
    ]
    if entropy is not None:
        error = "" if entropy.stderr is None else f" ± {entropy.stderr:.3f}"
        rows.append(("entropy of the source", "", f"{entropy.bits_per_char:.3f}{error}", "", ""))
    return _table(("text", "tokens", *UNITS.values()), rows)


def _judged_table(judged: JudgedTexts) -> str:
    rows = [
        (
            row.name if row.steps is None else f"{row.name}, {row.steps} steps",
            *(format_estimate(getattr(row, metric)) for metric in METRICS),
        )
        for row in judged.rows
    ]
    return _table(("texts", *(metric.replace("_", "-") for metric in METRICS)), rows)


def _judge_name(judged: JudgedTexts) -> str:
    path = Path(judged.judge.name)
    return path.name if path.is_absolute() else str(path)  # a local path is not published


def _sampling_rule(judged: JudgedTexts) -> str:
    rule = {key: value for key, value in (judged.rule or {}).items() if value not in (None, 1.0)}
    return ", ".join(f"{key} {value}" for key, value in rule.items()) or "sampled from the model's distribution"


def _gap(bounds: Sequence[Bound | None], entropy: SourceEntropy | None) -> str:
    """The bits per character of the first bound with known characters minus those of the source."""
    bound = next((bound for bound in bounds if bound is not None and bound.characters), None)
    if bound is None or entropy is None:
        return ""
    errors = (bound.error("bits_per_char", "mc"), bound.error("bits_per_char", "data"), entropy.stderr)
    return f"{bound.bits_per_char - entropy.bits_per_char:.3f} ± {hypot(*(one or 0.0 for one in errors)):.3f}"


def _component(component: Any) -> str:
    """Write a component as in a recipe, without the options that have their default."""
    values = {"name": component.name, **component.model_dump(mode="json", exclude_defaults=True)}
    if len(values) == 1:
        return f"`{component.name}`"
    shown = yaml.safe_dump(values, default_flow_style=True, width=10_000, sort_keys=False, allow_unicode=True)
    return f"`{shown.strip()}`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
