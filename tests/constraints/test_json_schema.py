"""JSON schemas: every text parses and validates, valid JSON is accepted, and what is not supported is refused."""

from __future__ import annotations

import json
import random
import re
import time
from datetime import datetime

import jsonschema
import numpy as np
import pytest

from unmask.constraints import JsonSchema, Words
from unmask.constraints.automaton import CharacterDFA
from unmask.errors import UnmaskError

SCHEMAS = 150
TEXTS = 5
LETTERS = ["a", "é", '"', "\\", "\n", "/", "☃", "\N{GRINNING FACE}", " ", "0", "\x7f"]
VALUES = [None, True, 0, -1.5, 1e300, 2**70, 123456789.12345679, "", "a", "ab", 'a"b', "☃\\", [1, "a"], {"a": {}}]
PATTERNS = {
    "^[a-c]{2,4}$": ["ab", "cccc"],
    "x|yz": ["x", "yz"],
    r"^\d+é": ["0é", "123é"],
    r"[^\x00-\x1f\x22\\]*": ["", "é☃"],
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer"},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 2},
    },
    "required": ["age"],
}


def random_schema(rng: random.Random, depth: int = 3) -> dict:
    """A schema of the supported keywords."""
    kinds = ["null", "boolean", "integer", "number", "string", "pattern", "enum", "const", "types", "$ref"]
    kind = rng.choice(kinds + (["array", "object", "anyOf"] * 4 if depth else []))
    extra = {"title": "a", "default": 1} if rng.random() < 0.2 else {}
    if kind == "string":
        low = rng.choice([None, 0, 2])
        extra |= {} if low is None else {"minLength": low}
        extra |= {} if rng.random() < 0.5 else {"maxLength": (low or 0) + rng.randrange(3)}
    if kind == "array":
        extra["items"] = random_schema(rng, depth - 1)
        low = rng.choice([None, 0, 1, 3])
        extra |= {} if low is None else {"minItems": low}
        extra |= {} if rng.random() < 0.5 else {"maxItems": (low or 0) + rng.randrange(3)}
    if kind == "object":
        names = rng.sample(["a", "é", 'q"', "b\\", "line\n", "", "a b", "c"], rng.randrange(5))
        extra["properties"] = {name: random_schema(rng, depth - 1) for name in names}
        extra["required"] = rng.sample(names, rng.randrange(len(names) + 1))
        extra |= {"additionalProperties": False} if rng.random() < 0.5 else {}
    if kind == "enum":
        values = [
            None,
            True,
            0,
            -1.5,
            1e300,
            2**70,
            0.1,
            "",
            "a",
            "ab",
            'a"b',
            "☃\\",
            [1, "a"],
            {"a": {}},
            123456789.12345679,
        ]
        return extra | {"enum": rng.sample(values, rng.randrange(1, 6))}
    if kind == "pattern":
        return extra | {
            "type": "string",
            "pattern": rng.choice(["^[a-c]{2,4}$", "x|yz", r"^\d+é", r"[^\x00-\x1f\x22\\]*"]),
        }
    if kind == "anyOf":
        return extra | {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}
    if kind == "types":
        return extra | {"type": ["string", "null", "integer"], "maxLength": 2}
    others = {"const": {"const": rng.choice([None, "a b", 3])}, "$ref": {"$ref": "#/$defs/of~1a/anyOf/0"}}
    return others.get(kind, extra | {"type": kind})


def root_schema(seed: int) -> dict:
    rng = random.Random(seed)
    return {**random_schema(rng), "$defs": {"of/a": {"anyOf": [{"type": "boolean"}]}}}


