"""An opened checkpoint that writes: every text with its ids, and the order and confidence of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from unmask.editing import opened_up
from unmask.errors import UnmaskError
from unmask.lengths import NOTHING, Demand, combinations, nats_of_known, settle
from unmask.models.planner import no_planner
from unmask.opened import Opened
from unmask.registry import build
from unmask.samplers.base import Sampler
from unmask.samplers.choice import Spec, choose_sampler
from unmask.scribe import Frame, Generation
from unmask.tally import Progress
from unmask.templates import BLANK, Part, PieceReader
from unmask.wishes import Constraints, Wish, check_whole, together
from unmask.writing import Writer


Rows = Callable[[list[int]], list[list[int]]]
"""The canvases that can be made of tokens."""


def with_blank(text: str) -> str:
    """The same text; an error where it has nothing to fill."""
    if isinstance(text, str) and not BLANK.search(text):
        raise UnmaskError(f"The text {text!r} has no blank; mark one with [MASK] or [MASK:n].")
    return text


class Author(Opened):
    """A denoiser that generates, fills, edits and streams; options beyond the named ones are the fields of `Wish`,
    and the words of a token rule (`temperature`, `top_p`, ...) in the place of its `rule`."""

    def sample(
        self,
        n: int = 1,
        *,
        prompt: str = "",
        prompts: Sequence[str] | None = None,
        suffix: str = "",
        length: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        progress: Progress | None = None,
        return_trajectory: bool = False,
        streamer: Any = None,
        order: str | None = None,
        sampler: Spec | None = None,
        **wish: Any,
    ) -> list[Generation]:
        """Like `generate`, with ids, order, confidences and the number of network calls of each sequence.

        Other options are those of `generate`, or a `rule` in the place of `temperature` and so on.
        """
        check_whole(n=n, length=length)
        if n < 1:
            raise UnmaskError(f"n={n} texts cannot be generated; ask for at least one.")
        each = self._open_rows(prompt, prompts, suffix, length, wish.get("constraint"))
        rows = [row for row in each for _ in range(n)]
        writer = self._writer(rows, self.sampler(steps, order, sampler), wish)
        if streamer is not None:
            return writer.tell(seed, streamer, return_trajectory)
        return writer.write(seed, batch_size, progress, return_trajectory)

    def _open_rows(
        self, prompt: str, prompts: Sequence[str] | None, suffix: str, length: int | None, constraint: Constraints
    ) -> list[list[int]]:
        if prompts is not None and prompt:
            raise UnmaskError("There is a prompt and a list of prompts; give one of them.")
        if prompts is not None and (isinstance(prompts, str) or not prompts):
            raise UnmaskError(f"prompts={prompts!r} is no list of texts; give at least one, or a single prompt=.")
        return [self._open_row(one, suffix, length, constraint) for one in (prompts or [prompt])]

    def _open_row(self, prompt: str, suffix: str, length: int | None, constraint: Constraints) -> list[int]:
        """A prompt and a suffix, either with blanks, and masks between them."""
        room = self.scribe.room(length)

        def rows(ids: list[int]) -> list[list[int]]:
            tails = [tail for tail in self._possible(suffix, room)]
            fitting = [tail for tail in tails if len(ids) + len(tail) <= room]
            return [self.scribe.open_ids(ids, room, tail) for tail in fitting or tails[:1]]

        head = self._settled(prompt, room, constraint, rows)
        tail = self._settled(suffix, room, constraint, lambda ids: [self.scribe.open_ids(head, room, ids)])
        return self.scribe.open_ids(head, room, tail)

    def fill_details(
        self,
        texts: Sequence[str],
        *,
        steps: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        order: str | None = None,
        sampler: Spec | None = None,
        **wish: Any,
    ) -> list[Generation]:
        """Like `fill`, with the order and confidence of every token; line i has the seed `seed + i`."""
        chosen = self.sampler(steps, order, sampler)
        if not texts:
            raise UnmaskError("There are no texts to fill; give at least one.")
        rows = [self._blank_row(with_blank(text), wish.get("constraint")) for text in texts]
        return self._writer(rows, chosen, wish).write(seed, batch_size)

    def _blank_row(self, text: str, constraint: Constraints) -> list[int]:
        blank_row = self.scribe.blank_row
        return blank_row(self._settled(text, self.scribe.limit, constraint, lambda ids: [blank_row(ids)]))

    def fill_rows(
        self,
        rows: Sequence[Sequence[int]],
        *,
        steps: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        progress: Progress | None = None,
        order: str | None = None,
        sampler: Spec | None = None,
        **wish: Any,
    ) -> list[Generation]:
        """Like `fill_details` for rows of token ids with masks among them.

        What ends a text must stand in its row; `unmask.data.policies.Policy.frame` puts it there.
        """
        if not rows or not all(map(len, rows)):
            raise UnmaskError("There are no rows to fill, or one without tokens; give at least one, and masks in each.")
        given = [self.scribe.readable(list(row)) for row in rows]
        return self._writer(given, self.sampler(steps, order, sampler), wish).write(seed, batch_size, progress)

    def _settled(self, text: str, room: int, constraint: Constraints, rows: Rows) -> list[int]:
        """The tokens of a text with blanks, each as long as it is to be; all are at most as many as there is room.

        A constraint must leave something to write into one of the `rows` that can be made of them.
        """
        parts = self.scribe.parts(text)
        if any(isinstance(part, range) for part in parts):
            network = self.scribe.goes_on(self.denoiser)
            nats = nats_of_known(network, self.card.schedule, self.scribe, self.device)
            parts = settle(parts, nats, self._spare(parts, room), self._demand(constraint, room, rows))
        return self.scribe.blank_ids(parts, room)

    def _demand(self, constraint: Constraints, room: int, rows: Rows) -> Demand:
        if constraint is None:
            return NOTHING
        bound = self.scribe.bound(constraint, max(room, self.scribe.length))

        def canvases(parts: list[Part]) -> list[list[int]]:
            return rows(self.scribe.blank_ids(parts))

        return Demand(
            lambda parts: any(map(bound.accepts, canvases(parts))), lambda parts: bound.reason(canvases(parts)[-1])
        )

    def _possible(self, text: str, room: int) -> list[list[int]]:
        """The tokens of a text with blanks, for every length that these may have."""
        parts = self.scribe.parts(text)
        return [self.scribe.blank_ids(one, room) for one in combinations(parts, self._spare(parts, room))]

    def _spare(self, parts: Sequence[Part], room: int) -> int:
        """Room for blanks."""
        return min(room, self.scribe.limit) - self.scribe.known(parts)

    def edit_details(
        self,
        text: str,
        *,
        spans: Sequence[tuple[int, int]] | None = None,
        strength: float | None = None,
        keep: str | Sequence[str] | None = None,
        steps: int | None = None,
        seed: int = 0,
        order: str | None = None,
        sampler: Spec | None = None,
        **wish: Any,
    ) -> Generation:
        """Like `edit` and `rewrite`, with the order and confidence of every token."""
        chosen = self.sampler(steps, order, sampler)
        draft = opened_up(self.scribe, self.scribe.goes_on(self.denoiser), text, spans, strength, keep)
        wish["constraint"] = together(wish.get("constraint"), draft.edges)
        (written,) = self._writer([self.scribe.blank_row(draft.ids)], chosen, wish).write(seed, None)
        return written

    def stream(
        self,
        prompt: str = "",
        *,
        suffix: str = "",
        length: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        order: str | None = None,
        sampler: Spec | None = None,
        **wish: Any,
    ) -> Iterator[Frame]:
        """Every canvas of one generation, from the masked one to the text.

        Which of several `particles` is shown is known at the end, so that nothing is shown before. Other options are
        those of `sample`, but that the best of several texts is not shown.
        """
        check_whole(length=length)
        row = self._open_row(prompt, suffix, length, wish.get("constraint"))
        writer = self._writer([row], self.sampler(steps, order, sampler), wish)
        states, reader = writer.show(seed), PieceReader(self.words, self.scribe.mask)
        return (self.scribe.frame(state, reader) for state in states)

    def _writer(self, rows: list[list[int]], sampler: Sampler, wish: dict[str, Any]) -> Writer:
        """Rows that are shorter than the model's may go on behind what is written."""
        short = min(len(row) for row in rows) < self.scribe.length

        def ready(tokens: int) -> Any:
            network = self.ready(tokens)
            return self.scribe.goes_on(network) if short else network

        return Writer(self.scribe, sampler, Wish.of(wish), rows, self.device, ready)

    def sampler(self, steps: int | None = None, order: str | None = None, sampler: Spec | None = None) -> Sampler:
        """The sampler that `generate` uses for these words of a user."""
        if not self.causal:
            chosen = choose_sampler(self.card.schedule, steps, order, sampler, self.card.objective.scores)
            if chosen.needs_planner and getattr(self.denoiser, "planner", None) is None:
                raise no_planner(self.path)
            return chosen
        if steps is not None or order is not None or sampler is not None:
            raise UnmaskError(
                "An autoregressive model writes from left to right, a token a call; steps, order and sampler are for "
                "masked ones."
            )
        return build("sampler", "ar")
