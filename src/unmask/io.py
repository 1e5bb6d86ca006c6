"""Files and folders: atomic writes, checksums, cached folders that are built once, and checks of paths.

After an interrupted write a file or folder is as it was before. A checkpoint folder has the checksums of its files in
checksums.json.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from unmask.errors import UnmaskError, first_line

CHECKSUMS = "checksums.json"
STATE_CHECKSUMS = "state/checksums.json"
"""Where earlier versions kept the checksums of a training run."""
CHUNK = 1 << 22
MAX_JSON = 1 << 28
"""Bytes of the largest JSON file that is read; the largest tokenizers have about a tenth of it."""
HUB_TIMEOUT = 2.0
"""Seconds to wait for the first answer of the Hugging Face hub."""


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` if the block succeeds and is removed otherwise.

    Files are flushed to disk first. A folder that is already at `path` stays until the new one is complete.
    """
    from safetensors import SafetensorError

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        yield temporary
        for written in temporary.rglob("*"):
            if written.is_file():
                written.chmod(0o644)
                with written.open("rb") as file:
                    os.fsync(file.fileno())
        temporary.chmod(0o755)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent))
            os.replace(path, old)
            os.replace(temporary, path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise _write_error(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def atomic_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    atomic_bytes(path, text.encode("utf-8"))


def atomic_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path whose file replaces `path` if the block succeeds; readers see the old or the new file."""
    from safetensors import SafetensorError

    path = Path(path)
    _refuse_devices(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        try:
            yield Path(name)
            with open(name, "rb") as file:
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise _write_error(path, getattr(error, "strerror", None) or error) from error


def _refuse_devices(path: Path) -> None:
    """Raise `UnmaskError` for a device or pipe, which a file would replace: an administrator may rename over those."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UnmaskError(f"'{path}' is a device or a pipe, which would be replaced; name a file.")


def _write_error(path: Path, reason: object) -> UnmaskError:
    return UnmaskError(
        f"'{path}' could not be written ({reason}); free space or choose another path. The old content is unchanged."
    )


@contextmanager
def reading(what: str, remedy: str) -> Iterator[None]:
    """Raise ``WHAT (REASON); REMEDY.`` for every error of a block that reads a file from elsewhere.

    Rust extensions raise a `BaseException` of their own when they panic.
    """
    try:
        yield
    except (UnmaskError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise UnmaskError(f"{what} ({first_line(error)}); {remedy}.") from error


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in the Python code of the block, such as a template that loops, if it takes longer."""
    end, tracer = time.monotonic() + seconds, sys.gettrace()

    def check(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > end:
            raise TimeoutError(f"it takes longer than {seconds:g} seconds")
        return check

    sys.settrace(check)
    try:
        yield
    finally:
        sys.settrace(tracer)


def read_json(path: Path, remedy: str = "restore it or fetch it again") -> dict[str, Any]:
    """Read a JSON object of standard JSON, without NaN and infinities."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    with reading(f"'{path}' cannot be read", remedy):
        if not path.is_file():  # reading a pipe would wait for ever
            raise OSError("it is not a file")
        if path.stat().st_size > MAX_JSON:
            raise ValueError(f"it is larger than {MAX_JSON >> 20} MiB")
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}, not an object")
    return content


def parse_yaml(text: str) -> Any:
    """The value of a YAML document without Python tags; a `ValueError` names the line that is not YAML."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise ValueError(f"{line}{error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(first_line(error)) from error


def write_checksums(folder: Path) -> None:
    """Write the size and CRC-32 of every file of a complete folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / CHECKSUMS)
    sums = {file.relative_to(folder).as_posix(): _checksum(file) for file in files}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def find_damage(folder: Path) -> str | None:
    """The first problem of a folder in words, or None if its checksums match."""
    try:
        sums = json.loads(_checksum_file(folder).read_text(encoding="utf-8"))
        wrong = [name for name, expected in sums.items() if _checksum(folder / name) != expected]
    except (OSError, ValueError, AttributeError) as error:
        missing = getattr(error, "filename", None)
        return f"{Path(missing).name} cannot be read" if missing else f"{CHECKSUMS} cannot be parsed"
    return f"{wrong[0]} does not match its checksum" if wrong else None


def is_intact(file: Path) -> bool:
    """Whether a file has the checksum that is recorded beside it; True if none is recorded.

    A process reads a file once, and again when its size or time changes.
    """
    recorded = _checksum_file(file.parent)
    expected = read_json(recorded).get(file.name) if recorded.is_file() else None
    if expected is None or not file.is_file():
        return expected is None
    stat = file.stat()
    return expected == _cached_checksum(file.resolve(), stat.st_size, stat.st_mtime_ns)


@lru_cache
def _cached_checksum(path: Path, size: int, time: int) -> list[int]:
    return _checksum(path)


def _checksum_file(folder: Path) -> Path:
    return folder / (CHECKSUMS if (folder / CHECKSUMS).exists() else STATE_CHECKSUMS)


def _checksum(path: Path) -> list[int]:
    """[size, CRC-32] of a file."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return [size, crc]


def cache_dir() -> Path:
    """Return ``$UNMASK_CACHE``, else ``$XDG_CACHE_HOME/unmask``, else ``~/.cache/unmask``."""
    if own := os.environ.get("UNMASK_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unmask"


def build_once(path: Path, is_complete: Callable[[Path], bool], write: Callable[[Path], None]) -> None:
    """Make sure that there is a complete folder at `path`.

    A missing or damaged folder is built by `write` in another folder, which is renamed when it is complete. One process
    builds while others wait. `write` is given the folder that a killed or failed build left, and may continue from
    it; after an `UnmaskError` nothing is left.
    """
    from filelock import FileLock

    if is_complete(path):
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            if is_complete(path):
                return
            partial.mkdir(exist_ok=True)
            try:
                write(partial)
            except UnmaskError:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            shutil.rmtree(path, ignore_errors=True)
            os.replace(partial, path)
    except OSError as error:
        raise UnmaskError(
            f"The cache folder {path.parent} cannot be used ({error.strerror or error}); "
            "set the environment variable UNMASK_CACHE to a writable folder."
        ) from error


def check_output_file(path: Path) -> None:
    """Raise `UnmaskError` unless a file can be written at `path` and its folder exists."""
    if path.is_dir():
        raise UnmaskError(f"'{path}' is a folder; name a file.")
    _refuse_devices(path)
    if not path.parent.is_dir():
        raise UnmaskError(f"'{path}' cannot be written: the folder '{path.parent}' does not exist; create it first.")
    check_writable(path)


def check_writable(path: Path) -> None:
    """Raise `UnmaskError` unless `path` and its missing parents can be created, by creating a temporary folder."""
    path = Path(path).absolute()
    try:
        nearest = next(folder for folder in path.parents if folder.exists())
        tempfile.TemporaryDirectory(dir=nearest).cleanup()
    except OSError as error:
        raise UnmaskError(f"'{path}' cannot be written ({error.strerror}); choose another path.") from error


def check_new_folder(path: Path, remedy: str, ignore: Sequence[str] = ()) -> None:
    """Raise `UnmaskError` if `path` is anything but an empty folder; files named in `ignore` do not count."""
    if path.exists() and not path.is_dir():
        raise UnmaskError(f"'{path}' is not a folder; {remedy}.")
    if path.is_dir() and any(entry.name not in ignore for entry in path.iterdir()):
        raise UnmaskError(f"'{path}' exists and is not empty; {remedy}.")


def unique_names(names: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Each name, or its path if the name occurs more than once."""
    return [name if names.count(name) == 1 else path for name, path in zip(names, paths, strict=True)]


@contextmanager
def offline_if_unreachable() -> Iterator[None]:
    """If the hub cannot be reached, let libraries look into its cache at once, instead of after many retries."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    offline = constants.HF_HUB_OFFLINE
    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT)
    except Exception:
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
