"""Generated texts under a judge: plan the runs of every checkpoint, generate, and measure with error bars."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from unmask.checkpoint import find_checkpoint, read_checkpoint_config
from unmask.data.rows import spread_indices
from unmask.errors import UnmaskError
from unmask.evaluation.judge import Judge
from unmask.evaluation.perplexity import evaluation_rows, open_documents
from unmask.evaluation.quality import count_failures, mauve, self_bleu
from unmask.evaluation.statistics import (
    LEVEL,
    RESAMPLES,
    Estimate,
    Values,
    bootstrap_ratio,
    bootstrap_weights,
    distinct,
    repetition,
    result_as_dict,
    unigram_entropy,
)
from unmask.generation_config import choose_sampler
from unmask.io import unique_names
from unmask.models.build import read_config
from unmask.models.dit import missing_planner_error
from unmask.samplers.base import Sampler
from unmask.samplers.token_sampling import TokenSampler

if TYPE_CHECKING:
    from unmask.likelihood import Progress
    from unmask.pipeline import MaskedDiffusionLM

ONE_TOKEN_PER_CALL = "none"
"""The value of --steps for one token per call, which samples from the model exactly."""

TextKind = Literal["data", "samples", "texts"]
Metrics = dict[str, Estimate | None]


@dataclass(frozen=True)
class GenerationRun:
    """One sampler of one checkpoint; `calls` is the largest number of network calls per text."""

    name: str
    steps: int | None
    calls: int
    sampler: Sampler | None = None
    """None for an autoregressive model."""


@dataclass(frozen=True)
class CheckpointPlan:
    """A checkpoint and its runs."""

    name: str
    path: str
    runs: tuple[GenerationRun, ...]

    @property
    def work(self) -> int:
        """Forward passes per text: those that generate it, and one by the judge."""
        return sum(run.calls + 1 for run in self.runs)


def make_plan(
    paths: Sequence[str],
    steps: Sequence[int | None],
    length: int | None = None,
    strategies: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[CheckpointPlan]:
    """One plan per checkpoint: a run for every strategy and number of steps.

    A strategy is a label and the options of `choose_sampler`, such as ``{"margin": {"order": "margin"}}``. Adaptive
    samplers, samplers that come with `steps` and autoregressive models have a single run.
    """
    names = unique_names([Path(path).resolve().name for path in paths], paths)
    plans = []
    for name, path in zip(names, paths, strict=True):
        folder = find_checkpoint(path)
        config = read_checkpoint_config(folder)
        tokens = length or config.length
        if config.objective.causal:
            plans.append(CheckpointPlan(name, path, (GenerationRun(name, None, tokens),)))
            continue
        choose = partial(choose_sampler, config.schedule, predicts_scores=config.objective.predicts_scores)
        runs = []
        for label, options in (strategies or {"": {}}).items():
            spec = options.get("sampler")
            has_steps = isinstance(spec, Mapping) and "steps" in spec
            fixed = has_steps or choose(**options).adaptive
            for count in (None,) if fixed else steps:
                sampler = choose(count, **options)
                if sampler.needs_planner and read_config(folder).planner_width is None:
                    raise missing_planner_error(path)
                calls = getattr(sampler, "steps", None) or tokens
                calls = calls if sampler.rewrites else min(calls, tokens)
                runs.append(GenerationRun(f"{name}, {label}" if label else name, count, calls, sampler))
        plans.append(CheckpointPlan(name, path, tuple(runs)))
    return plans


def parse_steps(words: Sequence[str]) -> list[int | None]:
    """Values of --steps without repetitions; None is one token per call."""
    counts: list[int | None] = []
    for word in dict.fromkeys(words):
        if word != ONE_TOKEN_PER_CALL and not (word.isdecimal() and int(word) >= 1):
            raise UnmaskError(
                f"--steps must be an integer of at least 1, or '{ONE_TOKEN_PER_CALL}' for one token per call, got "
                f"'{word}'."
            )
        counts.append(None if word == ONE_TOKEN_PER_CALL else int(word))
    return counts


@dataclass(frozen=True)
class Texts:
    """Texts to measure. `calls` and `seconds` [n] are None unless the texts were generated here.

    The seconds of a batch are divided evenly among its texts. `prompts` are the given beginnings of the texts, which
    the judge reads but which are not measured.
    """

    texts: list[str]
    calls: Values | None = None
    seconds: Values | None = None
    batches: int = 0
    prompts: Sequence[str] | None = None


@dataclass(frozen=True)
class GenerationSettings:
    """The number of texts to generate (for each of the `prompts`), their first seed, token rule and length in tokens.

    Texts longer than `window` (by default the model's length) are generated in windows, each `stride` tokens after the
    previous one.
    """

    n: int
    seed: int = 0
    rule: TokenSampler | None = None
    length: int | None = None
    batch_size: int | None = None
    prompts: Sequence[str] | None = None
    window: int | None = None
    stride: int | None = None


def generate_texts(
    lm: MaskedDiffusionLM, sampler: Sampler | None, settings: GenerationSettings, progress: Progress | None = None
) -> Texts:
    """Generate `settings.n` texts; text i has the seed `settings.seed + i`. `sampler=None` is the model's default."""
    times = [time.perf_counter()]
    sizes: list[int] = []

    def note_batch(size: int) -> None:
        times.append(time.perf_counter())
        sizes.append(size)

    done = lm.sample(
        settings.n,
        prompts=settings.prompts,
        length=settings.length,
        window=settings.window,
        stride=settings.stride,
        seed=settings.seed,
        rule=settings.rule,
        batch_size=settings.batch_size,
        progress=progress,
        on_batch=note_batch,
        sampler=sampler,
    )
    calls = np.array([one.calls for one in done], dtype=np.float64)
    seconds = np.repeat(np.diff(times) / sizes, sizes)
    prompts = settings.prompts and [prompt for prompt in settings.prompts for _ in range(settings.n)]
    return Texts([one.text for one in done], calls, seconds, len(sizes), prompts)


def reference_texts(
    lm: MaskedDiffusionLM | None,
    count: int,
    data: Sequence[str] | None = None,
    separator: str | None = None,
    field: str | None = None,
    length: int | None = None,
) -> Texts:
    """At most `count` held-out texts, evenly spaced.

    With a model they are its rows, decoded, so that they have the form of its generated texts; without one they are
    whole documents.
    """
    if lm is not None:
        rows = evaluation_rows(lm, data, separator, count, field, length)[:]
        kept = [ids[mask].tolist() for ids, mask in zip(rows.input_ids, rows.attention_mask, strict=True)]
        return Texts([lm.decode(ids) for ids in kept])
    texts = [""]
    for document in open_documents(data or (), separator=separator, field=field)():
        texts[-1] += document.text
        if not document.more:
            texts.append("")
    texts.pop()
    return Texts([texts[i] for i in spread_indices(len(texts), count)])


def read_texts(path: Path) -> Texts:
    """Texts of a file: JSON (a list of strings, or the output of `unmask sample --json`), else one text per line."""
    try:
        content = path.read_text(encoding="utf-8")
        texts: Any = json.loads(content) if path.suffix.lower() == ".json" else content.splitlines()
    except json.JSONDecodeError as error:
        raise UnmaskError(
            f"'{path}' is not JSON ({error}); give a list of strings, or a .txt with one text per line."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UnmaskError(f"The texts in '{path}' cannot be read ({error}); give a file of UTF-8 text.") from error
    if isinstance(texts, dict):
        texts = texts.get("texts")
    if isinstance(texts, list):
        texts = [one.get("text") if isinstance(one, dict) else one for one in texts]
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise UnmaskError(f"'{path}' is not a list of strings; give one, or a .txt with one text per line.")
    if not texts:
        raise UnmaskError(f"'{path}' has no texts; give a JSON list of strings, or one text per line.")
    return Texts(texts)


@dataclass(frozen=True)
class GenerationResult:
    """One row of the table. A metric is None if it does not apply or there are no tokens."""

    name: str
    kind: TextKind
    texts: int
    empty: int
    metrics: Metrics
    checkpoint: str | None = None
    steps: int | None = None
    sampler: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        return result_as_dict(self)


@dataclass
class GenerationEvaluation:
    """A judge, the settings of generation, and the results so far.

    Held-out texts are added first: others are compared with them. mauve_model: the model whose features MAUVE compares,
    None to leave it out.
    """

    judge: Judge
    settings: GenerationSettings
    mauve_model: Judge | None = None
    rows: list[GenerationResult] = field(default_factory=list)
    _held_out: list[str] | None = None
    _held_out_features: Values | None = None

    def add_model(self, plan: CheckpointPlan, lm: MaskedDiffusionLM, progress: Progress | None = None) -> None:
        """Generate and judge the texts of every run. `progress` counts forward passes, as `plan.work`."""
        for run in plan.runs:

            def count_calls(texts: float, calls: int = run.calls) -> None:
                if progress is not None:
                    progress(calls * texts)

            texts = generate_texts(lm, run.sampler, self.settings, count_calls)
            sampler = (run.sampler or lm.sampler()).model_dump()
            origin = {"checkpoint": plan.path, "steps": run.steps, "sampler": sampler}
            self.add_texts(run.name, "samples", texts, progress, **origin)

    def add_texts(
        self, name: str, kind: TextKind, texts: Texts, progress: Progress | None = None, **origin: Any
    ) -> None:
        """Judge texts; `progress` counts them."""
        ids = self.judge.encode(texts.texts)
        nll = self.judge.nll(ids, self.settings.batch_size, progress)
        if texts.prompts:
            given = self.judge.encode(texts.prompts)
            nll -= self.judge.nll(given, self.settings.batch_size)
            ids = [row[len(head) :] for row, head in zip(ids, given, strict=True)]
        empty = sum(not one for one in ids)
        if kind == "data":
            self._held_out = texts.texts
        metrics = measure(texts, ids, nll) | measure_quality(texts.texts, self._held_out, kind == "data")
        if self.mauve_model is not None:
            features = self.mauve_model.features(self.mauve_model.encode(texts.texts), self.settings.batch_size)
            if kind == "data":
                self._held_out_features = features
            elif self._held_out_features is None:
                raise UnmaskError("--mauve compares with held-out texts, of which there are none; give some as --data.")
            else:
                metrics["mauve"] = mauve(self._held_out_features, features)
        self.rows.append(GenerationResult(name, kind, len(ids), empty, metrics, **origin))

    def as_dict(self) -> dict[str, Any]:
        rule = self.settings.rule
        return {
            "judge": self.judge.as_dict(),
            "mauve_model": None if self.mauve_model is None else self.mauve_model.as_dict(),
            "n": self.settings.n,
            "seed": self.settings.seed,
            "length": self.settings.length,
            "rule": None if rule is None else rule.model_dump(),
            "interval": {"level": LEVEL, "resamples": RESAMPLES},
            "rows": [row.as_dict() for row in self.rows],
        }


def measure(texts: Texts, ids: list[list[int]], nll: Values) -> Metrics:
    """All metrics of some texts, given the judge's tokens and their -log p in nats.

    Perplexity, repetition and distinct n-grams are ratios of sums over all texts, the others means over texts.
    """
    weights = bootstrap_weights(len(ids))
    one = np.ones(len(ids))
    tokens = np.array([len(row) for row in ids], dtype=np.float64)
    characters = np.array([len(text) for text in texts.texts], dtype=np.float64)
    entropy = np.array([unigram_entropy(row) for row in ids])
    nats_per_token = bootstrap_ratio(nll, tokens, weights)
    seconds = None if texts.seconds is None else bootstrap_ratio(texts.seconds, one, weights)
    if seconds is not None and texts.batches < 2:
        seconds = Estimate(seconds.value)  # one batch has no spread
    return {
        "perplexity": None if nats_per_token is None else nats_per_token.map(lambda nats: math.exp(min(nats, 700.0))),
        "entropy": bootstrap_ratio(entropy, one, weights),
        "repetition": bootstrap_ratio(*repetition(ids), weights),
        "distinct_1": bootstrap_ratio(*distinct(ids, 1), weights),
        "distinct_2": bootstrap_ratio(*distinct(ids, 2), weights),
        "distinct_3": bootstrap_ratio(*distinct(ids, 3), weights),
        "tokens": bootstrap_ratio(tokens, one, weights),
        "characters": bootstrap_ratio(characters, one, weights),
        "calls": None if texts.calls is None else bootstrap_ratio(texts.calls, one, weights),
        "seconds": seconds,
    }


def measure_quality(texts: Sequence[str], held_out: Sequence[str] | None, are_held_out: bool) -> Metrics:
    """Self-BLEU, if sacrebleu is installed, and the failures of some texts."""
    weights = bootstrap_weights(len(texts))
    failures = count_failures(texts, held_out, are_held_out)
    several = len(texts) > 1 and find_spec("sacrebleu") is not None
    return {
        "mauve": None,
        "self_bleu": bootstrap_ratio(self_bleu(texts), np.ones(len(texts)), weights) if several else None,
        **{name: None if pair is None else bootstrap_ratio(*pair, weights) for name, pair in failures.items()},
    }
