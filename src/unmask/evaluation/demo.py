"""The demonstration: a masked diffusion model and its autoregressive twin on text that is on every machine."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.bounds import Evaluation
from unmask.config import Recipe, read_recipe
from unmask.data.cache import TokenCache
from unmask.data.split import Corpus, prepare
from unmask.evaluation.ngrams import NGramScore, score_ngrams
from unmask.evaluation.perplexity import held_out_rows
from unmask.generation import MaskedDiffusionLM, load
from unmask.likelihood import evaluation_work
from unmask.tally import Progress
from unmask.training.loop import TrainingResult, train
from unmask.training.progress import Progress as TrainingProgress
from unmask.training.runfolder import find_latest

OFFSETS = 8
RECIPES = {"mdlm": "demo", "ar": "demo-ar"}
SENTENCES = (
    "Return the [MASK:2] of the list.",
    "This function raises [MASK:2] if the file does not exist.",
    "This module [MASK] an interface [MASK] the operating system.",
)


@dataclass(frozen=True)
class Twin:
    """One of the two models of the demonstration: where it is, and whether it has to be trained."""

    name: str
    recipe: Recipe
    folder: Path

    @property
    def finished(self) -> bool:
        """Whether an earlier run left it complete."""
        latest = find_latest(self.folder)
        return latest is not None and latest.name.endswith(f"{self.recipe.training.steps:08d}")


def twins(out: Path) -> list[Twin]:
    """The masked model and its autoregressive twin under one folder."""
    return [Twin(name, read_recipe(recipe), out / name) for name, recipe in RECIPES.items()]


def train_twin(twin: Twin, fresh: bool, progress: TrainingProgress) -> TrainingResult | None:
    """Train one of the two, going on where an earlier run stopped; None where it is complete already."""
    if fresh and twin.folder.exists():
        shutil.rmtree(twin.folder)
    if twin.finished:
        return None
    return train(twin.recipe, twin.folder, resume=find_latest(twin.folder) is not None, progress=progress)


def baselines(recipe: Recipe, lm: MaskedDiffusionLM) -> list[NGramScore]:
    """Unigram and bigram of bytes, trained on the same documents and scored on the same held-out ones."""
    data = recipe.data
    corpus: Corpus = prepare(data.source, lm.tokenizer, data.validation, data.seed)
    return score_ngrams(_texts(corpus.train, lm.tokenizer), _texts(corpus.validation, lm.tokenizer))


def judge(lm: MaskedDiffusionLM, progress: Progress | None = None, batch_size: int = 32) -> Evaluation:
    """The held-out bound of a twin by all its estimators."""
    options: dict[str, Any] = {"offsets": OFFSETS, "batch_size": batch_size, "progress": progress}
    return lm.evaluate(held_out_rows(lm), **options)


def judging_work(lm: MaskedDiffusionLM) -> int:
    """How many steps `judge` reports."""
    return evaluation_work(lm.card.objective, held_out_rows(lm), offsets=OFFSETS)


def open_twin(twin: Twin) -> MaskedDiffusionLM:
    """The trained model."""
    return load(twin.folder)


def _texts(tokens: TokenCache, tokenizer: Any) -> list[str]:
    return tokenizer.batch_decode([tokens.document(i).tolist() for i in range(len(tokens))])
