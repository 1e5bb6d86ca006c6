"""The wheel holds every module, recipe and marker, and says what the package needs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder

from unmask.pipeline import load

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", str(out), str(ROOT)]
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
    assert "Requires-Dist: torch<3,>=2.11" in read["METADATA"]


def test_the_source_distribution_holds_the_project_alone():
    """Whatever else lies in the folder of a developer."""
    held = {Path(file.distribution_path).parts[0] for file in SdistBuilder(str(ROOT)).recurse_included_files()}
    assert held == {"src", "tests", "docs", "benchmarks", "Makefile", "constraints.txt"}


def test_the_wheel_runs_on_its_own(wheel, tmp_path):
    """Unpacked alone, without the source tree, the command lists its members and recipes."""
    done = run_alone(wheel, tmp_path, "from unmask.cli import main; main()", "list", "recipe")
    assert "speedrun" in done


def test_the_wheel_brings_its_models(wheel, tmp_path):
    """Unpacked alone, without a network, the smoke model opens from the wheel's own folder and writes."""
    program = "import unmask; lm = unmask.load('smoke', device='cpu'); print(lm.path); print(lm.generate(1, seed=3)[0])"
    path, text = run_alone(wheel, tmp_path, program).splitlines()
    assert path == str(tmp_path / "unmask" / "shipped" / "smoke")
    assert text == load("smoke", device="cpu").generate(1, seed=3)[0]
    assert set(text) <= set("abcdefgh")


def run_alone(wheel: zipfile.ZipFile, folder: Path, program: str, *arguments: str) -> str:
    """What a program prints that finds nothing of the source tree, only the unpacked wheel and other people's work."""
    wheel.extractall(folder)
    alone = "import sys; sys.path.insert(0, sys.argv.pop(1)); import unmask; "
    alone += "assert unmask.__file__.startswith(sys.path[0]); "
    site = [path for path in sys.path if path.endswith("site-packages")]
    done = subprocess.run(
        [sys.executable, "-S", "-c", alone + program, str(folder), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": ":".join(site), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
