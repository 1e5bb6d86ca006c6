"""From letters to tokens: every token is read, byte by byte, from every state that tokens lead to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from unmask.constraints.automaton import Automaton, Bools, Bytes, Ints, Letters, explore, read_bytes, tidy
from unmask.data.encoding import encode
from unmask.data.tokenizers import byte_symbols
from unmask.errors import UnmaskError

PROBES, PROBE_LENGTH = 32, 8
UNREADABLE = "�"

Pieces = list[bytes | None]


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model: `size` of them, `mask` among them, `eos` that shows as a new line or ends the text."""

    tokenizer: Any
    size: int
    mask: int
    ends_with_eos: bool = False
    """Whether what stands behind the first EOS is no part of the text."""

    @cached_property
    def eos(self) -> int | None:
        """The token between texts or behind them."""
        return self._needed().eos_token_id

    @property
    def end(self) -> int:
        """The token that ends a text; -1 where none does."""
        return self.eos if self.ends_with_eos and self.eos is not None else -1

    @cached_property
    def pieces(self) -> tuple[Pieces, Pieces]:
        """The bytes of every token at the beginning of a text and further on; None for one that has none."""
        first, later = self._byte_pieces() or self._letter_pieces()
        self._probe(first, later)
        for pieces in (first, later):
            pieces[self.mask] = None
            if self.eos is not None:
                pieces[self.eos] = b"\n"
        return first, later

    @cached_property
    def begins(self) -> bool:
        """Whether tokens read differently at the beginning of a text."""
        return self.pieces[0] != self.pieces[1]

    @cached_property
    def longest(self) -> int:
        """The most characters that a token adds to a text; every letter counts with its first byte."""
        return max(sum(byte & 0xC0 != 0x80 for byte in piece or b"") for pieces in self.pieces for piece in pieces)

    def tokens(self, named: Sequence[int | str]) -> list[int]:
        """Token ids from ids and from words that are one token each."""
        return [self._token(one) for one in named]

    def _token(self, named: int | str) -> int:
        if not isinstance(named, (Integral, str)):
            raise UnmaskError(f"{named!r} is no token; name one by its id, or by a word that is one token.")
        ids = [int(named)] if isinstance(named, Integral) else encode(self._needed(), [named])[0]
        if len(ids) != 1:
            raise UnmaskError(f"{named!r} is {len(ids)} tokens; name a single one, or ask for a word in the text.")
        if not 0 <= ids[0] < self.size or ids[0] == self.mask:
            raise UnmaskError(f"The token {ids[0]} cannot stand in a text; name one below {self.size}, not the mask.")
        return ids[0]

    def _needed(self) -> Any:
        if self.tokenizer is None:
            raise UnmaskError("Without a tokenizer tokens have no text; name them by their ids.")
        return self.tokenizer

    def _byte_pieces(self) -> tuple[Pieces, Pieces] | None:
        """For byte-level tokenizers, which write every byte as a visible character."""
        from tokenizers.decoders import ByteLevel

        if not isinstance(self._needed().backend_tokenizer.decoder, ByteLevel):
            return None
        byte = {symbol: number for number, symbol in enumerate(byte_symbols())}
        names = self._each(lambda i: self.tokenizer.convert_ids_to_tokens(i))
        pieces = [
            None if name is None else bytes(byte[c] for c in name) if set(name) <= byte.keys() else name.encode()
            for name in names
        ]
        return pieces, list(pieces)

    def _letter_pieces(self) -> tuple[Pieces, Pieces]:
        """For the others, whose tokens are whole letters: what a token adds behind a letter or a word."""
        first = self._each(lambda i: self._decode([i]))
        anchor = next(i for i, piece in enumerate(first) if piece and piece.isalnum())
        size = len(first[anchor] or "")
        later = self._each(lambda i: self._decode([anchor, i])[size:])
        readable = [[None if p is None or UNREADABLE in p else p.encode() for p in pieces] for pieces in (first, later)]
        return readable[0], readable[1]

    def _each(self, read: Callable[[int], str]) -> list[str | None]:
        known = len(self._needed())
        return [read(i) if i < known else None for i in range(self.size)]

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)

    def _probe(self, first: Pieces, later: Pieces) -> None:
        """Some random texts must read as their pieces do."""
        special = {self.mask, *self.tokenizer.all_special_ids}
        usable = [i for i, piece in enumerate(later) if piece is not None and first[i] is not None and i not in special]
        for ids in np.random.default_rng(0).choice(usable, (PROBES, PROBE_LENGTH)).tolist():
            joined = (first[ids[0]] or b"") + b"".join(later[i] or b"" for i in ids[1:])
            if joined.decode(errors="replace") != self._decode(ids):
                raise UnmaskError(
                    "The tokens of this tokenizer read differently among others than alone, so its text cannot be "
                    "constrained; constrain single tokens (Fixed, Allowed, Banned) instead."
                )


