"""Options, input, output and progress shared by the verbs."""

from __future__ import annotations

import codecs
import inspect
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cached_property, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from unmask.errors import UnmaskError, is_out_of_memory
from unmask.io import parse_yaml, read_json

if TYPE_CHECKING:
    from unmask.constraints import Constraint, JsonSchema
    from unmask.likelihood import Bound
    from unmask.pipeline import MaskedDiffusionLM
    from unmask.samplers.token_sampling import TokenSampler
    from unmask.text_processor import Generation

console = Console(highlight=False)
error_console = Console(stderr=True, highlight=False)
NARROW = 60
"""Columns of a terminal below which wide tables are printed as blocks of lines."""
WIDEST = 1000
"""Columns that a table may need."""


def check_checkpoint(name: str | None) -> str | None:
    """Raise `UnmaskError` if there is no such checkpoint, before a verb imports torch."""
    from unmask.checkpoint import find_checkpoint

    find_checkpoint(name)
    return name


def check_checkpoints(names: list[str] | None) -> list[str]:
    """Raise `UnmaskError` if one of several checkpoints does not exist."""
    for name in names or []:
        check_checkpoint(name)
    return names or []


def checkpoint_argument(help: str) -> Any:
    """An argument of one checkpoint, which has no default."""
    return typer.Argument(help=help, metavar="CKPT", callback=check_checkpoint)


def checkpoints_argument(help: str) -> Any:
    """An argument of one or more checkpoints."""
    return typer.Argument(help=help, metavar="CKPT...", callback=check_checkpoints)


