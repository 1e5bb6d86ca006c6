"""JSON schemas as automata over characters.

Every keyword is expressed exactly or refused: a text that the automaton accepts is JSON that the schema accepts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

from unmask.constraints.automaton import NFA, CharacterDFA, shorten
from unmask.constraints.regex import regex_dfa
from unmask.errors import UnmaskError, first_line

MAX_SIZE = 1 << 16
"""The most characters of a schema."""
DIGITS = "0123456789"
ESCAPED = "".join(map(chr, range(0x20))) + '"\\'
"""Characters that JSON escapes in strings."""
MAX_DIGITS = {"integer": 18, "fraction": 17, "exponent": 2}
"""The most digits of a number, which every parser can read."""
EXACT_DIGITS = 15
"""Numbers with at most this many digits differ as floats if they differ as decimals."""
BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
KEYWORDS = {
    **dict.fromkeys(("null", "boolean"), frozenset[str]()),
    **dict.fromkeys(("integer", "number"), BOUNDS),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
"""The keywords of each type."""
COMBINATIONS = {
    "$ref": frozenset({"$ref"}),
    "enum": frozenset({"enum", "type"}),
    "const": frozenset({"const", "type"}),
    "anyOf": frozenset({"anyOf"}),
}
"""Keywords that replace those of a type, and the keywords that may stand beside each."""
YEAR, DAY = "[1-9][0-9]{3}", "(?:0[1-9]|1[0-9]|2[0-8])"
DATE = (
    f"(?:{YEAR}-(?:(?:0[1-9]|1[0-2])-{DAY}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    "|[1-9][0-9](?:0[48]|[2468][048]|[13579][26])-02-29)"
)
CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
TIME = f"{CLOCK}:[0-5][0-9](?:[.][0-9]{{1,6}})?(?:Z|[+-]{CLOCK})"
LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
FORMATS = {
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}T{TIME}",
    "uuid": "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "email": f"[A-Za-z0-9_+-]+(?:[.][A-Za-z0-9_+-]+)*@(?:{LABEL}[.])+[A-Za-z]{{2,12}}",
}
"""Expressions for strings of each format. Years have four digits."""
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"$comment", "$schema", "$id", "$defs", "definitions"}
)


def json_schema_dfa(schema: Mapping[str, Any] | str, prefix: str) -> CharacterDFA:
    """The DFA that accepts `prefix` followed by JSON that a schema accepts.

    Objects have no properties but the named ones, in the order of the schema. A space may follow a colon or comma, and
    line ends may follow the JSON. Raises `UnmaskError` for keywords that it cannot express.
    """
    try:
        from jsonschema.validators import Draft202012Validator, validator_for
    except ImportError:
        raise UnmaskError("JSON schemas need the package jsonschema; run: pip install 'unmask[json]'.") from None
    try:
        root = json.loads(
            _limited([schema] if isinstance(schema, str) else json.JSONEncoder(allow_nan=False).iterencode(schema))
        )
        json.dumps(root, allow_nan=False)
        if not isinstance(root, dict):
            raise ValueError(f"it must be a JSON object, got {shorten(root)}")
        validator = validator_for(root, default=Draft202012Validator)
        if error := next(validator(validator.META_SCHEMA).iter_errors(root), None):
            raise ValueError(f"{error.message} at {error.json_path}")
        writer = _Writer(root, validator)
        end = writer.value(writer.nfa.text(0, prefix), root, "$", ())
        writer.nfa.add(end, "\n", end)
        return writer.nfa.determinise(end)
    except UnmaskError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else first_line(error)
        raise UnmaskError(f"The JSON schema is not valid ({reason}); correct it.") from error


def _limited(pieces: Iterable[str]) -> str:
    """The joined pieces of a schema, which can be very long if it contains an object many times."""
    text = ""
    for piece in pieces:
        text += piece
        if len(text) > MAX_SIZE:
            raise ValueError(f"it has more than {MAX_SIZE} characters")
    return text


class _Writer:
    """Adds the values of a schema to an NFA. Each method starts at a state and returns the one after the value."""

    def __init__(self, root: dict[str, Any], validator: Any) -> None:
        self.root, self.validator, self.nfa = root, validator, NFA()

    def value(self, at: int, schema: Any, place: str, references: tuple[str, ...]) -> int:
        """A value of `schema`, which is at the path `place` of the root and inside the $refs `references`."""
        if not isinstance(schema, dict):
            raise _refusal(place, f"is {json.dumps(schema)}", "describe the value by its type")
        types = schema.get("type", [])
        types = [types] if isinstance(types, str) else types
        combination = next((one for one in COMBINATIONS if one in schema), None)
        if not combination and not types:
            raise _refusal(place, "has no type", "give it a type, $ref, enum, const or anyOf")
        known = COMBINATIONS[combination] if combination else {"type"}.union(*(KEYWORDS[one] for one in types))
        if unknown := sorted(schema.keys() - ANNOTATIONS - known):
            beside = f" beside {combination}" if combination else ""
            raise _refusal(place, f"has {unknown[0]}{beside}, which is not supported", "leave it out")
        if combination == "$ref":
            return self.reference(at, schema["$ref"], place, references)
        if combination == "anyOf":
            alternatives = enumerate(schema["anyOf"])
            return self.nfa.join(*(self.value(at, one, f"{place}.anyOf[{i}]", references) for i, one in alternatives))
        if combination:
            values = schema["enum"] if combination == "enum" else [schema["const"]]
            accepts = self.validator({"type": types} if types else {}).is_valid
            if not (accepted := [_to_json(one) for one in values if accepts(one)]):
                raise _refusal(place, f"has no value{' of its type' if types else ''} in {combination}", "add one")
            return self.nfa.join(*(self.nfa.text(at, one) for one in accepted))
        return self.nfa.join(*(getattr(self, f"write_{one}")(at, schema, place, references) for one in types))

    def reference(self, at: int, name: str, place: str, references: tuple[str, ...]) -> int:
        if name in references:
            raise _refusal(place, f"refers to {shorten(name)} inside itself", "unfold it to the depth that you need")
        part: Any = self.root
        try:
            if not name.startswith("#"):
                raise LookupError
            for key in filter(None, name[1:].split("/")):
                part = part[int(key) if isinstance(part, list) else key.replace("~1", "/").replace("~0", "~")]
        except (LookupError, TypeError, ValueError):
            raise _refusal(place, f"refers to {shorten(name)}, which is not in it", "add it to $defs") from None
        return self.value(at, part, name, (*references, name))

    def write_null(self, at: int, *_: Any) -> int:
        return self.nfa.text(at, "null")

    def write_boolean(self, at: int, *_: Any) -> int:
        return self.nfa.join(self.nfa.text(at, "true"), self.nfa.text(at, "false"))

    def write_integer(self, at: int, schema: dict[str, Any], place: str, _: Any) -> int:
        if BOUNDS & schema.keys():
            return self.bounded(at, schema, place, MAX_DIGITS["integer"], 0)
        return self.integer(at)

    def write_number(self, at: int, schema: dict[str, Any], place: str, _: Any) -> int:
        if bounds := BOUNDS & schema.keys():
            whole = max(len(str(int(abs(schema[name])))) for name in bounds)
            whole = min(whole if len(bounds) > 1 else max(whole, 9), EXACT_DIGITS)
            return self.bounded(at, schema, place, whole, EXACT_DIGITS - whole)
        whole = self.integer(at)
        decimal = self.nfa.join(whole, self.digits(self.nfa.text(whole, "."), 1, MAX_DIGITS["fraction"]))
        power = self.nfa.add(decimal, "eE")
        return self.nfa.join(
            decimal, self.digits(self.nfa.join(power, self.nfa.add(power, "+-")), 1, MAX_DIGITS["exponent"])
        )

    def integer(self, at: int) -> int:
        signed = self.nfa.join(at, self.nfa.text(at, "-"))
        digits = self.digits(self.nfa.add(signed, DIGITS[1:]), 0, MAX_DIGITS["integer"] - 1)
        return self.nfa.join(self.nfa.text(signed, "0"), digits)

    def digits(self, at: int, low: int, high: int) -> int:
        return self.repeat(at, low, high, lambda begin: self.nfa.add(begin, DIGITS))

    def bounded(self, at: int, schema: dict[str, Any], place: str, whole: int, places: int) -> int:
        """A number within its bounds, with at most `whole` digits before the point and `places` after it."""
        high = 10 ** (whole + places) - 1  # in units of the last place
        low = -high
        for name in BOUNDS & schema.keys():
            if isinstance(schema[name], bool):
                raise _refusal(place, f"has {name} {json.dumps(schema[name])}", "give the number")
            bound = Fraction(repr(schema[name])) * 10**places
            if name in ("minimum", "exclusiveMinimum"):
                low = max(low, math.ceil(bound) if name == "minimum" else math.floor(bound) + 1)
            else:
                high = min(high, math.floor(bound) if name == "maximum" else math.ceil(bound) - 1)
        if low > high:
            raise _refusal(place, f"has no number of at most {whole + places} digits within its bounds", "correct them")
        ends = self.decimals(self.nfa.text(at, "-"), max(1, -high), -low, places) if low < 0 else []
        ends += self.decimals(at, max(0, low), high, places) if high >= 0 else []
        return self.nfa.join(*ends)

    def decimals(self, at: int, low: int, high: int, places: int) -> list[int]:
        """The states after the decimals from `low` to `high`, in units of the last place, without leading zeros."""
        ends = []
        for whole in range(1, len(str(high // 10**places)) + 1):
            size = whole + places
            first, last = max(low, 0 if whole == 1 else 10 ** (size - 1)), min(high, 10**size - 1)
            if first <= last:
                ends += self.between(at, str(first).zfill(size), str(last).zfill(size), whole)
        return ends

    def between(self, at: int, low: str, high: str, whole: int) -> list[int]:
        """The states after the digits from `low` to `high`, with a point after `whole` of them.

        Zeros at the end may be left out after the point.
        """
        ends = [at] if whole <= 0 and not low.strip("0") else []
        if not low:
            return ends
        if whole == 0:
            at = self.nfa.text(at, ".")
        begins: dict[tuple[str, str], str] = {}  # the digits at this place by the bounds of the others
        for digit in DIGITS[int(low[0]) : int(high[0]) + 1]:
            rest = low[1:] if digit == low[0] else "0" * len(low[1:])
            most = high[1:] if digit == high[0] else "9" * len(high[1:])
            begins[rest, most] = begins.get((rest, most), "") + digit
        for (rest, most), digits in begins.items():
            ends += self.between(self.nfa.add(at, digits), rest, most, whole - 1)
        return ends

    def write_string(self, at: int, schema: dict[str, Any], place: str, _: Any) -> int:
        low, high = _bounds(schema, "minLength", "maxLength", place)
        if (form := schema.get("format", "date")) not in FORMATS:
            remedy = f"state it as a pattern, or use {', '.join(FORMATS)}"
            raise _refusal(place, f"has the format {shorten(form)}, which is not supported", remedy)
        at = self.nfa.text(at, '"')
        expressions = [schema["pattern"]] if "pattern" in schema else []
        expressions += [FORMATS[form]] if "format" in schema else []
        if not expressions:
            end = self.repeat(at, low, high, self.character)
        elif len(expressions) == 1 and (low, high) == (0, None):
            end = self.nfa.embed(at, _pattern_dfa(expressions[0], place))
        else:
            kind = "pattern" if "pattern" in schema else "format"
            other = "format" if len(expressions) > 1 else "length"
            raise _refusal(
                place, f"has a {kind} and a {other}", "state both in the pattern, as [a-z]{2,5} does for a length"
            )
        return self.nfa.text(end, '"')

    def character(self, at: int) -> int:
        """A character of a string, escaped if it must be."""
        return self.nfa.join(self.nfa.add_others(at, ESCAPED), self.nfa.add(self.nfa.text(at, "\\"), '"\\/bfnrt'))

    def write_array(self, at: int, schema: dict[str, Any], place: str, references: tuple[str, ...]) -> int:
        low, high = _bounds(schema, "minItems", "maxItems", place)
        if "items" not in schema and high != 0:
            raise _refusal(place, "has no items", "give the schema of its items")

        def item(begin: int) -> int:
            return self.value(begin, schema["items"], f"{place}.items", references)

        opened = self.nfa.text(at, "[")
        ends = [opened] if low == 0 else []
        if high != 0:
            first, more = item(opened), None if high is None else high - 1
            ends.append(self.repeat(first, max(low - 1, 0), more, lambda begin: item(self.comma(begin))))
        return self.nfa.text(self.nfa.join(*ends), "]")

    def write_object(self, at: int, schema: dict[str, Any], place: str, references: tuple[str, ...]) -> int:
        """The properties in order. `none` is the state before the first one that is written, `some` those after one."""
        if "properties" not in schema:
            raise _refusal(place, "has no properties", "name them")
        required = set(schema.get("required", []))
        if missing := sorted(required - schema["properties"].keys()):
            raise _refusal(place, f"requires {missing[0]!r}, which is not among its properties", "add it there")
        none, some = [self.nfa.text(at, "{")], list[int]()
        for name, one in schema["properties"].items():
            begin = self.nfa.join(*none, *(self.comma(state) for state in some))
            colon = self.space(self.nfa.text(begin, f"{_to_json(name)}:"))
            end = self.value(colon, one, f"{place}.properties.{name}", references)
            if name in required:
                none, some = [], [end]
            else:
                some = [self.nfa.join(*some, end)]
        return self.nfa.text(self.nfa.join(*none, *some), "}")

    def comma(self, at: int) -> int:
        return self.space(self.nfa.text(at, ","))

    def space(self, at: int) -> int:
        return self.nfa.join(at, self.nfa.text(at, " "))

    def repeat(self, at: int, low: int, high: int | None, one: Callable[[int], int]) -> int:
        """From `low` to `high` repetitions (None: no upper limit)."""
        ends = [at] if low == 0 else []
        for count in range(1, low + 1 if high is None else high + 1):
            at = one(at)
            if count >= low:
                ends.append(at)
        if high is None:
            begin = self.nfa.join(at)
            self.nfa.skip(one(begin), begin)
            ends.append(begin)
        return self.nfa.join(*ends)


def _pattern_dfa(pattern: str, place: str) -> CharacterDFA:
    """The DFA of the strings that a pattern matches as a whole. None of them needs escapes in JSON."""
    whole = re.sub(r"(?<!\\)((?:\\\\)*)\$$", r"\1", pattern.removeprefix("^"))
    try:
        dfa = regex_dfa(whole)
    except UnmaskError as error:
        raise _refusal(
            place, f"has a pattern that cannot be used ({first_line(error).rstrip('.')})", "change it"
        ) from None
    if (dfa.transitions[:, [dfa.classes.get(one, 0) for one in ESCAPED]] >= 0).any():
        remedy = r"exclude them, as [^\x00-\x1f\x22\\]* does"
        raise _refusal(place, f"has the pattern {shorten(pattern)} with characters that JSON escapes", remedy)
    return dfa


def _bounds(schema: dict[str, Any], lowest: str, highest: str, place: str) -> tuple[int, int | None]:
    low, high = int(schema.get(lowest, 0)), schema.get(highest)
    if high is not None and low > high:
        raise _refusal(place, f"has {lowest} {low} above {highest} {high}", "correct one of them")
    return low, None if high is None else int(high)


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _refusal(place: str, fault: str, remedy: str) -> UnmaskError:
    return UnmaskError(f"The JSON schema at {shorten(place)} {fault}; {remedy}.")
