"""Whether a checkpoint is still what was written: the size and CRC-32 of each of its files."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

CHECKSUMS = Path("state", "checksums.json")
CHUNK = 1 << 22


def write_checksums(folder: Path) -> None:
    """Note all files of a folder that is complete."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / CHECKSUMS)
    sums = {file.relative_to(folder).as_posix(): _sum_of(file) for file in files}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None for one that is as it was written."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        wrong = [name for name, expected in sums.items() if _sum_of(folder / name) != expected]
    except (OSError, ValueError, AttributeError) as error:
        missing = getattr(error, "filename", None)
        return f"{Path(missing).name} cannot be read" if missing else f"{CHECKSUMS.name} cannot be understood"
    return f"{wrong[0]} is not what was written" if wrong else None


def _sum_of(path: Path) -> list[int]:
    """[size, CRC-32] of a file."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return [size, crc]
