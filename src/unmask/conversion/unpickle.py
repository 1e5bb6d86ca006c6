"""Reading the files of `torch.save` without running anything that is in them.

A pickle is a program: it may import any function and call it. Here it can reach three harmless things only (ordered
dictionaries, the dtypes of storages, and descriptions of tensors), and nothing is imported on its behalf. Whatever else
it asks for is a `Placeholder`, which takes every call, item and state and does nothing with them, so that the weights
of a checkpoint can be read although its configuration, its tokenizer or something hostile was pickled beside them.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

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
