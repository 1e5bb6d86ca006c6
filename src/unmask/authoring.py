"""An opened checkpoint that writes: every text with its ids, and the order and confidence of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from unmask.editing import opened_up, tokens
from unmask.errors import UnmaskError
from unmask.layouts import Layout, prompts_of
from unmask.models.planner import no_planner
from unmask.opened import Opened
from unmask.registry import build
from unmask.samplers.base import Sampler
from unmask.samplers.choice import Spec, choose_sampler
from unmask.scribe import Frame, Generation, checked_texts
from unmask.tally import Progress
from unmask.templates import BLANK, PieceReader
from unmask.wishes import (
    Wish,
    check_batch_size,
    check_most,
    check_seeds,
    check_whole,
    check_whole_if_given,
    together,
)
from unmask.writing import Writer, check_alone, check_streamer, check_wish


def with_blank(text: str) -> str:
    """The same text; an error where it has nothing to fill."""
    if not BLANK.search(text):
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
        batches: Callable[[int], None] | None = None,
        return_trajectory: bool = False,
        streamer: Any = None,
        order: str | None = None,
        sampler: Spec | None = None,
        **wish: Any,
    ) -> list[Generation]:
        """Like `generate`, with ids, order, confidences and the number of network calls of each sequence.

        Other options are those of `generate`, or a `rule` in the place of `temperature` and so on. `progress` is told
        after every call what share of the texts it was, which add up to their number, `batches` the size of each batch.
        """
        asked, chosen = self._asked(self.sample, wish, seed), self.sampler(steps, order, sampler)
        check_whole(n=n)
        check_whole_if_given(length=length)
        check_batch_size(batch_size)
        if n < 1:
            raise UnmaskError(f"n={n} texts cannot be generated; ask for at least one.")
        check_most(n=n)
        texts, room = prompts_of(prompt, prompts), self.scribe.room(length)
        check_seeds(seed, n * len(texts))
        if streamer is not None:
            check_streamer(streamer, n * len(texts) * asked.best_of)
        check_wish(asked, self.scribe, chosen, room)
        rows = [row for row in self._layout(asked).open_rows(texts, suffix, length) for _ in range(n)]
        writer = self._writer(rows, chosen, asked, room)
        if streamer is not None:
            return writer.tell(seed, streamer, return_trajectory)
        return writer.write(seed, batch_size, progress, return_trajectory, batches)

    def fill_details(
        self,
        texts: str | Sequence[str],
        *,
        steps: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        progress: Progress | None = None,
        order: str | None = None,
        sampler: Spec | None = None,
        **wish: Any,
    ) -> list[Generation]:
        """Like `fill`, with the order and confidence of every token; line i has the seed `seed + i`."""
        asked, chosen = self._asked(self.fill_details, wish, seed), self.sampler(steps, order, sampler)
        blanks = [with_blank(text) for text in checked_texts(texts, "fill")]
        check_batch_size(batch_size)
        check_seeds(seed, len(blanks))
        check_wish(asked, self.scribe, chosen, self.scribe.length)
        rows = self._layout(asked).blank_rows(blanks)
        return self._writer(rows, chosen, asked).write(seed, batch_size, progress)

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
        if not isinstance(rows, Sequence) or not rows or not all(hasattr(row, "__len__") and len(row) for row in rows):
            raise UnmaskError("There are no rows to fill, or one without tokens; give at least one, and masks in each.")
        asked, chosen = self._asked(self.fill_rows, wish, seed), self.sampler(steps, order, sampler)
        check_batch_size(batch_size)
        check_seeds(seed, len(rows))
        given = [self.scribe.readable(list(row)) for row in rows]
        return self._writer(given, chosen, asked).write(seed, batch_size, progress)

    def edit_details(
        self,
        text: str,
        *,
        spans: Sequence[tuple[int, int]] | None = None,
        strength: float | None = None,
        keep: str | Sequence[str] | None = None,
        steps: int | None = None,
        seed: int = 0,
        progress: Progress | None = None,
        order: str | None = None,
        sampler: Spec | None = None,
        **wish: Any,
    ) -> Generation:
        """Like `edit` and `rewrite`, with the order and confidence of every token."""
        asked, chosen = self._asked(self.edit_details, wish, seed), self.sampler(steps, order, sampler)
        if keep is None:  # the network may be asked what to write anew; kept words bring constraints of their own
            check_wish(asked, self.scribe, chosen, self.scribe.length)
        if keep is spans is None:
            everything = [self.scribe.mask] * len(tokens(self.scribe, text))
            self.scribe.bind(asked.constraint, [self.scribe.blank_row(everything)])
        draft = opened_up(self.scribe, self.scribe.goes_on(self.denoiser), text, spans, strength, keep)
        asked = replace(asked, constraint=together(asked.constraint, draft.edges))
        (written,) = self._writer([self.scribe.blank_row(draft.ids)], chosen, asked).write(seed, None, progress)
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
        asked, chosen = self._asked(self.stream, wish, seed), self.sampler(steps, order, sampler)
        check_whole_if_given(length=length)
        check_alone(asked.best_of, "stream")
        room = self.scribe.room(length)
        check_wish(asked, self.scribe, chosen, room)
        rows = self._layout(asked).open_rows([prompt], suffix, length)
        writer = self._writer(rows, chosen, asked, room)
        states, reader = writer.show(seed), PieceReader(self.words, self.scribe.mask)
        return (self.scribe.frame(state, reader, writer.length) for state in states)

    def _layout(self, asked: Wish) -> Layout:
        return Layout(self.scribe, self.denoiser, self.device, asked.constraint)

    def _asked(self, verb: Callable[..., Any], wish: dict[str, Any], seed: int) -> Wish:
        """What is asked of a verb, as far as it can be judged before there is work."""
        check_seeds(seed)
        return Wish.of(wish, verb)

    def _writer(self, rows: list[list[int]], sampler: Sampler, wish: Wish, length: int | None = None) -> Writer:
        """Rows that are shorter than the model's may go on behind what is written."""
        short = min(len(row) for row in rows) < self.scribe.length

        def ready(tokens: int) -> Any:
            network = self.ready(tokens)
            return self.scribe.goes_on(network) if short else network

        return Writer(self.scribe, sampler, wish, rows, self.device, ready, length)

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
