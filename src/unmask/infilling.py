"""Texts with blanks: lengths of open blanks, probabilities of given answers, and what edits and rewrites mask."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, product, takewhile
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor

from unmask.constraints.automaton import Automaton
from unmask.constraints.members import Banned, CompiledConstraints, Constraint, Constraints, as_constraints
from unmask.constraints.vocabulary import Vocabulary
from unmask.data.encoding import encoder_of
from unmask.errors import UnmaskError
from unmask.models.inference import device_of
from unmask.objectives.base import Noise
from unmask.objectives.subs import MaskCount
from unmask.process import Batch
from unmask.random import Purpose, uniform
from unmask.schedules import Schedule, low_discrepancy, van_der_corput
from unmask.text_processor import (
    BLANK,
    REPLACEMENT,
    PieceReader,
    Template,
    TextProcessor,
    blank_size,
    check_text,
    is_open,
    known_size,
)

MAX_JOINT_COMBINATIONS = 64
"""Up to this many combinations, the lengths of several blanks are chosen jointly."""
MAX_COMBINATIONS = MAX_JOINT_COMBINATIONS**2
"""Combinations searched for one that satisfies the constraint."""
DRAWS, FIRST_DRAWS = 16, 4
"""Draws of the bound per candidate; after the first ones, the best quarter of the candidates gets the rest."""
ROWS_PER_CALL = 64
EDIT_PASSES = 8
"""Rows that score the tokens of a text: row g masks the tokens g, g + 8, g + 16, ..."""
DEFAULT_STRENGTH = 0.3
ANSWER_OFFSETS, ANSWER_PASSES = 16, 4
"""Independent draws of the bound of an answer, and stratified network passes of each."""

Nats = Callable[[list[Template], range], list[float]]
"""(templates, draws): the bound of the known tokens of each template, summed over the draws."""
Span = tuple[int, int]


# ---- blanks of open length ------------------------------------------------------------------------------------------


class TemplateLayout:
    """Turns templates into rows of token ids.

    A blank of open length gets the length that makes the known tokens most likely, among those with which the row can
    satisfy the constraint.
    """

    def __init__(self, processor: TextProcessor, denoiser: Any, constraint: Constraints) -> None:
        self.processor, self.denoiser = processor, denoiser
        self._compiled = cache(partial(_compile, processor, constraint))

    def prompt_row(self, prompt: Template, suffix: Template, length: int) -> list[int]:
        """Prompt, masks and suffix, `length` tokens in all."""
        row = self.processor.prompt_row

        @cache
        def suffixes() -> list[list[int]]:
            every = combinations(suffix, self._room(suffix, length)) if is_open(suffix) else [suffix]
            return [self.processor.join(one, length) for one in every]

        shortest = known_size(suffix) + sum(
            part.start if isinstance(part, range) else part for part in suffix if not isinstance(part, list)
        )
        head = self._with_lengths(
            prompt,
            length,
            lambda ids: [row(ids, tail, length) for tail in suffixes() if len(ids) + len(tail) <= length],
            reserved=shortest,
        )
        tail = self._with_lengths(suffix, length, lambda ids: [row(head, ids, length)], reserved=len(head))
        return row(head, tail, length)

    def text_row(self, template: Template) -> list[int]:
        """The row of a whole text."""
        row = self.processor.text_row
        return row(self._with_lengths(template, self.processor.max_length, lambda ids: [row(ids)]))

    def _with_lengths(
        self, template: Template, room: int, rows: Callable[[list[int]], list[list[int]]], reserved: int = 0
    ) -> list[int]:
        """Token ids of a template once all its blanks have a length.

        `rows` are the rows that ids may become, one of which must satisfy the constraint; `reserved` of the `room` is
        left to other tokens.
        """
        if is_open(template):
            constraints = self._compiled(room)

            def unended(candidate: Template) -> list[list[int]]:
                return [self.processor.without_eos(row) for row in rows(self.processor.join(candidate))]

            def accepts(candidate: Template) -> bool:
                return constraints is None or any(map(constraints.accept, unended(candidate)))

            def reason(candidate: Template) -> str:
                return "" if constraints is None else constraints.reason(unended(candidate)[-1])

            free = self._room(template, room - reserved)
            template = choose_lengths(template, self._known_nats, free, accepts, reason)
        return self.processor.join(template, room)

    def _known_nats(self, candidates: list[Template], draws: range) -> list[float]:
        processor, draw = self.processor, torch.tensor(draws, device=device_of(self.denoiser))
        schedule = processor.config.schedule
        return [known_nats(self.denoiser, schedule, processor, processor.join(one), draw) for one in candidates]

    def _room(self, template: Template, room: int) -> int:
        """Tokens that the blanks of a template may have."""
        return min(room, self.processor.max_length) - known_size(template)


def _compile(processor: TextProcessor, constraint: Constraints, longest: int) -> CompiledConstraints | None:
    if constraint is None:
        return None
    return CompiledConstraints(as_constraints(constraint), processor.vocabulary, longest, processor.max_length)


def choose_lengths(
    template: Template,
    nats: Nats,
    room: float = math.inf,
    accepts: Callable[[Template], bool] = lambda _: True,
    reason: Callable[[Template], str] = lambda _: "",
) -> Template:
    """Give every blank the length with the lowest bound of the known tokens, at most `room` tokens in all.

    Few combinations are compared jointly; otherwise one blank after the other, from the left, with the blanks to its
    right as short as possible. `reason` says why a template is not accepted.
    """
    candidates = combinations(template, room)
    accepted = filter(accepts, candidates)
    chosen, count = next(accepted, None), math.prod(map(len, _choices(template)))
    if chosen is None and count > MAX_COMBINATIONS:
        raise UnmaskError(
            f"None of the first {MAX_COMBINATIONS} combinations of blank lengths satisfies the constraint; narrow the "
            "ranges."
        )
    if chosen is None:
        longest = max(candidates, key=blank_size)
        raise UnmaskError(f"No length of the blanks satisfies the constraint; with the longest: {reason(longest)}")
    if count <= MAX_JOINT_COMBINATIONS:
        return _best([chosen, *accepted], nats)
    for place, part in enumerate(template):
        if isinstance(part, range):
            tried: list[Template] = [[*chosen[:place], one, *chosen[place + 1 :]] for one in part]
            chosen = _best([one for one in tried if blank_size(one) <= room and accepts(one)], nats)
    return chosen


def combinations(template: Template, room: float) -> list[Template]:
    """The template with all lengths of its blanks that fit, shortest first, among the first `MAX_COMBINATIONS`."""
    every = islice(product(*_choices(template)), MAX_COMBINATIONS)
    fitting = [list(one) for one in every if blank_size(list(one)) <= room]
    if not fitting:
        longest = max((part for part in template if isinstance(part, range)), key=lambda part: part.start)
        blank = f"[MASK:{longest.start}-{longest.stop - 1}]"
        raise UnmaskError(f"There is room for {max(0, room)} tokens in blanks, too few for {blank}; shorten the text.")
    return fitting


def _choices(template: Template) -> list[Any]:
    return [list(part) if isinstance(part, range) else [part] for part in template]


def _best(candidates: list[Template], nats: Nats) -> Template:
    if len(candidates) == 1:
        return candidates[0]
    first = nats(candidates, range(FIRST_DRAWS))
    best = sorted(range(len(candidates)), key=first.__getitem__)[: max(2, math.ceil(len(candidates) / 4))]
    others = nats([candidates[i] for i in best], range(FIRST_DRAWS, DRAWS))
    total = {i: first[i] + more for i, more in zip(best, others, strict=True)}
    return candidates[min(total, key=total.__getitem__)]


@torch.no_grad()
def known_nats(denoiser: Any, schedule: Schedule, processor: TextProcessor, ids: list[int], draws: Tensor) -> float:
    """The bound of the known tokens of a text while its blanks stay masked, summed over draws [R].

    The random numbers of a known token do not depend on the length of the blanks before it. EOS tokens that the length
    policy appends are not counted.
    """
    row = torch.tensor(processor.text_row(ids), device=draws.device)
    known = (row != processor.mask_token_id) & (torch.arange(len(row), device=draws.device) < len(ids))
    number = known.cumsum(dim=0) - 1
    total = 0.0
    for draw in draws.split(ROWS_PER_CALL):
        u = uniform(0, Purpose.MASK, draw[:, None], position=number[None])
        noise = Noise((van_der_corput(DRAWS, draw.device)[draw % DRAWS] + 0.5) / DRAWS, u)
        batch = Batch.of(row.expand(len(draw), -1), frozen=~known.expand(len(draw), -1))
        total += float(MaskCount().loss(denoiser, batch, schedule, noise).total)
    return total


# ---- given answers --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """An answer with its probability among all given answers and the Monte-Carlo error of that.

    `nats` is -log p(answer | the rest of the text), or a bound on it unless `exact`.
    """

    text: str
    probability: float
    error: float
    nats: float
    exact: bool


def split_at_blank(text: Any, choices: Any) -> tuple[str, str]:
    """The text before and after its only blank, which must be [MASK]; checks the answers too."""
    parts = BLANK.split(check_text(text))
    if len(parts) != 3 or parts[1] not in (None, "1"):
        raise UnmaskError(f"The text must have one [MASK] where the answers stand, got {text!r}.")
    distinct = set(map(str, choices)) if isinstance(choices, Sequence) and not isinstance(choices, str) else ()
    if len(distinct) < 2 or len(distinct) < len(choices):
        raise UnmaskError(f"choices must be a list of at least two different answers, got {choices!r}.")
    for choice in choices:
        if not check_text(choice).strip():
            raise UnmaskError(f"An answer must not be empty, got {choice!r}.")
    return parts[0], parts[2]


def answer_rows(processor: TextProcessor, text: str, choices: Sequence[str]) -> list[tuple[list[int], range]]:
    """The row of the text with each answer, and the positions of the answer in it."""
    before, after = split_at_blank(text, choices)
    answers = list(choices)
    if processor.has_leading_spaces and before.endswith(" "):
        before, answers = before[:-1], [f" {answer.lstrip(' ')}" for answer in answers]
    head, tail, *ids = processor.encode([before, after, *answers])
    rows = []
    for one, choice in zip(ids, choices, strict=True):
        if not one:
            raise UnmaskError(f"The answer {choice!r} has no tokens; give another.")
        rows.append((processor.text_row([*head, *one, *tail]), range(len(head), len(head) + len(one))))
    return rows


@torch.no_grad()
def answer_nats(
    denoiser: Any, schedule: Schedule, processor: TextProcessor, rows: list[tuple[list[int], range]], seed: int
) -> Tensor:
    """[offsets, choices] -log p of each answer, the same in all offsets for answers of one token.

    Those are read from one network call. The bounds of longer answers have common random numbers: token i of every
    answer is masked by the same numbers.
    """
    out = torch.zeros(ANSWER_OFFSETS, len(rows), dtype=torch.float64)
    device = device_of(denoiser)
    if single := [i for i, (_, open_) in enumerate(rows) if len(open_) == 1]:
        row, (place,) = rows[single[0]]
        ids = torch.tensor([[*row[:place], processor.mask_token_id, *row[place + 1 :]]], device=device)
        hidden = denoiser.hidden(ids, alpha=torch.full((1,), 1.0 - 1.0 / len(row), device=device))[:, place]
        log_p = denoiser.head(hidden)[0].double().log_softmax(-1)
        out[:, single] = -log_p[[rows[i][0][place] for i in single]].cpu()
    draw = torch.arange(ANSWER_OFFSETS * ANSWER_PASSES, device=device)
    t = low_discrepancy(uniform(seed, Purpose.OFFSET, draw % ANSWER_OFFSETS), draw // ANSWER_OFFSETS, ANSWER_PASSES)
    for i, (row, open_) in enumerate(rows):
        if len(open_) == 1:
            continue
        position = torch.arange(len(row), device=device)
        u = uniform(seed, Purpose.MASK, draw[:, None], position=position[None] - open_.start)
        frozen = (position < open_.start) | (position >= open_.stop)
        ids = torch.tensor(row, device=device).expand(len(draw), -1)
        batch = Batch.of(ids, frozen=frozen.expand(len(draw), -1))
        nats = MaskCount().loss(denoiser, batch, schedule, Noise(t, u)).nelbo.sum(dim=1)
        out[:, i] = nats.double().view(ANSWER_PASSES, ANSWER_OFFSETS).mean(dim=0).cpu()
    return out


def compare_answers(choices: Sequence[str], nats_RC: Tensor, exact: Sequence[bool]) -> list[Choice]:
    """The probabilities of the answers from draws [R, C] of their nats, with jackknife errors over the draws."""
    mean, count = nats_RC.mean(dim=0), len(nats_RC)
    probability = (-mean).softmax(-1)
    left_out = (-(count * mean - nats_RC) / max(count - 1, 1)).softmax(-1)
    error = ((left_out - left_out.mean(dim=0)).square().sum(dim=0) * (count - 1) / count).sqrt()
    if all(exact):
        error = torch.zeros_like(error)
    return [
        Choice(*values)
        for values in zip(choices, probability.tolist(), error.tolist(), mean.tolist(), exact, strict=True)
    ]


# ---- edits ----------------------------------------------------------------------------------------------------------


def mask_spans(processor: TextProcessor, text: str, ids: list[int], spans: Sequence[Span]) -> list[int]:
    """Mask the tokens of a text that hold a character of one of the spans (start, end), end excluded."""
    are_pairs = isinstance(spans, Sequence) and all(isinstance(span, Sequence) and len(span) == 2 for span in spans)
    if not are_pairs or not all(isinstance(end, Integral) for span in spans for end in span):
        raise UnmaskError(f"spans must be pairs (start, end) of character positions, got {spans!r}.")
    for start, end in spans:
        if not 0 <= start < end <= len(text):
            raise UnmaskError(f"A span must satisfy 0 <= start < end <= {len(text)}, got ({start}, {end}).")
    return [
        processor.mask_token_id if any(first < end and start < last for start, end in spans) else token
        for token, (first, last) in zip(ids, encoder_of(processor.tokenizer).spans(text), strict=True)
    ]


def mask_unlikely(processor: TextProcessor, denoiser: Any, ids: list[int], strength: float) -> list[int]:
    """Mask the fraction `strength` of the tokens, those that the network finds least likely.

    The final punctuation of the text stays, so that an edited sentence still ends.
    """
    if not isinstance(strength, Real) or not 0 < strength <= 1:
        raise UnmaskError(f"strength must be in (0, 1], got {strength!r}.")
    pieces = PieceReader(processor.tokenizer, processor.mask_token_id).read(ids)
    ending = len(list(takewhile(lambda piece: not re.search(r"[\w\uFFFD]", piece or ""), reversed(pieces))))
    log_p = token_log_probs(denoiser, torch.tensor(processor.text_row(ids)), len(ids))
    count = max(1, round(strength * len(ids)))
    chosen = set(log_p[: len(ids) - ending or None].argsort(stable=True)[:count].tolist())
    return [processor.mask_token_id if place in chosen else token for place, token in enumerate(ids)]


@torch.no_grad()
def most_likely_tokens(
    processor: TextProcessor, denoiser: Any, row: list[int], top: int
) -> list[list[tuple[int, float]]]:
    """For every mask of a row, the `top` most likely tokens with their probabilities, from one network call."""
    ids = torch.tensor([row], device=device_of(denoiser))
    masked = ids == processor.mask_token_id
    hidden = denoiser.hidden(ids, alpha=1.0 - masked.float().mean(dim=1))[masked]
    best = denoiser.head(hidden).float().softmax(-1).topk(min(top, processor.vocab_size - 1))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [list(zip(tokens, values, strict=True)) for tokens, values in pairs]


@torch.no_grad()
def token_log_probs(denoiser: Any, row: Tensor, count: int) -> Tensor:
    """[count] log p of each of the first tokens of a row [L], given the tokens that are not masked with it.

    One network call of up to eight rows; row g masks the tokens g, g + 8, g + 16, ...
    """
    device = device_of(denoiser)
    row, passes = row.to(device), min(EDIT_PASSES, count)
    position = torch.arange(len(row), device=device)
    masked = (position % passes == torch.arange(passes, device=device)[:, None]) & (position < count)
    ids = row.expand(passes, -1).masked_fill(masked, denoiser.config.mask_token_id)
    alpha = 1.0 - masked.float().mean(dim=1)
    hidden = denoiser.hidden(ids, alpha=alpha)[position[:count] % passes, position[:count]]
    log_p = denoiser.head(hidden).float().log_softmax(-1)
    return log_p.gather(1, row[:count, None])[:, 0]


# ---- rewrites -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WordBoundary(Constraint):
    """No token at these positions has a letter or digit at its end (`side` -1) or at its beginning (`side` 0)."""

    positions: tuple[int, ...]
    side: Literal[-1, 0]

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        banned = []
        for token, piece in enumerate(vocabulary.token_bytes[1]):
            text = (piece or b"").decode(errors="replace")  # a part of a character, or no text at all, may be a letter
            if token != vocabulary.mask and (not text or text[self.side].isalnum() or text[self.side] == REPLACEMENT):
                banned.append(token)
        return Banned(banned, self.positions).automaton(vocabulary)

    def __repr__(self) -> str:
        return "kept words that stay words"


def mask_around(processor: TextProcessor, text: str, keep: Any) -> tuple[list[int], list[WordBoundary]]:
    """Mask all of a text but the words to keep, wherever they occur; each gap keeps its number of tokens.

    Kept words are encoded separately, with the space before them if tokens begin with spaces. The boundaries forbid
    that a blank continues a kept word that ends in the text.
    """
    words = [keep] if isinstance(keep, str) else keep
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise UnmaskError(f"keep must be a string or a list of strings, got {keep!r}.")
    pieces, at = [], 0
    for start, end in [*_occurrences(processor, text, words), (len(text), len(text))]:
        pieces += [(at, start, False), (start, end, True)]
        at = end
    pieces = [(start, end, kept) for start, end, kept in pieces if end > start]
    if all(kept for _, _, kept in pieces):
        raise UnmaskError("keep covers the whole text, so nothing is left to rewrite; keep less.")
    ids: list[int] = []
    before: list[int] = []
    after: list[int] = []
    encoded = processor.encode([text[start:end] for start, end, _ in pieces])
    for (start, end, kept), tokens in zip(pieces, encoded, strict=True):
        if kept and _is_boundary(text, start, start - 1):
            before.append(len(ids) - 1)
        ids += tokens if kept else [processor.mask_token_id] * len(tokens)
        if kept and _is_boundary(text, end - 1, end):
            after.append(len(ids))
    boundaries = []
    for side, positions in ((-1, before), (0, after)):
        masked = tuple(p for p in positions if 0 <= p < len(ids) and ids[p] == processor.mask_token_id)
        boundaries += [WordBoundary(masked, side)] if masked else []  # type: ignore[arg-type]
    return ids, boundaries


def _occurrences(processor: TextProcessor, text: str, words: Sequence[str]) -> list[Span]:
    """The characters of all occurrences of the words, as spans that neither overlap nor touch."""
    spans = []
    for word in words:
        if not word or word not in text:
            raise UnmaskError(f"keep must consist of words of the text, got {word!r}.")
        for start in range(len(text)):
            if text.startswith(word, start):
                after_space = processor.has_leading_spaces and text[:start].endswith(" ")
                spans.append((start - after_space, start + len(word)))
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _is_boundary(text: str, inside: int, outside: int) -> bool:
    """Whether a word of the text begins or ends between two neighbouring characters."""
    return 0 <= outside < len(text) and text[inside].isalnum() and not text[outside].isalnum()