# ---- options of several verbs ---------------------------------------------------------------------------------------

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Seed = Annotated[int, typer.Option(help="Random seed; sequence i uses seed + i.")]
BoundSeed = Annotated[int, typer.Option("--seed", help="Random seed of the draws.")]
Steps = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum number of network calls. Default: that of the checkpoint, else one per token."),
]
BoundSteps = Annotated[
    list[int] | None,
    typer.Option("--steps", min=1, help="Also compute the bound of the discrete process with T steps; repeatable."),
]
StepCounts = Annotated[
    list[str] | None,
    typer.Option(
        help="Maximum number of network calls; repeatable. 'none', the default, is one token per call, which "
        "autoregressive checkpoints always use."
    ),
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Sequences per batch; does not affect the result.")]
Checkpoint = Annotated[
    str | None,
    typer.Argument(
        help="Folder written by 'unmask train' or 'unmask convert', or the name of a shipped model "
        "('unmask list shipped'). Default: stories.",
        metavar="CKPT",
        callback=check_checkpoint,
    ),
]
Texts = Annotated[
    list[str],
    typer.Argument(
        help="Texts; '-' reads one per line from stdin. Of several arguments the first is the checkpoint, a folder or "
        "a shipped model ('unmask list shipped'). A single argument is a text for 'stories'.",
        metavar="[CKPT] TEXT...",
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ... Default: a GPU if there is one.")]
Out = Annotated[Path | None, typer.Option(help="Also write the JSON report to this file.")]

ORDER_HELP = (
    "Order in which positions are unmasked: confidence, margin, entropy, planner (see 'unmask train planner'), "
    "left_to_right or uniform in --steps calls; threshold or entropy_bounded in as few calls as the network's "
    "confidence allows. Default: uniform."
)
EXACT_HELP = (
    "Sample from the model's own distribution: temperature 1, no truncation and one token per call, unless other "
    "options change that. Otherwise the defaults are those of the checkpoint's generation_config.json, if it has one; "
    "'stories' has top-p 0.9 and, for whole texts, 128 calls of a remasking sampler."
)
SAMPLER_HELP = "Sampler by name ('unmask list sampler') or with options: 'name: remdm, strategy: loop, eta: 0.05'."

Orders = Annotated[list[str] | None, typer.Option("--order", help=f"{ORDER_HELP} Repeatable.", metavar="ORDER")]
Samplers = Annotated[list[str] | None, typer.Option("--sampler", help=f"{SAMPLER_HELP} Repeatable.", metavar="SPEC")]


def option_groups(verb: Callable[..., None]) -> Callable[..., None]:
    """Let a verb take a dataclass whose fields are command-line options.

    Typer reads options from the signature. The returned function shows Typer the fields of each dataclass parameter,
    annotated like ordinary options, in place of the parameter, and calls `verb` with the dataclass built from them.
    Dataclass parameters have no default, so the parameters after one are keyword-only.
    """
    signature = inspect.signature(verb, eval_str=True)
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        group = parameter.annotation
        if not is_dataclass(group):
            options.append(parameter)
            continue
        groups[parameter.name] = group
        types = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = parameter.empty if field.default is MISSING else field.default
            options.append(
                inspect.Parameter(field.name, parameter.KEYWORD_ONLY, default=default, annotation=types[field.name])
            )

    @wraps(verb)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        verb(**values)

    run.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


@dataclass(frozen=True)
class ModelOptions:
    """Device and precision of the network."""

    device: Device = None
    dtype: Annotated[
        Literal["auto", "float32", "bf16"], typer.Option(help="Compute precision; auto is bf16 on a GPU.")
    ] = "auto"

    def load(self, checkpoint: str | None) -> MaskedDiffusionLM:
        """Load a checkpoint with these options."""
        from unmask.pipeline import load

        return load(checkpoint, device=self.device, dtype=self.dtype)


@dataclass(frozen=True)
class TokenOptions:
    """How tokens are sampled."""

    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy. Default: 1.")
    ] = None
    top_k: Annotated[int | None, typer.Option(min=1, help="Sample from the k most likely tokens.")] = None
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling: total probability, in (0, 1].")] = None
    min_p: Annotated[
        float | None, typer.Option(help="Lowest probability, as a fraction of the highest, in [0, 1].")
    ] = None
    greedy_tail: Annotated[
        float | None, typer.Option(help="Fraction of the calls, at the end, that are greedy, in [0, 1].")
    ] = None
    greedy_above: Annotated[
        float | None, typer.Option(help="Greedy where the highest probability exceeds this, in [0, 1].")
    ] = None

    def token_options(self) -> dict[str, Any]:
        """The options by name."""
        return {field.name: getattr(self, field.name) for field in fields(TokenOptions)}

    def token_sampler(self) -> TokenSampler:
        """The validated options."""
        from unmask.generation_config import GenerationConfig

        return GenerationConfig.parse(self.token_options(), TokenOptions).token_sampler


@dataclass(frozen=True)
class GenerationOptions(TokenOptions):
    """How texts are sampled: tokens, constraints, and the order of unmasking or any sampler."""

    match: Annotated[str | None, typer.Option(help="Regular expression for the whole text.", metavar="REGEX")] = None
    json_schema: Annotated[
        Path | None, typer.Option(help="File with a JSON schema for the whole text.", metavar="FILE")
    ] = None
    with_words: Annotated[
        list[str] | None, typer.Option("--with", help="Whole word in the text; repeatable.", metavar="WORD")
    ] = None
    without: Annotated[
        list[str] | None, typer.Option(help="Whole word that the text does not contain; repeatable.", metavar="WORD")
    ] = None
    characters: Annotated[str | None, typer.Option(help="Length in characters: 50, or 40-60.", metavar="N-M")] = None
    count: Annotated[
        list[str] | None,
        typer.Option(help="Number of some characters, such as GC=80-120; repeatable.", metavar="CHARACTERS=N-M"),
    ] = None
    particles: Annotated[
        int, typer.Option(min=1, help="Particles per text; more are closer to the constrained distribution.")
    ] = 1
    order: Annotated[str | None, typer.Option(help=ORDER_HELP, metavar="ORDER")] = None
    sampler: Annotated[str | None, typer.Option(help=SAMPLER_HELP, metavar="SPEC")] = None
    exact: Annotated[bool, typer.Option("--exact", help=EXACT_HELP)] = False
    eos_rule: Annotated[
        bool, typer.Option(help="Let only EOS follow EOS, in models that learned to fill rows with EOS.")
    ] = True

    def __post_init__(self) -> None:
        if self.match is not None and find_spec("interegular") is None:
            raise UnmaskError("--match needs the package interegular; run: pip install 'unmask[regex]'.")
        self.schema  # noqa: B018  (validates the file)

    @cached_property
    def schema(self) -> JsonSchema | None:
        """The constraint of --json-schema."""
        from unmask.constraints import JsonSchema

        remedy = "give a file with a JSON schema"
        return None if self.json_schema is None else JsonSchema(read_json(self.json_schema, remedy))

    def arguments(self, steps: int | None) -> dict[str, Any]:
        """Validate the options and return them as arguments of `sample`, `fill_details` and `edit_details`."""
        from unmask.constraints import Characters, Count, NoWords, Regex, Words

        constraints: list[Constraint] = [] if self.schema is None else [self.schema]
        if self.match is not None:
            constraints.append(Regex(self.match))
        if self.with_words:
            constraints.append(Words(*self.with_words))
        if self.without:
            constraints.append(NoWords(*self.without))
        if self.characters is not None:
            found = re.fullmatch(r"(\d+)(?:-(\d+))?", self.characters)
            if found is None:
                raise UnmaskError(f"--characters must be a length such as 50 or 40-60, got '{self.characters}'.")
            constraints.append(Characters(int(found[1]), int(found[2] or found[1])))
        for text in self.count or ():
            found = re.fullmatch(r"(.+)=(\d+)(?:-(\d+))?", text)
            if found is None:
                raise UnmaskError(f"--count must be characters and a number, such as GC=80-120, got '{text}'.")
            constraints.append(Count(found[1], int(found[2]), int(found[3] or found[2])))
        self.token_sampler()  # validates the options
        return {
            **self.token_options(),
            "steps": steps,
            "order": self.order,
            "sampler": None if self.sampler is None else parse_sampler(self.sampler),
            "constraint": constraints or None,
            "particles": self.particles,
            "exact": self.exact,
            "eos_rule": self.eos_rule,
        }


def generation_report(
    lm: MaskedDiffusionLM, arguments: dict[str, Any], texts: list[Generation], whole_texts: bool = False, **more: Any
) -> dict[str, Any]:
    """Return texts and the `GenerationOptions.arguments` that they were sampled with as JSON values."""
    config, sampler = lm.resolve(arguments, lm.sample, whole_texts)
    return {
        "sampler": sampler.model_dump(),
        "rule": config.token_sampler.model_dump(),
        "constraints": [str(constraint) for constraint in arguments["constraint"] or []],
        "particles": config.particles,
        **more,
        "texts": [asdict(text) for text in texts],
    }


def parse_sampler(text: str) -> str | Mapping[str, Any]:
    """Parse a sampler's name, or 'name: ..., option: ...' as a mapping."""
    if ":" not in text:
        return text
    try:
        spec = parse_yaml(text if text.lstrip().startswith("{") else f"{{{text}}}")
    except ValueError:
        spec = None
    if not isinstance(spec, Mapping):
        raise UnmaskError(f"--sampler must be written as 'name: remdm, strategy: cap', got '{text}'.")
    return spec


@dataclass(frozen=True)
class HeldOutOptions:
    """Held-out text."""

    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Held-out text in any format that 'unmask train' reads: files, folders, patterns, hf:NAME or '-' for "
            "stdin. Default: the validation split of the (first) checkpoint's training data."
        ),
    ] = None
    separator: Annotated[
        str | None, typer.Option(help="Line that separates documents in --data, or 'line', or 'paragraph'.")
    ] = None
    field: Annotated[
        str | None, typer.Option(help="Field with the text in records of --data (JSON, CSV, Parquet, ...).")
    ] = None

    def __post_init__(self) -> None:
        from unmask.evaluation.perplexity import open_sources

        for source in open_sources(self.data or (), separator=self.separator, field=self.field):
            source.check()


