"""The options by which verbs are told of held-out text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.constraints import Constraint
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unmask.samplers.token_sampling import TokenSampler
from collections.abc import Mapping


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


@dataclass(frozen=True)
class Constraining:
    """What a text must hold to, and how hard its law is sought."""

    match: Annotated[
        str | None, typer.Option(help="A regular expression that the whole text matches.", metavar="REGEX")
    ] = None
    with_words: Annotated[
        list[str] | None, typer.Option("--with", help="A whole word that appears; may be repeated.", metavar="WORD")
    ] = None
    without: Annotated[
        list[str] | None, typer.Option(help="A whole word that does not; may be repeated.", metavar="WORD")
    ] = None
    characters: Annotated[
        str | None, typer.Option(help="Length of the text in characters: 50, or 40-60.", metavar="N-M")
    ] = None
    particles: Annotated[
        int,
        typer.Option(min=1, help="Weighed walks a text; the more, the closer to the model's law under the constraint."),
    ] = 1

    def wish(self) -> dict[str, Any]:
        """What is asked for, as a model takes it."""
        from unmask.constraints import NoWords, Regex, Words

        asked: list[Constraint] = [] if self.match is None else [Regex(self.match)]
        asked += [Words(*self.with_words)] if self.with_words else []
        asked += [NoWords(*self.without)] if self.without else []
        asked += [_characters(self.characters)] if self.characters is not None else []
        return {"constraint": asked or None, "particles": self.particles}


def told(wish: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, for machines."""
    return {"constraints": [str(one) for one in wish["constraint"] or []], "particles": wish["particles"]}


def _characters(text: str) -> Constraint:
    from unmask.constraints import Characters

    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if found is None:
        raise UnmaskError(f"--characters {text} is no length; write it as 50 or as 40-60.")
    return Characters(int(found[1]), int(found[2] or found[1]))


@dataclass(frozen=True)
class HybridDrawing:
    """How tokens are drawn, and where the most likely one is taken instead."""

    temperature: Annotated[float, typer.Option(min=0.0, help="Below 1 is safer, 0 takes the most likely token.")] = 1.0
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw among the k most likely tokens.")] = None
    top_p: Annotated[float | None, typer.Option(help="Draw among the tokens that make up this mass, in (0, 1].")] = None
    min_p: Annotated[
        float | None, typer.Option(help="Cut tokens below this share of the most likely one's probability, in [0, 1].")
    ] = None
    greedy_tail: Annotated[
        float | None, typer.Option(help="Take the most likely token in this last fraction of the calls, in [0, 1].")
    ] = None
    greedy_above: Annotated[
        float | None, typer.Option(help="Take the most likely token where it is likelier than this, in [0, 1].")
    ] = None

    def rule(self) -> TokenSampler:
        """What is asked for, as samplers take it."""
        from unmask.generation_config import token_rule

        return token_rule(**asdict(self))


_ORDER = (
    "Which positions come first: confidence, margin, entropy, planner ('unmask train planner'), left_to_right or "
    "uniform, in exactly --steps calls; threshold or entropy_bounded, in as few as the network is sure enough for. "
    "Without it a uniform order."
)
_SAMPLER = "A sampler ('unmask list sampler') by name or with options: 'name: remdm, strategy: loop, eta: 0.05'."

Orders = Annotated[list[str] | None, typer.Option("--order", help=f"{_ORDER} Repeatable.", metavar="ORDER")]
SamplerSpecs = Annotated[list[str] | None, typer.Option("--sampler", help=f"{_SAMPLER} Repeatable.", metavar="SPEC")]


@dataclass(frozen=True)
class Ordering:
    """One way to unmask."""

    order: Annotated[str | None, typer.Option(help=_ORDER, metavar="ORDER")] = None
    sampler: Annotated[str | None, typer.Option(help=_SAMPLER, metavar="SPEC")] = None

    def way(self) -> dict[str, Any]:
        """What is asked for, as a model takes it."""
        return {"order": self.order, "sampler": sampler_spec(self.sampler)}


def sampler_spec(text: str | None) -> str | Mapping[str, Any] | None:
    """A name, or the mapping that 'name: ..., option: ...' is."""
    import yaml

    if text is None or ":" not in text:
        return text
    try:
        spec = yaml.safe_load(text if text.lstrip().startswith("{") else f"{{{text}}}")
    except yaml.YAMLError:
        spec = None
    if not isinstance(spec, Mapping):
        raise UnmaskError(f"--sampler '{text}' cannot be read; write it as 'name: remdm, strategy: cap'.")
    return spec


@dataclass(frozen=True)
class HeldOut:
    """Text that no checkpoint was trained on, and how it is read."""

    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Held-out text: files or folders of any kind that 'unmask train' reads, hf:NAME, or '-'; without it "
            "the validation split of the (first) checkpoint's training data."
        ),
    ] = None
    separator: Annotated[
        str | None, typer.Option(help="Line that separates documents in --data; or line, paragraph.")
    ] = None
    field: Annotated[
        str | None, typer.Option(help="Field of the records in --data (JSON, CSV, Parquet, ...) that holds the text.")
    ] = None