NOTHING, END, NEVER = -3, -2, -1
"""The last columns of a table: a symbol that is passed over, the end of the text, and what is never accepted."""


class Word(NamedTuple):
    """What a token reads as at the beginning of a text and elsewhere; whether a text begins anew behind it."""

    first: bytes | int
    later: bytes | int
    renews: bool = False


def lift(letters: Letters, vocabulary: Vocabulary) -> Automaton:
    """The automaton over tokens that accepts the canvases whose text `letters` accepts.

    Bytes that no state tells apart are one, so that most tokens read like many others and few are read at all. Where
    tokens read differently at the beginning of a text, states from the size of the table on are those at a beginning.
    """
    reader = read_bytes(letters)
    table, accepts = _with_symbols(reader)
    kind, words = _distinct(vocabulary, reader.alike)
    first, later = _spelled([word.first for word in words]), _spelled([word.later for word in words])
    renews = np.array([word.renews for word in words])
    found, move = explore(partial(_moves, table, first, later, renews), len(table) if vocabulary.begins else 0)
    return tidy(Automaton(kind, move, accepts[found % len(table)], np.ones((0, len(words)), dtype=bool)))


def _with_symbols(reader: Bytes) -> tuple[Ints, Bools]:
    """The moves [S + 2, C + 3] by kinds of bytes and symbols, and what is accepted; last the states `ended`, `dead`."""
    ended, kinds = reader.move.shape
    table = np.full((ended + 2, kinds + 3), -1)
    table[:ended, :kinds] = reader.move
    table[:ended, NOTHING] = np.arange(ended)
    table[:ended, END] = np.where(reader.accepts, ended, -1)
    table[ended, :NEVER] = ended
    return table, np.concatenate([reader.accepts, [True, False]])


def _distinct(vocabulary: Vocabulary, alike: bytes) -> tuple[Ints, list[Word]]:
    """The kind [V] of every token, and what each kind reads as."""
    words: dict[Word, int] = {}
    kind = np.empty(vocabulary.size, dtype=np.int64)
    for token, (first, later) in enumerate(zip(*vocabulary.pieces, strict=True)):
        if first is None or later is None:
            word = Word(NEVER, NEVER)
        elif token == vocabulary.eos and vocabulary.ends_with_eos:
            word = Word(END, END)
        else:
            renews = vocabulary.begins and token == vocabulary.eos
            word = Word(first.translate(alike), later.translate(alike), renews)
        kind[token] = words.setdefault(word, len(words))
    return kind, list(words)


def _spelled(texts: list[bytes | int]) -> Ints:
    """[W, K] the symbols of texts, each followed by nothing."""
    symbols = [[text] if isinstance(text, int) else list(text) for text in texts]
    spelled = np.full((max(map(len, symbols)), len(symbols)), NOTHING)
    for column, one in enumerate(symbols):
        spelled[: len(one), column] = one
    return spelled


def _moves(table: Ints, first: Ints, later: Ints, renews: Bools, states: Ints) -> Ints:
    """[N, K] the states after words whose letters are `first` [W, K] at a beginning and `later` [W, K] elsewhere."""
    begin, state = np.divmod(states, len(table))
    after = np.empty((len(states), len(renews)), dtype=np.int64)
    for is_begin, words in ((1, first), (0, later)):
        after[begin == is_begin] = _read(table, state[begin == is_begin], words)
    return np.where(after >= 0, after + len(table) * renews, -1)


def _read(table: Ints, states: Ints, words: Ints) -> Ints:
    after = np.repeat(states[:, None], words.shape[1], axis=1)
    for symbols in words:
        (more,) = np.nonzero(symbols != NOTHING)
        after[:, more] = table[after[:, more], symbols[more]]
    return after
