"""Which field of a record holds the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from unmask.errors import UnmaskError, did_you_mean

_MISSING = object()


def text_field(where: str, fields: Mapping[str, bool], wanted: str | None) -> str:
    """The wanted field, else ``text``, else the only one that holds strings. fields: whether each holds strings."""
    if wanted is not None:
        if wanted not in fields:
            raise UnmaskError(f"{where} has no field '{wanted}'.{did_you_mean(wanted, fields)}")
        return wanted
    strings = ["text"] if "text" in fields else [name for name, holds in fields.items() if holds]
    if len(strings) != 1:
        raise UnmaskError(
            f"{where} has {'several fields' if strings else 'no field'} with text among "
            f"{', '.join(map(repr, fields)) or 'none at all'}; set the option field to the one to read."
        )
    return strings[0]


def texts_of(where: str, unit: str, records: Iterable[tuple[int, Any]], wanted: str | None) -> Iterator[str]:
    """The texts of numbered records, each an object or itself a text; null is no text.

    The first object decides on the field, and every other must have it. unit: what the numbers count.
    """
    field = None
    for number, record in records:
        text = record
        if isinstance(record, dict):
            if field is None:
                fields = {name: value is None or isinstance(value, str) for name, value in record.items()}
                field = text_field(f"{where}, {unit} {number},", fields, wanted)
            text = record.get(field, _MISSING)
        if isinstance(text, str):
            yield text
        elif text is not None:
            raise UnmaskError(f"{where}, {unit} {number}, {_complaint(text, field)}")


def _complaint(value: Any, field: str | None) -> str:
    if value is _MISSING:
        return f"has no field '{field}'; add it there or set the option field to one that every record has."
    shown = repr(value)
    return f"has {shown if len(shown) < 40 else shown[:40] + '...'} where a text belongs; mend it or remove it."
