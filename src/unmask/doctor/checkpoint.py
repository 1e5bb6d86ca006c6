"""All checks of a checkpoint, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.data.cache import Tokens
from unmask.data.encoding import encode
from unmask.data.rows import Integers, RowBatch
from unmask.data.token_rows import TokenRows
from unmask.data.tokenizers import vocabulary_size
from unmask.doctor.machine import CheckResult, at_most, not_applicable, not_made
from unmask.errors import UnmaskError
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
"""Tokens of a text that nobody gave: enough to have neighbours, few enough for 256 canvases on a laptop."""
PADS = 5


@dataclass(frozen=True)
class CheckpointCheck:
    """A model and `ids` [L] of a text, of which the positions `open` [L] are masked and the others given.

    `text` is None where the tokens were drawn at random, since nothing better could be had.
    """

    lm: MaskedDiffusionLM
    ids: Tensor
    open: Tensor
    text: str | None

    @property
    def config(self) -> Any:
        """What the network says about itself."""
        return self.lm.denoiser.config

    @property
    def canvas(self) -> Tensor:
        """[L] what the network is shown: for a masked one, the open positions masked; for a causal one, the text."""
        return self.ids if self.lm.causal else self.ids.masked_fill(self.open, self.config.mask_token_id)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the network's weights."""
        return self.lm.denoiser.dtype

    def rows(self, ids: Tensor, attention: Tensor | None = None) -> Tensor:
        """Hidden rows of canvases [B, L], half of whose tokens are said to be visible where the network asks."""
        denoiser = self.lm.denoiser
        seen = None if attention is None else attention.to(self.lm.device)
        alpha = {} if self.lm.causal else {"alpha": torch.full((len(ids),), 0.5, device=self.lm.device)}
        with torch.no_grad():
            return denoiser.hidden(ids.to(self.lm.device), attention_mask=seen, **alpha)

    def logits(self, ids: Tensor, attention: Tensor | None = None) -> Tensor:
        """[B, L, V] in float32 on the CPU, with an ordinary logit for the mask token."""
        with torch.no_grad():
            return self.lm.denoiser.head(self.rows(ids, attention), mask_logit=True).float().cpu()

    def strangers(self, count: int, length: int | None = None) -> Tensor:
        """[count, length] other tokens of the vocabulary, drawn at random."""
        return random_tokens(self.lm, count, len(self.ids) if length is None else length, seed=1)


def admit(lm: MaskedDiffusionLM, text: str | None = None) -> CheckpointCheck:
    """A patient with a text that was given, else with one that the model writes, else with random tokens."""
    if text is not None:
        ids = _given(lm, text)
    else:
        text, ids = _own(lm)
    return CheckpointCheck(lm, torch.tensor(ids), _spread(len(ids)), text)


def about(lm: MaskedDiffusionLM) -> dict[str, Any]:
    """What a checkpoint is: plain values for JSON and for people."""
    config, card = lm.denoiser.config, lm.config
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
        "schedule": describe(card.schedule),
        "objective": describe(card.objective),
        "policy": describe(card.policy),
        "tokenizer": _tokenizer(lm.tokenizer),
        "version": card.version,
        "steps": _steps(lm.path),
    }


def random_tokens(lm: MaskedDiffusionLM, count: int, length: int, seed: int = 0) -> Tensor:
    """[count, length] tokens of the vocabulary, the mask never among them."""
    sample, position = torch.arange(count)[:, None], torch.arange(length)
    u = uniform(seed, Purpose.TOKEN, sample=sample, position=position)
    ids = (u * (lm.denoiser.config.vocab_size - 1)).long()
    return ids + (ids >= lm.denoiser.config.mask_token_id)


def _given(lm: MaskedDiffusionLM, text: str) -> list[int]:
    ids = encode(lm.text_processor.tokenizer, [text])[0]
    if not ids:
        raise UnmaskError(f"The text {text!r} has no tokens to look at; give some text, or none.")
    if len(ids) > lm.row_length:
        raise UnmaskError(f"The text has {len(ids)} tokens and a row of this model {lm.row_length}; shorten it.")
    return ids


