"""The wheel holds every module, recipe and marker, and says what the package needs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return zipfile.ZipFile(next(out.glob("*.whl")))


def test_the_wheel_is_complete(wheel):
    packed = set(wheel.namelist())
    for path in (ROOT / "src" / "unmask").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert str(path.relative_to(ROOT / "src")) in packed
    assert "unmask/py.typed" in packed
    assert any(name.endswith("licenses/LICENSE") for name in packed)
    assert not any(name.startswith(("tests", "docs", "benchmarks")) for name in packed)


def test_the_wheel_gives_the_command_and_its_needs(wheel):
    read = {Path(name).name: wheel.read(name).decode() for name in wheel.namelist() if ".dist-info/" in name}
    assert "unmask = unmask.cli:main" in read["entry_points.txt"]
    assert "Requires-Python: >=3.10" in read["METADATA"]
    assert "Requires-Dist: torch<3,>=2.6" in read["METADATA"]


def test_the_wheel_runs_on_its_own(wheel, tmp_path):
    """Unpacked alone, without the source tree, the command lists its members and recipes."""
    wheel.extractall(tmp_path)
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from unmask.cli import main; import unmask; "
    program += "assert unmask.__file__.startswith(sys.path[0]); main()"
    command = [sys.executable, "-S", "-c", program, str(tmp_path), "list", "recipe"]
    site = [path for path in sys.path if path.endswith("site-packages")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(site), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert "demo-ar" in done.stdout
