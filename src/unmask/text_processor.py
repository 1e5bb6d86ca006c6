"""Conversion between texts and canvases: parse blanks, encode, decode, and show what each position adds to a text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unmask.constraints.automaton import Automaton
from unmask.constraints.members import Constraints, as_constraints, compile_constraints, masks_before_text
from unmask.constraints.vocabulary import Vocabulary
from unmask.data.encoding import begins_with_spaces, encode
from unmask.data.length_policies import SpecialTokens, rows_given
from unmask.data.rows import Tokens
from unmask.errors import UnmaskError
from unmask.io import reading, time_limit
from unmask.random import is_integer
from unmask.samplers.base import Canvas, State
from unmask.samplers.guidance import BosDenoiser, MaskPaddedDenoiser

if TYPE_CHECKING:
    from unmask.checkpoint import CheckpointConfig
    from unmask.data.rows import Rows

BLANK = re.compile(r"\[MASK(?::([^\]]*))?\]")
GLYPH = "░"
"""Shown for a mask."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MAX_UTF8_BYTES = 4
TEMPLATE_SECONDS = 10.0
"""Time limit of a chat template, which is code from the author of the checkpoint."""
MAX_BLANK_LENGTHS = 64
"""Lengths that one blank of open length may choose from."""

Blank = int | range
"""The number of tokens of a blank, or the numbers that it may have."""
Template = list[list[int] | Blank]
"""A text with blanks: token ids of its known pieces, and the blanks between them."""


@dataclass(frozen=True)
class Generation:
    """A finished sequence.

    `order` is the network call, from 0, that wrote each token (-1: given), `confidence` the probability of each token
    when it was written, and `trajectory`, if requested, the canvas before the first call and after each.
    """

    text: str
    ids: list[int]
    order: list[int]
    confidence: list[float]
    calls: int
    seed: int
    trajectory: list[list[int]] | None = None

    def _repr_html_(self) -> str:
        """The text in a notebook."""
        text = html.escape(self.text)
        return f"<div style='white-space: pre-wrap'>{text}</div><small>{self.calls} calls, seed {self.seed}</small>"


@dataclass(frozen=True)
class Frame:
    """A canvas after `call` of `calls` network calls; `text` shows a block for each mask.

    `calls` is an upper bound if the network decides how many there are. `pieces` is the text of each position, None at
    a mask; the first `end` of them make up `text`.
    """

    text: str
    ids: list[int]
    order: list[int]
    confidence: list[float]
    call: int
    calls: int
    pieces: list[str | None]
    end: int

    def finished(self, seed: int) -> Generation:
        """The last frame of a sampling run as a `Generation`."""
        return Generation(self.text, self.ids, self.order, self.confidence, self.calls, seed)

    def _repr_html_(self) -> str:
        """The canvas in a notebook: tokens from red (unlikely) to teal (likely), masks grey, given tokens plain."""
        spans = []
        for piece, order, p in zip(self.pieces[: self.end], self.order, self.confidence, strict=False):
            colour = "#e4e8ed" if piece is None else f"hsl({170 * p:.0f} 60% 85%)" if order >= 0 else "none"
            spans.append(f"<span style='background: {colour}'>{html.escape(GLYPH if piece is None else piece)}</span>")
        text = "".join(spans)
        return f"<div style='white-space: pre-wrap'>{text}</div><small>call {self.call} of {self.calls}</small>"


class Stream(Iterator[Frame]):
    """The frames of a sampling run. A notebook shows the finished text, after the rest of the calls."""

    def __init__(self, frames: Iterator[Frame]) -> None:
        self._frames = frames
        self._last: Frame | None = None

    def __next__(self) -> Frame:
        self._last = next(self._frames)
        return self._last

    def _repr_html_(self) -> str:
        for _ in self:
            pass
        return "" if self._last is None else self._last._repr_html_()


def parse_blanks(text: str) -> list[str | Blank]:
    """Split a text at its blanks: `[MASK]`, `[MASK:n]` and `[MASK:n-m]`."""
    parts: list[str | Blank] = []
    end = 0
    for match in BLANK.finditer(text):
        blank, numbers = match[0], "1" if match[1] is None else match[1]
        found = re.fullmatch(r"([1-9][0-9]*)(?:-([1-9][0-9]*))?", numbers)
        if found is None:
            raise UnmaskError(f"A blank must be [MASK], [MASK:n] or [MASK:n-m] with n at least 1, got {blank}.")
        low, high = int(found[1]), int(found[2] or found[1])
        if high < low:
            raise UnmaskError(f"The blank {blank} ends before it begins; write it as [MASK:{high}-{low}].")
        if high - low >= MAX_BLANK_LENGTHS:
            raise UnmaskError(
                f"The blank {blank} has {high - low + 1} possible lengths, the maximum is {MAX_BLANK_LENGTHS}; narrow "
                "it."
            )
        parts += [text[end : match.start()], low if low == high else range(low, high + 1)]
        end = match.end()
    return [part for part in [*parts, text[end:]] if part != ""]


