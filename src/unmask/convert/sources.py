"""Where published weights come from: a Lightning checkpoint, a Hugging Face folder, or a bare state dict."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from unmask.checkpoint import CONFIG_FILE
from unmask.convert.layout import PREFIX, ROTARY, PublishedLayout, check, check_shadow
from unmask.errors import UnmaskError

STORAGES: dict[str, torch.dtype] = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class _Absorbing(type):
    """A class that answers a call with itself and takes items, as a pickle gives them to lists, sets and mappings."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls

    def __setitem__(cls, key: Any, value: Any) -> None:
        pass

    def append(cls, item: Any) -> None:
        pass

    def extend(cls, items: Any) -> None:
        pass

    def add(cls, item: Any) -> None:
        pass


class Placeholder(metaclass=_Absorbing):
    """What stands for every foreign class, function and object; always a class, since some opcodes take no other."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls

    @staticmethod
    def __setstate__(state: Any) -> None:
        pass


class _Sealed:
    """A class that a pickle may name and call, but whose attributes and instances it cannot change."""

    __slots__ = ()

    @staticmethod
    def __setstate__(state: Any) -> None:
        pass


class StoredStorage(_Sealed):
    """A record of numbers inside the file."""

    __slots__ = ("count", "dtype", "key")

    def __init__(self, kind: Any, dtype: Any, key: Any, location: Any, count: Any) -> None:
        if kind != "storage" or not isinstance(dtype, torch.dtype) or type(key) is not str or type(count) is not int:
            raise pickle.UnpicklingError("a storage is not described as torch does it")
        self.dtype, self.key, self.count = dtype, key, count


class StoredTensor(_Sealed):
    """A tensor inside the file, not read yet: takes what `torch._utils._rebuild_tensor_v2` takes."""

    __slots__ = ("offset", "shape", "storage", "stride")

    def __init__(self, storage: Any, offset: Any, shape: Any, stride: Any, *unused: Any) -> None:
        numbers_only = type(shape) is tuple and type(stride) is tuple and len(shape) == len(stride)
        if not isinstance(storage, StoredStorage) or not numbers_only:
            raise pickle.UnpicklingError("a tensor is not described as torch does it")
        if not all(type(number) is int and number >= 0 for number in (offset, *shape, *stride)):
            raise pickle.UnpicklingError("a tensor has sizes that are no numbers")
        self.storage, self.offset, self.shape, self.stride = storage, offset, shape, stride


class _Parameter(_Sealed):
    """A parameter is the tensor it holds: takes what `torch._utils._rebuild_parameter` takes."""

    __slots__ = ()

    def __new__(cls, tensor: Any, *unused: Any) -> Any:
        return tensor


KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): StoredTensor,
    ("torch._utils", "_rebuild_parameter"): _Parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _Parameter,
    **{("torch", name): dtype for name, dtype in STORAGES.items()},
}


class GuardedUnpickler(pickle._Unpickler):
    """An unpickler that imports nothing: a global is one of `KNOWN` or a `Placeholder`.

    It is the one written in Python, since the one in C looks extension codes up in a cache before it asks here.
    """

    def find_class(self, module: str, name: str) -> Any:
        return KNOWN.get((module, name), Placeholder)

    def get_extension(self, code: int) -> None:
        raise pickle.UnpicklingError("it uses an extension code, which torch.save does not")

    def persistent_load(self, pid: Any) -> StoredStorage:
        return StoredStorage(*pid)


class TorchFile:
    """A file of `torch.save` (the zip format, torch 1.6 and later), open for reading.

    `tree` is the saved object, with a `StoredTensor` for each tensor; `tensor` reads one of them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not zipfile.is_zipfile(path):
            raise UnmaskError(
                f"'{path}' is neither safetensors nor in the zip format of torch.save, and other files are not read; "
                "where you trust the file, load it and save it again with torch 1.6 or later."
            )
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise self._damaged(str(error)) from error
        self._storages: dict[str, Tensor] = {}
        try:
            self.tree = self._unpickle()
        except Exception:
            self._zip.close()
            raise

    def __enter__(self) -> TorchFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._zip.close()

    def tensor(self, stored: StoredTensor) -> Tensor:
        """The numbers of a stored tensor, in the shape and dtype it was saved with."""
        try:
            return self._storage(stored.storage).as_strided(stored.shape, stored.stride, stored.offset)
        except RuntimeError as error:
            raise self._damaged(f"a tensor of shape {stored.shape} does not fit its record") from error

    def _unpickle(self) -> Any:
        roots = [name for name in self._zip.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(roots) != 1:
            raise self._damaged("it has no data.pkl, which torch.save writes")
        self._root = roots[0].removesuffix("data.pkl")
        if f"{self._root}byteorder" in self._zip.namelist() and self._record("byteorder") != b"little":
            raise UnmaskError(f"'{self.path}' was saved on a big-endian machine; save it again on a little-endian one.")
        data = self._record("data.pkl")
        try:
            return GuardedUnpickler(BytesIO(data), encoding="utf-8").load()
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise self._damaged(f"its pickle cannot be read: {reason}") from error

    def _storage(self, stored: StoredStorage) -> Tensor:
        """All numbers of a storage, [count]; two tensors that share a storage share its numbers."""
        if stored.key not in self._storages:
            data = self._record(f"data/{stored.key}")
            if len(data) != stored.count * stored.dtype.itemsize:
                raise self._damaged(
                    f"the record data/{stored.key} has {len(data)} bytes, not its {stored.count} numbers"
                )
            empty = torch.empty(0, dtype=stored.dtype)
            self._storages[stored.key] = torch.frombuffer(bytearray(data), dtype=stored.dtype) if data else empty
        return self._storages[stored.key]

    def _record(self, name: str) -> bytes:
        try:
            info = self._zip.getinfo(self._root + name)
            if info.compress_type != zipfile.ZIP_STORED:
                raise self._damaged(f"the record {name} is compressed, which torch.save never does")
            return self._zip.read(info)
        except KeyError as error:
            raise self._damaged(f"it has no record {name}") from error
        except (OSError, EOFError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
            raise self._damaged(f"the record {name} cannot be read") from error

    def _damaged(self, reason: str) -> UnmaskError:
        return UnmaskError(f"'{self.path}' is damaged or no checkpoint of torch ({reason}); fetch it again.")


Which = Literal["ema", "raw"]

BESIDE_THE_NETWORK = ("noise.", "train_metrics.", "valid_metrics.", "test_metrics.", "gen_ppl_metric.")
"""What the published training module keeps in its state dict besides the network; none of it is converted."""

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


class PublishedConfig(BaseModel):
    """What the config.json of a published Hugging Face folder says; everything in it may be missing."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    vocab_size: int | None = None
    hidden_dim: int | None = None
    n_blocks: int | None = None
    cond_dim: int | None = None
    n_heads: int | None = Field(default=None, ge=1)
    model_length: int | None = Field(default=None, ge=1)
    dropout: float = Field(default=0.1, ge=0, le=1)
    time_conditioning: bool = False

    def check(self, layout: PublishedLayout, where: str) -> None:
        """Refuse a configuration that speaks of another network than its weights."""
        sizes = {
            "vocab_size": layout.vocab_size,
            "hidden_dim": layout.hidden_size,
            "n_blocks": layout.layers,
            "cond_dim": layout.cond_dim,
        }
        for name, size in sizes.items():
            said = getattr(self, name)
            if said is not None and size is not None and said != size:
                raise UnmaskError(
                    f"The config.json of {where} says {name}={said} and its weights say {size}; "
                    "correct the one that is wrong."
                )


@dataclass(frozen=True)
class Published:
    """A published network: float32 weights by name (without prefix), in the order of its layout.

    `chosen` tells which weights of the file they are; `rotary` is the buffer of frequencies where the file has it.
    """

    path: Path
    layout: PublishedLayout
    weights: dict[str, Tensor]
    chosen: Literal["ema", "raw", "as stored"]
    rotary: Tensor | None
    config: PublishedConfig

    @property
    def where(self) -> str:
        """The source as an error names it."""
        return f"'{self.path}'"


def read_published(path: Path, which: Which) -> Published:
    """Read a published network and check every key; `which` matters in a Lightning checkpoint, which holds both."""
    if not path.exists():
        raise UnmaskError(f"There is no file or folder '{path}' to convert; check the path.")
    file, config = (_weight_file(path), _read_config(path)) if path.is_dir() else (path, PublishedConfig())
    if file.suffix == ".safetensors":
        return _published(path, _Stored(_load_safetensors(file), lambda tensor: tensor), which, config)
    with TorchFile(file) as opened:
        return _published(path, _stored_in(opened), which, config)


@dataclass(frozen=True)
class _Stored:
    """What a file holds, maybe not read yet: weights by name, how one is read, and the EMA list of a Lightning one."""

    state: Mapping[str, Any]
    read: Callable[[Any], Tensor]
    lightning: bool = False
    shadow: Any = None


def _published(path: Path, stored: _Stored, which: Which, config: PublishedConfig) -> Published:
    where = f"'{path}'"
    state = _without_prefix(stored.state, where)
    rotary = state.pop(ROTARY, None)
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    layout = PublishedLayout.of(shapes, where)
    check(shapes, layout, where)
    config.check(layout, where)
    chosen = _shadow(stored.shadow, layout, where) if stored.lightning and which == "ema" else state
    weights = {name: _float32(stored.read(chosen[name]), name, where) for name in layout.parameters()}
    frequencies = None if rotary is None else stored.read(rotary)
    return Published(path, layout, weights, which if stored.lightning else "as stored", frequencies, config)


def _stored_in(file: TorchFile) -> _Stored:
    where = f"'{file.path}'"
    tree = file.tree
    if not isinstance(tree, Mapping):
        raise UnmaskError(f"{where} holds no dictionary of weights; give a checkpoint or a state dict.")
    if "state_dict" not in tree:
        return _Stored(_only_tensors(tree, where), file.tensor)
    state = tree["state_dict"]
    if not isinstance(state, Mapping):
        raise UnmaskError(f"The state_dict of {where} is no dictionary of weights; give a checkpoint or a state dict.")
    state = {name: value for name, value in state.items() if not str(name).startswith(BESIDE_THE_NETWORK)}
    ema = tree.get("ema")
    shadow = ema.get("shadow_params") if isinstance(ema, Mapping) else None
    return _Stored(_only_tensors(state, where), file.tensor, lightning=True, shadow=shadow)


def _only_tensors(state: Mapping[Any, Any], where: str) -> dict[str, StoredTensor]:
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, StoredTensor):
            raise UnmaskError(f"{where} holds {str(name)[:80]!r}, which is no tensor; give a state dict.")
    return dict(state)


def _without_prefix(state: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The state dict under the names of the layout: all of its keys have the prefix, or none."""
    strays = [name for name in state if not name.startswith(PREFIX)]
    if len(strays) == len(state):
        return dict(state)
    if strays:
        raise UnmaskError(
            f"{where} holds the key {strays[0]} and {len(strays) - 1} more that do not begin with '{PREFIX}' as its "
            "other keys do; give an unchanged checkpoint."
        )
    return {name.removeprefix(PREFIX): value for name, value in state.items()}


def _shadow(shadow: Any, layout: PublishedLayout, where: str) -> dict[str, Any]:
    """The EMA weights by name; the list has them in the order of the parameters."""
    if not isinstance(shadow, list) or not all(isinstance(value, StoredTensor) for value in shadow):
        raise UnmaskError(
            f"{where} has no list of EMA weights (ema.shadow_params); convert the raw ones (--weights raw)."
        )
    check_shadow([value.shape for value in shadow], layout, where)
    return dict(zip(layout.parameters(), shadow, strict=True))


def _float32(weight: Tensor, name: str, where: str) -> Tensor:
    if not weight.is_floating_point():
        raise UnmaskError(f"{where} holds {name} as {weight.dtype}; give a checkpoint that is not quantised.")
    return weight.to(torch.float32).contiguous()


def _weight_file(folder: Path) -> Path:
    if (folder / CONFIG_FILE).is_file():
        raise UnmaskError(f"'{folder}' is a checkpoint of unmask already; use it as it is, or export it.")
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise UnmaskError(f"The folder '{folder}' has no weights ({' or '.join(WEIGHT_FILES)}); give the file itself.")


def _read_config(folder: Path) -> PublishedConfig:
    file = folder / "config.json"
    if not file.is_file():
        return PublishedConfig()
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return PublishedConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        what = ".".join(str(part) for part in first["loc"]) or "content"
        raise UnmaskError(f"The {what} in '{file}' cannot be used: {first['msg']}; correct it.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UnmaskError(f"'{file}' is not JSON ({error}); fetch it again.") from error


def _load_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise UnmaskError(f"'{file}' is damaged or not safetensors ({error}); fetch it again.") from error
