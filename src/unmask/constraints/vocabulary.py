"""The bytes of a model's tokens, and the lifting of DFAs over characters to these tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np

from unmask.constraints.automaton import Automaton, CharacterDFA, Ints, explore, simplify, to_byte_dfa
from unmask.data.encoding import byte_symbols, encode
from unmask.errors import UnmaskError

PROBES, PROBE_LENGTH = 32, 8
REPLACEMENT_CHARACTER = "�"

TokenBytes = list[bytes | None]


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model: `size` tokens, one of which is `mask`.

    With `ends_with_eos` the first EOS ends the text; otherwise EOS reads as a new line.
    """

    tokenizer: Any
    size: int
    mask: int
    ends_with_eos: bool = False

    @cached_property
    def eos(self) -> int | None:
        """The token between or after texts."""
        return self._require_tokenizer().eos_token_id

    @property
    def end(self) -> int:
        """The token that ends a text, -1 if there is none."""
        return self.eos if self.ends_with_eos and self.eos is not None else -1

    @cached_property
    def token_bytes(self) -> tuple[TokenBytes, TokenBytes]:
        """The bytes of every token at the start of a text, and those elsewhere; None for tokens that are never text."""
        first, later = self._bytes_of_byte_level() or self._bytes_by_decoding()
        self._check_token_bytes(first, later)
        for pieces in (first, later):
            pieces[self.mask] = None
            if self.eos is not None:
                pieces[self.eos] = b"\n"
        return first, later

    @cached_property
    def start_differs(self) -> bool:
        """Whether tokens read differently at the start of a text."""
        return self.token_bytes[0] != self.token_bytes[1]

    @cached_property
    def longest(self) -> int:
        """The most characters that one token adds to a text; a character counts with its first byte."""
        return max(sum(byte & 0xC0 != 0x80 for byte in piece or b"") for all_ in self.token_bytes for piece in all_)

    def tokens(self, named: Sequence[int | str]) -> list[int]:
        """The ids of tokens, which are given as ids or as words that are single tokens."""
        tokens = []
        for one in named:
            if not isinstance(one, (Integral, str)):
                raise UnmaskError(f"A token must be an id or a word that is one token, got {one!r}.")
            ids = [int(one)] if isinstance(one, Integral) else encode(self._require_tokenizer(), [one])[0]
            if len(ids) != 1:
                raise UnmaskError(f"{one!r} is {len(ids)} tokens; name a single token, or use Words.")
            if not 0 <= ids[0] < self.size or ids[0] == self.mask:
                raise UnmaskError(f"A token must be below {self.size} and not the mask {self.mask}, got {ids[0]}.")
            tokens += ids
        return tokens

    def _require_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise UnmaskError("This model has no tokenizer; name tokens by their ids.")
        return self.tokenizer

    def _bytes_of_byte_level(self) -> tuple[TokenBytes, TokenBytes] | None:
        """For byte-level tokenizers, which write every byte as a visible character; None for others."""
        from tokenizers.decoders import ByteLevel

        if not isinstance(self._require_tokenizer().backend_tokenizer.decoder, ByteLevel):
            return None
        byte = {symbol: number for number, symbol in enumerate(byte_symbols())}
        pieces = [
            None if name is None else bytes(byte[c] for c in name) if set(name) <= byte.keys() else name.encode()
            for name in self._for_each_token(self.tokenizer.convert_ids_to_tokens)
        ]
        return pieces, list(pieces)

    def _bytes_by_decoding(self) -> tuple[TokenBytes, TokenBytes]:
        """For tokenizers with whole characters: the text that a token adds alone, and after a letter."""
        first = self._for_each_token(lambda token: self._decode([token]))
        anchor = next(token for token, piece in enumerate(first) if piece and piece.isalnum())
        size = len(first[anchor] or "")
        later = self._for_each_token(lambda token: self._decode([anchor, token])[size:])
        first_bytes, later_bytes = (
            [None if piece is None or REPLACEMENT_CHARACTER in piece else piece.encode() for piece in pieces]
            for pieces in (first, later)
        )
        return first_bytes, later_bytes

    def _for_each_token(self, read: Callable[[int], str]) -> list[str | None]:
        known = len(self._require_tokenizer())
        return [read(token) if token < known else None for token in range(self.size)]

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)

    def _check_token_bytes(self, first: TokenBytes, later: TokenBytes) -> None:
        """Compare the joined bytes of random tokens with the decoding of the tokenizer."""
        special = {self.mask, *self.tokenizer.all_special_ids}
        usable = [i for i, piece in enumerate(later) if piece is not None and first[i] is not None and i not in special]
        for ids in np.random.default_rng(0).choice(usable, (PROBES, PROBE_LENGTH)).tolist():
            joined = (first[ids[0]] or b"") + b"".join(later[i] or b"" for i in ids[1:])
            if joined.decode(errors="replace") != self._decode(ids):
                raise UnmaskError(
                    "The tokens of this tokenizer read differently alone and in a text, so its text cannot be "
                    "constrained; constrain single tokens with Fixed, Allowed or Banned."
                )


