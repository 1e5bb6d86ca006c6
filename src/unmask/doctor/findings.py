"""What a check returns: a figure beside the most it may be, and, where it fails, what to do next."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """The outcome of one check. `passed` is None where the check does not apply; `words` then say why."""

    name: str
    passed: bool | None
    value: float | None
    limit: float | None
    words: str
    remedy: str = ""
    """What to do next when the check fails."""

    @property
    def failed(self) -> bool:
        """Whether the check was made and not passed."""
        return self.passed is False

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a figure that is no number is None, and the check has failed."""
        finite = {key: _finite(getattr(self, key)) for key in ("value", "limit")}
        return asdict(self) | finite


def at_most(name: str, value: float, limit: float, words: str, remedy: str) -> Finding:
    """A figure that must not be above its limit; a NaN always is."""
    return Finding(name, value <= limit, value, limit, words, remedy)


def not_applicable(name: str, why: str) -> Finding:
    """A check that cannot be asked of this checkpoint."""
    return Finding(name, None, None, None, why)


def not_made(name: str, error: Exception) -> Finding:
    """A check that broke off, which is a failure too."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
    words = f"the check broke off with {type(error).__name__}: {reason}"
    return Finding(name, False, None, None, words, "mend what the message names, or report it")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