def random_value(rng: random.Random, schema: dict) -> object:
    """A value that a schema of `random_schema` accepts."""
    kind = schema.get("type")
    if "enum" in schema or "const" in schema:
        return rng.choice(schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return random_value(rng, rng.choice(schema["anyOf"]))
    if "pattern" in schema:
        return rng.choice(PATTERNS[schema["pattern"]])
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "string":
        low = schema.get("minLength", 0)
        size = rng.randint(low, schema.get("maxLength", low + 3))
        return "".join(rng.choice(LETTERS) for _ in range(size))
    if kind == "array":
        low = schema.get("minItems", 0)
        return [random_value(rng, schema["items"]) for _ in range(rng.randint(low, schema.get("maxItems", low + 2)))]
    if kind == "object":
        chosen = {name for name in schema["properties"] if name in schema["required"] or rng.random() < 0.5}
        return {name: random_value(rng, one) for name, one in schema["properties"].items() if name in chosen}
    numbers = [0, 7, -3, 10**17, 1.5, -2e-7, 1e22] if kind == "number" else [0, 7, -3, 10**17]
    return {"null": None, "integer": rng.choice(numbers), "number": rng.choice(numbers)}.get(kind, rng.random() < 0.5)


def accepts(dfa: CharacterDFA, text: str) -> bool:
    state = 0
    for character in text:
        state = dfa.transitions[state, dfa.classes.get(character, 0)]
        if state < 0:
            return False
    return bool(dfa.accepting[state])


def random_text(rng: random.Random, dfa: CharacterDFA) -> str:
    """A random text that a DFA accepts, which becomes shorter after a while."""
    left = np.where(dfa.accepting, 0, len(dfa.transitions))  # characters that are needed to be accepted
    for _ in range(len(dfa.transitions)):
        after = np.append(left, len(dfa.transitions))[dfa.transitions].min(axis=1) + 1
        if (after >= left).all():
            break
        left = np.minimum(left, after)
    characters = {number: character for character, number in dfa.classes.items()} | {0: rng.choice("xé☃")}
    text, state = "", 0
    while not dfa.accepting[state] or rng.random() < 0.9:
        possible = [one for one in np.flatnonzero(dfa.transitions[state] >= 0) if one in characters]
        if len(text) > 60:
            if dfa.accepting[state]:
                break
            possible = [one for one in possible if left[dfa.transitions[state, one]] < left[state]]
        one = rng.choice(possible)
        text, state = text + characters[one], dfa.transitions[state, one]
    return text


def check(schema: dict, text: str) -> None:
    jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("seed", range(0, SCHEMAS, 10))
def test_every_accepted_text_validates_and_valid_json_is_accepted(seed):
    for one in range(seed, seed + 10):
        schema, rng = root_schema(one), random.Random(one)
        dfa = JsonSchema(json.dumps(schema) if one % 2 else schema).dfa
        for _ in range(TEXTS):
            text = random_text(rng, dfa)
            assert accepts(dfa, text)
            check(schema, text)
            value = random_value(rng, schema if "$ref" not in schema else schema["$defs"]["of/a"])
            check(schema, json.dumps(value))
            compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            assert accepts(dfa, compact), (schema, compact)


def test_json_in_the_usual_style_is_accepted_and_other_json_is_not():
    dfa = JsonSchema(PERSON).dfa
    assert accepts(dfa, json.dumps({"name": "Tim", "age": -20, "pets": ["cat", "dog"]}) + "\n\n")
    for wrong in ('{"name":"Tim"}', '{"age":1,"name":"Tim"}', '{"age":01}', '{"age":1.0}', '{"age":1,}', '{"age":1}x'):
        assert not accepts(dfa, wrong), wrong
    for wrong in (
        '{"name":"123456","age":1}',
        '{"name":"a\nb","age":1}',
        '{"age":1,"pets":["cat","cat","cat"]}',
        "",
        "\n",
    ):
        assert not accepts(dfa, wrong), wrong


BOUNDED = [
    {"type": "integer", "minimum": 0},
    {"type": "integer", "minimum": -25, "exclusiveMaximum": 107},
    {"type": "integer", "exclusiveMinimum": -2.5, "maximum": 9.9},
    {"type": "integer", "minimum": 118, "maximum": 118},
    {"type": "integer", "maximum": -7},
    {"type": "integer", "minimum": 10**17 - 3, "maximum": 10**17 + 3},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "minimum": -0.75, "exclusiveMaximum": 12.5},
    {"type": "number", "minimum": 99.99},
    {"type": "number", "exclusiveMaximum": 0.1 + 0.2},
    {"type": ["number", "null"], "minimum": 1e-7, "maximum": 3e2},
]