SKIP, END, NEVER = -3, -2, -1
"""The last columns of a transition table: padding, the end of the text, and tokens that are never accepted."""

Spelling = tuple[bytes | int, bytes | int, bool]
"""The byte classes of a token at the start of a text and elsewhere, and whether a text starts after the token."""


def lift_to_tokens(dfa: CharacterDFA, vocabulary: Vocabulary) -> Automaton:
    """The automaton over tokens that accepts the canvases whose text `dfa` accepts.

    Tokens with the same byte classes are read once. If tokens read differently at the start of a text, the states from
    `len(table)` on are those at a start.
    """
    byte_dfa = to_byte_dfa(dfa)
    ended, byte_classes = byte_dfa.transitions.shape
    table = np.full((ended + 2, byte_classes + 3), -1)  # the last two states: the text has ended; never accept
    table[:ended, :byte_classes] = byte_dfa.transitions
    table[:ended, SKIP] = np.arange(ended)
    table[:ended, END] = np.where(byte_dfa.accepting, ended, -1)
    table[ended, :NEVER] = ended
    accepting = np.concatenate([byte_dfa.accepting, [True, False]])
    token_class, spellings = _spell_tokens(vocabulary, byte_dfa.byte_class)
    first, later = (_to_columns([spelling[at] for spelling in spellings]) for at in (0, 1))
    restarts = np.array([spelling[2] for spelling in spellings])

    def step(states: Ints) -> Ints:
        at_start, state = np.divmod(states, len(table))
        after = np.empty((len(states), len(spellings)), dtype=np.int64)
        for start, columns in ((1, first), (0, later)):
            after[at_start == start] = _read_tokens(table, state[at_start == start], columns)
        return np.where(after >= 0, after + len(table) * restarts, -1)

    found, transitions = explore(step, len(table) if vocabulary.start_differs else 0)
    allowed = np.ones((0, len(spellings)), dtype=bool)
    return simplify(Automaton(token_class, transitions, accepting[found % len(table)], allowed))


def _spell_tokens(vocabulary: Vocabulary, byte_class: bytes) -> tuple[Ints, list[Spelling]]:
    """The class [V] of every token, and the spelling of each class."""
    spellings: dict[Spelling, int] = {}
    token_class = np.empty(vocabulary.size, dtype=np.int64)
    for token, (first, later) in enumerate(zip(*vocabulary.token_bytes, strict=True)):
        if first is None or later is None:
            spelling: Spelling = (NEVER, NEVER, False)
        elif token == vocabulary.eos and vocabulary.ends_with_eos:
            spelling = (END, END, False)
        else:
            restarts = vocabulary.start_differs and token == vocabulary.eos
            spelling = (first.translate(byte_class), later.translate(byte_class), restarts)
        token_class[token] = spellings.setdefault(spelling, len(spellings))
    return token_class, list(spellings)


def _to_columns(spellings: list[bytes | int]) -> Ints:
    """[W, C] the symbols of each spelling in a column, filled up with `SKIP`."""
    symbols = [[spelling] if isinstance(spelling, int) else list(spelling) for spelling in spellings]
    columns = np.full((max(map(len, symbols)), len(symbols)), SKIP)
    for column, one in enumerate(symbols):
        columns[: len(one), column] = one
    return columns


def _read_tokens(table: Ints, states: Ints, columns: Ints) -> Ints:
    """[N, C] the states after reading each column of symbols from states [N]."""
    after = np.repeat(states[:, None], columns.shape[1], axis=1)
    for symbols in columns:
        (longer,) = np.nonzero(symbols != SKIP)
        after[:, longer] = table[after[:, longer], symbols[longer]]
    return after