def _own(lm: MaskedDiffusionLM) -> tuple[str | None, list[int]]:
    """A text that the model writes, as the tokenizer reads it; random tokens where too little comes of that."""
    length = max(1, min(LENGTH, lm.row_length - PADS))
    try:
        text = lm.generate(1, length=length, steps=None if lm.causal else length // 2 or 1)[0]
        ids = encode(lm.text_processor.tokenizer, [text])[0][:length]
    except UnmaskError:
        ids = []
    if len(ids) < min(MAX_OPEN, length):
        return None, random_tokens(lm, 1, length)[0].tolist()
    return text, ids


def _spread(length: int) -> Tensor:
    """[L] True at eight positions spread evenly, or at all if there are fewer."""
    count = min(MAX_OPEN, length)
    open_ = torch.zeros(length, dtype=torch.bool)
    open_[torch.arange(count) * length // count] = True
    return open_


def _tokenizer(tokenizer: Any) -> dict[str, Any] | None:
    if tokenizer is None:
        return None
    return {
        "kind": type(tokenizer.backend_tokenizer.model).__name__,
        "vocabulary": vocabulary_size(tokenizer),
        "mask": tokenizer.mask_token,
        "mask_token_id": tokenizer.mask_token_id,
        "eos": tokenizer.eos_token,
        "eos_token_id": tokenizer.eos_token_id,
    }


def _steps(path: Path | None) -> int | None:
    """The steps after which the weights were saved, where the state of the training still lies beside them."""
    if path is None:
        return None
    try:
        return read_trainer_state(find_latest(path) or path).step
    except UnmaskError:
        return None


NO_TOKENIZER = "the checkpoint has no tokenizer; convert it again with --tokenizer to have one"


def text_survives_the_tokenizer(patient: CheckpointCheck) -> CheckResult:
    """Encoded, decoded and encoded again, a text has the same tokens."""
    name = "text survives the tokenizer"
    if patient.lm.tokenizer is None:
        return not_applicable(name, NO_TOKENIZER)
    if patient.text is None:
        return not_applicable(name, "the tokens were drawn at random and stand for no text; give one with --text")
    ids = encode(patient.lm.text_processor.tokenizer, [patient.text])[0]
    again = patient.lm.text_processor.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    back = encode(patient.lm.text_processor.tokenizer, [again])[0]
    changed = sum(a != b for a, b in zip(ids, back, strict=False)) + abs(len(ids) - len(back))
    exactly = "the text comes back exactly" if again == patient.text else "spacing or case of the text does not survive"
    words = f"{exactly}; tokens of {len(ids)} that change on the way"
    return at_most(name, changed, 0, words, "use the tokenizer that the network was trained with, with its own decoder")


def mask_token_is_one(patient: CheckpointCheck) -> CheckResult:
    """Tokenizer and network mean the same id by the mask."""
    name = "mask token is one"
    if patient.lm.tokenizer is None:
        return not_applicable(name, NO_TOKENIZER)
    theirs, ours = patient.lm.tokenizer.mask_token_id, patient.config.mask_token_id
    words = f"tokenizer says {theirs}, config.json {ours}"
    remedy = "put the tokenizer of the training run into the folder, or set mask_token_id in config.json to its mask"
    return CheckResult(name, theirs == ours, None, None, words, remedy)


def vocabulary_fits(patient: CheckpointCheck) -> CheckResult:
    """The network has a row for every token of the tokenizer."""
    name = "vocabulary fits"
    if patient.lm.tokenizer is None:
        return not_applicable(name, NO_TOKENIZER)
    size, rows = vocabulary_size(patient.lm.tokenizer), patient.config.vocab_size
    remedy = "put the tokenizer of the training run into the folder"
    return at_most(name, size, rows, "tokens of the tokenizer, at most the rows of the network", remedy)


def card_fits(patient: CheckpointCheck) -> CheckResult:
    """What unmask.json says can be done with this network and this tokenizer."""
    card, config, tokenizer = patient.lm.config, patient.config, patient.lm.tokenizer
    wrong = []
    if card.length > config.max_length:
        wrong.append(f"rows of {card.length} tokens for a network of {config.max_length}")
    if not patient.lm.causal and getattr(config, "mask_logit", False) != card.objective.needs_mask_logit:
        wrong.append(f"mask_logit={getattr(config, 'mask_logit', False)} for the objective {card.objective.name}")
    if card.policy.supervises_padding and tokenizer is not None and tokenizer.eos_token_id is None:
        wrong.append(f"the policy {card.policy.name} for a tokenizer without EOS")
    words = "; ".join(wrong) or "length, objective and policy suit network and tokenizer"
    return CheckResult("card fits", not wrong, None, None, words, "correct unmask.json, or convert or train again")


TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""How far logits may move with the shape of a batch, relative to the largest (or to 1, if that is more).

Another shape means another order of summation: in float32, whose unit is 1.2e-7, a few units in every layer, 1e-6 to
1e-5 in all. Half precision rounds the activations after every layer (units 1e-3 and 8e-3), so a dozen units must be
allowed there.
"""


def weights_are_finite(patient: CheckpointCheck) -> CheckResult:
    """No weight is NaN or infinite."""
    bad = {
        name: int((~parameter.isfinite()).sum())
        for name, parameter in patient.lm.denoiser.named_parameters()
        if not parameter.isfinite().all()
    }
    where = f", the first in {next(iter(bad))}" if bad else ""
    remedy = "go back to an earlier checkpoint of the run; lower learning_rate or clip if it happens again"
    return at_most("weights are finite", sum(bad.values()), 0, f"weights that are not finite{where}", remedy)


def logits_are_finite(patient: CheckpointCheck) -> CheckResult:
    """Every logit is finite, the mask token's own among them."""
    bad = int((~patient.logits(patient.canvas[None]).isfinite()).sum())
    remedy = "look at the weights; in half precision, try float32"
    return at_most("logits are finite", bad, 0, "logits that are not finite", remedy)


def answer_is_the_same_twice(patient: CheckpointCheck) -> CheckResult:
    """Asked the same again, after something else, the network says the same."""
    first = patient.logits(patient.canvas[None])[0]
    patient.logits(patient.strangers(1))
    moved, limit = _moved(patient, first)
    remedy = "look for dropout that is left on, and for state that is kept between calls"
    return at_most("answer is the same twice", moved, limit, "most that a logit moves when asked again", remedy)


def mask_is_excluded(patient: CheckpointCheck) -> CheckResult:
    """The head that samplers and SUBS use gives the mask token probability 0, exactly."""
    name = "mask is excluded"
    if patient.lm.config.objective.needs_mask_logit:
        return not_applicable(name, f"the objective {patient.lm.config.objective.name} lets it into the softmax")
    with torch.no_grad():
        p = patient.lm.denoiser.head(patient.rows(patient.canvas[None])).float().softmax(dim=-1)
    most = float(p[..., patient.config.mask_token_id].max())
    remedy = "let head(rows) put minus infinity at config.mask_token_id"
    return at_most(name, most, 0, "probability of the mask token", remedy)


def company_does_not_matter(patient: CheckpointCheck) -> CheckResult:
    """A text has the same logits alone and between other texts."""
    others = patient.strangers(3)
    together = torch.cat([others[:1], patient.canvas[None], others[1:]])
    moved, limit = _moved(patient, patient.logits(together)[1])
    remedy = "look for what mixes rows of a batch: normalisation or means over it"
    return at_most("company does not matter", moved, limit, "most that a logit moves in a batch of four texts", remedy)


def pads_do_not_matter(patient: CheckpointCheck) -> CheckResult:
    """A text has the same logits with pads behind it, whatever stands there: the attention mask hides them."""
    name = "pads do not matter"
    count = min(PADS, patient.config.max_length - len(patient.ids))
    if count < 1:
        return not_applicable(name, f"the text fills all {patient.config.max_length} positions; give a shorter one")
    padded = torch.cat([patient.canvas, patient.strangers(1, count)[0]])[None]
    attention = torch.arange(padded.shape[1])[None] < len(patient.ids)
    moved, limit = _moved(patient, patient.logits(padded, attention)[0, : len(patient.ids)])
    words = f"most that a logit moves with {count} pads on the right"
    return at_most(name, moved, limit, words, "hand the attention mask on to attention, False at pads")


def _moved(patient: CheckpointCheck, logits: Tensor) -> tuple[float, float]:
    """How far logits [L, V] are from those of the canvas alone, and how far they may be."""
    alone = patient.logits(patient.canvas[None])[0]
    return float((logits - alone).abs().max()), TOLERANCE[patient.dtype] * max(1.0, float(alone.abs().max()))


OFFSETS, PASSES = 32, 4
ROUNDING = 1e-6
CLOCK = 1e-3
"""A conditioned network sees the clock, which is held as a polynomial: likelihood and bound are known to this share."""
WHICH_CODE = "the code differs from the mathematics: run 'unmask doctor' for the laws and report what it says"


class HeldOpen(TokenRows):
    """A table of one row, of which only the open positions are counted."""

    def __init__(self, ids: Tensor, open_: Tensor) -> None:
        super().__init__(Tokens.of([ids.tolist()]), len(ids), None, None)
        self._frozen = (~open_).numpy()
        self.counted = int(open_.sum())

    def __len__(self) -> int:
        return 1

    def _read(self, rows_B: Integers) -> RowBatch:
        ids_BL = self._ids[None].repeat(len(rows_B), axis=0)
        real_BL = ids_BL >= 0
        return RowBatch(ids_BL, real_BL, 0 * ids_BL, self._frozen[None].repeat(len(rows_B), axis=0))


class Masked:
    """The checks of a masked denoiser. They share one enumeration of its canvases."""

    def __init__(self, patient: CheckpointCheck) -> None:
        self.patient = patient
        self._made: dict[tuple[str, int], Bound] = {}

    @cached_property
    def exact(self) -> AnyOrder:
        """Likelihood and bound of the text without noise, by the subset recursion."""
        return exact.any_order(self.patient.lm.denoiser, self.patient.ids[None], self.patient.open)

    def bound_is_above_the_likelihood(self) -> CheckResult:
        """The mean over all orders, enumerated, is not below -log p, enumerated (law 1)."""
        nll, nats = float(self.exact.nll), float(self.exact.bound)
        count = int(self.patient.open.sum())
        size = f"{count} positions open, {self.exact.canvases:,} canvases"
        words = f"-log p = {nll:.4f} exactly, bound {nats:.4f} ({size}); nats by which the bound is below"
        share = CLOCK if self.patient.config.conditioned else ROUNDING
        remedy = "a probability is no number: look at weights and logits"
        return at_most("bound is above the likelihood", nll - nats, share * max(nats, 1.0), words, remedy)

    def mask_count_finds_the_bound(self) -> CheckResult:
        """The estimator that counts, as `unmask score` runs it, is the enumerated bound but for its noise."""
        nats = float(self.exact.bound)
        made, apart = self._settled("mask-count", MaskCount(), lambda estimate: abs(estimate - nats))
        words = f"{_figure(made)} in {made.draws} draws, the bound {nats:.4f}; standard errors between them"
        return at_most("mask count finds the bound", apart, AGREEMENT, words, WHICH_CODE)

    def estimates_are_above_the_likelihood(self) -> CheckResult:
        """What `unmask score` prints for this checkpoint is not below -log p by more than its error."""
        name, objective = "estimates are above the likelihood", self.patient.lm.config.objective
        if why := _other_process(objective):
            return not_applicable(name, why)
        nll = float(self.exact.nll)
        estimators = objective.estimators().items()
        made = [self._settled(label, one, lambda estimate: nll - estimate) for label, one in estimators]
        shown = ", ".join(f"{estimate.estimator} {_figure(estimate)}" for estimate, _ in made)
        worst = max(below for _, below in made)
        return at_most(name, worst, AGREEMENT, f"{shown}; standard errors below -log p", WHICH_CODE)

    def _settled(self, label: str, estimator: Objective, off: Callable[[float], float]) -> tuple[Bound, float]:
        """An estimate, and by how many of its standard errors it is `off`. One that looks wrong is drawn once more.

        The 1/t of continuous time has tails so heavy that a sound estimate looks wrong once in two hundred times.
        """
        for seed in (0, 1):
            made = self._estimate(label, estimator, seed)
            errors = off(made.nats) / max(made.mc_stderr, 0.1 * TOLERANCE[self.patient.dtype] * max(made.nats, 1.0))
            if errors <= AGREEMENT:
                break
        return made, errors

    def _estimate(self, label: str, estimator: Objective, seed: int) -> Bound:
        if (label, seed) not in self._made:
            lm, rows = self.patient.lm, HeldOpen(self.patient.ids, self.patient.open)
            options: dict[str, Any] = {"name": label, "seed": seed, "offsets": OFFSETS, "passes": PASSES}
            self._made[label, seed] = estimate_bound(lm.denoiser, estimator, lm.config.schedule, rows, **options)
        return self._made[label, seed]


def score_is_the_sum_of_conditionals(patient: CheckpointCheck) -> CheckResult:
    """One pass over a text gives a causal network the nats of its prefixes, each read alone."""
    ids, open_ = patient.ids[None].to(patient.lm.device), patient.open
    with eval_mode(patient.lm.denoiser):
        alone = exact.left_to_right_nll(patient.lm.denoiser, ids, open_)[0]
    scored = _scored(patient, patient.ids)
    counted = open_ & ((torch.arange(len(open_)) > 0) | (patient.config.bos_token_id is not None))
    apart = float((scored - alone).abs()[counted].max())
    words = f"-log p = {float(alone[counted].sum()):.4f} exactly ({int(counted.sum())} positions open)"
    words += "; most nats between one pass and prefixes alone"
    remedy = "a position sees what comes after it: look at the causal mask"
    return at_most("score is the sum of conditionals", apart, _rounding(patient, scored), words, remedy)


def generation_agrees_with_score(patient: CheckpointCheck) -> CheckResult:
    """What a causal network writes, with its cache, has the probability that scoring gives it without one."""
    name = "generation agrees with score"
    written = torch.arange(len(patient.ids)) >= max(1, len(patient.ids) - int(patient.open.sum()))
    if not written.any():
        return not_applicable(name, "the text has one token only; give a longer one")
    start = patient.ids.masked_fill(written, patient.config.mask_token_id)[None].to(patient.lm.device)
    done = sample(patient.lm.sampler(), patient.lm.denoiser, Canvas.of(start, patient.config.mask_token_id))
    said = -done.confidence[0].double().log().cpu()
    scored = _scored(patient, done.ids[0].cpu())
    apart = float((said - scored).abs()[written].max())
    words = f"{int(written.sum())} tokens written; most nats between the two at one of them"
    return at_most(name, apart, _rounding(patient, scored), words, "look at the key-value cache and its positions")


def _scored(patient: CheckpointCheck, ids: Tensor) -> Tensor:
    """[L] nats of a text at every position, by the objective of the card."""
    batch = Batch.of(ids[None]).to(patient.lm.device)
    noise = Noise(torch.full((1,), 0.5), torch.full((1, len(ids)), 0.5))
    with eval_mode(patient.lm.denoiser):
        terms = patient.lm.config.objective.loss(patient.lm.denoiser, batch, patient.lm.config.schedule, noise)
    return terms.nelbo[0].double().cpu()


def _rounding(patient: CheckpointCheck, nats: Tensor) -> float:
    return TOLERANCE[patient.dtype] * max(1.0, float(nats.max()))


def _other_process(objective: Objective) -> str:
    """Why the bound of an objective is not one of generation in uniform order, one position at a time; '' if it is."""
    estimators = objective.estimators().values()
    if any(one.needs_mask_logit or one.needs_visible_rows for one in estimators):
        return f"{describe(objective)} bounds another process, with the mask in its softmax or visible tokens rewritten"
    if any(getattr(one, "steps", None) is not None for one in estimators):
        return f"{describe(objective)} bounds a process of a few steps, in which tokens are written together"
    return ""


def _figure(made: Bound) -> str:
    return f"{made.nats:.4f} ± {made.mc_stderr:.4f}"


Check = Callable[[], CheckResult]


def checks(patient: CheckpointCheck) -> list[Check]:
    """Every check that is asked of a patient, those of its kind of network last."""
    shared = (
        weights_are_finite,
        logits_are_finite,
        answer_is_the_same_twice,
        mask_is_excluded,
        company_does_not_matter,
        pads_do_not_matter,
        text_survives_the_tokenizer,
        mask_token_is_one,
        vocabulary_fits,
        card_fits,
    )
    return [partial(check, patient) for check in shared] + _likelihoods(patient)


def examine(patient: CheckpointCheck) -> Iterator[CheckResult]:
    """Make every check; one that breaks off is a finding too."""
    for check in checks(patient):
        try:
            yield check()
        except Exception as error:
            yield not_made(_name(check), error)


def _likelihoods(patient: CheckpointCheck) -> list[Check]:
    if patient.lm.causal:
        causal = (score_is_the_sum_of_conditionals, generation_agrees_with_score)
        return [partial(check, patient) for check in causal]
    masked = Masked(patient)
    return [
        masked.bound_is_above_the_likelihood,
        masked.mask_count_finds_the_bound,
        masked.estimates_are_above_the_likelihood,
    ]


def _name(check: Check) -> str:
    function = check.func if isinstance(check, partial) else check
    return function.__name__.replace("_", " ")
