"""Regular expressions as DFAs over characters, by way of interegular."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from unmask.constraints.automaton import CharacterDFA, check_size, shorten
from unmask.errors import UnmaskError

MAX_WORK = 1 << 20
"""The most transitions to follow while building a DFA, about a second of work."""
MAX_LENGTH = 1 << 14
"""The most characters of a pattern, about a second of parsing."""
MAX_CHARACTERS = 1 << 16
"""The most characters that an expression may name; [a-z] names 26."""
UNSUPPORTED = {
    "anchor": r"[$^]|\\[AZ]",
    "word boundary": r"\\[bB]",
    "back-reference": r"\\[1-9]\d?(?!\d)|\(\?P=\w*\)?",
    "look-around": r"\(\?<?[=!]",
    "condition": r"\(\?\(",
    "possessive construct": r"\(\?>|[*+?}]\+",
    "escape": r"\\[NuUpP]",
    "comment": r"\(\?\#",
    "flag": r"\(\?[-a-zA-Z]*[aLmux]",
    "set that begins with its end": r"\[\^?\]",
    "brace": r"(?<=[^(|])\{(?![\d,])",
    "": r"\\.|\[(?:\\.|[^\]\\])*\]",
}
"""Constructs of Python that interegular lacks, by name. The last pattern skips escapes and sets, which it supports."""
SCAN = re.compile("|".join(f"({form})" for form in UNSUPPORTED.values()), re.DOTALL)
_crawl_lock = Lock()


class TooMuchWork(Exception):
    """Building a DFA exceeds `MAX_WORK`."""


def regex_dfa(pattern: str) -> CharacterDFA:
    """The DFA that accepts the texts that a regular expression matches as a whole.

    interegular numbers states and classes of characters in the order of sets, which differs between processes. So
    classes are numbered again by their first character, after the class of all other characters, and states in the
    order in which they are reached.
    """
    fsm = _build_fsm(pattern)
    from interegular.fsm import anything_else

    groups = fsm.alphabet.by_transition
    others = fsm.alphabet[anything_else]
    named = sorted((one for one in groups if one != others), key=lambda one: min(groups[one]))
    classes = {one: number for number, one in enumerate([others, *named])}
    states, number = [fsm.initial], {fsm.initial: 0}
    for state in states:
        for after in (fsm.map[state][one] for one in classes if one in fsm.map.get(state, {})):
            if after not in number:
                number[after] = len(states)
                states.append(after)
    check_size(len(states), len(classes))
    transitions = np.full((len(states), len(classes)), -1)
    for state in states:
        for one, after in fsm.map.get(state, {}).items():
            transitions[number[state], classes[one]] = number[after]
    accepting = np.array([state in fsm.finals for state in states])
    characters = {
        symbol: classes[one]
        for one in classes
        for symbol in sorted(symbol for symbol in groups.get(one, ()) if isinstance(symbol, str))
        if not "\ud800" <= symbol <= "\udfff"
    }
    return CharacterDFA(characters, transitions, accepting)


def _build_fsm(pattern: str) -> Any:
    """The DFA of interegular for a pattern, minimised unless that takes too much work."""
    try:
        with _limited_crawl():
            fsm = _parse(pattern)
    except TooMuchWork:
        raise UnmaskError(
            f"The regular expression {shorten(pattern)} needs too many states; use fewer repetitions and alternatives, "
            "or constrain the length with Characters."
        ) from None
    try:
        with _limited_crawl():
            return fsm.reduce()
    except TooMuchWork:
        return fsm


def _parse(pattern: str) -> Any:
    from interegular.patterns import InvalidSyntax, REFlags, Unsupported, parse_pattern

    if len(pattern) > MAX_LENGTH:
        raise UnmaskError(
            f"The regular expression {shorten(pattern)} has {len(pattern)} characters, the maximum is {MAX_LENGTH}; "
            "shorten it."
        )
    reason = _find_fault(pattern)
    if reason is None:
        try:
            parsed = parse_pattern(pattern)
            if (characters := len(parsed.get_alphabet(REFlags(0)))) > MAX_CHARACTERS:
                raise UnmaskError(
                    f"The regular expression {shorten(pattern)} names {characters} characters, which is too many; "
                    "exclude characters instead, as [^a-z] does."
                )
            return parsed.to_fsm()
        except (InvalidSyntax, Unsupported) as error:
            reason = " ".join(str(error).split()) or "it has an unknown construct"
    raise UnmaskError(
        f"The regular expression {shorten(pattern)} cannot be used: {reason}; describe the whole text, without "
        "anchors, back-references, word boundaries or look-around."
    )


def _find_fault(pattern: str) -> str | None:
    """The error of Python's parser, or the first construct that interegular lacks."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return " ".join(str(error).split())
    for found in SCAN.finditer(pattern):
        if name := list(UNSUPPORTED)[(found.lastindex or 0) - 1]:
            return f"the {name} {found[0]!r} at position {found.start()} is not supported"
    return None


@contextmanager
def _limited_crawl() -> Iterator[None]:
    """Replace the `crawl` of interegular, which has no limit, by one that raises `TooMuchWork` after `MAX_WORK`."""
    try:
        from interegular import fsm
    except ImportError:
        raise UnmaskError(
            "Regular expressions need the package interegular; run: pip install 'unmask[regex]'."
        ) from None
    with _crawl_lock:
        original, fsm.crawl = fsm.crawl, _make_crawl()
        try:
            yield
        finally:
            fsm.crawl = original


def _make_crawl() -> Callable[..., Any]:
    """A `crawl` for interegular: all states reachable from the initial one, numbered as they are found."""
    from interegular.fsm import FSM, OblivionError

    def key(state: Any) -> frozenset[Any]:
        return frozenset(state.items() if isinstance(state, dict) else state)

    left = MAX_WORK

    def crawl(alphabet: Any, initial: Any, final: Callable[[Any], bool], follow: Callable[[Any, Any], Any]) -> Any:
        nonlocal left
        states, number, transitions = [initial], {key(initial): 0}, dict[int, dict[Any, int]]()
        for state in states:
            row = transitions[len(transitions)] = {}
            for symbol in alphabet.by_transition:
                left -= 1 + max(len(initial), len(state), len(initial) * len(state) // 64)  # optional parts skip on
                if left < 0:
                    raise TooMuchWork
                try:
                    after = follow(state, symbol)
                except OblivionError:
                    continue
                if (name := key(after)) not in number:
                    number[name] = len(states)
                    states.append(after)
                row[symbol] = number[name]
        finals = {index for index, state in enumerate(states) if final(state)}
        return FSM(alphabet=alphabet, states=range(len(states)), initial=0, finals=finals, map=transitions)

    return crawl
