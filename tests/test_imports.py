"""Imports point one way: the layers of the package, no cycles between modules, and what `data` may import."""

from __future__ import annotations

import ast
from pathlib import Path

import unmask

ROOT = Path(unmask.__file__).parent
LAYERS = [
    "version errors",
    "registry io",
    "data random schedules process optimizers",
    "models objectives samplers constraints",
    "checkpoint config generation_config text_processor infilling likelihood pipeline laws convert",
    "training",
    "evaluation plots convert doctor",
    "serving",
    "cli",
    "__main__",
]
"""A module imports from its own layer and from those above it in this list."""
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts.split()}


def imported_modules(path: Path, everywhere: bool = True) -> set[str]:
    """Modules of the package that a file imports at run time, in the whole file or at its top level alone."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    modules = set()
    for node in ast.walk(tree) if everywhere else tree.body:
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = ROOT.parent.joinpath(*node.module.split("."), alias.name)
                is_module = inner.is_dir() or inner.with_suffix(".py").is_file()
                modules.add(f"{node.module}.{alias.name}" if is_module else node.module)
    return {module for module in modules if module.startswith("unmask.")}


def imported_parts(path: Path) -> set[str]:
    return {module.split(".")[1] for module in imported_modules(path)} & set(LEVEL)


def test_imports_point_one_way():
    for path in set(ROOT.rglob("*.py")) - {ROOT / "__init__.py"}:
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        assert part in LEVEL, f"add {part} to LAYERS"
        for other in imported_parts(path):
            assert LEVEL[other] <= LEVEL[part], f"{path.relative_to(ROOT)} imports {other}"


def test_modules_do_not_import_each_other_in_a_cycle():
    modules = {
        ".".join(("unmask", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in ROOT.rglob("*.py")
    }
    graph = {name: imported_modules(path, everywhere=False) & set(modules) - {name} for name, path in modules.items()}
    while leaves := [name for name, needs in graph.items() if not needs]:
        for leaf in leaves:
            del graph[leaf]
        for needs in graph.values():
            needs.difference_update(leaves)
    assert not graph, f"these modules are in an import cycle or need one: {sorted(graph)}"


def test_data_imports_neither_torch_nor_the_mathematics():
    for path in (ROOT / "data").rglob("*.py"):
        assert imported_parts(path) <= {"data", "errors", "registry", "io"}
        assert "import torch" not in path.read_text()
