"""The requests of the HTTP API, their limits, their translation into arguments of the library, and parts of answers."""

from __future__ import annotations

import json
import random
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from typing_extensions import Self

from unmask.constraints.members import Characters, Constraint, NoWords, Regex, Words
from unmask.errors import UnmaskError
from unmask.random import MAX_SEED, MIN_SEED
from unmask.text_processor import Generation


class UnknownModel(UnmaskError):
    """There is no model with the name asked for."""


class Limits(BaseModel):
    """What one request may ask for, and how many requests wait."""

    requests: int = Field(default=256, ge=1)
    """Requests that are answered or wait at the same time."""
    seconds: float = Field(default=300.0, gt=0)
    body_bytes: int = Field(default=1 << 20, ge=1)
    body_seconds: float = Field(default=15.0, gt=0)
    texts: int = Field(default=64, ge=1)
    tokens: int = Field(default=4096, ge=1)
    """Tokens of one text."""
    steps: int = Field(default=4096, ge=1)
    """Network calls of one text."""
    particles: int = Field(default=32, ge=1)

    def check_texts(self, count: int) -> None:
        """Raise `UnmaskError` if one request has too many texts."""
        if count > self.texts:
            raise UnmaskError(f"A request may have at most {self.texts} texts on this server, got {count}; send fewer.")


Text = Annotated[str, Field(max_length=1 << 20)]
Seed = Annotated[int, Field(ge=MIN_SEED, le=MAX_SEED)]


class Body(BaseModel):
    """A JSON object without unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True, protected_namespaces=())


class ConstraintSpec(Body):
    """Conditions on the whole text, as the command line has them."""

    match: str | None = Field(default=None, description="A regular expression for the whole text.")
    with_words: list[str] | None = Field(default=None, alias="with", max_length=64, description="Words in the text.")
    without: list[str] | None = Field(default=None, max_length=64, description="Words that are not in the text.")
    characters: list[int] | None = Field(default=None, min_length=2, max_length=2, description="[lowest, highest].")

    def constraints(self) -> list[Constraint]:
        """The constraints of the library."""
        found: list[Constraint] = [] if self.match is None else [Regex(self.match)]
        found += [Words(*self.with_words)] if self.with_words else []
        found += [NoWords(*self.without)] if self.without else []
        found += [Characters(*self.characters)] if self.characters else []
        return found


class JsonSchemaSpec(Body):
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Body):
    """OpenAI's `response_format`: text, or JSON by a schema."""

    type: Literal["text", "json_schema"]
    json_schema: JsonSchemaSpec | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("response_format must be {'type': 'json_schema', 'json_schema': {'schema': ...}} or text")
        return self


class GenerationRequest(Body):
    """The options of generation, which are those of the library."""

    model: str | None = Field(default=None, description="A model of /v1/models; the first one by default.")
    user: str | None = Field(default=None, description="Ignored.")
    steps: int | None = Field(default=None, ge=1, description="Network calls at most.")
    seed: Seed | None = Field(default=None, description="Text i has the seed `seed + i`; random by default.")
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    greedy_tail: float | None = Field(default=None, ge=0, le=1)
    greedy_above: float | None = Field(default=None, ge=0, le=1)
    order: str | None = None
    sampler: str | dict[str, Any] | None = None
    constraint: ConstraintSpec | None = None
    response_format: ResponseFormat | None = None
    particles: int = Field(default=1, ge=1)
    guidance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    exact: bool = False
    diffusing: bool = Field(default=False, description="Send every canvas as a server-sent event.")

    def choose_seed(self) -> int:
        """The seed of the first text, random by default."""
        return random.randrange(2**31) if self.seed is None else self.seed

    def options(self, seed: int, limits: Limits, prefix: str = "") -> dict[str, Any]:
        """Arguments of the library. A JSON schema applies to what follows the `prefix`. This may take a while."""
        if self.particles > limits.particles:
            raise UnmaskError(f"particles must be at most {limits.particles} on this server, got {self.particles}.")
        constraints = [] if self.constraint is None else self.constraint.constraints()
        if self.response_format is not None and self.response_format.json_schema is not None:
            from unmask.constraints import JsonSchema

            constraints.append(JsonSchema(self.response_format.json_schema.schema_, prefix=prefix))
        names = ("steps", "temperature", "top_p", "top_k", "min_p", "greedy_tail", "greedy_above", "order", "sampler")
        return {
            **{name: getattr(self, name) for name in names},
            "seed": seed,
            "constraint": constraints or None,
            "particles": self.particles,
            "guidance": self.guidance,
            "exact": self.exact,
        }


class StreamOptions(Body):
    include_usage: bool = False


