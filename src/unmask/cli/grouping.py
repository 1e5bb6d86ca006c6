"""Options that go together: one dataclass in the signature of a verb, an option each on the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb as Typer is to see it: each parameter that is a dataclass gives way to that one's fields, in its place.

    The fields are annotated like parameters, and no two groups of a verb share one. Groups have no defaults of their
    own, so that what stands behind one in a signature is given by keyword.
    """
    signature = inspect.signature(verb, eval_str=True)
    parameters = signature.parameters.values()
    groups: dict[str, Any] = {one.name: one.annotation for one in parameters if is_dataclass(one.annotation)}
    options = [option for one in parameters for option in _options(one)]

    @wraps(verb)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        verb(**given)

    run.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _options(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """What a parameter is on the command line."""
    group = parameter.annotation
    if not is_dataclass(group):
        yield parameter
        return
    types = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(field.name, parameter.KEYWORD_ONLY, default=default, annotation=types[field.name])
