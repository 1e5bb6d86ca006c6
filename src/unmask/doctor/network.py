"""Checks of the network itself: finite, closed to the mask token, and blind to company and to pads."""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.doctor.findings import Finding, at_most, not_applicable
from unmask.doctor.patient import PADS, Patient

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""How far logits may move with the shape of a batch, relative to the largest (or to 1, if that is more).

Another shape means another order of summation: in float32, whose unit is 1.2e-7, a few units in every layer, 1e-6 to
1e-5 in all. Half precision rounds the activations after every layer (units 1e-3 and 8e-3), so a dozen units must be
allowed there.
"""


def weights_are_finite(patient: Patient) -> Finding:
    """No weight is NaN or infinite."""
    bad = {
        name: int((~parameter.isfinite()).sum())
        for name, parameter in patient.lm.denoiser.named_parameters()
        if not parameter.isfinite().all()
    }
    where = f", the first in {next(iter(bad))}" if bad else ""
    remedy = "go back to an earlier checkpoint of the run; lower learning_rate or clip if it happens again"
    return at_most("weights are finite", sum(bad.values()), 0, f"weights that are not finite{where}", remedy)


def logits_are_finite(patient: Patient) -> Finding:
    """Every logit is finite, the mask token's own among them."""
    bad = int((~patient.logits(patient.canvas[None]).isfinite()).sum())
    remedy = "look at the weights; in half precision, try float32"
    return at_most("logits are finite", bad, 0, "logits that are not finite", remedy)


def answer_is_the_same_twice(patient: Patient) -> Finding:
    """Asked the same again, after something else, the network says the same."""
    first = patient.logits(patient.canvas[None])[0]
    patient.logits(patient.strangers(1))
    moved, limit = _moved(patient, first)
    remedy = "look for dropout that is left on, and for state that is kept between calls"
    return at_most("answer is the same twice", moved, limit, "most that a logit moves when asked again", remedy)


def mask_is_excluded(patient: Patient) -> Finding:
    """The head that samplers and SUBS use gives the mask token probability 0, exactly."""
    name = "mask is excluded"
    if patient.lm.card.objective.needs_mask_logit:
        return not_applicable(name, f"the objective {patient.lm.card.objective.name} lets it into the softmax")
    with torch.no_grad():
        p = patient.lm.denoiser.head(patient.rows(patient.canvas[None])).float().softmax(dim=-1)
    most = float(p[..., patient.config.mask_token_id].max())
    remedy = "let head(rows) put minus infinity at config.mask_token_id"
    return at_most(name, most, 0, "probability of the mask token", remedy)


def company_does_not_matter(patient: Patient) -> Finding:
    """A text has the same logits alone and between other texts."""
    others = patient.strangers(3)
    together = torch.cat([others[:1], patient.canvas[None], others[1:]])
    moved, limit = _moved(patient, patient.logits(together)[1])
    remedy = "look for what mixes rows of a batch: normalisation or means over it"
    return at_most("company does not matter", moved, limit, "most that a logit moves in a batch of four texts", remedy)


def pads_do_not_matter(patient: Patient) -> Finding:
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


def _moved(patient: Patient, logits: Tensor) -> tuple[float, float]:
    """How far logits [L, V] are from those of the canvas alone, and how far they may be."""
    alone = patient.logits(patient.canvas[None])[0]
    return float((logits - alone).abs().max()), TOLERANCE[patient.dtype] * max(1.0, float(alone.abs().max()))
