"""The front door: load a checkpoint, then write texts with it. `Author` tells how they came about, `Opened` scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from unmask.checkpoint import CheckpointConfig, load_checkpoint
from unmask.constraints.particles import repeat_canvas
from unmask.data.rows import Rows
from unmask.errors import UnmaskError
from unmask.generation_config import (
    Constraints,
    GenerationConfig,
    TextScore,
    check_batch_size,
    check_most,
    check_seeds,
    check_whole,
    check_whole_if_given,
    cooled,
    together,
)
from unmask.infilling import TemplateLayout, kept_words, opened_up, prompts_of, tokens
from unmask.likelihood import SCORE_PRECISION, Bound, Evaluation, Progress, count_draws, device_of, evaluate
from unmask.models.dit import missing_planner_error
from unmask.models.inference import Dtype, InferenceEngine, cast_trunk_to_bf16, select_device, select_dtype
from unmask.registry import build
from unmask.samplers.base import Sampler, State
from unmask.samplers.options import (
    SamplerSpec,
    SamplingOptions,
    check_sampling_options,
    choose_sampler,
    configure_sampler,
)
from unmask.samplers.token_sampling import TokenSampler
from unmask.samplers.windows import Windows
from unmask.text_processor import BLANK, Frame, Generation, PieceReader, TextProcessor, checked_texts


def relay(
    states: Iterator[State], text_processor: TextProcessor, streamer: Any, rewrites: bool = False
) -> Iterator[State]:
    """The states of one sequence, told to a streamer on their way.

    The prompt is put first, as `transformers` does. Then, call by call, tokens that stand behind written ones only, up
    to the end of the text; a streamer of diffusion drafts is shown the canvas behind them as well. Where written tokens
    may be masked again (`rewrites`), none stays before the last call.
    """
    told = 0
    for state in states:
        ids = state.ids[0][state.canvas.attention_mask[0]].tolist()
        end, masked = text_processor.text_end(ids), text_processor.mask in ids
        known = min(end, ids.index(text_processor.mask)) if masked else end
        stays = state.call in (0, state.total) or not rewrites
        if state.call == 0 or (stays and known > told):
            streamer.put(torch.tensor(ids[told:known], dtype=torch.int64))
            told = known
        if masked and hasattr(streamer, "put_draft"):
            streamer.put_draft(torch.tensor(ids[told:end], dtype=torch.int64))
        yield state
    streamer.end()


TokenRows = list[list[int]]
Moment = TypeVar("Moment", State, Frame)


class Writer:
    """Writes rows with masks as a user wishes; `ready` gives the network, told how many tokens it will see.

    `length` is how much of a row was asked for, where it may be framed for the network.
    """

    def __init__(
        self,
        text_processor: TextProcessor,
        sampler: Sampler,
        wish: GenerationConfig,
        rows: TokenRows,
        device: torch.device,
        ready: Callable[[int], Any],
        length: int | None = None,
    ) -> None:
        self.text_processor, self.wish, self.rows, self.device = text_processor, wish, rows, device
        self.length = length
        check_wish(wish, text_processor, sampler, max(map(len, rows)))
        self._rewrites = sampler.rewrites
        self.control = self._control()
        begin = configure_sampler(sampler, self.control, device)
        self._walk = partial(begin, ready(self._work(getattr(sampler, "steps", None))))

    def states(self, rows: TokenRows, seed: int, several: int = 1) -> Iterator[State]:
        """Every state of the canvas of some rows, each of them several times."""
        canvas = self.text_processor.canvas(rows, seed, self.device)
        yield from self._walk(repeat_canvas(canvas, several) if several > 1 else canvas)

    def write(
        self,
        seed: int,
        batch_size: int | None,
        progress: Progress | None = None,
        trajectories: bool = False,
        batches: Callable[[int], None] | None = None,
    ) -> list[Generation]:
        """What is written into all rows, some rows at a time."""
        several = self.wish.best_of
        longest = max(len(row) for row in self.rows)
        at_once = batch_size or max(1, self.control.batch_size(longest) // several)
        done: list[Generation] = []
        for start in range(0, len(self.rows), at_once):
            part = self.rows[start : start + at_once]
            states = followed(self.states(part, seed + start, several), len(part), progress)
            written = self._finished(states, trajectories)
            groups = [written[i : i + several] for i in range(0, len(written), several)]
            done += [replace(self._best(group), seed=seed + start + i) for i, group in enumerate(groups)]
            if batches is not None:
                batches(len(part))
        return done

    def tell(self, seed: int, streamer: Any, trajectories: bool = False) -> list[Generation]:
        """What is written into the one row, told to a streamer of `transformers` on the way."""
        return self._finished(relay(self.show(seed), self.text_processor, streamer, self._rewrites), trajectories)

    def show(self, seed: int) -> Iterator[State]:
        """Every state of the one row."""
        return self.states(self.rows, seed)

    def _finished(self, states: Iterator[State], trajectories: bool) -> list[Generation]:
        """What a walk wrote, with all that it looked like on the way if that is asked for."""
        seen: list[list[list[int]]] = []
        for state in states:
            last = state
            if trajectories:
                _remember(seen, state)
        done = self.text_processor.finish(last, self.length)
        if not trajectories:
            return done
        return [
            replace(one, trajectory=[ids[: len(one.ids)] for ids in all_ids])
            for one, all_ids in zip(done, seen, strict=True)
        ]

    def _best(self, group: list[Generation]) -> Generation:
        """The one with the highest score."""
        return group[0] if len(group) == 1 else max(group, key=lambda one: self.wish.score_of(one.text))

    def _control(self) -> SamplingOptions:
        wish, text_processor = self.wish, self.text_processor
        automaton = text_processor.bind(wish.constraint, self.rows)
        if wish.guidance and not all(_given(row, text_processor) for row in self.rows):
            raise UnmaskError(f"guidance={wish.guidance} has nothing to hold to; give a prompt or a suffix.")
        score = self._score_of_canvases if wish.score is not None and wish.particles > 1 else None
        windows, ends_fill = self._windows(), text_processor.config.policy.supervises_padding
        asked = (wish.rule, automaton, wish.particles, wish.guidance, score)
        return SamplingOptions(*asked, windows, text_processor.ends_with, ends_fill)

    def _windows(self) -> Windows | None:
        """How rows that are longer than the model are cut."""
        limit = self.text_processor.limit
        if max(map(len, self.rows)) <= limit:
            return None
        return Windows(limit, self.wish.stride or max(1, limit // 2), self.text_processor.ends_with)

    def _score_of_canvases(self, ids: Tensor, real: Tensor) -> Tensor:
        """[B] the scores of the texts of finished canvases [B, L]."""
        sizes = real.sum(dim=1).tolist()
        texts = [self.text_processor.decode(row[:size]) for row, size in zip(ids.tolist(), sizes, strict=True)]
        return torch.tensor([self.wish.score_of(text) for text in texts], dtype=torch.float64)

    def _work(self, steps: int | None) -> int:
        """Tokens that the network will see in all calls together."""
        wish, limit = self.wish, self.text_processor.limit
        calls = [min(steps or len(row), row.count(self.text_processor.mask)) for row in self.rows]
        seen = sum(min(len(row), limit) * n for row, n in zip(self.rows, calls, strict=True))
        return wish.particles * wish.best_of * (2 if wish.guidance else 1) * seen


def followed(states: Iterator[Moment], texts: int, progress: Progress | None) -> Iterator[Moment]:
    """The same moments of a walk, of so many texts; with each, `progress` is told what share of the texts is new."""
    told = 0.0
    for state in states:
        if progress is not None:
            total = state.calls if isinstance(state, Frame) else state.total
            share = texts * state.call / total if total else texts
            progress(share - told)
            told = share
        yield state


def check_wish(wish: GenerationConfig, text_processor: TextProcessor, sampler: Sampler, longest: int) -> None:
    """Refuse what cannot be done with rows of at most so many tokens, whatever they hold."""
    stride, limit = wish.stride, text_processor.limit
    if stride is not None and text_processor.config.objective.causal:
        raise UnmaskError(f"An autoregressive model is not written window by window; leave out stride={stride}.")
    if stride is not None and not 1 <= stride <= limit:
        raise UnmaskError(f"stride={stride} is not possible; give 1 to {limit}, the length of this model.")
    constrained, scored = wish.constraint is not None, wish.score is not None and wish.particles > 1
    check_sampling_options(sampler, wish.rule, wish.particles, wish.guidance, constrained, scored)
    if longest > limit and (constrained or scored):
        raise UnmaskError(
            f"A constraint or score of a whole canvas of {longest} tokens needs a model that sees it, "
            f"and this one sees {limit}; ask for at most that."
        )


def check_streamer(streamer: Any, count: int) -> None:
    """Whether a streamer can be told of so many texts."""
    check_alone(count, "streamer")
    if not all(hasattr(streamer, verb) for verb in ("put", "end")):
        raise UnmaskError(f"streamer={streamer!r} has no put and end; give one of transformers, as TextStreamer.")


def check_alone(count: int, who: str) -> None:
    """Whether there is one text to be shown."""
    if count != 1:
        raise UnmaskError(f"A {who} shows one text and {count} are to be written; ask for one.")


def _given(row: Sequence[int], text_processor: TextProcessor) -> bool:
    return any(token not in (text_processor.mask, text_processor.end_token) for token in row)


def _remember(seen: list[list[list[int]]], state: State) -> None:
    """Add canvases to what each sequence has looked like: before its first call, and after each of its own."""
    seen += [[] for _ in range(len(state.ids) - len(seen))]
    for past, ids, made in zip(seen, state.ids.tolist(), state.calls_made.tolist(), strict=True):
        if made == len(past):
            past.append(ids)


class Opened:
    """A denoiser, its tokenizer and its config."""

    def __init__(
        self,
        denoiser: Any,
        tokenizer: Any,
        config: CheckpointConfig,
        path: Path | None = None,
        engine: InferenceEngine | None = None,
    ) -> None:
        self.denoiser = denoiser
        self.tokenizer = tokenizer
        self.config = config
        self.path = path
        self.text_processor = TextProcessor(tokenizer, denoiser.config, config)
        self._engine = engine

    @property
    def causal(self) -> bool:
        """Whether this is the autoregressive twin."""
        return self.config.objective.causal

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
    def row_length(self) -> int:
        """Tokens of a row, as the model was trained."""
        return self.text_processor.length

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
        return self.score_details(texts, given, precision=precision, seed=seed, batch_size=batch_size).headline

    def score_details(
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
        rows = self.text_processor.scored_rows(checked_texts(texts, "score"), given)
        options: dict[str, Any] = {"seed": seed, "precision": precision, "batch_size": batch_size}
        return self.evaluate(rows, steps=steps, each=True, progress=progress, **options)

    def evaluate(self, rows: Rows, **options: Any) -> Evaluation:
        """Judge rows of tokens; the options are those of `unmask.likelihood.evaluate`."""
        objective = self.config.objective
        denoiser = self.ready(rows.length * count_draws(objective, rows, len(options.get("steps", ()))))
        return evaluate(denoiser, objective, self.config.schedule, rows, **options)

    def decode(self, ids: list[int]) -> str:
        """The text of a canvas; where the length policy ends a text with EOS, up to the first one."""
        return self.text_processor.decode(ids)


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
        sampler: SamplerSpec | None = None,
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
        texts, room = prompts_of(prompt, prompts), self.text_processor.room(length)
        check_seeds(seed, n * len(texts))
        if streamer is not None:
            check_streamer(streamer, n * len(texts) * asked.best_of)
        check_wish(asked, self.text_processor, chosen, room)
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
        sampler: SamplerSpec | None = None,
        **wish: Any,
    ) -> list[Generation]:
        """Like `fill`, with the order and confidence of every token; line i has the seed `seed + i`."""
        asked, chosen = self._asked(self.fill_details, wish, seed), self.sampler(steps, order, sampler)
        blanks = [with_blank(text) for text in checked_texts(texts, "fill")]
        check_batch_size(batch_size)
        check_seeds(seed, len(blanks))
        check_wish(asked, self.text_processor, chosen, self.text_processor.length)
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
        sampler: SamplerSpec | None = None,
        **wish: Any,
    ) -> list[Generation]:
        """Like `fill_details` for rows of token ids with masks among them.

        What ends a text must stand in its row; `unmask.data.length_policies.Policy.append_eos` puts it there.
        """
        if not isinstance(rows, Sequence) or not rows or not all(hasattr(row, "__len__") and len(row) for row in rows):
            raise UnmaskError("There are no rows to fill, or one without tokens; give at least one, and masks in each.")
        asked, chosen = self._asked(self.fill_rows, wish, seed), self.sampler(steps, order, sampler)
        check_batch_size(batch_size)
        check_seeds(seed, len(rows))
        given = [self.text_processor.readable(list(row)) for row in rows]
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
        sampler: SamplerSpec | None = None,
        **wish: Any,
    ) -> Generation:
        """Like `edit` and `rewrite`, with the order and confidence of every token."""
        asked, chosen = self._asked(self.edit_details, wish, seed), self.sampler(steps, order, sampler)
        if keep is None:  # the network may be asked what to write anew; kept words bring constraints of their own
            check_wish(asked, self.text_processor, chosen, self.text_processor.length)
        if keep is spans is None:
            everything = [self.text_processor.mask] * len(tokens(self.text_processor, text))
            self.text_processor.bind(asked.constraint, [self.text_processor.blank_row(everything)])
        draft = opened_up(self.text_processor, self.text_processor.goes_on(self.denoiser), text, spans, strength, keep)
        asked = replace(asked, constraint=together(asked.constraint, draft.edges))
        (written,) = self._writer([self.text_processor.blank_row(draft.ids)], chosen, asked).write(seed, None, progress)
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
        sampler: SamplerSpec | None = None,
        **wish: Any,
    ) -> Iterator[Frame]:
        """Every canvas of one generation, from the masked one to the text.

        Which of several `particles` is shown is known at the end, so that nothing is shown before. Other options are
        those of `sample`, but that the best of several texts is not shown.
        """
        asked, chosen = self._asked(self.stream, wish, seed), self.sampler(steps, order, sampler)
        check_whole_if_given(length=length)
        check_alone(asked.best_of, "stream")
        room = self.text_processor.room(length)
        check_wish(asked, self.text_processor, chosen, room)
        rows = self._layout(asked).open_rows([prompt], suffix, length)
        writer = self._writer(rows, chosen, asked, room)
        states, reader = writer.show(seed), PieceReader(self.text_processor.tokenizer, self.text_processor.mask)
        return (self.text_processor.frame(state, reader, writer.length) for state in states)

    def _layout(self, asked: GenerationConfig) -> TemplateLayout:
        return TemplateLayout(self.text_processor, self.denoiser, self.device, asked.constraint)

    def _asked(self, verb: Callable[..., Any], wish: dict[str, Any], seed: int) -> GenerationConfig:
        """What is asked of a verb, as far as it can be judged before there is work."""
        check_seeds(seed)
        return GenerationConfig.of(wish, verb)

    def _writer(
        self, rows: list[list[int]], sampler: Sampler, wish: GenerationConfig, length: int | None = None
    ) -> Writer:
        """Rows that are shorter than the model's may go on behind what is written."""
        short = min(len(row) for row in rows) < self.text_processor.length

        def ready(tokens: int) -> Any:
            network = self.ready(tokens)
            return self.text_processor.goes_on(network) if short else network

        return Writer(self.text_processor, sampler, wish, rows, self.device, ready, length)

    def sampler(
        self, steps: int | None = None, order: str | None = None, sampler: SamplerSpec | None = None
    ) -> Sampler:
        """The sampler that `generate` uses for these words of a user."""
        if not self.causal:
            chosen = choose_sampler(self.config.schedule, steps, order, sampler, self.config.objective.predicts_scores)
            if chosen.needs_planner and getattr(self.denoiser, "planner", None) is None:
                raise missing_planner_error(self.path)
            return chosen
        if steps is not None or order is not None or sampler is not None:
            raise UnmaskError(
                "An autoregressive model writes from left to right, a token a call; steps, order and sampler are for "
                "masked ones."
            )
        return build("sampler", "ar")


