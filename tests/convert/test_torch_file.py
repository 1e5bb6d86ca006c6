"""Torch files are read exactly and without running pickled code; damaged files are refused."""

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

from unmask.convert.torch_file import Placeholder, StoredTensor, TorchFile
from unmask.errors import UnmaskError


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call

    def __call__(self) -> None:
        raise AssertionError("only its pickle is used")


def zipped(path: Path, data: bytes, records: dict[str, bytes] | None = None, **options: Any) -> Path:
    """Write a file in the zip format around a pickle."""
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, record in {"data.pkl": data, **(records or {})}.items():
            archive.writestr(f"archive/{name}", record)
    return path


def read(path: Path) -> Any:
    with TorchFile(path) as file:
        return file.tree


# ---- hostile pickles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_hostile_pickle_runs_nothing_and_the_rest_is_read(tmp_path, protocol):
    canary, path = tmp_path / "canary", tmp_path / "file.pt"
    command = Call(Call(getattr, Call(__import__, "os"), "system"), f"touch {canary}")
    tree = {"before": torch.arange(3.0), "hostile": command, "after": [1, "two"]}
    torch.save(tree, path, pickle_protocol=protocol)
    with TorchFile(path) as file:
        assert file.tree["hostile"] is Placeholder
        assert file.tree["after"] == [1, "two"]
        assert file.tensor(file.tree["before"]).tolist() == [0, 1, 2]
    assert not canary.exists()
    torch.load(path, weights_only=False)
    assert canary.exists(), "the payload is not hostile"


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
def test_no_opcode_reaches_a_foreign_function(tmp_path, template):
    canary = tmp_path / "canary"
    data = template % f"touch {canary}".encode()
    assert read(zipped(tmp_path / "file.pt", data)) is Placeholder
    assert not canary.exists()
    pickle.loads(data)
    assert canary.exists(), "the pickle is not hostile"


def test_cached_extension_codes_are_refused(tmp_path):
    canary = tmp_path / "canary"
    data = b"\x80\x02\x82\x77(S'%s'\ntR." % f"touch {canary}".encode()
    copyreg.add_extension("os", "system", 0x77)
    try:
        pickle.loads(data)
        canary.unlink()
        with pytest.raises(UnmaskError, match="extension code"):
            read(zipped(tmp_path / "file.pt", data))
        assert not canary.exists()
    finally:
        copyreg.remove_extension("os", "system", 0x77)


