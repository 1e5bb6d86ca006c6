"""Regular expressions as automata over letters; the one who knows interegular."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from unmask.constraints.automaton import Letters, check_size, shown
from unmask.errors import UnmaskError

MOST_WORK = 1 << 20
"""Moves of single states that may be followed to make one state of every set of them: about a second."""
MOST_LETTERS = 1 << 16
"""Letters that an expression may name, as [a-z] names 26."""
UNSUPPORTED = {
    "anchor": r"[$^]|\\[AZ]",
    "word boundary": r"\\[bB]",
    "back-reference": r"\\[1-9]\d?(?!\d)|\(\?P=\w*\)?",
    "look-behind": r"\(\?<[=!]",
    "condition": r"\(\?\(",
    "possessive construct": r"\(\?>|[*+?}]\+",
    "escape": r"\\[NuUpP]",
    "comment": r"\(\?\#",
    "flag": r"\(\?[-a-zA-Z]*[aLmux]",
    "set that begins with its end": r"\[\^?\]",
    "brace": r"(?<=[^(|])\{(?![\d,])",
    "": r"\\.|\[(?:\\.|[^\]\\])*\]",
}
"""What Python's expressions have beside these, by name; last, without one, what is passed over as a whole."""
SCAN = re.compile("|".join(f"({form})" for form in UNSUPPORTED.values()), re.DOTALL)
_one_at_a_time = Lock()


class TooMuchWork(Exception):
    """More moves would have to be followed than may be."""


def matching(pattern: str) -> Letters:
    """A regular expression that the whole text matches."""
    machine = _machine(pattern)
    classes = {number: kind for kind, number in enumerate(_classes(machine))}
    states = {state: number for number, state in enumerate(_first(machine.initial, machine.states))}
    check_size(len(states), len(classes))
    move = np.full((len(states), len(classes)), -1)
    for state, row in machine.map.items():
        for symbol, after in row.items():
            move[states[state], classes[symbol]] = states[after]
    accepts = np.array([state in machine.finals for state in states])
    named = {letter: classes[number] for letter, number in machine.alphabet.items() if _is_letter(letter)}
    return Letters(named, move, accepts)


def _is_letter(symbol: Any) -> bool:
    """Whether a symbol is a character that a text can have; halves of surrogate pairs are none."""
    return isinstance(symbol, str) and not "\ud800" <= symbol <= "\udfff"


def _machine(pattern: str) -> Any:
    """The deterministic machine of a pattern: the smallest, where it is found with little work."""
    try:
        with _bounded(MOST_WORK):
            machine = _parsed(pattern)
    except TooMuchWork:
        raise UnmaskError(
            f"The regular expression {shown(pattern)} needs too many states to work with; let it repeat or choose "
            "less, or ask for a length with Characters."
        ) from None
    try:
        with _bounded(MOST_WORK):
            return machine.reduce()
    except TooMuchWork:
        return machine


def _parsed(pattern: str) -> Any:
    from interegular.patterns import InvalidSyntax, REFlags, Unsupported, parse_pattern

    if reason := _fault(pattern):
        raise _unusable(pattern, reason)
    try:
        parsed = parse_pattern(pattern)
        if (letters := len(parsed.get_alphabet(REFlags(0)))) > MOST_LETTERS:
            raise UnmaskError(
                f"The regular expression {shown(pattern)} names {letters} letters, too many to work with; name those "
                "that it excludes instead, as [^a-z] does."
            )
        return parsed.to_fsm()
    except (InvalidSyntax, Unsupported) as error:
        raise _unusable(pattern, " ".join(str(error).split()) or "it has a construct that is not known here") from None


def _unusable(pattern: str, reason: str) -> UnmaskError:
    return UnmaskError(
        f"The regular expression {shown(pattern)} cannot be used: {reason}; write one that describes the whole text, "
        "without anchors, back-references or word boundaries."
    )


def _fault(pattern: str) -> str | None:
    """What is wrong with a pattern and where: Python's own words, or the first construct that only Python knows."""
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
def _bounded(most: int) -> Iterator[None]:
    """Within, interegular's search for the states of a machine ends after so much work; it has no bound of its own."""
    fsm = _interegular()
    with _one_at_a_time:
        crawl, fsm.crawl = fsm.crawl, _crawl_within(most)
        try:
            yield
        finally:
            fsm.crawl = crawl


def _interegular() -> Any:
    try:
        from interegular import fsm
    except ImportError:
        raise UnmaskError(
            "Regular expressions need the package interegular; install it with: pip install 'unmask[regex]'."
        ) from None
    return fsm


def _crawl_within(most: int) -> Callable[..., Any]:
    """What stands for interegular's `crawl`: all states that moves lead to from one, numbered as they are found."""
    from interegular.fsm import FSM, OblivionError

    left = most

    def crawl(alphabet: Any, initial: Any, final: Callable[[Any], bool], follow: Callable[[Any, Any], Any]) -> Any:
        nonlocal left
        states, number, moves = [initial], {_key(initial): 0}, dict[int, dict[Any, int]]()
        for state in states:
            row = moves[len(moves)] = {}
            for transition in alphabet.by_transition:
                left -= 1 + max(len(initial), len(state))
                if left < 0:
                    raise TooMuchWork
                try:
                    after = follow(state, transition)
                except OblivionError:
                    continue
                if (key := _key(after)) not in number:
                    number[key] = len(states)
                    states.append(after)
                row[transition] = number[key]
        finals = {place for place, state in enumerate(states) if final(state)}
        return FSM(alphabet=alphabet, states=range(len(states)), initial=0, finals=finals, map=moves)

    return crawl


def _key(state: Any) -> frozenset[Any]:
    """What tells states apart: sets of other machines' states, or one state of each by its number."""
    return frozenset(state.items() if isinstance(state, dict) else state)


def _classes(machine: Any) -> list[int]:
    """The numbers of the classes of letters, that of the letters without a name first."""
    from interegular.fsm import anything_else

    return list(_first(machine.alphabet[anything_else], machine.alphabet.by_transition))


def _first(first: int, members: Iterable[int]) -> dict[int, None]:
    """The members, one of them first."""
    return dict.fromkeys([first, *members])