# ---- input ----------------------------------------------------------------------------------------------------------


def split_arguments(words: list[str], verb: str, blanks: bool = False) -> tuple[str | None, list[str]]:
    """Split the arguments `[CKPT] TEXT...` into checkpoint and texts; the text '-' stands for the lines of stdin.

    The first of several words is the checkpoint, unless it has a space and is no folder, or has a blank if the texts
    have `blanks`.
    """
    checkpoint, texts = None, words
    if not (blanks and ("[MASK" in words[0] or words[0] == "-")):
        from unmask.checkpoint import is_checkpoint, shipped_models

        if len(words) > 1:
            if blanks or " " not in words[0] or os.path.exists(words[0]):
                checkpoint, *texts = words
        elif is_checkpoint(words[0]) or words[0] in shipped_models():
            raise UnmaskError(f"'{words[0]}' is a checkpoint; add the text to {verb}.")
        elif blanks:
            raise UnmaskError(f"The text {words[0]!r} has no blank; mark one with [MASK] or [MASK:n].")
    check_checkpoint(checkpoint)
    if texts == ["-"]:
        try:
            texts = [line.rstrip("\r\n") for line in sys.stdin or () if line.strip()]
        except UnicodeDecodeError as error:
            raise UnmaskError("Standard input is not valid UTF-8; convert it first.") from error
        if not texts:
            raise UnmaskError(f"Standard input has no text to {verb}; give one text per line.")
    return checkpoint, texts


# ---- output ---------------------------------------------------------------------------------------------------------

ASCII_ERRORS = "unmask-ascii"
"""The error handler of output streams: a character that the encoding lacks is written in ASCII, or as '?'."""
ASCII = str.maketrans(dict(zip("±–≤→·▄■‘’“”", ("+-", "-", "<=", "->", ".", "#", "#", "'", "'", '"', '"'), strict=True)))


