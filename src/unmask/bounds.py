"""What a likelihood estimate is: a number in nats that never goes anywhere without its errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

SCORE_PRECISION = 0.05
"""Bits per token to which `score` knows a bound unless asked otherwise."""
FILL_COUNTS = (
    "Tokens include the EOS that fill a row, which lowers bits per token and perplexity; bits per character are over "
    "the text alone, however many EOS there are."
)
"""What is to be said beside the figures of a length policy whose pads are learnt."""
AGREEMENT = 4.0
"""Two estimators of one bound agree when they are at most this many joint standard errors apart."""


@dataclass(frozen=True)
class Bound:
    """An upper bound on -log p of some text (or, for AR, -log p itself), in nats, with both its errors in nats.

    `mc_stderr` is the Monte-Carlo standard error (0 for an exact likelihood); `data_stderr` is the standard error from
    the spread over documents, None with fewer than two. `each` holds the same per document where that was asked for.
    """

    estimator: str
    nats: float
    tokens: int
    bytes: int
    characters: int
    mc_stderr: float
    data_stderr: float | None
    draws: int
    exact: bool = False
    each: tuple[Bound, ...] = ()

    @property
    def stderr(self) -> float:
        """The Monte-Carlo standard error in nats: how well this number is known for this very text."""
        return self.mc_stderr

    @property
    def bits_per_token(self) -> float:
        """Bits over counted tokens, EOS included."""
        return _ratio(self.nats, self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """All bits over the UTF-8 bytes of the text; NaN where those are not known."""
        return _ratio(self.nats, self.bytes)

    @property
    def bits_per_char(self) -> float:
        """All bits over the characters of the text; NaN where those are not known."""
        return _ratio(self.nats, self.characters)

    @property
    def perplexity(self) -> float:
        """exp(nats per token)."""
        return math.exp(min(self.nats / self.tokens, 700.0))

    def error(self, unit: str = "nats", of: str = "mc") -> float | None:
        """The standard error of `nats`, `bits_per_token`, `bits_per_byte`, `bits_per_char` or `perplexity`.

        `of="mc"`: of the draws; `of="data"`: of the documents.
        """
        nats = self.mc_stderr if of == "mc" else self.data_stderr
        if nats is None:
            return None
        scale = {
            "nats": 1.0,
            "bits_per_token": _ratio(1.0, self.tokens),
            "bits_per_byte": _ratio(1.0, self.bytes),
            "bits_per_char": _ratio(1.0, self.characters),
            "perplexity": self.perplexity / self.tokens,
        }[unit]
        return nats * scale

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON: every unit with both its errors; None where one is not known."""
        out = asdict(replace(self, each=()))
        out.pop("each")
        for unit in ("bits_per_token", "bits_per_byte", "bits_per_char", "perplexity"):
            out[unit] = _known(getattr(self, unit))
            out[f"{unit}_mc_stderr"] = _known(self.error(unit, "mc"))
            out[f"{unit}_data_stderr"] = _known(self.error(unit, "data"))
        if self.each:
            out["each"] = [bound.as_dict() for bound in self.each]
        return out

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Bound:
        """A bound as `as_dict` wrote it, without its documents."""
        return cls(**{one.name: values[one.name] for one in fields(cls) if one.name != "each"})

    def __len__(self) -> int:
        return len(self.each)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Bound]:
        return iter(self.each)

    def __getitem__(self, index: int) -> Bound:
        return self.each[index]


@dataclass(frozen=True)
class Evaluation:
    """A text judged by every estimator of its model's objective, which must agree, and by T-step bounds beside them."""

    bounds: dict[str, Bound]
    discrete: dict[int, Bound]

    @property
    def headline(self) -> Bound:
        """The estimate that counts: the first."""
        return next(iter(self.bounds.values()))

    @property
    def disagreement(self) -> str | None:
        """A sentence when two estimators of the same number are too far apart, else None."""
        named = list(self.bounds.items())
        for i, (name, one) in enumerate(named):
            for other_name, other in named[i + 1 :]:
                if not agree(one, other):
                    return (
                        f"The estimators disagree: {name} {one.nats:.6g} +- {one.mc_stderr:.2g} nats against "
                        f"{other_name} {other.nats:.6g} +- {other.mc_stderr:.2g}; do not trust this model's bound."
                    )
        return None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "headline": self.headline.as_dict(),
            "bounds": {name: bound.as_dict() for name, bound in self.bounds.items()},
            "discrete": {str(steps): bound.as_dict() for steps, bound in self.discrete.items()},
            "agree": self.disagreement is None,
        }


def figure(bound: Bound, unit: str) -> str:
    """A value with both its errors, such as ``≤ 3.214 ± 0.004 ± 0.031``; an exact likelihood has no first one."""
    value = getattr(bound, unit)
    if value != value:
        return "-"
    draws, data = bound.error(unit, "mc"), bound.error(unit, "data")
    parts = [f"{value:.3f}" if bound.exact else f"≤ {value:.3f} ± {draws:.3f}"]
    return " ± ".join([*parts, f"{data:.3f}"] if data is not None else parts)


def agree(one: Bound, other: Bound) -> bool:
    """Whether two estimates of one bound are within four joint standard errors (and rounding) of each other."""
    joint = math.hypot(one.mc_stderr, other.mc_stderr)
    return abs(one.nats - other.nats) <= AGREEMENT * joint + 1e-5 * abs(one.nats)


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _ratio(nats: float, units: int) -> float:
    return nats / units / math.log(2.0) if units else math.nan