class MaskedDiffusionLM(Author):
    """A denoiser, its tokenizer and its config. The causal twin comes through the same door; it cannot fill."""

    def generate(
        self,
        n: int = 1,
        *,
        prompt: str = "",
        prompts: Sequence[str] | None = None,
        suffix: str = "",
        length: int | None = None,
        stride: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        greedy_tail: float | None = None,
        greedy_above: float | None = None,
        rule: TokenSampler | None = None,
        batch_size: int | None = None,
        constraint: Constraints = None,
        particles: int = 1,
        order: str | None = None,
        sampler: SamplerSpec | None = None,
        guidance: float = 0.0,
        best_of: int = 1,
        score: TextScore | None = None,
        return_trajectory: bool = False,
        streamer: Any = None,
    ) -> list[Any]:
        """`n` texts (of each of the `prompts`) of `length` tokens, prompt and suffix included (as long as the model's).

        `steps=None` writes one token a call, the exact law; `steps=T` at most T calls a window. Sequence i has the seed
        `seed + i` and does not depend on how many are drawn beside it. What is longer than the model is written in
        windows of its length, each `stride` tokens behind the one before. Every text satisfies the `constraint` (one of
        `unmask.constraints` or several); with many `particles` its law is the model's, given that.

        `guidance=w` takes the logits (1 + w) times those behind the prompt minus w times those without it. `score`, any
        function of a text, chooses the `best_of` several, or weighs `particles`, whose law goes to p exp(score).

        `order` names another order of unmasking (`unmask.samplers.options.Order`), `sampler` any sampler, such as
        `{"name": "remdm", "strategy": "cap"}`. With `return_trajectory` the `Generation`s are returned, each with its
        `trajectory`. A `streamer` of `transformers` is told of a single text while it is written. A `rule` stands for
        `temperature` to `greedy_above`.
        """
        canvas: dict[str, Any] = {"prompt": prompt, "prompts": prompts, "suffix": suffix, "length": length}
        wish: dict[str, Any] = {"constraint": constraint, "particles": particles, "guidance": guidance}
        wish |= {"best_of": best_of, "score": score, "stride": stride, "rule": rule}
        wish |= {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        wish |= {"greedy_tail": greedy_tail, "greedy_above": greedy_above}
        how: dict[str, Any] = {"steps": steps, "seed": seed, "batch_size": batch_size, "streamer": streamer}
        how |= {"order": order, "sampler": sampler}
        done = self.sample(n, **canvas, **how, return_trajectory=return_trajectory, **wish)
        return done if return_trajectory else [one.text for one in done]

    def fill(
        self,
        text: str | Sequence[str],
        *,
        steps: int | None = None,
        seed: int = 0,
        greedy: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        greedy_tail: float | None = None,
        greedy_above: float | None = None,
        rule: TokenSampler | None = None,
        batch_size: int | None = None,
        constraint: Constraints = None,
        particles: int = 1,
        order: str | None = None,
        sampler: SamplerSpec | None = None,
    ) -> str | list[str]:
        """Write the blanks of a text or of several: `[MASK]` is one token, `[MASK:3]` three.

        `[MASK:2-6]` has as many tokens as make the known ones likeliest. A blank with text behind it holds no end of
        the text. `constraint` and `particles` are those of `generate`, on the whole text; so
        are `order` and `sampler`.
        """
        asked: dict[str, Any] = {"constraint": constraint, "particles": particles, "order": order, "sampler": sampler}
        asked |= {"temperature": cooled(greedy, temperature), "top_k": top_k, "top_p": top_p, "min_p": min_p}
        asked |= {"greedy_tail": greedy_tail, "greedy_above": greedy_above, "rule": rule}
        filled = [one.text for one in self.fill_details(text, steps=steps, seed=seed, batch_size=batch_size, **asked)]
        return filled[0] if isinstance(text, str) else filled

    def edit(
        self,
        text: str,
        *,
        spans: Sequence[tuple[int, int]] | None = None,
        strength: float | None = None,
        **how: Any,
    ) -> str:
        """Write a part of a text anew: the tokens of some characters, or the least likely ones.

        `spans`: (start, end) in characters, end not included; tokens that reach beyond are written anew as a whole, and
        an empty list changes nothing. `strength` (0.3): the share of the tokens, those that the network finds least
        likely, as it judges every eighth of them at once from the others. Other options are those of `generate` that
        say how: `steps`, `seed`, `order`, `sampler`, `constraint`, `particles`, `temperature` and so on.
        """
        return self.edit_details(text, spans=spans, strength=strength, **how).text

    def rewrite(self, text: str, keep: str | Sequence[str], **how: Any) -> str:
        """Write all of a text anew but the words to `keep`, wherever they stand in it, with as many tokens between.

        Where a kept word ends in the text, it ends in what is written too. One string is one word, and an empty list
        keeps nothing. Other options are those of `edit`.
        """
        return self.edit_details(text, keep=kept_words(keep), **how).text


def load(
    path: str | Path | None = None, *, device: str | torch.device | None = None, dtype: Dtype = "auto"
) -> MaskedDiffusionLM:
    """Open a checkpoint, on the GPU where there is one: a folder that `unmask train` or `unmask convert` wrote, a model
    that ships with the package by its name, or, where none is named, `stories`.

    `dtype` is what its blocks compute in: by default bf16 on a GPU that has it, as they were trained there.
    """
    where = select_device(device)
    fast = select_dtype(dtype, where)
    opened = load_checkpoint(path)
    network = opened.model.to(where)
    if fast == torch.bfloat16:
        cast_trunk_to_bf16(network)
    engine = InferenceEngine(network) if where.type == "cuda" and not opened.config.objective.causal else None
    return MaskedDiffusionLM(network, opened.tokenizer, opened.config, opened.path, engine)
