"""The model card: Markdown made from a run's records and from what was measured of its model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import hypot
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from unmask.checkpoint import Checkpoint, load_checkpoint
from unmask.config import DataConfig, Recipe, read_recipe
from unmask.errors import UnmaskError
from unmask.evaluation.statistics import Estimate, format_estimate
from unmask.io import unique_names
from unmask.likelihood import LEARNT_PADDING_NOTE, Bound, format_with_errors
from unmask.training.callbacks import LOG, read_log
from unmask.training.checkpointing import TrainerState, find_latest, read_trainer_state

RECIPE = "recipe.yaml"
JUDGED = ("perplexity", "entropy", "repetition", "distinct_1", "characters", "calls")
"""The figures of judged texts that a model card shows."""


@dataclass(frozen=True)
class Facts:
    """What a run says of itself. `validation` is the bound of its last weights, before they were rounded."""

    recipe: Recipe
    progressed: TrainerState
    network: Any
    vocabulary: int
    parameters: int
    validation: Bound | None
    version: str

    @property
    def rows(self) -> int:
        """Rows of the training text; the fingerprint of the data begins with them."""
        return int(self.progressed.data.split(" ")[0])

    @property
    def tokens(self) -> int:
        """Tokens that were seen, every row at its full length."""
        return self.progressed.samples * self.recipe.data.length

    @property
    def epochs(self) -> float:
        """How often each row was seen."""
        return self.progressed.samples / self.rows


@dataclass(frozen=True)
class Entropy:
    """The source's own bits per character, which no model can go below, and how they are known."""

    bits_per_char: float
    stderr: float | None = None
    how: str = ""


@dataclass(frozen=True)
class Measurements:
    """What was measured after the run, by other commands. `bounds` are named by their files.

    `judged` is a report of `unmask eval generation`, its figures as estimates.
    """

    bounds: dict[str, Bound] = field(default_factory=dict)
    judged: dict[str, Any] | None = None
    entropy: Entropy | None = None
    about: str = ""


def read_facts(run: Path) -> tuple[Facts, Checkpoint]:
    """A run's newest checkpoint and what the run has recorded of it."""
    path = find_latest(run)
    if path is None or not (run / LOG).is_file() or not (run / RECIPE).is_file():
        raise UnmaskError(f"'{run}' is not the folder of a run with a checkpoint; give one that 'unmask train' wrote.")
    loaded = load_checkpoint(path)
    progressed = read_trainer_state(path)
    facts = Facts(
        recipe=read_recipe(run / RECIPE),
        progressed=progressed,
        network=loaded.model.config,
        vocabulary=loaded.model.config.vocab_size,
        parameters=sum(parameter.numel() for parameter in loaded.model.parameters()),
        validation=_validated(run, progressed.step),
        version=loaded.config.version,
    )
    return facts, loaded


def read_evidence(
    bounds: Sequence[str | Path] = (),
    judged: str | Path | None = None,
    entropy: str | Path | None = None,
    about: str | Path | None = None,
) -> Measurements:
    """The files that other commands wrote about a model."""
    names = unique_names([Path(path).stem for path in bounds], [str(path) for path in bounds])
    return Measurements(
        bounds={name: _bound(Path(path)) for name, path in zip(names, bounds, strict=True)},
        judged=None if judged is None else _judged(Path(judged)),
        entropy=None if entropy is None else _entropy(Path(entropy)),
        about="" if about is None else _text(Path(about)).strip(),
    )


def _validated(run: Path, step: int) -> Bound | None:
    """The bound that the log holds for the weights of a step."""
    records = [one for one in read_log(run) if "validation" in one and one["step"] == step]
    return Bound.from_dict(records[-1]["validation"]) if records else None


def _bound(path: Path) -> Bound:
    try:
        bound: Bound = TypeAdapter(Bound).validate_python(_json(path)["headline"])
    except (KeyError, TypeError, ValidationError) as error:
        raise UnmaskError(f"'{path}' holds no bound; give a file that 'unmask eval --json' wrote.") from error
    return bound


