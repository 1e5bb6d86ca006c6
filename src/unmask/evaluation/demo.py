"""The first minute: what the demonstration asks of the models that ship, and the run that it trains."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from unmask.checkpoint import DEFAULT_AR_MODEL, DEFAULT_MODEL
from unmask.config import Recipe, read_recipe
from unmask.data.encoding import encode
from unmask.errors import UnmaskError
from unmask.io import check_new_folder, check_writable
from unmask.likelihood import Bound
from unmask.pipeline import MaskedDiffusionLM, load
from unmask.plots.curves import read_run
from unmask.samplers.token_sampling import TokenSampler
from unmask.training.callbacks import Callback
from unmask.training.checkpointing import clear_abandoned, find_latest, find_resume_point
from unmask.training.trainer import train

STORIES = 2
CALLS = 64
WRITING = TokenSampler(top_p=0.9)
FILLING = TokenSampler(top_p=0.5)
PRECISION = 0.1
"""Bits per token to which the bound of the story and its reverse together is known; that of each is known less well."""
BLANKS = (
    "Once upon a time, there was a little [MASK] named Tom.",
    "Lily was very [MASK] because she had lost her favorite toy.",
    "The dog ran to the park and saw a big [MASK] in the tree.",
)
FIRST = "Once upon a time, there was a little girl named Lily."
MIDDLE = (
    "One day, she found a small bird with a hurt wing. She took it home and gave it some water. "
    "Every day she sat with the bird and sang to it. Soon the bird could fly again."
)
LAST = "Lily was very happy and they became best friends."
STORY = f"{FIRST} {MIDDLE} {LAST}"
RECIPE = "demo"


@dataclass(frozen=True)
class Learner:
    """The run that is trained on this machine, in its folder."""

    recipe: Recipe
    folder: Path

    @property
    def finished(self) -> bool:
        """Whether an earlier demonstration left it complete."""
        latest = find_latest(self.folder)
        return latest is not None and latest.name.endswith(f"{self.recipe.training.steps:08d}")


@dataclass(frozen=True)
class Scores:
    """How likely the story is to a model, and how likely its words are backwards."""

    story: Bound
    backwards: Bound


def open_pair() -> tuple[MaskedDiffusionLM, MaskedDiffusionLM]:
    """The model that ships and its autoregressive twin."""
    return load(DEFAULT_MODEL), load(DEFAULT_AR_MODEL)


def fill_blanks(lm: MaskedDiffusionLM) -> list[str]:
    """The sentences with their blanks written."""
    return [one.text for one in lm.fill_details(BLANKS, rule=FILLING)]


def rewrite(lm: MaskedDiffusionLM) -> str:
    """The story with another middle of as many tokens between its first and its last sentence."""
    size = len(encode(lm.text_processor.tokenizer, [f" {MIDDLE}"])[0])
    return lm.fill_details([f"{FIRST} [MASK:{size}] {LAST}"], steps=CALLS, rule=WRITING)[0].text


def score(lm: MaskedDiffusionLM) -> Scores:
    """The story and its words in reverse, with their errors."""
    bound = lm.score([STORY, " ".join(reversed(STORY.split()))], precision=PRECISION)
    return Scores(bound[0], bound[1])


def prepare_run(out: Path, fresh: bool) -> Learner:
    """The run in its folder, an earlier one removed if a `fresh` one is wanted; a folder in use is refused at once."""
    learner = Learner(read_recipe(RECIPE), out)
    if find_latest(out) is None:
        clear_abandoned(out)
        check_new_folder(out, "choose another --out")
        check_writable(out)
    elif fresh:
        shutil.rmtree(out)
    elif not learner.finished:
        _check_goes_on(learner)
    return learner


def _check_goes_on(learner: Learner) -> None:
    try:
        find_resume_point(learner.folder, learner.recipe, "auto")
    except UnmaskError as error:
        raise UnmaskError(
            f"The run in '{learner.folder}' is damaged or another than the demonstration's; choose another --out, or "
            "remove it and train again with --fresh."
        ) from error


def train_run(learner: Learner, progress: Callback) -> Bound:
    """Train it, going on where an earlier one stopped; the validation bound of its last weights."""
    if not learner.finished:
        train(learner.recipe, learner.folder, resume="auto", callbacks=[progress])
    return Bound.from_dict(read_run(learner.folder).validated[-1]["validation"])
