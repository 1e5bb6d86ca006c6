"""The model card: Markdown made from a run's records and from what was measured of its model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import hypot
from pathlib import Path
from typing import Any

import yaml

from unmask.bounds import FILL_COUNTS, Bound, figure
from unmask.config import DataConfig
from unmask.evaluation.generation import bootstrap
from unmask.shipping.facts import JUDGED, Entropy, Evidence, Facts

UNITS = {"bits_per_char": "bits/char", "bits_per_token": "bits/token", "perplexity": "perplexity"}
BAR = r"\|"
"""A bar inside a cell of a table."""


def model_card(name: str, facts: Facts, evidence: Evidence, weights: Sequence[int]) -> str:
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


def _likelihood(facts: Facts, evidence: Evidence, entropy: Entropy | None) -> Iterator[str]:
    yield from ("## Likelihood", "")
    rows = [] if facts.validation is None else [_bound_row("validation at the end of the run", facts.validation)]
    rows += [_bound_row(name, bound) for name, bound in evidence.bounds.items()]
    if entropy is not None:
        rows.append(("the source itself", "", _entropy(entropy), "", ""))
    yield from _table(("text", "tokens", *UNITS.values()), rows)
    yield "The first ± is the error of the draws, the second the spread over documents"
    yield "(an exact likelihood has the second alone). Validation was measured before the weights were rounded to bf16."
    if facts.recipe.data.policy.learnt_pads:
        yield FILL_COUNTS
    if entropy is not None and entropy.how:
        yield f"The source's own bits: {entropy.how}."
    yield ""


def _judgement(judged: dict[str, Any]) -> Iterator[str]:
    yield from ("## What it writes, judged", "")
    yield from _table(
        ("texts", *(name.replace("_", "-") for name in JUDGED)),
        [(_row_name(row), *(bootstrap.figure(row[name]) for name in JUDGED)) for row in judged["rows"]],
    )
    yield f"Judge: {_judge_name(judged)}; {judged['n']} texts from seed {judged['seed']} on, {_rule(judged)}."
    yield "Perplexity and entropy are in the judge's tokens; (low–high) is a 95% bootstrap interval over texts."
    yield ""


def _limits(facts: Facts, evidence: Evidence, entropy: Entropy | None) -> Iterator[str]:
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
    return (name, f"{bound.tokens:,}", *(figure(bound, unit) for unit in UNITS))


def _entropy(entropy: Entropy) -> str:
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
