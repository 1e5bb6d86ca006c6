"""Checks of a checkpoint: its weights, its tokenizer, and its bound against the exact likelihood of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.data.encoding import encode, vocabulary_size
from unmask.data.rows import Integers, RowBatch, Rows
from unmask.doctor import CheckResult
from unmask.errors import UnmaskError, first_line
from unmask.laws import describe, exact
from unmask.laws.exact import MAX_OPEN, AnyOrder
from unmask.likelihood import AGREEMENT, Bound, estimate_bound, eval_mode
from unmask.objectives.base import Noise, Objective
from unmask.objectives.subs import MaskCount
from unmask.pipeline import MaskedDiffusionLM
from unmask.process import Batch
from unmask.random import Purpose, uniform
from unmask.samplers.base import Canvas, sample
from unmask.training.checkpointing import find_latest, read_trainer_state

LENGTH = 32
"""Tokens of a generated text: few enough to enumerate 256 canvases on a laptop."""
PADS = 5
OFFSETS, PASSES = 32, 4
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""How far logits may move with the shape of a batch, relative to the largest logit, or absolutely if that is below 1.

The order of summation depends on the shape, which in float32 moves logits by 1e-6 to 1e-5. Half precision rounds after
every layer, which moves them by about a dozen units in the last place.
"""
ROUNDING = 1e-6
CONDITIONED_ERROR = 1e-3
"""Relative error of likelihood and bound for a conditioned network, which polynomials in the mask rate interpolate."""
WRONG_CODE = "the code disagrees with the mathematics; run 'unmask doctor' for the laws and report the result"
NO_TOKENIZER = "the checkpoint has no tokenizer; convert it again with --tokenizer"

Check = Callable[[], CheckResult]