def is_open(template: Template) -> bool:
    """Whether a blank of the template has several possible lengths."""
    return any(isinstance(part, range) for part in template)


def known_size(template: Template) -> int:
    """The number of known tokens."""
    return sum(len(part) for part in template if isinstance(part, list))


def blank_size(template: Template) -> int:
    """The number of tokens in blanks of fixed length."""
    return sum(part for part in template if isinstance(part, int))


class TextProcessor:
    """The tokenizer, row length and length policy of a model."""

    def __init__(self, tokenizer: Any, model_config: Any, config: CheckpointConfig) -> None:
        self._tokenizer = tokenizer
        self.config = config
        self.vocab_size = model_config.vocab_size
        self.mask_token_id = model_config.mask_token_id
        self.max_length = model_config.max_length
        """Tokens that the network sees at once."""
        self.row_length = min(config.length, self.max_length)
        """Tokens per row in training."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; an error if the checkpoint has none, or none with a mask token."""
        if self._tokenizer is None:
            raise UnmaskError("This checkpoint has no tokenizer; convert it again with --tokenizer.")
        if self._tokenizer.mask_token_id is None and not self.config.objective.causal:
            raise UnmaskError(
                f"The tokenizer of this checkpoint has no mask token; add one with id {self.mask_token_id} "
                "(mask_token), and save the tokenizer again."
            )
        return self._tokenizer

    @property
    def eos_token_id(self) -> int | None:
        """The token between or after texts."""
        return self.tokenizer.eos_token_id

    @property
    def begin_token_id(self) -> int | None:
        """The token that begins every row; None if the length policy has none."""
        return SpecialTokens.of(self.tokenizer).begin_id if self.config.policy.begins_with_bos else None

    @property
    def end_token_id(self) -> int | None:
        """The token that ends the text of a row; None if the length policy has none."""
        return self.eos_token_id if self.config.policy.ends_with_eos else None

    def as_trained(self, denoiser: Any) -> Any:
        """The denoiser for rows shorter than in training.

        They follow BOS if rows begin with it, and are followed by masks if their padding was learned: such a network
        takes the end of a row for the end of the text.
        """
        if self.config.objective.causal:
            return denoiser
        if self.config.policy.supervises_padding:
            return MaskPaddedDenoiser(denoiser, self.row_length)
        begin = self.begin_token_id
        return denoiser if begin is None else BosDenoiser(denoiser, begin, self.max_length)

    # -- from texts to rows of token ids

    @cached_property
    def has_leading_spaces(self) -> bool:
        """Whether tokens begin with the space before a word."""
        return begins_with_spaces(self.tokenizer)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, without special tokens."""
        return encode(self.tokenizer, texts) if texts else []

    def parse(self, text: str) -> Template:
        """Encode a text with blanks. A space before a blank belongs to the blank if tokens begin with spaces."""
        parts = parse_blanks(check_text(text))
        for i in range(len(parts) - 1):
            part, after = parts[i], parts[i + 1]
            if isinstance(part, str) and not isinstance(after, str) and self.has_leading_spaces:
                parts[i] = part.removesuffix(" ")
        known = iter(self.encode([part for part in parts if isinstance(part, str)]))
        template = [next(known) if isinstance(part, str) else part for part in parts]
        self.check_template(template)
        return template

    def check_template(self, template: Template) -> None:
        """Raise `UnmaskError` if the model cannot fill the blanks of a template."""
        if self.config.objective.causal:
            if is_open(template):
                raise UnmaskError(
                    "An autoregressive model cannot choose the length of a blank; give a number, as in [MASK:3]."
                )
            blank = next((place for place, part in enumerate(template) if isinstance(part, int)), len(template))
            if known_size(template[blank:]):
                raise UnmaskError(
                    "An autoregressive model cannot see the text after a blank; fill with a masked model."
                )
        elif is_open(template) and not known_size(template):
            raise UnmaskError("The length of a blank depends on known text; give a number, as in [MASK:3].")

    def join(self, template: Template, room: int | None = None) -> list[int]:
        """Token ids of a template with blanks of fixed length; an error if it has blanks and exceeds the room."""
        total = known_size(template) + blank_size(template)
        if room is not None and blank_size(template) and total > room:
            raise UnmaskError(f"The text has {total} tokens with its blanks, and there is room for {room}; shorten it.")
        ids: list[int] = []
        for part in template:
            assert not isinstance(part, range), "the length of every blank is chosen"
            ids += [self.mask_token_id] * part if isinstance(part, int) else part
        return ids

    def chat_prompt(self, messages: Any) -> list[int]:
        """Token ids of a conversation in the chat template of the tokenizer, up to where the answer begins.

        `messages` is a text of the user, or a list of {"role": ..., "content": ...} as in transformers.
        """
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise UnmaskError("This checkpoint has no chat template; give a prompt to continue, or use a chat model.")
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        valid = isinstance(turns, Sequence) and all(
            isinstance(turn, Mapping) and all(isinstance(turn.get(key), str) for key in ("role", "content"))
            for turn in turns
        )
        if not valid or not turns:
            raise UnmaskError(
                f"messages must be a text or a list of {{'role': ..., 'content': ...}}, got {messages!r:.80}."
            )
        broken = reading("The chat template of this checkpoint cannot be used", "correct chat_template.jinja")
        with broken, time_limit(TEMPLATE_SECONDS):
            ids = self.tokenizer.apply_chat_template(list(turns), add_generation_prompt=True, return_dict=False)
        if self.mask_token_id in ids:
            raise UnmaskError("The messages contain the mask token, which stands for text to be written; leave it out.")
        return self.check_ids(list(ids))

    def answer(self, ids: list[int]) -> str:
        """The text of an answer, up to its first special token."""
        special = {token for token, added in self.tokenizer.added_tokens_decoder.items() if added.special}
        end = next((place for place, token in enumerate(ids) if token in special), len(ids))
        return decode_canvas(self.tokenizer, ids[:end], self.mask_token_id).strip()

    def prompt_row(self, prompt: list[int], suffix: list[int], length: int) -> list[int]:
        """Prompt, masks and suffix, `length` tokens in all.

        If the policy ends texts with EOS and there is a suffix, EOS follows it, so that the network sees the end.
        """
        given = len(prompt) + len(suffix)
        if given > length:
            what = "The prompt and the suffix have" if suffix else "The prompt has"
            raise UnmaskError(f"{what} {given} tokens and the canvas {length}; shorten it or increase length.")
        row = [*prompt, *[self.mask_token_id] * (length - given), *suffix]
        return self.config.policy.append_eos(row, self.row_length, self.eos_token_id) if suffix else row

    def text_row(self, ids: list[int]) -> list[int]:
        """A whole text with masks as a row, ended as the length policy ends texts.

        Nothing follows if the policy fills rows with EOS: the end of a text that may go on is not known.
        """
        policy = self.config.policy
        ids = self.check_ids(ids)
        return ids if policy.supervises_padding else policy.append_eos(ids, self.row_length, self.eos_token_id)

    def check_ids(self, ids: list[int]) -> list[int]:
        """Raise `UnmaskError` unless the model knows all tokens and sees them at once."""
        if len(ids) > self.max_length:
            raise UnmaskError(f"The text has {len(ids)} tokens and this model reads {self.max_length}; shorten it.")
        for token in ids:
            if not is_integer(token) or not 0 <= token < self.vocab_size:
                raise UnmaskError(f"Token ids must be integers from 0 to {self.vocab_size - 1}, got {token!r}.")
        return ids

    def check_rows(self, rows: Any) -> list[list[int]]:
        """Rows of token ids with masks as lists; an error unless the model knows all tokens and can fill the masks."""
        try:
            lists = [list(row) for row in rows]
        except TypeError:
            lists = []
        if not lists or not all(lists):
            raise UnmaskError("rows must be a non-empty list of non-empty lists of token ids.")
        checked = [self.check_ids(row) for row in lists]
        for row in checked:
            runs = groupby(row, key=lambda token: token == self.mask_token_id)
            self.check_template([len(list(run)) if masked else list(run) for masked, run in runs])
        return checked

    def canvas(self, rows: list[list[int]], seed: int, device: torch.device) -> Canvas:
        """A canvas of rows of any lengths, padded on the right."""
        ids = _pad(rows, self.tokenizer.pad_token_id or 0, device)
        attention_mask = _pad([[True] * len(row) for row in rows], False, device)
        canvas = Canvas.of(ids, self.mask_token_id, seed, attention_mask)
        eos = -1 if self.eos_token_id is None else self.eos_token_id
        given = attention_mask & (ids != self.mask_token_id) & (ids != eos)
        if self.end_token_id is None:
            return replace(canvas, condition=given)
        before_text = [masks_before_text(row, self.mask_token_id, self.end_token_id).tolist() for row in rows]
        return replace(canvas, no_eos=_pad(before_text, False, device), condition=given)

    def scored_rows(self, texts: list[str], given: str | Sequence[str] | None) -> Rows:
        """Rows for the likelihood of texts, each after its condition, which is not counted."""
        ids = self.encode(texts)
        for text, tokens in zip(texts, ids, strict=True):
            if not tokens:
                raise UnmaskError(f"The text {text!r} has no tokens, so it has no likelihood; give a longer text.")
        policy, length, special = self.config.policy, self.row_length, SpecialTokens.of(self.tokenizer)
        if given is None:
            return policy.rows(Tokens.of(ids, texts), length, special)
        conditions = [given] * len(texts) if isinstance(given, str) else check_texts(given, "condition on")
        if len(conditions) != len(texts):
            raise UnmaskError(f"Got {len(conditions)} conditions for {len(texts)} texts; give one for all or for each.")
        return rows_given(policy, self.encode(conditions), ids, length, special, texts=texts)

    # -- constraints

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The bytes of each token, for constraints."""
        ends_with_eos = self.config.policy.ends_with_eos
        return Vocabulary(self._tokenizer, self.vocab_size, self.mask_token_id, ends_with_eos)

    def compile_constraints(self, constraint: Constraints, rows: list[list[int]]) -> Automaton | None:
        """The automaton of constraints on rows; an error if a row cannot satisfy them."""
        if constraint is None:
            return None
        unended = [self.without_eos(row) for row in rows]
        return compile_constraints(as_constraints(constraint), self.vocabulary, unended, self.max_length)

    def without_eos(self, row: list[int]) -> list[int]:
        """A row without its trailing EOS tokens, which constraints do not see."""
        size = next((size for size in range(len(row), 0, -1) if row[size - 1] != self.end_token_id), 0)
        return row[:size]

    # -- from canvases to texts

    def finish(
        self, states: Iterator[State], length: int | None = None, return_trajectory: bool = False
    ) -> list[Generation]:
        """The sequences of the last state of a sampling run, without padding, each cut to `length`."""
        trajectories: list[list[list[int]]] = []
        for state in states:
            last = state
            if return_trajectory:
                trajectories += [[] for _ in range(len(state.ids) - len(trajectories))]
                rows = zip(trajectories, state.ids.tolist(), state.calls_made.tolist(), strict=True)
                for trajectory, ids, made in rows:
                    if made == len(trajectory):
                        trajectory.append(ids)
        canvas, generations = last.canvas, []
        columns = [x[:, :length].tolist() for x in (last.ids, last.order, last.confidence, canvas.attention_mask)]
        numbers = [last.calls.tolist(), canvas.seeds.tolist()]
        for i, (ids, order, confidence, attention_mask, calls, seed) in enumerate(zip(*columns, *numbers, strict=True)):
            size = sum(attention_mask)
            generations.append(
                Generation(
                    self.decode(ids[:size]),
                    ids[:size],
                    order[:size],
                    confidence[:size],
                    calls,
                    seed,
                    [canvas_ids[:size] for canvas_ids in trajectories[i]] if return_trajectory else None,
                )
            )
        return generations

    def frame(self, state: State, reader: PieceReader, length: int) -> Frame:
        """The only sequence of a canvas as it is now, cut to `length`."""
        size = int(state.canvas.attention_mask[0, :length].sum())
        ids, order, confidence = (x[0, :size].tolist() for x in (state.ids, state.order, state.confidence))
        end = self.text_end(ids)
        return Frame(self.decode(ids), ids, order, confidence, state.call, state.total, reader.read(ids), end)

    def decode(self, ids: list[int]) -> str:
        """The text of a canvas, up to the first EOS if the length policy ends texts with it."""
        return decode_canvas(self.tokenizer, ids[: self.text_end(ids)], self.mask_token_id)

    def text_end(self, ids: list[int]) -> int:
        """The number of tokens before the end of the text."""
        return ids.index(self.end_token_id) if self.end_token_id in ids else len(ids)