def _judged(path: Path) -> dict[str, Any]:
    values = _json(path)
    try:
        return {
            "judge": str(values["judge"]["name"]),
            "n": int(values["n"]),
            "seed": int(values["seed"]),
            "rule": dict(values["rule"] or {}),
            "rows": [_judged_row(row) for row in values["rows"]],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise UnmaskError(
            f"'{path}' holds no judged texts; give what 'unmask eval generation --json' wrote."
        ) from error


def _judged_row(row: dict[str, Any]) -> dict[str, Any]:
    figure: TypeAdapter[Estimate | None] = TypeAdapter(Estimate | None)
    figures = {name: figure.validate_python(row[name]) for name in JUDGED}
    return {"name": str(row["name"]), "steps": row["steps"], **figures}


def _entropy(path: Path) -> Entropy:
    try:
        entropy: Entropy = TypeAdapter(Entropy).validate_python(vars(Entropy(**_json(path))))
    except (TypeError, ValidationError) as error:
        raise UnmaskError(
            f"'{path}' does not tell a source's entropy; write bits_per_char and, if you like, stderr and how."
        ) from error
    return entropy


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise UnmaskError(f"'{path}' is not JSON; give a file that was written with --json.") from error


def _text(path: Path) -> str:
    if not path.is_file():
        raise UnmaskError(f"There is no file '{path}'; name one that exists.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UnmaskError(f"'{path}' is not UTF-8 text; convert it first.") from error


UNITS = {"bits_per_char": "bits/char", "bits_per_token": "bits/token", "perplexity": "perplexity"}
BAR = r"\|"
"""A bar inside a cell of a table."""


def model_card(name: str, facts: Facts, evidence: Measurements, weights: Sequence[int]) -> str:
    """The card of a model whose files of weights have so many bytes."""
    known = evidence.entropy or _own_entropy(facts)
    parts = [
        *_title(name, facts),
        *_data(facts, evidence.about),
        *_budget(facts),
        *_size(facts, weights),
        *_likelihood(facts, evidence, known),
        *(_judgement(evidence.judged) if evidence.judged else ()),
        *_limits(facts, evidence, known),
    ]
    return "\n".join(parts) + "\n"


def _title(name: str, facts: Facts) -> Iterator[str]:
    causal = facts.recipe.objective.causal
    kind, tag = ("An autoregressive", "autoregressive") if causal else ("A masked diffusion", "masked-diffusion")
    network = facts.network
    later = ", which goes on from the weights of an earlier run," if facts.recipe.model.name == "checkpoint" else ""
    yield from ("---", "library_name: unmask", f"tags: [{tag}, language-model]", "---", "")
    yield from (f"# {name}", "")
    yield (
        f"{kind} language model of {facts.parameters:,} parameters ({network.num_hidden_layers} blocks of width "
        f"{network.hidden_size}, {network.num_attention_heads} heads), trained by the `recipe.yaml` beside this page"
        f"{later} with unmask {facts.version}."
    )
    yield from ("", "```python", "import unmask", "", f'lm = unmask.load("{name}")')
    yield "lm.generate(2, seed=0)" if causal else "lm.generate(2, steps=64, seed=0)"
    yield from ("```", "")


def _data(facts: Facts, about: str) -> Iterator[str]:
    data = facts.recipe.data
    yield from ("## Data", "")
    if about:
        yield from (about, "")
    yield from _table(
        ("", ""),
        [
            ("source", _component(data.source)),
            ("tokenizer", f"{_component(data.tokenizer)}, {facts.vocabulary:,} tokens with the mask"),
            ("rows", f"{facts.rows:,} for training, of {data.length} tokens, {_component(data.policy)}"),
            ("held out", _held_out(data)),
        ],
    )


def _held_out(data: DataConfig) -> str:
    files = getattr(data.source, "validation_files", None)
    if files is not None:
        return f"the files `{files}`"
    return f"{data.validation:.1%} of the documents, where the source does not name others"


def _budget(facts: Facts) -> Iterator[str]:
    progressed, training = facts.progressed, facts.recipe.training
    yield from ("## Budget", "")
    yield from _table(
        ("", ""),
        [
            ("steps", f"{progressed.step:,} of {training.batch_size:,} rows"),
            ("tokens seen", f"{facts.tokens:,}"),
            ("passes over the rows", f"{facts.epochs:.1f}"),
            ("seconds", f"{progressed.seconds:.0f}, validation and saving included"),
            ("optimiser", _component(facts.recipe.optimizer)),
            ("objective", f"{_component(facts.recipe.objective)}, schedule {_component(facts.recipe.schedule)}"),
        ],
    )


def _size(facts: Facts, weights: Sequence[int]) -> Iterator[str]:
    average = "the average of the last weights (EMA)" if facts.recipe.optimizer.ema else "the last weights"
    files = "one file" if len(weights) == 1 else f"{len(weights)} files"
    yield from ("## Size", "")
    yield f"{facts.parameters:,} parameters; {sum(weights):,} bytes in {files} of bf16 safetensors, {average}."
    yield ""


def _likelihood(facts: Facts, evidence: Measurements, entropy: Entropy | None) -> Iterator[str]:
    yield from ("## Likelihood", "")
    rows = [] if facts.validation is None else [_bound_row("validation at the end of the run", facts.validation)]
    rows += [_bound_row(name, bound) for name, bound in evidence.bounds.items()]
    if entropy is not None:
        rows.append(("the source itself", "", _entropy_text(entropy), "", ""))
    yield from _table(("text", "tokens", *UNITS.values()), rows)
    yield "The first ± is the error of the draws, the second the spread over documents"
    yield "(an exact likelihood has the second alone). Validation was measured before the weights were rounded to bf16."
    if facts.recipe.data.policy.supervises_padding:
        yield LEARNT_PADDING_NOTE
    if entropy is not None and entropy.how:
        yield f"The source's own bits: {entropy.how}."
    yield ""


def _judgement(judged: dict[str, Any]) -> Iterator[str]:
    yield from ("## What it writes, judged", "")
    yield from _table(
        ("texts", *(name.replace("_", "-") for name in JUDGED)),
        [(_row_name(row), *(format_estimate(row[name]) for name in JUDGED)) for row in judged["rows"]],
    )
    yield f"Judge: {_judge_name(judged)}; {judged['n']} texts from seed {judged['seed']} on, {_rule(judged)}."
    yield "Perplexity and entropy are in the judge's tokens; (low–high) is a 95% bootstrap interval over texts."
    yield ""


def _limits(facts: Facts, evidence: Measurements, entropy: Entropy | None) -> Iterator[str]:
    yield from ("## Limits", "")
    yield "- It has seen the text above and nothing else: it knows no other subject, language or style."
    yield f"- A row is {facts.recipe.data.length} tokens long; what is longer it has never seen in one piece."
    if not facts.recipe.objective.causal:
        yield "- The likelihood is a bound: the model's own -log p is at most that."
        yield "- Few network calls write many tokens at once, each without seeing the others: the fewer, the worse."
    known = [bound for bound in (*evidence.bounds.values(), facts.validation) if bound and bound.characters]
    if entropy is not None and known:
        yield f"- It is {_gap(known[0], entropy)} bits per character above what the source leaves to chance."


def _gap(bound: Bound, entropy: Entropy) -> str:
    errors = (bound.error("bits_per_char", "mc"), bound.error("bits_per_char", "data"), entropy.stderr)
    return f"{bound.bits_per_char - entropy.bits_per_char:.3f} ± {hypot(*(one or 0.0 for one in errors)):.3f}"


def _own_entropy(facts: Facts) -> Entropy | None:
    bits = facts.recipe.data.source.bits_per_character()
    return None if bits is None else Entropy(bits, how="computed from its law")


def _bound_row(name: str, bound: Bound) -> tuple[str, ...]:
    return (name, f"{bound.tokens:,}", *(format_with_errors(bound, unit) for unit in UNITS))


def _entropy_text(entropy: Entropy) -> str:
    error = "" if entropy.stderr is None else f" ± {entropy.stderr:.3f}"
    return f"{entropy.bits_per_char:.3f}{error}"


def _row_name(row: dict[str, Any]) -> str:
    return row["name"] if row["steps"] is None else f"{row['name']}, {row['steps']} steps"


def _judge_name(judged: dict[str, Any]) -> str:
    """A name on the hub as it is; of a folder on somebody's machine the last part."""
    path = Path(judged["judge"])
    return path.name if path.is_absolute() else str(path)


def _rule(judged: dict[str, Any]) -> str:
    rule = {key: value for key, value in judged["rule"].items() if value not in (None, 1.0)}
    return ", ".join(f"{key} {value}" for key, value in rule.items()) or "the model's own law"


def _component(component: Any) -> str:
    """A member of an axis as a recipe writes it, with what differs from its defaults."""
    values = {"name": component.name, **component.model_dump(mode="json", exclude_defaults=True)}
    if len(values) == 1:
        return f"`{component.name}`"
    shown = yaml.safe_dump(values, default_flow_style=True, width=10_000, sort_keys=False, allow_unicode=True)
    return f"`{shown.strip()}`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |"
    yield ""
