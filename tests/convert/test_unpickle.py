"""Torch files are read without running what is pickled in them; the tensors come out right, damage is reported."""

from __future__ import annotations

import copyreg
import enum
import functools
import os
import pickle
import zipfile
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch

from unmask.convert.sources import Placeholder, StoredTensor, TorchFile
from unmask.errors import UnmaskError

torch.set_num_threads(1)


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call

    def __call__(self) -> None:
        raise AssertionError("only its pickle is used")


def touch(canary: Path) -> str:
    return f"touch {canary}"


def payloads(canary: Path) -> dict[str, Any]:
    """Objects that make the canary when an ordinary unpickler reads them."""
    code = f"open({str(canary)!r}, 'w').close()"
    return {
        "os.system": Call(os.system, touch(canary)),
        "eval": Call(eval, code),
        "exec": Call(exec, code),
        "getattr chain": Call(Call(getattr, Call(__import__, "os"), "system"), touch(canary)),
        "open": Call(open, str(canary), "w"),
        "partial": Call(functools.partial(os.system, touch(canary))),
    }


PAYLOADS = list(payloads(Path("x")))


def zipped(path: Path, data: bytes, records: dict[str, bytes] | None = None, **options: Any) -> Path:
    """A file of the zip format around a given pickle."""
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, record in {"data.pkl": data, **(records or {})}.items():
            archive.writestr(f"archive/{name}", record)
    return path


def read(path: Path) -> Any:
    with TorchFile(path) as file:
        return file.tree


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, payload: str, protocol: int) -> None:
    canary = tmp_path / "canary"
    tree = {"before": torch.arange(3.0), "hostile": payloads(canary)[payload], "after": [1, "two"]}
    path = tmp_path / "file.pt"
    torch.save(tree, path, pickle_protocol=protocol)

    with TorchFile(path) as file:
        assert file.tree["hostile"] is Placeholder
        assert file.tree["after"] == [1, "two"]
        assert file.tensor(file.tree["before"]).tolist() == [0, 1, 2]
    assert not canary.exists()

    torch.load(path, weights_only=False)
    assert canary.exists(), "the payload is not hostile, so the test shows nothing"


@pytest.mark.parametrize(
    "template",
    [
        b"cos\nsystem\n(S'%s'\ntR.",
        b"cposix\nsystem\n(S'%s'\ntR.",
        b"(S'%s'\nios\nsystem\n.",
        b"(cos\nsystem\nS'%s'\no.",
        b"cbuiltins\ngetattr\n(cbuiltins\n__import__\n(S'os'\ntRS'system'\ntR(S'%s'\ntR.",
        b'\x80\x04\x8c\x08builtins\x8c\x04eval\x93(S\'__import__("os").system("%s")\'\ntR.',
        b"\x80\x04ctorch\nhub.os.system\n(S'%s'\ntR.",
    ],
    ids=["global", "posix", "inst", "obj", "getattr", "stack-global", "dotted"],
)
def test_no_opcode_reaches_a_foreign_function(tmp_path: Path, template: bytes) -> None:
    canary = tmp_path / "canary"
    data = template % touch(canary).encode()
    assert read(zipped(tmp_path / "file.pt", data)) is Placeholder
    assert not canary.exists()
    pickle.loads(data)
    assert canary.exists(), "the pickle is not hostile, so the test shows nothing"