def decode_canvas(tokenizer: Any, ids: list[int], mask_token_id: int) -> str:
    """The text of token ids, with a block for each mask and a newline for each EOS."""
    return "".join(
        symbol * len(tokens) if symbol else tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        for symbol, tokens in _runs(ids, mask_token_id, tokenizer.eos_token_id)
    )


def _runs(ids: list[int], mask_token_id: int, eos: int | None) -> Iterator[tuple[str, list[int]]]:
    """Runs of masks and of EOS with the character that each is shown as, and runs of other tokens with ""."""
    for symbol, run in groupby(ids, key=lambda i: GLYPH if i == mask_token_id else "\n" if i == eos else ""):
        yield symbol, list(run)


class PieceReader:
    """Splits the text of a canvas into the piece of each token, and remembers how tokens decode."""

    def __init__(self, tokenizer: Any, mask_token_id: int) -> None:
        self._tokenizer = tokenizer
        self._mask_token_id = mask_token_id
        self._decoded: dict[tuple[int, ...], str] = {}

    def read(self, ids: list[int]) -> list[str | None]:
        """The piece of each token, None for a mask; joined they are the text of `decode_canvas`.

        A character of several tokens belongs to the last of them.
        """
        pieces: list[str | None] = []
        for symbol, tokens in _runs(ids, self._mask_token_id, self._tokenizer.eos_token_id):
            pieces += self._split(tokens) if not symbol else [None if symbol == GLYPH else symbol] * len(tokens)
        return pieces

    def _split(self, tokens: list[int]) -> list[str]:
        pieces, start = [], 0
        for end in range(1, len(tokens) + 1):
            key = tuple(tokens[start:end])
            if key not in self._decoded:
                self._decoded[key] = self._decode(tokens[start:end])
            piece = self._decoded[key]
            incomplete = piece.endswith(REPLACEMENT) and end - start < MAX_UTF8_BYTES and end < len(tokens)
            pieces.append("" if incomplete else piece)
            start = start if incomplete else end
        whole = self._decode(tokens)
        return pieces if "".join(pieces) == whole else self._split_by_prefixes(tokens, whole)

    def _split_by_prefixes(self, tokens: list[int], whole: str) -> list[str]:
        """Slower, for tokenizers that decode a token differently next to others, such as WordPiece."""
        ends = [0]
        for size in range(1, len(tokens)):
            ends.append(max(ends[-1], len(self._decode(tokens[:size]).rstrip(REPLACEMENT))))
        return [whole[a:b] for a, b in pairwise([*ends, len(whole)])]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)


