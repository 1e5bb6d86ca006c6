"""Export of the playground: its files and their sizes, refused input. tests/browser/test_web_export.py runs it."""

from __future__ import annotations

import base64
import gzip
import json
import re

import pytest

import unmask
from tests.conftest import make_checkpoint
from unmask.convert.web import RUNTIME, export_web

pytest.importorskip("onnxscript", reason="onnxscript is in the extra export")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is in the extra export")


@pytest.fixture
def runtime(tmp_path):
    """A folder with files of the names of the runtime."""
    folder = tmp_path / "node_modules"
    for file in RUNTIME.values():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(f"// {file}")
    for package in ("onnxruntime-web", "@huggingface/tokenizers"):
        (folder / package / "package.json").write_text('{"version": "1.2.3"}')
    return folder


def assets_of(folder) -> dict:
    """The values that the scripts assign to `unmask.assets`."""
    text = "".join((folder / name).read_text() for name in ("assets.js", "model.js"))
    return {name: json.loads(value) for name, value in re.findall(r'^unmask\.assets\["(\w+)"\] = (.*);$', text, re.M)}


def test_the_folder_is_complete_and_has_the_model(run, mdlm_folder, runtime, tmp_path):
    out = tmp_path / "out"
    code, printed, _ = run("export", "web", mdlm_folder, out, "--runtime", runtime, "--json")
    assert code == 0
    report = json.loads(printed)
    assert report["bytes"] == sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    index = (out / "index.html").read_text()
    named = re.findall(r'(?:src|href)="([^"]+)"', index)
    assert "assets.js" in named
    assert all((out / name).is_file() for name in named if name != "data:,")
    assert "http.js" not in index
    assert "type=module" not in index.replace('"', ""), "file:// has no modules"
    assets = assets_of(out)
    model = gzip.decompress(base64.b64decode(assets["model"]))
    assert onnxruntime.InferenceSession(model).get_inputs()[0].name == "input_ids"
    assert gzip.decompress(base64.b64decode(assets["wasm"])).startswith(b"// onnxruntime-web")
    assert assets["config"]["mask"] == 257
    assert "onnxruntime-web 1.2.3: MIT" in (out / "vendor" / "LICENSES.txt").read_text()


def test_the_same_checkpoint_gives_the_same_files(mdlm_folder, runtime, tmp_path):
    for name in ("one", "two"):
        export_web(mdlm_folder, tmp_path / name, "float32", runtime)
    for file in (tmp_path / "one").rglob("*.*"):
        assert file.read_bytes() == (tmp_path / "two" / file.relative_to(tmp_path / "one")).read_bytes()


def test_bad_input_leaves_nothing(refused, mdlm_folder, ar_folder, runtime, tmp_path):
    out, options = tmp_path / "out", ("--runtime", runtime)
    sentence = refused("export", "web", mdlm_folder, out, "--runtime", tmp_path / "empty")
    assert "npm install onnxruntime-web @huggingface/tokenizers" in sentence
    assert "is autoregressive" in refused("export", "web", ar_folder, out, *options)
    conditioned = make_checkpoint(tmp_path / "conditioned", conditioned=True)
    assert "conditioned on time" in refused("export", "web", conditioned, out, *options)
    assert "nowhere" in refused("export", "web", "nowhere", out, *options)
    assert "float64" in refused("export", "web", mdlm_folder, out, *options, "--dtype", "float64")
    with pytest.raises(unmask.UnmaskError, match="dtype must be one of"):
        export_web(mdlm_folder, out, "bf16", runtime)  # type: ignore[arg-type]
    assert not out.exists()
    out.mkdir()
    (out / "mine.txt").write_text("x")
    assert "not empty" in refused("export", "web", mdlm_folder, out, *options)
