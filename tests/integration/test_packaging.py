"""The wheel and the source distribution are complete, and the wheel works without the source tree."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder

from unmask.pipeline import load

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, unpacked into a folder."""
    out = tmp_path_factory.mktemp("wheel")
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(next(out.glob("*.whl"))) as archive:
        archive.extractall(out / "unpacked")
    return out / "unpacked"


def test_the_wheel_is_complete(wheel):
    packed = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*") if path.is_file()}
    for path in (ROOT / "src" / "unmask").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(ROOT / "src").as_posix() in packed
    assert "unmask/py.typed" in packed
    assert any(name.endswith("licenses/LICENSE") for name in packed)
    assert {path.name for path in wheel.iterdir() if path.suffix != ".dist-info"} == {"unmask"}
    (info,) = wheel.glob("*.dist-info")
    assert "unmask = unmask.cli:main" in (info / "entry_points.txt").read_text()
    metadata = (info / "METADATA").read_text()
    assert "Requires-Python: >=3.10" in metadata
    assert "Requires-Dist: torch<3,>=2.11" in metadata


def test_the_source_distribution_contains_only_the_project():
    files = SdistBuilder(str(ROOT)).recurse_included_files()
    top_level = {Path(file.distribution_path).parts[0] for file in files}
    assert top_level == {"src", "tests", "docs", "benchmarks", "Makefile", "constraints.txt"}


def test_the_wheel_lists_recipes_and_loads_a_shipped_model(wheel):
    assert "speedrun" in run_wheel(wheel, "from unmask.cli import main; main()", "list", "recipe")
    program = "import unmask; lm = unmask.load('smoke', device='cpu'); print(lm.path); print(lm.generate(1, seed=3)[0])"
    path, text = run_wheel(wheel, program).splitlines()
    assert path == str(wheel / "unmask" / "shipped" / "smoke")
    assert text == load("smoke", device="cpu").generate(1, seed=3)[0]


@pytest.mark.parametrize("verb", ["sample", "eval"])
def test_the_wheel_runs_benchmarks(wheel, verb):
    """Their modules are `unmask.benchmarks`, also in the process that measures memory."""
    sizes = ["model.hidden_size=16", "model.layers=1", "model.heads=2", "--vocab", "19", "--length", "8"]
    options = ["--batch", "2", "--repeats", "1", "--warmup", "0", "--device", "cpu", "--json"]
    memory = ["--memory", "--against", "training"] if verb == "eval" else ["--no-memory", "--against", "plain"]
    program = "if __name__ == '__main__': from unmask.cli import main; main()"
    report = json.loads(run_wheel(wheel, program, "bench", verb, *sizes, *options, *memory))
    assert report["place"]["matrix_teraflops"] > 0
    scripts = {
        path.name for path in (ROOT / "benchmarks").glob("*.py") if 'if __name__ == "__main__"' in path.read_text()
    }
    assert scripts.isdisjoint(path.name for path in (wheel / "unmask" / "benchmarks").iterdir())


def run_wheel(wheel: Path, program: str, *arguments: str) -> str:
    """Run a program that imports `unmask` from the unpacked wheel only."""
    start = "import sys; sys.path.insert(0, sys.argv.pop(1)); import unmask\n"
    start += "assert unmask.__file__.startswith(sys.path[0])\n"
    site = [path for path in sys.path if path.endswith("site-packages")]
    done = subprocess.run(
        [sys.executable, "-S", "-c", start + program, str(wheel), *arguments],
        capture_output=True,
        text=True,
        cwd=wheel,
        env={"PYTHONPATH": ":".join(site), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