def test_extension_codes_are_refused_even_when_they_are_cached(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    data = b"\x80\x02\x82\x77(S'%s'\ntR." % touch(canary).encode()
    copyreg.add_extension("os", "system", 0x77)
    try:
        pickle.loads(data)
        canary.unlink()
        with pytest.raises(UnmaskError, match="extension code"):
            read(zipped(tmp_path / "file.pt", data))
        assert not canary.exists()
    finally:
        copyreg.remove_extension("os", "system", 0x77)


def test_no_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "trap_module.py").write_text(f"open({str(canary)!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    data = b"ctrap_module\nAnything\n(tR."
    assert read(zipped(tmp_path / "file.pt", data)) is Placeholder
    assert not canary.exists()
    with pytest.raises(AttributeError):
        pickle.loads(data)
    assert canary.exists()


@pytest.mark.parametrize("name", [b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_parameter\n"])
def test_a_pickle_cannot_change_what_it_is_given(tmp_path: Path, name: bytes) -> None:
    """BUILD on a class or function would set its attributes, for every file that is read afterwards."""
    state = b"N(dS'__init__'\nNsS'__new__'\nNs\x86b."
    before = StoredTensor.__init__
    read(zipped(tmp_path / "evil.pt", b"\x80\x02" + name + state))
    assert StoredTensor.__init__ is before
    torch.save(torch.nn.Parameter(torch.ones(2)), tmp_path / "good.pt")
    with TorchFile(tmp_path / "good.pt") as file:
        assert file.tensor(file.tree).tolist() == [1, 1]


class Settings(dict):
    """A mapping with attributes, as configuration libraries pickle them."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("foreign code ran")

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("foreign code ran")


class Names(list):
    """A list of its own kind."""


class Words(set):
    """A set of its own kind."""


class Colour(enum.Enum):
    RED = 1


class Outer:
    """A class with another inside, which protocol 2 reaches through getattr."""

    class Inner:
        def __init__(self) -> None:
            self.value = 3


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 3


def settings() -> Settings:
    made = Settings({"length": 8})
    made.flags = {"struct": True}  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("protocol", [2, 4])
def test_foreign_objects_of_every_kind_become_placeholders(tmp_path: Path, protocol: int) -> None:
    foreign = {
        "mapping": settings(),
        "list": Names([1, 2]),
        "set": Words([1, 2]),
        "enum": Colour.RED,
        "nested": Outer.Inner(),
        "slots": Slotted(),
        "partial": functools.partial(max, 1),
        "counter": Counter("abba"),
        "default": defaultdict(list, a=[1]),
        "array": np.arange(3),
        "scalar": np.float64(1.5),
        "path": PurePosixPath("a/b"),
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "function": os.system,
        "class": Outer,
    }
    torch.save({**foreign, "key": {Colour.RED: 1}}, tmp_path / "file.pt", pickle_protocol=protocol)
    tree = read(tmp_path / "file.pt")
    assert {name: tree[name] for name in foreign} == dict.fromkeys(foreign, Placeholder)
    assert tree["key"] == {Placeholder: 1}


def test_plain_values_and_ordered_dictionaries_come_back(tmp_path: Path) -> None:
    state = torch.nn.Linear(2, 2).state_dict()
    torch.save({"state": state, "kept": {"a": [1, 2.5, None, True, ("x", 2**70)]}}, tmp_path / "file.pt")
    tree = read(tmp_path / "file.pt")
    assert tree["kept"] == {"a": [1, 2.5, None, True, ("x", 2**70)]}
    assert type(tree["state"]) is OrderedDict
    assert list(tree["state"]) == ["weight", "bias"]


LABELLED = torch.nn.Parameter(torch.randn(2))
LABELLED.label = "a parameter with an attribute"  # type: ignore[attr-defined]

TENSORS = {
    "matrix": torch.randn(3, 4),
    "transposed": torch.randn(3, 4).T,
    "view": torch.arange(20.0)[3:15].view(3, 4)[:, 1:3],
    "half": torch.randn(5).half(),
    "bfloat16": torch.randn(5).bfloat16(),
    "double": torch.randn(5, dtype=torch.float64),
    "long": torch.tensor([-(2**40), 7]),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "parameter": torch.nn.Parameter(torch.randn(2, 2)),
    "labelled": LABELLED,
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_read_exactly(tmp_path: Path, name: str) -> None:
    torch.save(TENSORS, tmp_path / "file.pt")
    with TorchFile(tmp_path / "file.pt") as file:
        found = file.tensor(file.tree[name])
    wanted = TENSORS[name].detach()
    assert found.dtype == wanted.dtype
    assert found.shape == file.tree[name].shape == wanted.shape
    assert torch.equal(found, wanted)


def saved(path: Path) -> Path:
    torch.save({"weight": torch.arange(1000.0)}, path)
    return path


def test_a_truncated_file_is_reported(tmp_path: Path) -> None:
    path = saved(tmp_path / "file.pt")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UnmaskError, match=r"file\.pt"):
        TorchFile(path)


def test_a_flipped_byte_is_reported(tmp_path: Path) -> None:
    path = saved(tmp_path / "file.pt")
    data = bytearray(path.read_bytes())
    data[data.index(torch.arange(1000.0).numpy().tobytes()) + 900] ^= 1
    path.write_bytes(data)
    with TorchFile(path) as file, pytest.raises(UnmaskError, match=r"data/0 cannot be read.*fetch it again"):
        file.tensor(file.tree["weight"])


def test_the_legacy_format_is_refused_unread(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    path = tmp_path / "old.pt"
    torch.save({"x": Call(os.system, touch(canary))}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(UnmaskError, match="where you trust the file, load it and save it again"):
        TorchFile(path)
    path.write_bytes(pickle.dumps(Call(os.system, touch(canary))))
    with pytest.raises(UnmaskError, match="where you trust the file, load it and save it again"):
        TorchFile(path)
    assert not canary.exists()


def tensor_pickle(count: int = 4, offset: int = 0, size: int = 4, stride: int = 1, kind: str = "FloatStorage") -> bytes:
    """The pickle of one tensor with one axis, which need not be a possible one."""
    storage = f"(S'storage'\nctorch\n{kind}\nS'0'\nS'cpu'\nI{count}\ntQ"
    return f"ctorch._utils\n_rebuild_tensor_v2\n({storage}I{offset}\n(I{size}\nt(I{stride}\ntI00\nNtR.".encode()


FOUR = np.arange(4, dtype=np.float32).tobytes()


def test_the_crafted_tensor_is_read_when_it_is_possible(tmp_path: Path) -> None:
    with TorchFile(zipped(tmp_path / "file.pt", tensor_pickle(), {"data/0": FOUR})) as file:
        assert file.tensor(file.tree).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "record"),
    [
        ({"count": 2**40}, FOUR),
        ({"count": 3, "size": 3}, FOUR),
        ({"size": 5}, FOUR),
        ({"offset": 2}, FOUR),
        ({"stride": 2**40}, FOUR),
        ({}, None),
    ],
    ids=["long storage", "short storage", "size", "offset", "stride", "no record"],
)
def test_a_tensor_outside_its_record_is_refused(tmp_path: Path, options: dict[str, int], record: bytes | None) -> None:
    records = {} if record is None else {"data/0": record}
    path = zipped(tmp_path / "file.pt", tensor_pickle(**options), records)
    with TorchFile(path) as file, pytest.raises(UnmaskError, match="damaged"):
        file.tensor(file.tree)


@pytest.mark.parametrize(
    "data",
    [
        tensor_pickle(size=-1),
        tensor_pickle(kind="NoStorage"),
        b"ctorch._utils\n_rebuild_tensor_v2\n(S'x'\nI0\n(I1\nt(I1\nttR.",
        b"ctorch._utils\n_rebuild_tensor_v2\n(tR.",
        b"I5\nQ.",
        b"not a pickle",
        b"",
    ],
)
def test_a_nonsensical_pickle_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(UnmaskError, match="pickle cannot be read"):
        TorchFile(zipped(tmp_path / "file.pt", data))


def test_archives_that_torch_does_not_write_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="compressed"):
        TorchFile(zipped(tmp_path / "a.pt", b"N.", compression=zipfile.ZIP_DEFLATED))
    with pytest.raises(UnmaskError, match="big-endian"):
        TorchFile(zipped(tmp_path / "b.pt", b"N.", {"byteorder": b"big"}))
    with zipfile.ZipFile(tmp_path / "c.pt", "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    with pytest.raises(UnmaskError, match=r"no data\.pkl"):
        TorchFile(tmp_path / "c.pt")