class CompletionRequest(GenerationRequest):
    """OpenAI's completions. A prompt or suffix may have blanks such as [MASK:3], which are filled too."""

    prompt: Text | Annotated[list[Text], Field(min_length=1)] = ""
    suffix: Text | None = None
    max_tokens: int | None = Field(default=None, ge=1, description="Default: up to the length of the model.")
    n: int = Field(default=1, ge=1)
    stop: str | list[str] | None = None
    logprobs: int | None = Field(default=None, ge=0, le=5, description="The log-probabilities of the tokens.")
    stream: bool = False
    stream_options: StreamOptions | None = None
    echo: bool = False
    window: int | None = Field(default=None, ge=1)
    stride: int | None = Field(default=None, ge=1)
    best_of: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    @model_validator(mode="after")
    def _check_unsupported(self) -> Self:
        for name in ("frequency_penalty", "presence_penalty", "logit_bias"):
            if value := getattr(self, name):
                raise ValueError(f"{name} is not supported; leave out {name}={value}")
        if self.best_of not in (None, self.n):
            raise ValueError(f"best_of is not supported; leave out best_of={self.best_of}")
        if any(not word for word in self.stops):
            raise ValueError("stop must not be empty text")
        return self

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


class FimRequest(CompletionRequest):
    """Mistral's fill-in-the-middle."""

    random_seed: Seed | None = None
    min_tokens: int | None = Field(default=None, description="Ignored.")

    @model_validator(mode="after")
    def _use_random_seed(self) -> Self:
        if self.seed is None:
            self.seed = self.random_seed
        return self


class InfillRequest(BaseModel):
    """llama.cpp's infill. Options that this server does not have are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    input_prefix: Text = ""
    input_suffix: Text = ""
    prompt: Text = ""
    n_predict: int | None = Field(default=None, ge=-1)
    model: str | None = None
    seed: int | None = Field(default=None, ge=-1, le=MAX_SEED)
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    stop: list[str] | None = None
    stream: bool = False
    steps: int | None = Field(default=None, ge=1)

    def completion(self) -> CompletionRequest:
        """The same request in OpenAI's fields. -1 is the default of llama.cpp's fields, as is a top_k of 0."""
        return CompletionRequest(
            model=self.model,
            prompt=self.input_prefix + self.prompt,
            suffix=self.input_suffix or None,
            max_tokens=None if self.n_predict in (None, -1) else max(1, self.n_predict or 1),
            seed=None if self.seed == -1 else self.seed,
            temperature=self.temperature,
            top_k=self.top_k or None,
            top_p=self.top_p,
            min_p=self.min_p or None,
            stop=[word for word in self.stop or [] if word] or None,
            stream=self.stream,
            steps=self.steps,
        )


class FillRequest(GenerationRequest):
    """Texts with blanks, or rows of tokens with null at masks."""

    text: Text | Annotated[list[Text], Field(min_length=1)] | None = None
    tokens: Annotated[list[Annotated[list[int | None], Field(min_length=1)]], Field(min_length=1)] | None = None
    top: int | None = Field(default=None, ge=1, le=100)
    greedy: bool = False

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if (self.text is None) == (self.tokens is None):
            raise ValueError("give text or tokens, and one of them")
        return self


class EditRequest(GenerationRequest):
    """A text and what is rewritten: spans of characters, a fraction of its tokens, or all but some words."""

    text: Text
    spans: list[list[int]] | None = None
    strength: float | None = None
    keep: list[str] | None = None


class ScoreRequest(Body):
    """Texts and the text before them, which is not counted."""

    model: str | None = None
    text: Text | Annotated[list[Text], Field(min_length=1)]
    given: str | None = None
    precision: Annotated[float, Field(ge=1e-3, allow_inf_nan=False)] | Literal["auto"] = "auto"
    seed: Seed = 0


class ChooseRequest(Body):
    """A text with one [MASK], and the answers that may stand there."""

    model: str | None = None
    text: Text
    choices: list[str] = Field(min_length=2, max_length=256)
    seed: Seed = 0

    @field_validator("choices")
    @classmethod
    def _distinct(cls, choices: list[str]) -> list[str]:
        if len(set(choices)) != len(choices):
            raise ValueError("choices must differ")
        return choices


class ErrorDetails(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """An error in OpenAI's shape."""

    error: ErrorDetails


def count_tokens(one: Generation) -> tuple[int, int]:
    """The numbers of tokens given and written."""
    written = sum(call >= 0 for call in one.order)
    return len(one.ids) - written, written


def sum_usage(counts: list[tuple[int, int]]) -> dict[str, int]:
    """OpenAI's usage from tokens given and written."""
    prompt, written = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def server_event(value: dict[str, Any]) -> bytes:
    """A server-sent event with a JSON object."""
    return f"data: {json.dumps(value, ensure_ascii=False, allow_nan=False)}\n\n".encode()
