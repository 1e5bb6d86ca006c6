"""Translation: BLEU and chrF of a model's translations by the number of steps.

The source is frozen and everything after it is masked up to the end of the row, so the model chooses the length: a
translation ends at the first EOS.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.data.documents import Document
from unmask.data.length_policies import Prompted
from unmask.data.protocols import ProtocolSource, get_protocol
from unmask.data.rows import spread_indices
from unmask.data.sources.parallel import ParallelSource, split_pair
from unmask.errors import UnmaskError
from unmask.evaluation.statistics import Estimate, bootstrap_weights, quantile_interval, result_as_dict
from unmask.registry import build

if TYPE_CHECKING:
    from unmask.likelihood import Progress
    from unmask.pipeline import MaskedDiffusionLM

Pairs = list[tuple[str, str]]
DEFAULT_STEPS = ("1", "4", "16", "none")
DEFAULT_ORDER = "confidence"


@dataclass(frozen=True)
class Translations:
    """Translations of some sources, with the network calls and seconds per sentence.

    truncated: the number of sources that did not fit into two thirds of a row and were cut.
    """

    texts: list[str]
    calls: float
    seconds: float
    truncated: int = 0


@dataclass(frozen=True)
class TranslationResult:
    """One row of the table: a checkpoint with a number of steps, None for one token per call."""

    checkpoint: str
    causal: bool
    steps: int | None
    pairs: int
    truncated: int
    metrics: dict[str, Estimate]

    def as_dict(self) -> dict[str, Any]:
        return result_as_dict(self)


def read_pairs(
    lm: MaskedDiffusionLM, on: str | None = None, data: Sequence[str] | None = None, count: int | None = None
) -> Pairs:
    """The pairs of the test part of a protocol, or of files.

    By default they are the test part of the protocol that a checkpoint was trained on, or its validation files.
    """
    config: dict[str, Any] = lm.config.protocol.get("data", {}).get("source", {})
    source = build("source", config) if config and not on and not data else None
    documents: Iterable[Document]
    if data:
        documents = build("source", {"name": "parallel", "paths": list(data)}).documents()
    elif on or isinstance(source, ProtocolSource):
        documents = get_protocol(on or source.protocol).documents("test")  # type: ignore[union-attr]
    elif isinstance(source, ParallelSource) and source.validation is not None:
        documents = (one for one in source.documents() if source.held_out(one.name))
    else:
        raise UnmaskError(f"The checkpoint '{lm.path}' names no held-out pairs; give --on or --data.")
    pairs = [split_pair(document.text) for document in documents]
    if not pairs or not all(target for _, target in pairs):
        where = on or (" and ".join(data) if data else f"The held-out part of '{lm.path}'")
        raise UnmaskError(f"{where} has no pairs of texts; give --on a protocol or --data files of translations.")
    return [pairs[i] for i in spread_indices(len(pairs), count)]


def check_translates(lm: MaskedDiffusionLM) -> Prompted:
    """The length policy of a model of pairs; raise `UnmaskError` for another model, or a masked one without ends."""
    policy = lm.config.policy
    if not isinstance(policy, Prompted):
        raise UnmaskError(
            f"The checkpoint '{lm.path}' was trained with the length policy '{policy.name}', not on pairs of texts; "
            "train one with 'unmask train translation'."
        )
    if not lm.causal and not policy.supervised_eos:
        raise UnmaskError(
            f"The masked model '{lm.path}' cannot choose the length of a translation; train it with "
            "data.policy.supervised_eos=true."
        )
    return policy


def translate(
    lm: MaskedDiffusionLM,
    sources: Sequence[str],
    steps: int | None = None,
    order: str = DEFAULT_ORDER,
    temperature: float = 0.0,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Translations:
    """Translate all sources; `steps` and `order` are those of a masked model. `progress` counts sentences."""
    separator = check_translates(lm).separator
    processor = lm.text_processor
    (separator_id,) = processor.encode([separator])[0]
    encoded = processor.encode(list(sources))
    room = 2 * lm.row_length // 3
    prompts = [[*ids[:room], separator_id] for ids in encoded]
    masked = [[*prompt, *[processor.mask_token_id] * (lm.row_length - len(prompt))] for prompt in prompts]
    options: dict[str, Any] = {} if lm.causal else {"steps": steps, "order": order}
    start = time.perf_counter()
    written = lm.fill_rows(
        masked, temperature=temperature, seed=seed, batch_size=batch_size, progress=progress, **options
    )
    seconds = (time.perf_counter() - start) / len(sources)
    texts = [lm.decode(one.ids[len(prompt) :]) for one, prompt in zip(written, prompts, strict=True)]
    calls = float(np.mean([one.calls for one in written]))
    return Translations(texts, calls, seconds, sum(len(ids) > room for ids in encoded))


def measure(translations: Translations, references: Sequence[str]) -> dict[str, Estimate]:
    """BLEU and chrF by sacrebleu with bootstrap intervals over sentences, the ratio of lengths, calls and seconds."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu: Any = BLEU().corpus_score(translations.texts, [references])
    return {
        "bleu": _bootstrap_corpus(BLEU(), translations.texts, references),
        "chrf": _bootstrap_corpus(CHRF(), translations.texts, references),
        "length_ratio": Estimate(bleu.sys_len / bleu.ref_len),
        "calls": Estimate(translations.calls),
        "seconds": Estimate(translations.seconds),
    }


def _bootstrap_corpus(metric: Any, texts: Sequence[str], references: Sequence[str]) -> Estimate:
    """A metric of sacrebleu for all texts together.

    Its own bootstrap raises TypeError where a resample scores 0, so the sums of its statistics are resampled here.
    """
    value = float(metric.corpus_score(texts, [references]).score)
    if len(texts) < 2:
        return Estimate(value)
    statistics = np.array(metric._extract_corpus_statistics(texts, [references]), dtype=np.float64)
    resampled = (bootstrap_weights(len(texts)) @ statistics).tolist()
    return Estimate(value, *quantile_interval([metric._compute_score_from_stats(row).score for row in resampled]))
