"""An opened checkpoint: what it is, and what it says of texts that exist."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from unmask.bounds import SCORE_PRECISION, Bound, Evaluation
from unmask.checkpoint import Card
from unmask.data.rows import Rows
from unmask.errors import UnmaskError
from unmask.likelihood import device_of, evaluate, evaluation_work
from unmask.models.engine import Engine
from unmask.scribe import Scribe, checked_texts
from unmask.tally import Progress
from unmask.wishes import check_batch_size, check_seeds


class Opened:
    """A denoiser, its tokenizer and its card."""

    def __init__(
        self, denoiser: Any, tokenizer: Any, card: Card, path: Path | None = None, engine: Engine | None = None
    ) -> None:
        self.denoiser = denoiser
        self.tokenizer = tokenizer
        self.card = card
        self.path = path
        self.scribe = Scribe(tokenizer, denoiser.config, card)
        self._engine = engine

    @property
    def causal(self) -> bool:
        """Whether this is the autoregressive twin."""
        return self.card.objective.causal

    @property
    def device(self) -> torch.device:
        """Where the network computes."""
        return device_of(self.denoiser)

    def ready(self, tokens: int) -> Any:
        """The network as it is best asked about so many tokens in all calls together; the same law, only faster."""
        if self._engine is not None:
            return self._engine.prepare(tokens)
        return self.denoiser

    @property
    def words(self) -> Any:
        """The tokenizer, which verbs on texts need."""
        return self.scribe.words

    @property
    def row_length(self) -> int:
        """Tokens of a row, as the model was trained."""
        return self.scribe.length

    def score(
        self,
        texts: str | Sequence[str],
        given: str | Sequence[str] | None = None,
        *,
        precision: float | None = SCORE_PRECISION,
        seed: int = 0,
        batch_size: int | None = None,
    ) -> Bound:
        """The bound on -log p(texts), or on -log p(texts | given), with its error; `bound[i]` is that of text i.

        For the autoregressive twin it is the likelihood itself. `precision`: the Monte-Carlo error to reach, in bits
        per token.
        """
        return self.judge(texts, given, precision=precision, seed=seed, batch_size=batch_size).headline

    def judge(
        self,
        texts: str | Sequence[str],
        given: str | Sequence[str] | None = None,
        *,
        steps: tuple[int, ...] = (),
        precision: float | None = SCORE_PRECISION,
        seed: int = 0,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> Evaluation:
        """`score` by every estimator of the objective, and by T-step bounds for T in `steps`.

        `progress` is told of every few draws how many they were; how many will be needed nobody knows before.
        """
        check_seeds(seed)
        check_batch_size(batch_size)
        if precision is not None and (not isinstance(precision, Real) or not precision > 0):
            raise UnmaskError(f"precision={precision!r} is no error to reach; give bits per token above 0.")
        rows = self.scribe.scored_rows(checked_texts(texts, "score"), given)
        options: dict[str, Any] = {"seed": seed, "precision": precision, "batch_size": batch_size}
        return self.evaluate(rows, steps=steps, each=True, progress=progress, **options)

    def evaluate(self, rows: Rows, **options: Any) -> Evaluation:
        """Judge rows of tokens; the options are those of `unmask.likelihood.evaluate`."""
        objective = self.card.objective
        denoiser = self.ready(rows.length * evaluation_work(objective, rows, len(options.get("steps", ()))))
        return evaluate(denoiser, objective, self.card.schedule, rows, **options)

    def decode(self, ids: list[int]) -> str:
        """The text of a canvas; where the length policy ends a text with EOS, up to the first one."""
        return self.scribe.decode(ids)
