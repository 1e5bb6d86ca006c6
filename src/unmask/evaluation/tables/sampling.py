"""Tables of generated texts under a judge: ways of sampling, seconds per text, and texts beyond the context.

The judge is the AR model of Table 1 on the same data and at the same scale.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from unmask.data.protocols import Protocol
from unmask.data.rows import spread_indices
from unmask.evaluation.generation import GenerationEvaluation, GenerationSettings, Texts, generate_texts
from unmask.evaluation.judge import Judge, open_judge, split_windows
from unmask.evaluation.statistics import Estimate, bootstrap_ratio, bootstrap_weights, ngrams, to_array
from unmask.evaluation.tables.base import (
    PAPER,
    SMALL,
    TINY,
    Cell,
    Curve,
    Experiment,
    Run,
    Scale,
    ScaleName,
    Table,
    Unfinished,
    one_seed,
)
from unmask.evaluation.tables.workspace import Workspace
from unmask.evaluation.zero_shot import evaluation_part, protocol_rows
from unmask.pipeline import MaskedDiffusionLM
from unmask.samplers.token_sampling import TokenSampler

Cells = dict[str, Cell | str]
"""A row of a table."""
COLUMNS = {
    "judge perplexity": "perplexity",
    "entropy": "entropy",
    "repetition": "repetition",
    "distinct-1": "distinct_1",
    "distinct-2": "distinct_2",
    "distinct-3": "distinct_3",
    "calls": "calls",
    "seconds per text": "seconds",
}
"""Columns of tables and the metrics in them."""
PROMPT_SHARE = 4
"""A prompt is the first of this many equal parts of a held-out row."""
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "ancestral": ("stochastic", {}),
    "temperature 0.8": ("stochastic", {"rule": {"temperature": 0.8}}),
    "nucleus 0.9": ("hybrid", {"rule": {"top_p": 0.9}}),
    "greedy tail 0.5": ("hybrid", {"rule": {"greedy_tail": 0.5}}),
    "by confidence": ("hybrid", {"order": "confidence"}),
    "by confidence, greedy": ("deterministic", {"order": "confidence", "rule": {"temperature": 0.0}}),
}
"""Ways of sampling from one MDLM: their kind and the options of `judged_cells`."""
CACHED_PUBLISHED = {5_000: 40.1 * 60 / 64, 10_000: 60.4 * 60 / 64}
"""Seconds per text by T on an A5000, from the minutes for 64 texts of 1,024 tokens."""
TABLE5_PUBLISHED = {"SSD-LM, published": (35.43, 2473.9), "MDLM, published": (27.18, 89.3)}
"""Perplexity and seconds per sequence of 2,048 tokens, judged by GPT-2."""
CONTEXTS = (1, 2, 4, 8)
"""Lengths of long texts, in contexts of the model."""
REPEATED = 4
"""The n of the n-grams whose repetition is counted by distance."""


# ---- texts under the judge ------------------------------------------------------------------------------------------


def judged_texts(
    workspace: Workspace,
    run: Run,
    judge: Run,
    samples: int,
    *,
    rule: Mapping[str, Any] | None = None,
    prompts_from: Protocol | None = None,
    length: int | None = None,
    window: int | None = None,
    stride: int | None = None,
    timed: bool = False,
    **sampler: Any,
) -> dict[str, Any]:
    """Metrics of texts that a run generates, under the judge.

    rule: options of a `TokenSampler`. prompts_from: a protocol; texts continue the beginnings of its test rows. length,
    window, stride: those of texts in windows. timed: on a GPU, generate once before, so that nothing is compiled while
    the time is measured. sampler: options of `MaskedDiffusionLM.sampler`.
    """

    def compute() -> dict[str, Any]:
        lm, opened = workspace.load(run), open_run_as_judge(workspace, judge)
        prompts = None if prompts_from is None else cut_rows(lm, prompts_from, samples, PROMPT_SHARE)
        settings = GenerationSettings(
            samples if prompts is None else 1,
            rule=TokenSampler(**rule) if rule else None,
            length=length,
            prompts=prompts,
            window=window,
            stride=stride,
        )

        def generate() -> Texts:
            if lm.causal and length is not None and length > lm.row_length:
                return generate_beyond_context(lm, samples, length)
            return generate_texts(lm, None if lm.causal else lm.sampler(**sampler), settings)

        if timed and lm.device.type == "cuda":
            generate()
        return judge_texts(opened, generate(), length)

    inputs = {
        "run": run.folder,
        "judge": judge.folder,
        "samples": samples,
        "rule": rule and dict(rule),
        "prompts": prompts_from and evaluation_part(prompts_from).name,
        "length": length,
        "stride": stride,
        **({} if window is None else {"window": window}),
        "timed": timed,
        **sampler,
    }
    return workspace.measure(f"texts-{run.folder}", compute, of=[run, judge], alone=timed, **inputs)


def judged_cells(workspace: Workspace, run: Run, judge: Run, samples: int, **options: Any) -> Cells:
    """The columns of a table for texts that a run generates; `options` are those of `judged_texts`."""
    return cells_of(judged_texts(workspace, run, judge, samples, **options))


def finished_rows(measures: Mapping[str, Callable[[], Cells]]) -> dict[str, Cells]:
    """The rows of a table from functions that measure them; a row that is not finished is empty."""
    rows: dict[str, Cells] = {}
    for label, measure in measures.items():
        rows[label] = {}
        with suppress(Unfinished):
            rows[label] = measure()
    return rows


def judged_data(
    workspace: Workspace, judge: Run, protocol: Protocol, samples: int, contexts: int = 1, prompted: bool = False
) -> dict[str, Any]:
    """Metrics of texts of the test part under the judge: of `contexts` rows each, or of a row after its prompt."""

    def compute() -> dict[str, Any]:
        lm = workspace.load(judge)
        texts = cut_rows(lm, protocol, samples, contexts=contexts)
        prompts = cut_rows(lm, protocol, samples, PROMPT_SHARE) if prompted else None
        length = None if prompted else contexts * lm.row_length
        return judge_texts(open_run_as_judge(workspace, judge), Texts(texts, prompts=prompts), length)

    inputs: dict[str, Any] = {"judge": judge.folder, "samples": samples, "contexts": contexts, "prompted": prompted}
    return workspace.measure("texts-data", compute, of=[judge], protocol=evaluation_part(protocol).name, **inputs)


def open_run_as_judge(workspace: Workspace, run: Run) -> Judge:
    return open_judge(str(workspace.train(run)), workspace.device)


def judge_texts(judge: Judge, texts: Texts, length: int | None = None) -> dict[str, Any]:
    """The metrics of some texts, for JSON; with a length, also perplexity by position and repetition by distance."""
    evaluation = GenerationEvaluation(judge, GenerationSettings(len(texts.texts)))
    evaluation.add_texts("", "texts", texts)
    metrics = evaluation.rows[0].as_dict()
    if length is not None:
        ids = [row[:length] for row in judge.encode(texts.texts)]
        metrics["by_position"] = [one.as_dict() for one in perplexity_by_position(judge, ids)]
        metrics["by_distance"] = [one.as_dict() for one in repetition_by_distance(ids, judge.context or len(ids[0]))]
    return metrics


def perplexity_by_position(judge: Judge, texts: Sequence[Sequence[int]]) -> list[Estimate]:
    """Perplexity of the first context of tokens, and of every half a context after it."""
    windows = [list(split_windows(0, len(ids), judge.context)) for ids in texts]
    nats = [judge.window_nll([ids], some) for ids, some in zip(texts, windows, strict=True)]
    weights, estimates = bootstrap_weights(len(texts)), []
    for place in range(max(map(len, windows))):
        sums = np.array([one[place] if place < len(one) else 0.0 for one in nats])
        tokens = np.array([some[place].end - some[place].first if place < len(some) else 0.0 for some in windows])
        found = bootstrap_ratio(sums, tokens, weights)
        assert found is not None
        estimates.append(found.map(math.exp))
    return estimates


def repetition_by_distance(texts: Sequence[Sequence[int]], context: int) -> list[Estimate]:
    """The share of n-grams of a context that occur in the context d before it, for each d; d = 0: earlier in itself."""

    def count_repeated(old: Sequence[Any], new: Sequence[Any]) -> int:
        seen = set(old)
        return len(new) - len(seen) if old is new else sum(gram in seen for gram in new)

    weights, estimates = bootstrap_weights(len(texts)), []
    parts = [[ngrams(ids[i : i + context], REPEATED) for i in range(0, len(ids), context)] for ids in texts]
    for distance in range(max(map(len, parts))):
        pairs = [list(zip(some, some[distance:], strict=False)) for some in parts]
        repeated = to_array(sum(count_repeated(*pair) for pair in one) for one in pairs)
        total = to_array(sum(len(new) for _, new in one) for one in pairs)
        if (found := bootstrap_ratio(repeated, total, weights)) is not None:
            estimates.append(found)
    return estimates


def cells_of(metrics: Mapping[str, Any]) -> Cells:
    """The columns of a table from metrics of JSON; a metric that does not apply is left out."""
    known = {column: metrics[name] for column, name in COLUMNS.items() if metrics.get(name) is not None}
    return {column: Cell.of(Estimate(**found)) for column, found in known.items()}


def cut_rows(lm: MaskedDiffusionLM, protocol: Protocol, count: int, divisor: int = 1, contexts: int = 1) -> list[str]:
    """At most `count` texts of the test part, evenly spaced: the first part of a row, or several rows in sequence."""
    rows, _ = protocol_rows(lm, evaluation_part(protocol))
    starts = np.array(spread_indices(len(rows) - contexts + 1, min(count, len(rows) // contexts)))
    ids = rows[(starts[:, None] + np.arange(contexts)).ravel()].input_ids.reshape(len(starts), -1)
    return [lm.decode(row[: len(row) // divisor].tolist()) for row in ids]


def generate_beyond_context(lm: MaskedDiffusionLM, n: int, length: int) -> Texts:
    """Texts of an AR model beyond its context: each window continues half a context of old tokens."""
    start, size, mask = time.perf_counter(), lm.row_length, lm.text_processor.mask_token_id
    texts: list[list[int]] = [[] for _ in range(n)]
    while (done := len(texts[0])) < length:
        old = min(done, size // 2)
        new = min(size - old, length - done)
        written = lm.fill_rows([[*ids[done - old :], *[mask] * new] for ids in texts], seed=done * n)
        texts = [ids + one.ids[-new:] for ids, one in zip(texts, written, strict=True)]
    seconds = np.full(n, (time.perf_counter() - start) / n)
    return Texts([lm.decode(ids) for ids in texts], np.full(n, float(length)), seconds)


def _judge_note(scale: Scale) -> str:
    return (
        f"{scale.samples} texts per row; 95% bootstrap intervals. The judge is the AR model of the same data and "
        "scale, so the row AR is judged by itself; data: texts of the test part. Entropy in nats; repetition: share of "
        "4-grams seen before in the text."
    )


# ---- ways of sampling -----------------------------------------------------------------------------------------------


def measure_sampling(workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """Continuations of test rows, sampled in several ways."""
    judge, network = runs
    columns = ["judge perplexity", "entropy", "repetition", "distinct-2", "kind"]
    prompted = partial(judged_cells, workspace, judge=judge, samples=scale.samples, prompts_from=protocol)
    rows = finished_rows(
        {
            "data": lambda: cells_of(judged_data(workspace, judge, protocol, scale.samples, prompted=True)),
            **{label: partial(prompted, network, **options) for label, (_, options) in WAYS.items()},
            "AR": partial(prompted, judge),
        }
    )
    for label, (kind, _) in WAYS.items():
        rows[label]["kind"] = kind
    notes = [
        f"Continuations of the first quarter of test rows, which the judge reads and which is not measured. "
        f"{_judge_note(scale)}",
        "Low perplexity with low entropy is repetition, not quality: compare with the row of the data.",
    ]
    return Table(f"Ways of sampling from MDLM on {protocol.name}", columns, rows, notes=notes)


# ---- quality against seconds ----------------------------------------------------------------------------------------


def measure_figure2(workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """Judge perplexity against seconds per text, by the number of steps."""
    judge, sedd, mdlm = runs
    timed = partial(judged_cells, workspace, judge=judge, samples=scale.samples, timed=True)
    measures: dict[str, Callable[[], Cells]] = {
        "data": lambda: cells_of(judged_data(workspace, judge, protocol, scale.samples))
    }
    labels: dict[str, list[str]] = {}
    options: dict[str, Any]
    for run, options in ((mdlm, {}), (sedd, {"sampler": "analytic"})):
        labels[run.label] = [f"{run.label}, T = {T}" for T in scale.steps]
        for row, T in zip(labels[run.label], scale.steps, strict=True):
            measures[row] = partial(timed, run, steps=T, **options)
    rows = finished_rows({**measures, "AR": partial(timed, judge)})
    curves = [_by_seconds(label, [rows[row] for row in some]) for label, some in {**labels, "AR": ["AR"]}.items()]
    published = {f"MDLM, T = {T}": {"seconds per text": round(value, 1)} for T, value in CACHED_PUBLISHED.items()}
    notes = [
        f"Unconditional texts of one context. {_judge_note(scale)} SEDD is sampled by its analytic sampler. The "
        "seconds of a batch are divided among its texts, and compiling is not counted.",
        "Published: 64 texts of 1,024 tokens on an A5000, with the network's output reused while nothing changes.",
    ]
    return Table(
        f"Quality against seconds on {protocol.name}",
        ["judge perplexity", "entropy", "calls", "seconds per text"],
        rows,
        {label: row for label, row in published.items() if label in rows},
        notes,
        curves=curves,
        axes=("seconds per text", "judge perplexity"),
        log_x=True,
    )


def _by_seconds(label: str, found: Sequence[Mapping[str, Any]]) -> Curve:
    found = [cells for cells in found if cells]
    seconds = [cells["seconds per text"].value for cells in found]
    return Curve.of(label, seconds, [cells["judge perplexity"] for cells in found])


# ---- beyond the context ---------------------------------------------------------------------------------------------


def measure_table5(workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """Texts of two contexts in windows, by window and stride."""
    judge, network = runs
    context = network.recipe.data.length
    columns = ["judge perplexity", "seconds per text", "entropy"]
    timed = partial(judged_cells, workspace, judge=judge, samples=scale.samples, length=2 * context, timed=True)
    measures: dict[str, Callable[[], Cells]] = {
        "data": lambda: cells_of(judged_data(workspace, judge, protocol, scale.samples, contexts=2))
    }
    strides: dict[str, dict[int, str]] = {}
    for window in (context, context // 2, context // 4):
        label = f"MDLM, window {window}"
        sizes = sorted({max(1, window // share) for share in (8, 4, 2, 1)})
        strides[label] = {stride: f"{label}, stride {stride}" for stride in sizes}
        for stride, row in strides[label].items():
            measures[row] = partial(timed, network, window=None if window == context else window, stride=stride)
    strides["AR"] = {context // 2: f"AR, window {context}, stride {context // 2}"}
    rows = finished_rows({**measures, strides["AR"][context // 2]: partial(timed, judge)})
    curves: list[Curve] = []
    for label, some in strides.items():
        found = {stride: rows[row] for stride, row in some.items() if rows[row]}
        curves += [
            Curve.of(label, list(found), [cells[column] for cells in found.values()], column) for column in columns[:2]
        ]
    rows |= {label: {} for label in TABLE5_PUBLISHED}
    published = {label: dict(zip(columns[:2], figures, strict=True)) for label, figures in TABLE5_PUBLISHED.items()}
    notes = [
        f"Texts of {2 * context:,} tokens in windows a stride apart, with one token per call; a window is given the "
        f"tokens that it shares with the one before. AR continues half a context of its own text. {_judge_note(scale)}",
        "Published: texts of 2,048 tokens on an RTX 3090.",
    ]
    return Table(
        f"Semi-autoregressive generation on {protocol.name}",
        columns,
        rows,
        published,
        notes,
        curves=curves,
        axes=("stride in tokens", ""),
        log_x=True,
    )


def measure_long_text(workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """Texts of 1 to 8 contexts: their metrics, perplexity by position and repetition by distance."""
    judge, network = runs
    context = network.recipe.data.length

    def measure(label: str, contexts: int) -> dict[str, Any]:
        if label == "data":
            return judged_data(workspace, judge, protocol, scale.samples, contexts)
        run = {"MDLM": network, "AR": judge}[label]
        return judged_texts(workspace, run, judge, scale.samples, length=contexts * context)

    rows: dict[str, Cells] = {}
    curves = []
    for label in ("MDLM", "AR", "data"):
        metrics = None
        for contexts in CONTEXTS:
            rows[f"{label}, {contexts}"], metrics = {}, None
            with suppress(Unfinished):
                metrics = measure(label, contexts)
                rows[f"{label}, {contexts}"] = cells_of(metrics)
        if metrics is None:
            continue
        by_position, by_distance = (
            [Cell.of(Estimate(**one)) for one in metrics[name]] for name in ("by_position", "by_distance")
        )
        ends = [1.0 + place / 2 for place in range(len(by_position))]
        curves.append(Curve.of(label, ends, by_position, "judge perplexity", "position in contexts"))
        curves.append(Curve.of(label, list(range(len(by_distance))), by_distance, "repetition", "distance in contexts"))
    notes = [
        f"Texts of {', '.join(map(str, CONTEXTS))} contexts of {context:,} tokens, in windows half a context apart. "
        f"{_judge_note(scale)} Distinct n-grams are counted over all texts together and fall with length: compare with "
        "the data.",
        "The figure shows the longest texts: perplexity of the first context and of each half a context after it, and "
        f"the share of {REPEATED}-grams of a context that occur in the context d before it (0: before in itself).",
    ]
    columns = ["judge perplexity", "repetition", "distinct-1", "distinct-2", "distinct-3"]
    return Table(f"Long texts on {protocol.name}", columns, rows, notes=notes, curves=curves)


_SCALES: dict[ScaleName, Scale] = {
    "tiny": Scale("stdlib", TINY, samples=8, steps=(10, 50, 200)),
    "small": Scale("text8-74m", SMALL, samples=256, steps=(20, 100, 500, 1000, 5000, 10_000)),
    "paper": Scale("openwebtext", PAPER, samples=64, steps=(100, 500, 1000, 5000, 10_000)),
}

EXPERIMENTS = (
    Experiment(
        "sampling",
        "Deterministic, stochastic and hybrid sampling from MDLM",
        _SCALES,
        one_seed("AR", "MDLM"),
        measure_sampling,
    ),
    Experiment(
        "figure2",
        "Quality of texts against seconds: MDLM and SEDD by T, and AR",
        _SCALES,
        one_seed("AR", "SEDD", "MDLM"),
        measure_figure2,
    ),
    Experiment(
        "table5",
        "Texts beyond the context in windows: quality and seconds by window and stride",
        _SCALES,
        one_seed("AR", "MDLM"),
        measure_table5,
    ),
    Experiment(
        "long-text",
        "Texts of 1, 2, 4 and 8 contexts: perplexity by position, repetition by distance",
        _SCALES,
        one_seed("AR", "MDLM"),
        measure_long_text,
    ),
)
