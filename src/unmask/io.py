"""Writing without halves: a file or folder is there whole, or as it was before."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unmask.errors import UnmaskError


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its name when the block ends well and vanishes when it does not.

    A folder that is already at `path` stays whole until the new one is complete. A full disk is the user's to mend.
    """
    from safetensors import SafetensorError

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        yield temporary
        _flush(temporary)
        temporary.chmod(0o755)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent))
            os.replace(path, old)
            os.replace(temporary, path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise _unwritten(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def atomic_text(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old or the new one, never a part."""
    atomic_bytes(path, text.encode("utf-8"))


def atomic_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old or the new one, never a part. A full disk is the user's to mend."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise _unwritten(path, error.strerror or error) from error


def _unwritten(path: Path, reason: object) -> UnmaskError:
    return UnmaskError(
        f"'{path}' could not be written ({reason}); free space or choose another place. What was there is unharmed."
    )


def must_be_a_place_for(path: Path) -> None:
    """Refuse a file that a user names for a picture or report, where its folder is not there or closed."""
    if path.is_dir():
        raise UnmaskError(f"'{path}' is a folder; name a file.")
    if not path.parent.is_dir():
        raise UnmaskError(f"'{path}' cannot be written, there is no folder '{path.parent}'; make it first.")
    must_be_writable(path)


def must_be_writable(path: Path) -> None:
    """Refuse a path that could not be made with all the folders above it; by trying, and nothing is left of that."""
    path = Path(path).absolute()
    try:
        nearest = next(folder for folder in path.parents if folder.exists())
        tempfile.TemporaryDirectory(dir=nearest).cleanup()
    except OSError as error:
        raise UnmaskError(f"'{path}' cannot be written ({error.strerror}); choose another place.") from error


def must_be_new(path: Path, remedy: str) -> None:
    """Refuse to write over a folder that holds something."""
    if path.is_file():
        raise UnmaskError(f"'{path}' is a file, not a folder; {remedy}.")
    if path.is_dir() and any(path.iterdir()):
        raise UnmaskError(f"'{path}' exists and is not empty; {remedy}.")


def _flush(folder: Path) -> None:
    """Ask the disk to keep every file of a folder before the folder gets its name, and let others read them."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            with path.open("rb") as file:
                os.fsync(file.fileno())
