"""Rewrite the golden record: `OMP_NUM_THREADS=1 python -m tests.golden.record [--old-run] [CASE ...]`.

Without names every case is computed anew. `--old-run` also trains and writes the stored run folders again, which is
only right where the format of checkpoints is meant to change.
"""

from __future__ import annotations

import json
import sys
import time
import traceback

from tests.golden import cases
from tests.golden.harness import CASES, RECORD, compute, written


def main(arguments: list[str]) -> None:
    if "--old-run" in arguments:
        cases.write_old_runs()
    names = [name for name in arguments if not name.startswith("--")] or list(CASES)
    RECORD.mkdir(exist_ok=True)
    for topic in dict.fromkeys(CASES[name][0] for name in names):
        path = RECORD / f"{topic}.json"
        old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        found = {name: old[name] for name, (where, _) in CASES.items() if where == topic and name in old}
        for name in (one for one in names if CASES[one][0] == topic):
            start = time.perf_counter()
            try:
                found[name] = compute(name)
            except Exception:
                traceback.print_exc()
            print(f"{time.perf_counter() - start:7.2f} s  {topic}/{name}", flush=True)
        path.write_text(written(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