def test_no_module_is_imported(tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    (tmp_path / "trap_module.py").write_text(f"open({str(canary)!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    assert read(zipped(tmp_path / "file.pt", b"ctrap_module\nAnything\n(tR.")) is Placeholder
    assert not canary.exists()


@pytest.mark.parametrize("name", [b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_parameter\n"])
def test_a_pickle_cannot_change_the_readers_classes(tmp_path, name):
    """BUILD on a class would set its attributes for every later file."""
    before = StoredTensor.__init__
    read(zipped(tmp_path / "evil.pt", b"\x80\x02" + name + b"N(dS'__init__'\nNsS'__new__'\nNs\x86b."))
    assert StoredTensor.__init__ is before
    torch.save(torch.nn.Parameter(torch.ones(2)), tmp_path / "good.pt")
    with TorchFile(tmp_path / "good.pt") as file:
        assert file.tensor(file.tree).tolist() == [1, 1]


def test_the_legacy_format_is_refused_unread(tmp_path):
    canary, path = tmp_path / "canary", tmp_path / "old.pt"
    hostile = Call(os.system, f"touch {canary}")
    torch.save({"x": hostile}, path, _use_new_zipfile_serialization=False)
    for content in (path.read_bytes(), pickle.dumps(hostile)):
        path.write_bytes(content)
        with pytest.raises(UnmaskError, match="if you trust the file, load it and save it again"):
            TorchFile(path)
    assert not canary.exists()


# ---- values and tensors ----------------------------------------------------------------------------------------------


class ForeignMapping(dict):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("foreign code ran")

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("foreign code ran")


class Colour(enum.Enum):
    RED = 1


class Outer:
    class Inner:
        def __init__(self) -> None:
            self.value = 3


@pytest.mark.parametrize("protocol", [2, 4])
def test_foreign_objects_become_placeholders(tmp_path, protocol):
    mapping = ForeignMapping({"length": 8})
    mapping.flags = {"struct": True}  # type: ignore[attr-defined]
    foreign = [
        mapping,
        Colour.RED,
        Outer.Inner(),
        functools.partial(max, 1),
        Counter("abba"),
        defaultdict(list, a=[1]),
        np.arange(3),
        np.float64(1.5),
        PurePosixPath("a/b"),
        torch.float32,
        torch.device("cpu"),
        os.system,
        Outer,
    ]
    torch.save({"foreign": foreign, "key": {Colour.RED: 1}}, tmp_path / "file.pt", pickle_protocol=protocol)
    assert read(tmp_path / "file.pt") == {"foreign": [Placeholder] * len(foreign), "key": {Placeholder: 1}}


def test_plain_values_and_ordered_dictionaries_are_kept(tmp_path):
    state = torch.nn.Linear(2, 2).state_dict()
    torch.save({"state": state, "kept": {"a": [1, 2.5, None, True, ("x", 2**70)]}}, tmp_path / "file.pt")
    tree = read(tmp_path / "file.pt")
    assert tree["kept"] == {"a": [1, 2.5, None, True, ("x", 2**70)]}
    assert type(tree["state"]) is OrderedDict
    assert list(tree["state"]) == ["weight", "bias"]


PARAMETER = torch.nn.Parameter(torch.randn(2))
PARAMETER.label = "an attribute"  # type: ignore[attr-defined]

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
    "parameter with state": PARAMETER,
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_read_exactly(tmp_path, name):
    torch.save(TENSORS, tmp_path / "file.pt")
    with TorchFile(tmp_path / "file.pt") as file:
        found = file.tensor(file.tree[name])
    wanted = TENSORS[name].detach()
    assert found.dtype == wanted.dtype
    assert found.shape == file.tree[name].shape == wanted.shape
    assert torch.equal(found, wanted)


# ---- damaged files ---------------------------------------------------------------------------------------------------


def test_truncated_and_changed_files_are_refused(tmp_path):
    path = tmp_path / "file.pt"
    torch.save({"weight": torch.arange(1000.0)}, path)
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:-200])
    with pytest.raises(UnmaskError, match=r"file\.pt"):
        TorchFile(path)
    data[data.index(torch.arange(1000.0).numpy().tobytes()) + 900] ^= 1
    path.write_bytes(data)
    with TorchFile(path) as file, pytest.raises(UnmaskError, match=r"data/0 cannot be read.*fetch it again"):
        file.tensor(file.tree["weight"])


def tensor_pickle(count: int = 4, offset: int = 0, size: int = 4, stride: int = 1, kind: str = "FloatStorage") -> bytes:
    """The pickle of a tensor with one axis, valid or not."""
    storage = f"(S'storage'\nctorch\n{kind}\nS'0'\nS'cpu'\nI{count}\ntQ"
    return f"ctorch._utils\n_rebuild_tensor_v2\n({storage}I{offset}\n(I{size}\nt(I{stride}\ntI00\nNtR.".encode()


FOUR = np.arange(4, dtype=np.float32).tobytes()


@pytest.mark.parametrize(
    "options",
    [{"count": 2**40}, {"count": 3, "size": 3}, {"size": 5}, {"offset": 2}, {"stride": 2**40}, None],
    ids=["long storage", "short storage", "size", "offset", "stride", "no record"],
)
def test_a_tensor_outside_its_storage_is_refused(tmp_path, options):
    with TorchFile(zipped(tmp_path / "valid.pt", tensor_pickle(), {"data/0": FOUR})) as file:
        assert file.tensor(file.tree).tolist() == [0, 1, 2, 3]
    records = {} if options is None else {"data/0": FOUR}
    path = zipped(tmp_path / "file.pt", tensor_pickle(**(options or {})), records)
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
def test_an_invalid_pickle_is_refused(tmp_path, data):
    with pytest.raises(UnmaskError, match="pickle cannot be read"):
        TorchFile(zipped(tmp_path / "file.pt", data))


def test_archives_that_torch_does_not_write_are_refused(tmp_path):
    with pytest.raises(UnmaskError, match="compressed"):
        TorchFile(zipped(tmp_path / "a.pt", b"N.", compression=zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    with pytest.raises(UnmaskError, match=r"no data\.pkl"):
        TorchFile(tmp_path / "b.pt")