def check_streamer(streamer: Any, texts: int) -> None:
    """Raise `UnmaskError` unless `streamer` has the methods of one of `transformers` and there is one text."""
    if texts != 1:
        raise UnmaskError(f"A streamer shows one text, got {texts} to generate.")
    if not all(hasattr(streamer, method) for method in ("put", "end")):
        raise UnmaskError(f"streamer must have put and end, as transformers' TextStreamer has, got {streamer!r}.")


def feed_streamer(states: Iterator[State], processor: TextProcessor, streamer: Any, rewrites: bool) -> Iterator[State]:
    """Yield the states of one sequence, and put its text into a streamer of `transformers`.

    The prompt is put first. After each call follow the tokens that continue the written text, up to its end. A streamer
    of diffusion drafts also gets the rest of the canvas. If the sampler may mask written tokens again (`rewrites`),
    they are put after the last call.
    """
    put = 0
    for state in states:
        ids = state.ids[0][state.canvas.attention_mask[0]].tolist()
        end, masked = processor.text_end(ids), processor.mask_token_id in ids
        known = min(end, ids.index(processor.mask_token_id)) if masked else end
        final = state.call in (0, state.total) or not rewrites
        if state.call == 0 or (final and known > put):
            streamer.put(torch.tensor(ids[put:known], dtype=torch.int64))
            put = known
        if masked and hasattr(streamer, "put_draft"):
            streamer.put_draft(torch.tensor(ids[put:end], dtype=torch.int64))
        yield state
    streamer.end()


def check_text(text: Any) -> str:
    """Raise `UnmaskError` unless `text` is a string."""
    if not isinstance(text, str):
        raise UnmaskError(f"A text must be a string, got {text!r}.")
    return text


def check_texts(texts: Any, verb: str) -> list[str]:
    """A string or several as a list; an error if there is none."""
    if isinstance(texts, bytes | Tensor) or not isinstance(texts, Iterable):
        raise UnmaskError(f"The texts to {verb} must be a string or a list of strings, got {texts!r}.")
    checked = [texts] if isinstance(texts, str) else [check_text(text) for text in texts]
    if not checked:
        raise UnmaskError(f"There are no texts to {verb}; give at least one.")
    return checked


def _pad(rows: Sequence[list[Any]], pad: Any, device: torch.device) -> Tensor:
    """[B, L] rows of any lengths, padded on the right."""
    width = max(map(len, rows))
    return torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=device)
