"""All checks of a checkpoint, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from unmask.doctor import identity, likelihoods, network
from unmask.doctor.findings import Finding, not_made
from unmask.doctor.patient import Patient

Check = Callable[[], Finding]


def checks(patient: Patient) -> list[Check]:
    """Every check that is asked of a patient, those of its kind of network last."""
    shared = (
        network.weights_are_finite,
        network.logits_are_finite,
        network.answer_is_the_same_twice,
        network.mask_is_excluded,
        network.company_does_not_matter,
        network.pads_do_not_matter,
        identity.text_survives_the_tokenizer,
        identity.mask_token_is_one,
        identity.vocabulary_fits,
        identity.card_fits,
    )
    return [partial(check, patient) for check in shared] + _likelihoods(patient)


def examine(patient: Patient) -> Iterator[Finding]:
    """Make every check; one that breaks off is a finding too."""
    for check in checks(patient):
        try:
            yield check()
        except Exception as error:
            yield not_made(_name(check), error)


def _likelihoods(patient: Patient) -> list[Check]:
    if patient.lm.causal:
        causal = (likelihoods.score_is_the_sum_of_conditionals, likelihoods.generation_agrees_with_score)
        return [partial(check, patient) for check in causal]
    masked = likelihoods.Masked(patient)
    return [
        masked.bound_is_above_the_likelihood,
        masked.mask_count_finds_the_bound,
        masked.estimates_are_above_the_likelihood,
    ]


def _name(check: Check) -> str:
    function = check.func if isinstance(check, partial) else check
    return function.__name__.replace("_", " ")