def _to_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end].translate(ASCII)
    plain = (unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode() for letter in letters)
    return "".join(letter or "?" for letter in plain), error.end


codecs.register_error(ASCII_ERRORS, _to_ascii)


def format_json(result: Any, ensure_ascii: bool = False) -> str:
    """Format a result as every verb prints it with --json."""
    return json.dumps(result, ensure_ascii=ensure_ascii, allow_nan=False, indent=2) + "\n"


def print_json(result: Any) -> None:
    """Print a result; characters that the terminal's encoding lacks are escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(format_json(result, ensure_ascii=not encoding.lower().startswith("utf")))


def print_result(result: Any, text: str, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        print(text)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], left: Container[int] = (0,), title: str | None = None
) -> None:
    """Print a table. The first column is not wrapped; columns that are not `left` are aligned to the right."""
    table = Table(box=None, title=title, title_justify="left", header_style="bold", pad_edge=False)
    for number, column in enumerate(columns):
        justify: Literal["left", "right"] = "left" if number in left else "right"
        table.add_column(column, justify=justify, no_wrap=not number, overflow="fold")
    for row in rows:
        table.add_row(*row)
    print_fitting(table)


def print_fitting(table: Table) -> None:
    """Print a table; on a narrow terminal that is too small for it, each row as a block of lines."""
    unlimited = console.options.update(max_width=WIDEST)
    if console.width >= NARROW or console.measure(table, options=unlimited).maximum <= console.width:
        console.print(table)
        return
    first, *others = table.columns
    if heading := " ".join(str(one) for one in (table.title, first.header) if one):
        console.print(heading, style="bold", soft_wrap=True)
    for name, *cells in zip(*(column.cells for column in table.columns), strict=True):
        console.print(name, soft_wrap=True)
        for column, cell in zip(others, cells, strict=True):
            console.print(f"  {column.header}: {cell}", soft_wrap=True)


def print_notes(notes: Iterable[str]) -> None:
    """Print what a reader of a table must know."""
    for note in notes:
        console.print(note, style="dim", soft_wrap=True, markup=False)


def check_outputs(out: Path | None, plot: Path | None) -> None:
    """Raise `UnmaskError` before the work starts if an output file cannot be written."""
    from unmask.io import check_output_file
    from unmask.plots.style import check_picture

    if out is not None:
        check_output_file(out)
    if plot is not None:
        check_picture(plot)


def print_report(report: dict[str, Any], print_text: Callable[[], None], out: Path | None, as_json: bool) -> None:
    """Print a report as JSON or text, and write the JSON to the file `out` if it is given."""
    from unmask.io import atomic_text

    if as_json:
        print_json(report)
    else:
        print_text()
    if out is not None:
        atomic_text(out, format_json(report))


def format_bound(bound: Bound) -> str:
    """Format the validation result of a training run."""
    from unmask.data.rows import TEXT_TOKENS
    from unmask.likelihood import format_with_errors

    bits, perplexity = format_with_errors(bound, "bits_per_token"), format_with_errors(bound, "perplexity")
    unit = "token" if bound.denominator == TEXT_TOKENS else "position"
    return f"Validation: {bits} bits per {unit}, perplexity {perplexity}"


# ---- progress and memory --------------------------------------------------------------------------------------------


@contextmanager
def progress(
    description: str, total: int | None, quiet: bool = False, even: bool = True
) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on a terminal; yields the function that advances it.

    The time left is shown if the total is known and its parts are `even`, which means that they take equally long.
    """
    if quiet or not error_console.is_terminal:
        yield lambda done: None
        return
    from unmask.training.callbacks import TimeLeft

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    time_left = TimeLeft()
    time_left.on_begin(0, total or 0)
    with Progress(*columns, console=error_console, transient=True) as bar:
        task = bar.add_task(description, total=total, left="")

        def advance(done: float) -> None:
            time_left.advance(done)
            bar.update(task, advance=done, left=time_left.text if even and total else "")

        yield advance


@contextmanager
def out_of_memory_advice(batch_size: int | None, particles: int = 1) -> Iterator[None]:
    """Turn an out-of-memory error into an `UnmaskError` that says which option to lower."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        if particles > 1:  # the particles of a text are one batch
            raise UnmaskError(f"{particles} particles do not fit into memory; lower --particles.") from None
        if batch_size == 1:
            raise UnmaskError("A batch of 1 does not fit into memory; use shorter texts or another --device.") from None
        size = "of the default size" if batch_size is None else f"of {batch_size}"
        raise UnmaskError(f"A batch {size} does not fit into memory; lower --batch-size.") from None
