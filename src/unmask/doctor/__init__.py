"""The checks behind `unmask doctor`: packages and hardware (`machine`), the mathematics (`laws`), a `checkpoint`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class CheckResult:
    """The result of one check. `passed` is None if the check does not apply; `words` says why."""

    name: str
    passed: bool | None
    words: str
    remedy: str = ""
    """What to do if the check failed."""
    value: float | None = None
    limit: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values; a value that is not finite becomes None."""
        return {**asdict(self), "value": finite(self.value), "limit": finite(self.limit)}


def finite(value: float | None) -> float | None:
    """Return the value, or None if JSON cannot hold it."""
    return value if value is not None and math.isfinite(value) else None
