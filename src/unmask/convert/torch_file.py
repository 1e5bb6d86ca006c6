"""Read files of `torch.save` without importing or running anything that is pickled in them.

`torch.load(weights_only=True)` refuses a whole file for one unknown class, and Lightning checkpoints hold the trainer's
configuration objects. Here an unknown class becomes a `Placeholder`, and a tensor is read only when it is needed.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.errors import UnmaskError, first_line

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
    """A class that returns itself when called, and ignores the items that a pickle adds to it as to a container."""

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
    """Stands for every unknown class, function and object. It is a class because some opcodes require one."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls

    @staticmethod
    def __setstate__(state: Any) -> None:
        pass


class _Sealed:
    """Base of classes that a pickle may call; the BUILD opcode cannot set attributes on them or their instances."""

    __slots__ = ()

    @staticmethod
    def __setstate__(state: Any) -> None:
        pass


class StoredStorage(_Sealed):
    """A record of numbers in the file, not read yet."""

    __slots__ = ("count", "dtype", "key")

    def __init__(self, kind: Any, dtype: Any, key: Any, location: Any, count: Any) -> None:
        if kind != "storage" or not isinstance(dtype, torch.dtype) or type(key) is not str or type(count) is not int:
            raise pickle.UnpicklingError("invalid storage")
        self.dtype, self.key, self.count = dtype, key, count


class StoredTensor(_Sealed):
    """A tensor in the file, not read yet; has the arguments of `torch._utils._rebuild_tensor_v2`."""

    __slots__ = ("offset", "shape", "storage", "stride")

    def __init__(self, storage: Any, offset: Any, shape: Any, stride: Any, *unused: Any) -> None:
        tuples = type(shape) is tuple and type(stride) is tuple and len(shape) == len(stride)
        if not isinstance(storage, StoredStorage) or not tuples:
            raise pickle.UnpicklingError("invalid tensor")
        if not all(type(number) is int and number >= 0 for number in (offset, *shape, *stride)):
            raise pickle.UnpicklingError("invalid tensor sizes")
        self.storage, self.offset, self.shape, self.stride = storage, offset, shape, stride


class _Parameter(_Sealed):
    """Returns the tensor of a parameter; has the arguments of `torch._utils._rebuild_parameter`."""

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
    """An unpickler that imports nothing: each global is one of `KNOWN` or a `Placeholder`.

    It derives from the Python implementation because the C one reads extension codes from a cache before it calls
    `get_extension`.
    """

    def find_class(self, module: str, name: str) -> Any:
        return KNOWN.get((module, name), Placeholder)

    def get_extension(self, code: int) -> None:
        raise pickle.UnpicklingError("extension codes are not allowed")

    def persistent_load(self, pid: Any) -> StoredStorage:
        return StoredStorage(*pid)


class TorchFile:
    """An open file of `torch.save` in the zip format (torch 1.6 and later).

    `tree` is the saved object with a `StoredTensor` in place of each tensor.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not zipfile.is_zipfile(path):
            raise UnmaskError(
                f"'{path}' is neither safetensors nor in the zip format of torch.save; if you trust the file, load it "
                "and save it again with torch 1.6 or later."
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

    def __exit__(self, *unused: object) -> None:
        self._zip.close()

    def tensor(self, stored: StoredTensor) -> Tensor:
        """Read a tensor in its saved shape and dtype; tensors of one storage share memory."""
        storage = stored.storage
        if storage.key not in self._storages:
            data = self._record(f"data/{storage.key}")
            if len(data) != storage.count * storage.dtype.itemsize:
                raise self._damaged(f"data/{storage.key} has {len(data)} bytes instead of {storage.count} numbers")
            empty = torch.empty(0, dtype=storage.dtype)
            self._storages[storage.key] = torch.frombuffer(bytearray(data), dtype=storage.dtype) if data else empty
        try:
            return self._storages[storage.key].as_strided(stored.shape, stored.stride, stored.offset)
        except RuntimeError as error:
            raise self._damaged(f"a tensor of shape {stored.shape} exceeds its storage") from error

    def _unpickle(self) -> Any:
        roots = [name for name in self._zip.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(roots) != 1:
            raise self._damaged("there is no data.pkl")
        self._root = roots[0].removesuffix("data.pkl")
        data = self._record("data.pkl")
        try:
            return GuardedUnpickler(BytesIO(data), encoding="utf-8").load()
        except Exception as error:
            raise self._damaged(f"the pickle cannot be read: {first_line(error)}") from error

    def _record(self, name: str) -> bytes:
        try:
            info = self._zip.getinfo(self._root + name)
            if info.compress_type != zipfile.ZIP_STORED:  # a small file could unpack to any size
                raise self._damaged(f"{name} is compressed")
            return self._zip.read(info)
        except KeyError as error:
            raise self._damaged(f"there is no {name}") from error
        except (OSError, EOFError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
            raise self._damaged(f"{name} cannot be read") from error

    def _damaged(self, reason: str) -> UnmaskError:
        return UnmaskError(f"'{self.path}' is damaged or not a torch checkpoint ({reason}); fetch it again.")
