"""Checks that tokenizer, network and card speak of the same tokens and lengths."""

from __future__ import annotations

from unmask.data.tokenizers import encode, vocabulary_size
from unmask.doctor.findings import Finding, at_most, not_applicable
from unmask.doctor.patient import Patient

NO_TOKENIZER = "the checkpoint has no tokenizer; convert it again with --tokenizer to have one"


def text_survives_the_tokenizer(patient: Patient) -> Finding:
    """Encoded, decoded and encoded again, a text has the same tokens."""
    name = "text survives the tokenizer"
    if patient.lm.tokenizer is None:
        return not_applicable(name, NO_TOKENIZER)
    if patient.text is None:
        return not_applicable(name, "the tokens were drawn at random and stand for no text; give one with --text")
    ids = encode(patient.lm.words, [patient.text])[0]
    again = patient.lm.words.decode(ids, clean_up_tokenization_spaces=False)
    back = encode(patient.lm.words, [again])[0]
    changed = sum(a != b for a, b in zip(ids, back, strict=False)) + abs(len(ids) - len(back))
    exactly = "the text comes back exactly" if again == patient.text else "spacing or case of the text does not survive"
    words = f"{exactly}; tokens of {len(ids)} that change on the way"
    return at_most(name, changed, 0, words, "use the tokenizer that the network was trained with, with its own decoder")


def mask_token_is_one(patient: Patient) -> Finding:
    """Tokenizer and network mean the same id by the mask."""
    name = "mask token is one"
    if patient.lm.tokenizer is None:
        return not_applicable(name, NO_TOKENIZER)
    theirs, ours = patient.lm.tokenizer.mask_token_id, patient.config.mask_token_id
    words = f"tokenizer says {theirs}, config.json {ours}"
    remedy = "put the tokenizer of the training run into the folder, or set mask_token_id in config.json to its mask"
    return Finding(name, theirs == ours, None, None, words, remedy)


def vocabulary_fits(patient: Patient) -> Finding:
    """The network has a row for every token of the tokenizer."""
    name = "vocabulary fits"
    if patient.lm.tokenizer is None:
        return not_applicable(name, NO_TOKENIZER)
    size, rows = vocabulary_size(patient.lm.tokenizer), patient.config.vocab_size
    remedy = "put the tokenizer of the training run into the folder"
    return at_most(name, size, rows, "tokens of the tokenizer, at most the rows of the network", remedy)


def card_fits(patient: Patient) -> Finding:
    """What unmask.json says can be done with this network and this tokenizer."""
    card, config, tokenizer = patient.lm.card, patient.config, patient.lm.tokenizer
    wrong = []
    if card.length > config.max_length:
        wrong.append(f"rows of {card.length} tokens for a network of {config.max_length}")
    if not patient.lm.causal and getattr(config, "mask_logit", False) != card.objective.needs_mask_logit:
        wrong.append(f"mask_logit={getattr(config, 'mask_logit', False)} for the objective {card.objective.name}")
    if card.policy.learnt_pads and tokenizer is not None and tokenizer.eos_token_id is None:
        wrong.append(f"the policy {card.policy.name} for a tokenizer without EOS")
    words = "; ".join(wrong) or "length, objective and policy suit network and tokenizer"
    return Finding("card fits", not wrong, None, None, words, "correct unmask.json, or convert or train again")