@pytest.mark.parametrize("schema", BOUNDED, ids=str)
def test_numbers_keep_their_bounds_and_all_short_ones_are_accepted(schema):
    dfa, rng = JsonSchema(schema).dfa, random.Random(0)
    for _ in range(100):
        check(schema, random_text(rng, dfa))
    bounds = [schema[name] for name in schema if name != "type"]
    near = [bound + step for bound in bounds for step in (-1, 0, 1)]
    numbers = [*range(-130, 131), *(one for one in near if "e" not in repr(one))]
    numbers += [round(rng.uniform(-20, 20), rng.randrange(1, 4)) for _ in range(300)]
    for number in numbers:
        if isinstance(number, int) or schema["type"] != "integer":
            valid = jsonschema.Draft202012Validator(schema).is_valid(number)
            assert accepts(dfa, json.dumps(number)) == valid, number
    for wrong in ("01", "-", "1.", ".5", "-01", "00.5", "1e", "", "--1"):
        assert not accepts(dfa, wrong), wrong


@pytest.mark.parametrize("form", ["date", "time", "date-time", "uuid", "email"])
def test_strings_have_their_format(form):
    schema, rng = {"type": "string", "format": form}, random.Random(0)
    dfa = JsonSchema(schema).dfa
    for _ in range(100):
        text = json.loads(random_text(rng, dfa))
        jsonschema.validate(text, schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        if form == "date-time":
            assert datetime.fromisoformat(text[:19])
    if form == "date":
        for day, valid in {"2024-02-29": True, "2023-02-29": False, "1999-12-31": True, "1999-06-31": False}.items():
            assert accepts(dfa, f'"{day}"') == valid, day


@pytest.mark.parametrize("steps", [3, None])
@pytest.mark.parametrize("length", [22, 40])
def test_every_generated_text_validates(mdlm, steps, length):
    constraint = JsonSchema(PERSON)
    for prompt in ("", '{"name":"'):
        for one in mdlm.sample(3, prompt=prompt, length=length, steps=steps, constraint=constraint):
            check(PERSON, one.text)
            assert one.text.startswith(prompt)
    (text,) = mdlm.fill(["{[MASK:8]7[MASK:9]"], constraint=[constraint, Words("age")])
    check(PERSON, text)


@pytest.mark.parametrize("seed", range(0, 30))
def test_random_schemas_hold_on_a_canvas(mdlm, seed):
    schema = root_schema(seed)
    try:
        (text,) = mdlm.generate(1, length=40, steps=4, seed=seed, constraint=JsonSchema(schema))
    except UnmaskError as error:
        assert "No canvas of 40 tokens can satisfy" in str(error)  # noqa: PT017
    else:
        check(schema, text)


def test_json_follows_a_prefix(mdlm):
    constraint = JsonSchema({"type": "boolean"}, prefix="A? (.*)")
    (text,) = mdlm.generate(1, prompt="A? (.*)", length=20, steps=2, constraint=constraint)
    assert json.loads(text.removeprefix("A? (.*)")) in (True, False)


def nested(kind: str, depth: int) -> dict:
    schema: dict = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema} if kind == "array" else {"anyOf": [schema, schema]}
    return schema


def doubled(depth: int) -> dict:
    """A schema that doubles with each reference."""
    parts = {
        f"a{i}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/a{i + 1}"} for name in "xy"}}
        for i in range(depth)
    }
    return {"$ref": "#/$defs/a0", "$defs": parts | {f"a{depth}": {"type": "null"}}}


DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
REFUSED = [
    ("", "is not valid (Expecting value"),
    ("[1]", "must be a JSON object, got [1]"),
    ("[" * 50_000, "nested too deeply"),
    ('"' + "a" * 70_000 + '"', "more than 65536 characters"),
    (True, "needs a dict or a JSON string"),
    ({"type": "strin"}, "'strin' is not valid"),
    ({"type": "string", "minLength": -1}, "at $.minLength"),
    ({"enum": [float("nan")]}, "not JSON compliant"),
    ('{"enum": [1e999]}', "not JSON compliant"),
    ({"enum": [object()]}, "not JSON serializable"),
    ({}, "at '$' has no type; give it a type"),
    ({"type": "array", "items": True}, "at '$.items' is true; describe the value"),
    ({"type": "array"}, "has no items"),
    ({"type": "object"}, "has no properties"),
    (
        {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}},
        "'$.properties.a' has multipleOf, ",
    ),
    ({"type": "integer", "minimum": 0.1, "maximum": 0.9}, "no number of at most 18 digits within its bounds"),
    ({"type": "number", "minimum": 1e300}, "no number of at most 15 digits within its bounds"),
    (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "integer",
            "minimum": 1,
            "exclusiveMinimum": True,
        },
        "has exclusiveMinimum true; give the number",
    ),
    ({"type": "string", "format": "ipv6"}, "has the format 'ipv6', which is not supported"),
    ({"type": "string", "format": "date", "maxLength": 3}, "has a format and a length"),
    ({"type": "string", "format": "date", "pattern": "2.*"}, "has a pattern and a format"),
    ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "has uniqueItems, which is not supported"),
    ({"oneOf": [{"type": "null"}]}, "has no type"),
    ({"type": "object", "anyOf": [{"type": "null"}]}, "has type beside anyOf, which is not supported"),
    ({"type": "object", "properties": {}, "required": ["a"]}, "requires 'a', which is not among its properties"),
    ({"type": "string", "enum": [1]}, "has no value of its type in enum; add one"),
    ({"type": "string", "pattern": "a(?=b)b"}, "the look-around"),
    ({"type": "string", "pattern": "("}, "that cannot be used (The regular expression '('"),
    ({"type": "string", "pattern": ".*"}, "characters that JSON escapes; exclude them"),
    ({"type": "string", "pattern": "(a{0,1000}){1000}"}, "too many states"),
    ({"type": "string", "pattern": "a", "maxLength": 3}, "has a pattern and a length"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength 3 above maxLength 2"),
    ({"type": "array", "items": {"type": "null"}, "maxItems": 10**9}, "too many"),
    ({"type": "string", "maxLength": 10**18}, "too many"),
    ({"$ref": "#"}, "refers to '#' inside itself"),
    ({"$ref": "http://a/b"}, "refers to 'http://a/b', which is not in it"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "inside itself"),
    (nested("anyOf", 40), "more than 65536 characters"),
    (doubled(40), "too many"),
    ({"anyOf": [{"type": "string", "maxLength": i} for i in range(900)]}, "too many"),
    (nested("array", 2000), "nested too deeply"),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_bad_schemas_are_refused_in_one_sentence_and_quickly(schema, message):
    begin = time.process_time()
    with pytest.raises(UnmaskError, match=re.escape(message)) as caught:
        JsonSchema(schema)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert time.process_time() - begin < 10


def test_a_schema_that_does_not_fit_is_told_before_the_network_runs(mdlm):
    with pytest.raises(
        UnmaskError, match=r"No canvas of 8 tokens can satisfy JsonSchema\(.*nearest possible length is 9"
    ):
        mdlm.generate(1, length=8, constraint=JsonSchema(PERSON))
    with pytest.raises(UnmaskError, match="given tokens contradict JsonSchema"):
        mdlm.generate(1, prompt="Hello", length=40, constraint=JsonSchema(PERSON))
    with pytest.raises(UnmaskError, match="up to 48 tokens, the length of this model"):
        mdlm.generate(1, length=40, constraint=JsonSchema({"const": "a" * 100}))