class CheckpointCheck:
    """Checks of a model on a text: the given one, else one that the model generates, else random tokens.

    ids [L]: the tokens. open [L]: eight evenly spaced positions, which are masked. canvas [L]: the input of the
    network, without masks for an autoregressive model. text: None if the tokens are random.
    """

    def __init__(self, lm: MaskedDiffusionLM, text: str | None = None) -> None:
        self.lm = lm
        self.config = lm.denoiser.config
        self.text, ids = self._generate_text() if text is None else (text, self._encode(text))
        self.ids = torch.tensor(ids)
        self.open = torch.zeros(len(ids), dtype=torch.bool)
        count = min(MAX_OPEN, len(ids))
        self.open[torch.arange(count) * len(ids) // count] = True
        self.canvas = self.ids if lm.causal else self.ids.masked_fill(self.open, self.config.mask_token_id)
        self.tolerance = TOLERANCE[lm.denoiser.dtype]
        self._bounds: dict[tuple[str, int], Bound] = {}

    def run(self) -> Iterator[CheckResult]:
        """Run every check; one that raises an exception has failed. With damaged weights the rest does not apply."""
        damaged = False
        for name, check in self.checks().items():
            try:
                result = replace(not_applicable("the weights are damaged") if damaged else check(), name=name)
            except Exception as error:
                words = f"the check raised {type(error).__name__}: {first_line(error)}"
                result = CheckResult(name, False, words, "fix the cause that the message names, or report it")
            damaged |= result.passed is False and name in ("weights are finite", "logits are finite")
            yield result

    def checks(self) -> dict[str, Check]:
        """Return the checks that apply to this kind of model, by name."""
        checks: dict[str, Check] = {
            "weights are finite": self.check_weights,
            "logits are finite": self.check_logits,
            "logits are reproducible": self.check_determinism,
            "mask has probability zero": self.check_mask_probability,
            "logits do not depend on the batch": self.check_batch_independence,
            "logits do not depend on padding": self.check_padding_independence,
            "tokenizer round trip": self.check_round_trip,
            "mask tokens agree": self.check_mask_token,
            "vocabulary fits": self.check_vocabulary,
            "unmask.json fits": self.check_config,
        }
        if self.lm.causal:
            return checks | {
                "score is the sum of conditionals": self.check_causal_score,
                "generation agrees with score": self.check_cached_generation,
            }
        return checks | {
            "bound is above the likelihood": self.check_exact_bound,
            "mask-count estimate agrees": self.check_mask_count,
            "estimates are above the likelihood": self.check_estimates,
        }

    # ---- network ----------------------------------------------------------------------------------------------------

    def check_weights(self) -> CheckResult:
        parameters = self.lm.denoiser.named_parameters()
        bad = {name: count for name, p in parameters if (count := int((~p.isfinite()).sum()))}
        where = f", the first in {next(iter(bad))}" if bad else ""
        remedy = (
            "the weights are damaged; go back to an earlier checkpoint of the run, and lower learning_rate or clip if "
            "it happens again"
        )
        return at_most(sum(bad.values()), 0, f"weights that are not finite{where}", remedy)

    def check_logits(self) -> CheckResult:
        bad = int((~self._logits(self.canvas[None]).isfinite()).sum())
        remedy = "the weights are damaged or too large; restore them, and in half precision try float32"
        return at_most(bad, 0, "logits that are not finite", remedy)

    def check_determinism(self) -> CheckResult:
        """The same input gives the same logits after another input."""
        first = self._logits(self.canvas[None])[0]
        self._logits(self._random_tokens(1, len(self.ids), seed=1))
        remedy = "look for dropout that is still on, and for state kept between calls"
        return self._compare(first, "largest change of a logit in a second call", remedy)

    def check_mask_probability(self) -> CheckResult:
        """The head gives the mask token probability 0, as SUBS and the samplers require."""
        if self.lm.config.objective.needs_mask_logit:
            return not_applicable(f"the objective {self.lm.config.objective.name} includes the mask in its softmax")
        with torch.no_grad():
            p = self.lm.denoiser.head(self._hidden(self.canvas[None])).float().softmax(dim=-1)
        highest = float(p[..., self.config.mask_token_id].max())
        remedy = "let head(rows) return minus infinity at config.mask_token_id"
        return at_most(highest, 0, "probability of the mask token", remedy)

    def check_batch_independence(self) -> CheckResult:
        others = self._random_tokens(3, len(self.ids), seed=1)
        batch = torch.cat([others[:1], self.canvas[None], others[1:]])
        remedy = "look for operations across rows of the batch, such as batch normalisation"
        return self._compare(self._logits(batch)[1], "largest change of a logit in a batch of four texts", remedy)

    def check_padding_independence(self) -> CheckResult:
        """Logits do not depend on padding that the attention mask hides."""
        count = min(PADS, self.config.max_length - len(self.ids))
        if count < 1:
            return not_applicable(f"the text fills all {self.config.max_length} positions; use a shorter one")
        padded = torch.cat([self.canvas, self._random_tokens(1, count, seed=1)[0]])[None]
        attention_mask = torch.arange(padded.shape[1])[None] < len(self.ids)
        logits = self._logits(padded, attention_mask)[0, : len(self.ids)]
        words = f"largest change of a logit with {count} pads on the right"
        return self._compare(logits, words, "pass the attention mask on to attention; it is False at pads")

    # ---- tokenizer and unmask.json ----------------------------------------------------------------------------------

    def check_round_trip(self) -> CheckResult:
        if self.lm.tokenizer is None:
            return not_applicable(NO_TOKENIZER)
        if self.text is None:
            return not_applicable("the tokens are random; give a text with --text")
        ids = encode(self.lm.text_processor.tokenizer, [self.text])[0]
        decoded = self.lm.text_processor.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        again = encode(self.lm.text_processor.tokenizer, [decoded])[0]
        changed = sum(a != b for a, b in zip(ids, again, strict=False)) + abs(len(ids) - len(again))
        exactly = "the text is restored exactly" if decoded == self.text else "spaces or case of the text change"
        remedy = "use the tokenizer that the network was trained with, including its decoder"
        return at_most(changed, 0, f"{exactly}; tokens of {len(ids)} that change", remedy)

    def check_mask_token(self) -> CheckResult:
        if self.lm.tokenizer is None:
            return not_applicable(NO_TOKENIZER)
        theirs, ours = self.lm.tokenizer.mask_token_id, self.config.mask_token_id
        remedy = "copy the tokenizer of the training run into the folder, or correct mask_token_id in config.json"
        return CheckResult("", theirs == ours, f"{theirs} in the tokenizer, {ours} in config.json", remedy)

    def check_vocabulary(self) -> CheckResult:
        if self.lm.tokenizer is None:
            return not_applicable(NO_TOKENIZER)
        remedy = "copy the tokenizer of the training run into the folder"
        words = "tokens of the tokenizer, at most the vocabulary of the network"
        return at_most(vocabulary_size(self.lm.tokenizer), self.config.vocab_size, words, remedy)

    def check_config(self) -> CheckResult:
        saved, tokenizer = self.lm.config, self.lm.tokenizer
        mask_logit = getattr(self.config, "mask_logit", False)
        wrong = []
        if saved.length > self.config.max_length:
            wrong.append(f"rows of {saved.length} tokens for a network of {self.config.max_length}")
        if not self.lm.causal and mask_logit != saved.objective.needs_mask_logit:
            wrong.append(f"mask_logit={mask_logit} for the objective {saved.objective.name}")
        if saved.policy.supervises_padding and tokenizer is not None and tokenizer.eos_token_id is None:
            wrong.append(f"the policy {saved.policy.name} for a tokenizer without EOS")
        words = "; ".join(wrong) or "length, objective and policy suit the network and the tokenizer"
        return CheckResult("", not wrong, words, "correct unmask.json, or convert or train again")

    # ---- likelihood of a masked model -------------------------------------------------------------------------------

    @cached_property
    def exact(self) -> AnyOrder:
        """The exact likelihood and bound of the text, by the subset recursion."""
        return exact.any_order(self.lm.denoiser, self.ids[None], self.open)

    def check_exact_bound(self) -> CheckResult:
        """The exact bound, a mean over all orders, is not below the exact -log p (law 1)."""
        nll, nats = float(self.exact.nll), float(self.exact.bound)
        size = f"{int(self.open.sum())} positions open, {self.exact.canvases:,} canvases"
        words = f"-log p = {nll:.4f} exactly, bound {nats:.4f} ({size}); nats by which the bound is below"
        limit = (CONDITIONED_ERROR if self.config.conditioned else ROUNDING) * max(nats, 1.0)
        return at_most(nll - nats, limit, words, "a probability is not a number; check weights and logits")

    def check_mask_count(self) -> CheckResult:
        """The mask-count estimator agrees with the exact bound."""
        nats = float(self.exact.bound)
        estimate, errors = self._estimate("mask-count", MaskCount(), lambda estimated: abs(estimated - nats))
        words = f"{_format(estimate)} in {estimate.draws} draws, the bound {nats:.4f}; standard errors between them"
        return at_most(errors, AGREEMENT, words, WRONG_CODE)

    def check_estimates(self) -> CheckResult:
        """The bounds that `unmask score` prints are not below the exact -log p by more than their error."""
        objective = self.lm.config.objective
        estimators = objective.estimators()
        if any(one.needs_mask_logit or one.needs_visible_rows for one in estimators.values()):
            why = "bounds another process, with the mask in its softmax or visible tokens rewritten"
            return not_applicable(f"{describe(objective)} {why}")
        if any(getattr(one, "steps", None) is not None for one in estimators.values()):
            return not_applicable(f"{describe(objective)} bounds a process of a few steps, which is another one")
        nll = float(self.exact.nll)
        found = [self._estimate(name, one, lambda estimated: nll - estimated) for name, one in estimators.items()]
        shown = ", ".join(f"{estimate.estimator} {_format(estimate)}" for estimate, _ in found)
        worst = max(errors for _, errors in found)
        return at_most(worst, AGREEMENT, f"{shown}; standard errors below -log p", WRONG_CODE)

    def _estimate(self, name: str, estimator: Objective, deviation: Callable[[float], float]) -> tuple[Bound, float]:
        """Return an estimate and its `deviation` in standard errors.

        An estimate that looks wrong is drawn once more: because of the heavy tails of 1/t, one in two hundred correct
        estimates looks wrong.
        """
        for seed in (0, 1):
            if (name, seed) not in self._bounds:
                self._bounds[name, seed] = estimate_bound(
                    self.lm.denoiser,
                    estimator,
                    self.lm.config.schedule,
                    SingleRow(self.ids, self.open),
                    name=name,
                    seed=seed,
                    offsets=OFFSETS,
                    passes=PASSES,
                )
            made = self._bounds[name, seed]
            errors = deviation(made.nats) / max(made.mc_stderr, 0.1 * self.tolerance * max(made.nats, 1.0))
            if errors <= AGREEMENT:
                break
        return made, errors

    # ---- likelihood of an autoregressive model ----------------------------------------------------------------------

    def check_causal_score(self) -> CheckResult:
        """One pass over the text gives the same nats as each prefix alone."""
        ids = self.ids[None].to(self.lm.device)
        with eval_mode(self.lm.denoiser):
            alone = exact.left_to_right_nll(self.lm.denoiser, ids, self.open)[0]
        scored = self._score(self.ids)
        counted = self.open & ((torch.arange(len(self.open)) > 0) | (self.config.bos_token_id is not None))
        difference = float((scored - alone).abs()[counted].max())
        words = (
            f"-log p = {float(alone[counted].sum()):.4f} exactly ({int(counted.sum())} positions open); largest "
            "difference in nats between one pass and prefixes alone"
        )
        remedy = "a position sees what comes after it; check the causal mask"
        return at_most(difference, self.tolerance * max(1.0, float(scored.max())), words, remedy)

    def check_cached_generation(self) -> CheckResult:
        """Tokens generated with the key-value cache have the probabilities that scoring gives them without it."""
        generated = torch.arange(len(self.ids)) >= max(1, len(self.ids) - int(self.open.sum()))
        if not generated.any():
            return not_applicable("the text has only one token; use a longer one")
        start = self.ids.masked_fill(generated, self.config.mask_token_id)[None].to(self.lm.device)
        done = sample(self.lm.sampler(), self.lm.denoiser, Canvas.of(start, self.config.mask_token_id))
        nats = -done.confidence[0].double().log().cpu()
        scored = self._score(done.ids[0].cpu())
        difference = float((nats - scored).abs()[generated].max())
        words = f"{int(generated.sum())} tokens generated; largest difference in nats at one of them"
        remedy = "check the key-value cache and its positions"
        return at_most(difference, self.tolerance * max(1.0, float(scored.max())), words, remedy)

    def _score(self, ids: Tensor) -> Tensor:
        """Return the nats [L] of each token under the objective of the checkpoint."""
        batch = Batch.of(ids[None]).to(self.lm.device)
        noise = Noise(torch.full((1,), 0.5), torch.full((1, len(ids)), 0.5))
        with eval_mode(self.lm.denoiser):
            terms = self.lm.config.objective.loss(self.lm.denoiser, batch, self.lm.config.schedule, noise)
        return terms.nelbo[0].double().cpu()

    # ---- inputs and outputs of the network --------------------------------------------------------------------------

    def _encode(self, text: str) -> list[int]:
        ids = encode(self.lm.text_processor.tokenizer, [text])[0]
        if not ids:
            raise UnmaskError(f"The text {text!r} has no tokens; give a longer one.")
        if len(ids) > self.lm.row_length:
            raise UnmaskError(f"The text has {len(ids)} tokens and this model takes {self.lm.row_length}; shorten it.")
        return ids

    def _generate_text(self) -> tuple[str | None, list[int]]:
        """Generate a text and encode it; return random tokens if that gives too few."""
        length = max(1, min(LENGTH, self.lm.row_length - PADS))
        try:
            text = self.lm.generate(1, length=length, exact=True, steps=None if self.lm.causal else length // 2 or 1)[0]
            ids = encode(self.lm.text_processor.tokenizer, [text])[0][:length]
        except UnmaskError:
            ids = []
        if len(ids) < min(MAX_OPEN, length):
            return None, self._random_tokens(1, length, seed=0)[0].tolist()
        return text, ids

    def _random_tokens(self, count: int, length: int, seed: int) -> Tensor:
        """Return [count, length] random tokens without the mask."""
        sample, position = torch.arange(count)[:, None], torch.arange(length)
        u = uniform(seed, Purpose.TOKEN, sample=sample, position=position)
        ids = (u * (self.config.vocab_size - 1)).long()
        return ids + (ids >= self.config.mask_token_id)

    def _hidden(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the hidden states [B, L, D] at alpha 1/2."""
        device = self.lm.device
        mask = None if attention_mask is None else attention_mask.to(device)
        alpha = {} if self.lm.causal else {"alpha": torch.full((len(ids),), 0.5, device=device)}
        with torch.no_grad():
            return self.lm.denoiser.hidden(ids.to(device), attention_mask=mask, **alpha)

    def _logits(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the logits [B, L, V], including that of the mask token, in float32 on the CPU."""
        with torch.no_grad():
            return self.lm.denoiser.head(self._hidden(ids, attention_mask), mask_logit=True).float().cpu()

    def _compare(self, logits: Tensor, words: str, remedy: str) -> CheckResult:
        """Compare logits [L, V] with those of the canvas alone."""
        alone = self._logits(self.canvas[None])[0]
        limit = self.tolerance * max(1.0, float(alone.abs().max()))
        return at_most(float((logits - alone).abs().max()), limit, words, remedy)


class SingleRow(Rows):
    """A table of one row in which only the open positions count."""

    def __init__(self, ids: Tensor, open_: Tensor) -> None:
        self.length = len(ids)
        self.counted = int(open_.sum())
        self._ids, self._frozen = ids.numpy()[None], (~open_).numpy()[None]

    def __len__(self) -> int:
        return 1

    @property
    def documents(self) -> int:
        """The row is one document."""
        return 1

    def _read(self, rows_B: Integers) -> RowBatch:
        ids_BL, frozen_BL = (row.repeat(len(rows_B), axis=0) for row in (self._ids, self._frozen))
        every_BL = np.ones_like(frozen_BL)
        return RowBatch(ids_BL, every_BL, np.zeros_like(ids_BL), frozen_BL, padding=~every_BL)


def at_most(value: float, limit: float, words: str, remedy: str) -> CheckResult:
    """Return a result that passes if the value is at most the limit; NaN fails. `run` adds the name."""
    return CheckResult("", value <= limit, words, remedy, value, limit)


def not_applicable(why: str) -> CheckResult:
    """Return the result of a check that does not apply to this checkpoint."""
    return CheckResult("", None, why)


def _format(estimate: Bound) -> str:
    return f"{estimate.nats:.4f} ± {estimate.mc_stderr:.4f}"


def describe_checkpoint(lm: MaskedDiffusionLM) -> dict[str, Any]:
    """Describe a checkpoint in JSON values. `steps` is None if its training state is not available."""
    config, saved, tokenizer = lm.denoiser.config, lm.config, lm.tokenizer
    try:
        steps = None if lm.path is None else read_trainer_state(find_latest(lm.path) or lm.path).step
    except UnmaskError:
        steps = None
    return {
        "path": str(lm.path),
        "network": type(lm.denoiser).__name__,
        "parameters": sum(parameter.numel() for parameter in lm.denoiser.parameters()),
        "precision": str(lm.denoiser.dtype).removeprefix("torch."),
        "conditioned": bool(getattr(config, "conditioned", False)),
        "vocabulary": config.vocab_size,
        "mask_token_id": config.mask_token_id,
        "length": lm.row_length,
        "longest": config.max_length,
        "schedule": describe(saved.schedule),
        "objective": describe(saved.objective),
        "policy": describe(saved.policy),
        "tokenizer": None
        if tokenizer is None
        else {
            "kind": type(tokenizer.backend_tokenizer.model).__name__,
            "vocabulary": vocabulary_size(tokenizer),
            "mask": tokenizer.mask_token,
            "mask_token_id": tokenizer.mask_token_id,
            "eos": tokenizer.eos_token,
            "eos_token_id": tokenizer.eos_token_id,
        },
        "version": saved.version,
        "steps": steps,
    }
