"""Content of `unmask demo`: what the shipped models are asked to do, and the run that is trained."""

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
"""Monte-Carlo error of the scores, in bits per token over both texts."""
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
class DemoRun:
    """The run that is trained on this machine."""

    recipe: Recipe
    folder: Path

    @property
    def finished(self) -> bool:
        """Whether the folder has the last checkpoint."""
        latest = find_latest(self.folder)
        return latest is not None and latest.name.endswith(f"{self.recipe.training.steps:08d}")


@dataclass(frozen=True)
class Scores:
    """Bounds of the story, and of its words in reverse order."""

    story: Bound
    backwards: Bound


def open_pair() -> tuple[MaskedDiffusionLM, MaskedDiffusionLM]:
    """The shipped masked diffusion model and the autoregressive one."""
    return load(DEFAULT_MODEL), load(DEFAULT_AR_MODEL)


def fill_blanks(lm: MaskedDiffusionLM) -> list[str]:
    """Fill the blanks of the sentences."""
    return [one.text for one in lm.fill_details(BLANKS, rule=FILLING)]


def rewrite(lm: MaskedDiffusionLM) -> str:
    """Rewrite the middle of the story with the same number of tokens."""
    size = len(encode(lm.text_processor.tokenizer, [f" {MIDDLE}"])[0])
    return lm.fill_details([f"{FIRST} [MASK:{size}] {LAST}"], steps=CALLS, rule=WRITING)[0].text


def score(lm: MaskedDiffusionLM) -> Scores:
    """Score the story and its words in reverse order."""
    bound = lm.score([STORY, " ".join(reversed(STORY.split()))], precision=PRECISION)
    return Scores(bound[0], bound[1])


def prepare_run(out: Path, fresh: bool) -> DemoRun:
    """Check the folder of the run before anything else happens; `fresh` deletes an earlier run."""
    run = DemoRun(read_recipe(RECIPE), out)
    if find_latest(out) is None:
        clear_abandoned(out)
        check_new_folder(out, "choose another --out")
        check_writable(out)
    elif fresh:
        shutil.rmtree(out)
    elif not run.finished:
        try:
            find_resume_point(out, run.recipe, "auto")
        except UnmaskError as error:
            raise UnmaskError(
                f"The run in '{out}' is damaged, or not the run of the demo; choose another --out, or train again with "
                "--fresh."
            ) from error
    return run


def train_run(run: DemoRun, progress: Callback) -> Bound:
    """Train or resume the run, and return its last validation bound."""
    if not run.finished:
        train(run.recipe, run.folder, resume="auto", callbacks=[progress])
    return Bound.from_dict(read_run(run.folder).validated[-1]["validation"])
