"""From a user's words to rows with masks, in which every blank is as long as it is to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import torch

from unmask.errors import UnmaskError
from unmask.lengths import NOTHING, Demand, combinations, nats_of_known, settle
from unmask.scribe import Scribe
from unmask.templates import Part
from unmask.wishes import Constraints

Rows = Callable[[list[int]], list[list[int]]]
"""The rows that can be made of the tokens of a text."""


class Layout:
    """Lays out texts for a network. Of the lengths that a blank may have it takes the likeliest with which a row can
    satisfy the constraint."""

    def __init__(self, scribe: Scribe, denoiser: Any, device: torch.device, constraint: Constraints) -> None:
        self.scribe, self.denoiser, self.device = scribe, denoiser, device
        self._terms = cache(lambda longest: scribe.terms(constraint, longest))

    def open_rows(self, prompts: Sequence[str], suffix: str, length: int | None) -> list[list[int]]:
        """A row for each prompt."""
        self._read([*prompts, suffix])
        return [self.open_row(one, suffix, length) for one in prompts]

    def open_row(self, prompt: str, suffix: str, length: int | None) -> list[int]:
        """A prompt and a suffix, either with blanks, and masks between them."""
        room, row = self.scribe.room(length), self.scribe.open_ids
        tails = cache(lambda: self._possible(suffix, room))

        def with_a_tail(ids: list[int]) -> list[list[int]]:
            return [row(ids, room, tail) for tail in tails() if len(ids) + len(tail) <= room]

        head = self._settled(prompt, room, with_a_tail, beside=self._least(suffix))
        tail = self._settled(suffix, room, lambda ids: [row(head, room, ids)], beside=len(head))
        return row(head, room, tail)

    def blank_rows(self, texts: Sequence[str]) -> list[list[int]]:
        """A row for each text with blanks, framed."""
        self._read(texts)
        return [self._blank_row(text) for text in texts]

    def _blank_row(self, text: str) -> list[int]:
        frame = self.scribe.blank_row
        return frame(self._settled(text, self.scribe.limit, lambda ids: [frame(ids)]))

    def _read(self, texts: Sequence[str]) -> None:
        """Find what is wrong with the blanks of any text before the network is asked about one."""
        for text in texts:
            parts = self.scribe.parts(text)
            if _is_open(parts) and not self.scribe.known(parts):
                raise UnmaskError(
                    "A text of blanks alone does not tell how long they are; give a number, as in [MASK:3]."
                )

    def _settled(self, text: str, room: int, rows: Rows, beside: int = 0) -> list[int]:
        """The tokens of a text with blanks, each as long as it is to be; all are at most as many as there is room, of
        which some is needed `beside` open ones."""
        scribe, parts = self.scribe, self.scribe.parts(text)
        if _is_open(parts):
            nats = nats_of_known(scribe.goes_on(self.denoiser), scribe.card.schedule, scribe, self.device)
            parts = settle(parts, nats, self._spare(parts, room - beside), self._demand(room, rows))
        return scribe.blank_ids(parts, room)

    def _possible(self, text: str, room: int) -> list[list[int]]:
        """The tokens of a text with blanks, for all lengths that these may have, the shortest first."""
        parts = self.scribe.parts(text)
        every = combinations(parts, self._spare(parts, room)) if _is_open(parts) else [parts]
        return [self.scribe.blank_ids(one, room) for one in every]

    def _least(self, text: str) -> int:
        """Tokens of a text whose blanks are as short as they may be."""
        parts = self.scribe.parts(text)
        blanks = (part.start if isinstance(part, range) else part for part in parts if not isinstance(part, str))
        return self.scribe.known(parts) + sum(blanks)

    def _spare(self, parts: Sequence[Part], room: int) -> int:
        """Room for blanks."""
        return min(room, self.scribe.limit) - self.scribe.known(parts)

    def _demand(self, room: int, rows: Rows) -> Demand:
        """Of a text whose blanks have lengths, that one of its rows can satisfy the constraint."""
        terms = self._terms(room)
        if terms is None:
            return NOTHING

        def made_of(parts: list[Part]) -> list[list[int]]:
            return [self.scribe.without_end(row) for row in rows(self.scribe.blank_ids(parts))]

        def fits(parts: list[Part]) -> bool:
            return any(map(terms.accept, made_of(parts)))

        return Demand(fits, lambda parts: terms.reason(made_of(parts)[-1]))


def prompts_of(prompt: str, prompts: Iterable[str] | None) -> list[str]:
    """The one prompt, or all of several."""
    if prompts is None:
        return [prompt]
    if prompt:
        raise UnmaskError("There is a prompt and a list of prompts; give one of them.")
    several = [] if isinstance(prompts, str) or not isinstance(prompts, Iterable) else list(prompts)
    if not several:
        raise UnmaskError(f"prompts={prompts!r} is no list of texts; give at least one, or a single prompt=.")
    return several


def _is_open(parts: Sequence[Part]) -> bool:
    """Whether a blank has several lengths."""
    return any(isinstance(part, range) for part in parts)
