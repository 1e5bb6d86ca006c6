"""Compute, store and compare golden results."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unmask

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = str(Path(unmask.__file__).parent)
RECORD = HERE / "record"
RTOL, ATOL = 1e-4, 1e-6
HEAD = 8
"""Number of leading values stored with the hash of an array."""
VOLATILE = {"created", "device_name", "lap", "memory_gib", "samples_per_second", "seconds", "seconds_per_text"}
VOLATILE |= {"time", "tokens_per_second", "version"}
"""Keys with values that differ from run to run, or with the version."""

Case = Callable[[], Any]
CASES: dict[str, tuple[str, Case]] = {}
"""name: (topic, function)."""
SLOW: set[str] = set()
"""Cases that run in exact mode only."""


def case(topic: str, slow: bool = False) -> Callable[[Case], Case]:
    """Register a case."""

    def add(function: Case) -> Case:
        assert function.__name__ not in CASES, function.__name__
        CASES[function.__name__] = (topic, function)
        if slow:
            SLOW.add(function.__name__)
        return function

    return add


def array(values: Any) -> dict[str, Any]:
    """An array as a hash, its leading values and its sum; hashes of floats are compared in exact mode alone."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    values = np.ascontiguousarray(values)
    kind = "float" if values.dtype.kind == "f" else "int"
    if kind == "int":  # the width of integers is not part of the behaviour
        values = values.astype(np.int64)
    finite = values[np.isfinite(values)] if kind == "float" else values
    return {
        f"{kind}_sha256": hashlib.sha256(values.tobytes()).hexdigest()[:16],
        "shape": list(values.shape),
        "head": values.ravel()[:HEAD].tolist(),
        "sum": finite.sum(dtype=np.float64).item() if kind == "float" else int(values.sum()),
    }


def sha256(data: bytes | str) -> str:
    """The hash of bytes or of a text."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:16]


def tensors(found: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Named tensors as one array, with their names and shapes."""
    names = sorted(found)
    parts = [found[name].detach().float().reshape(-1) for name in names]
    return {
        "names": sha256("\n".join(f"{name} {tuple(found[name].shape)}" for name in names)),
        "count": len(names),
        "values": array(torch.cat(parts) if parts else torch.zeros(0)),
        "norms": array(torch.tensor([float(part.double().norm()) for part in parts], dtype=torch.float64)),
    }


def scrub(value: Any, place: str | None = None) -> Any:
    """The same without values that differ from run to run; long lists of numbers become hashes."""
    if isinstance(value, dict):
        return {str(key): scrub(one, place) for key, one in value.items() if key not in VOLATILE}
    if isinstance(value, list | tuple):
        plain = all(isinstance(one, int | float) and not isinstance(one, bool) for one in value)
        return array(np.array(value)) if plain and len(value) > HEAD else [scrub(one, place) for one in value]
    if isinstance(value, str) and place:
        return value.replace(place, "PLACE").replace(PACKAGE, "PACKAGE")
    return value


@contextmanager
def workplace() -> Iterator[Path]:
    """An empty working folder and token cache, one thread and fixed global seeds."""
    before, cache, threads = Path.cwd(), os.environ.get("UNMASK_CACHE"), torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        place = Path(folder).resolve()
        os.environ["UNMASK_CACHE"] = str(place / "cache")
        os.chdir(place)
        torch.set_num_threads(1)
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        try:
            yield place
        finally:
            os.chdir(before)
            torch.set_num_threads(threads)
            os.environ.pop("UNMASK_CACHE", None)
            if cache is not None:
                os.environ["UNMASK_CACHE"] = cache


def compute(name: str) -> Any:
    """The result of a case as JSON gives it back."""
    with workplace() as place:
        found = CASES[name][1]()
        return json.loads(json.dumps(scrub(found, str(place))))


def written(found: dict[str, Any]) -> str:
    """Results as JSON: a line for each entry of a case, so that a change shows where it is."""
    cases = []
    for name, values in sorted(found.items()):
        lines = ",\n".join(f"  {_compact(key)}: {_compact(value)}" for key, value in values.items())
        cases.append(f" {_compact(name)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(cases) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def recorded(name: str) -> Any:
    """The frozen result of a case."""
    path = RECORD / f"{CASES[name][0]}.json"
    return json.loads(path.read_text(encoding="utf-8"))[name]


def differences(old: Any, new: Any, exact: bool, at: str = "") -> Iterator[str]:
    """Every place in which two results differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            if key not in old or key not in new:
                yield f"{at}.{key}: {'new' if key in new else 'gone'}"
            elif key != "float_sha256" or exact:
                yield from differences(old[key], new[key], exact, f"{at}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{at}: {len(old)} values, now {len(new)}: {_short(old)} != {_short(new)}"
        for i, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from differences(one, other, exact, f"{at}[{i}]")
    elif not _same(old, new, exact):
        yield f"{at}: {_short(old)} != {_short(new)}"


def _same(old: Any, new: Any, exact: bool) -> bool:
    number = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (old, new))
    if not number or (isinstance(old, int) and isinstance(new, int)):
        return type(old) is type(new) and old == new
    if math.isnan(old) or math.isnan(new):
        return math.isnan(old) and math.isnan(new)
    if exact:
        return old == new and math.copysign(1, old) == math.copysign(1, new)
    return old == new or math.isclose(old, new, rel_tol=RTOL, abs_tol=ATOL)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 160 else f"{text[:157]}..."
