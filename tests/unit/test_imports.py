"""Imports point one way; `data` knows nobody."""

from __future__ import annotations

import ast
from pathlib import Path

import unmask

ROOT = Path(unmask.__file__).parent
LAYERS = [
    {"version", "errors", "graphs"},
    {"registry", "files", "bounds", "shelf", "devices"},
    {"data", "random", "schedules", "optimizers"},
    {"batch", "learned", "linear_cross_entropy"},
    {"times", "process", "losses", "constraints"},
    {"models"},
    {"objectives", "samplers"},
    {"checkpoint", "config", "templates", "wishes"},
    {"tally", "scribe"},
    {"likelihood", "streaming", "lengths", "editing"},
    {"writing", "opened", "foresight", "layouts"},
    {"authoring"},
    {"generation", "laws", "pictures", "conversion"},
    {"training"},
    {"plots"},
    {"evaluation", "doctor", "benchmarks"},
    {"shipping"},
    {"cli"},
    {"__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Rooms of the package that a file imports at run time, wherever in the file."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    rooms = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            base = node.module
            modules = [f"{base}.{alias.name}" for alias in node.names] if base == "unmask" else [base]
        rooms |= {module.split(".")[1] for module in modules if module.startswith("unmask.")}
    return rooms


def test_every_room_has_a_level():
    rooms = {room_of(path) for path in ROOT.rglob("*.py") if path.parent != ROOT or path.name != "__init__.py"}
    assert rooms <= set(LEVEL), f"say in LAYERS where {rooms - set(LEVEL)} belongs"


def test_imports_point_one_way():
    wrong = [
        f"{path.relative_to(ROOT)} imports {other}"
        for path in ROOT.rglob("*.py")
        if (room := room_of(path)) in LEVEL
        for other in imported_rooms(path)
        if other in LEVEL and other != room and LEVEL[other] >= LEVEL[room]
    ]
    assert wrong == []


def test_data_imports_neither_torch_nor_the_rest():
    for path in (ROOT / "data").rglob("*.py"):
        assert imported_rooms(path) <= {"data", "errors", "registry", "files"}
        assert "import torch" not in path.read_text()
