"""From a checkpoint to a static folder: the playground with the model in it, for a browser without a server."""

from __future__ import annotations

import base64
import gzip
import json
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from unmask.checkpoint import Checkpoint, load_checkpoint, read_generation_config
from unmask.convert.onnx import MODEL_FILE, Precision, check_export, write_onnx
from unmask.errors import UnmaskError
from unmask.io import atomic_folder
from unmask.text_processor import TextProcessor

ORT, TOKENIZERS = "onnxruntime-web", "@huggingface/tokenizers"
RUNTIME = {
    "runtime": f"{ORT}/dist/ort.wasm.min.js",
    "module": f"{ORT}/dist/ort-wasm-simd-threaded.mjs",
    "wasm": f"{ORT}/dist/ort-wasm-simd-threaded.wasm",
    "tokenizers": f"{TOKENIZERS}/dist/tokenizers.min.cjs",
}
"""The files of the npm packages that an exported folder contains."""
LICENSES = {ORT: "MIT", TOKENIZERS: "Apache-2.0"}
TIMES = 1025
"""Points at which the inverse of the schedule is tabulated; the page interpolates."""
SERVER_SCRIPT = '<script src="playground/http.js"></script>'
LOCAL_SCRIPTS = ("assets.js", "model.js", "tokenizers.js", "local/sampling.js", "local/backend.js")


@dataclass(frozen=True)
class WebReport:
    """Summary of an export. `difference` and `divergence` are those of `unmask.convert.onnx.compare`."""

    source: str
    path: str
    dtype: Precision
    bytes: int
    difference: float
    divergence: float


def export_web(
    src: str | Path | None, dst: str | Path, dtype: Precision = "int8", runtime: str | Path = "node_modules"
) -> WebReport:
    """Write the playground with the model of a checkpoint to a new folder; its index.html needs no server.

    The page, ONNX Runtime, the tokenizer and the weights are in classic scripts, so that the folder also works from
    `file://`, where a page may not fetch.

    Args:
        src: A checkpoint folder of a masked model, or a shipped or hub model by its name; None is `stories`.
        dst: The folder to write.
        dtype: How weights are stored, as in `export_onnx`.
        runtime: The folder `node_modules` with the npm packages onnxruntime-web and @huggingface/tokenizers.
    """
    path = Path(dst)
    check_export(path, dtype)
    packages = check_runtime(runtime)
    checkpoint = load_checkpoint(src)
    config = page_config(checkpoint)
    with tempfile.TemporaryDirectory() as temporary:
        report = write_onnx(checkpoint, Path(temporary), dtype, str(path))
        model = (Path(temporary) / MODEL_FILE).read_bytes()
    page = files("unmask") / "serving" / "playground"
    local = page / "local"
    sources = {name: packages[name].read_text(encoding="utf-8") for name in ("runtime", "module")}
    sources["worker"] = (local / "worker.js").read_text(encoding="utf-8")
    assets = {"config": config, "tokenizer": tokenizer_files(checkpoint), "sources": sources}
    wrapped = f"(() => {{ const module = {{ exports: {{}} }};\n{packages['tokenizers'].read_text(encoding='utf-8')}\n"
    scripts = {
        "assets.js": _assign({**assets, "wasm": _pack(packages["wasm"].read_bytes())}),
        "model.js": _assign({"model": _pack(model)}),
        "tokenizers.js": f"{wrapped}globalThis.unmask.Tokenizer = module.exports.Tokenizer; }})();\n",
    }
    with atomic_folder(path) as folder:
        for source in page.rglob("*"):  # type: ignore[attr-defined]
            if source.is_file() and source.name not in ("http.js", "index.html", "worker.js"):
                copy = folder / source.relative_to(page)
                copy.parent.mkdir(exist_ok=True)
                copy.write_bytes(source.read_bytes())
        for name, content in scripts.items():
            (folder / name).write_text(content, encoding="utf-8")
        with (folder / "vendor" / "LICENSES.txt").open("a", encoding="utf-8") as notes:
            notes.write(f"\n{package_note(packages['runtime'].parents[2])}")
        index = (page / "index.html").read_text(encoding="utf-8")
        tags = "\n".join(f'<script src="{name}"></script>' for name in LOCAL_SCRIPTS)
        index = index.replace(SERVER_SCRIPT, tags).replace("playground/", "")
        (folder / "index.html").write_text(index, encoding="utf-8")
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return WebReport(report.source, str(path), dtype, size, report.difference, report.divergence)


def check_runtime(folder: str | Path) -> dict[str, Path]:
    """The files of `RUNTIME` in a folder `node_modules`; raise `UnmaskError` if one is missing."""
    found = {name: Path(folder) / file for name, file in RUNTIME.items()}
    for name, path in found.items():
        if not path.is_file():
            raise UnmaskError(
                f"'{folder}' has no {RUNTIME[name]}; run 'npm install {ORT} {TOKENIZERS}' and give its node_modules "
                "with --runtime."
            )
    return found


def page_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the page must know about a model besides its network; raise `UnmaskError` if it cannot run it."""
    config, network = checkpoint.config, checkpoint.model.config
    if config.objective.causal:
        raise UnmaskError(f"'{checkpoint.path}' is autoregressive; the page runs masked models, so export one of them.")
    if network.conditioned:
        raise UnmaskError(f"'{checkpoint.path}' is conditioned on time, which the page does not compute; serve it.")
    processor = TextProcessor(checkpoint.tokenizer, network, config)
    defaults = read_generation_config(checkpoint.path)
    rates = torch.linspace(0, 1, TIMES, dtype=torch.float64)
    return {
        "name": checkpoint.path.name,
        "mask": processor.mask_token_id,
        "eos": processor.eos_token_id,
        "row_length": processor.row_length,
        "max_length": processor.max_length,
        "leading_spaces": processor.has_leading_spaces,
        "ends_with_eos": config.policy.ends_with_eos,
        "pads_with_eos": config.policy.supervises_padding,
        "times": config.schedule.time_at(rates).tolist(),
        "defaults": {name: defaults[name] for name in ("temperature", "top_p") if name in defaults},
    }


def tokenizer_files(checkpoint: Checkpoint) -> dict[str, Any]:
    """tokenizer.json and tokenizer_config.json."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.tokenizer.save_pretrained(folder)
        names = {"tokenizer": "tokenizer.json", "config": "tokenizer_config.json"}
        missing = next((name for name in names.values() if not (Path(folder) / name).is_file()), None)
        if missing is not None:
            raise UnmaskError(f"The tokenizer of '{checkpoint.path}' has no {missing}, so the page cannot run it.")
        return {key: json.loads((Path(folder) / name).read_text(encoding="utf-8")) for key, name in names.items()}


def package_note(modules: Path) -> str:
    """Name, version and licence of the npm packages."""
    notes = []
    for name, license_name in LICENSES.items():
        version = json.loads((modules / name / "package.json").read_text(encoding="utf-8"))["version"]
        notes.append(f"{name} {version}: {license_name}.")
    return "\n".join([f"The scripts also contain, from npm and unchanged: {notes[0]}", *notes[1:], ""])


def _pack(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _assign(values: dict[str, Any]) -> str:
    """A script that adds values to `unmask.assets`."""
    lines = "".join(f"unmask.assets[{json.dumps(name)}] = {json.dumps(value)};\n" for name, value in values.items())
    return f"globalThis.unmask ??= {{}};\nunmask.assets ??= {{}};\n{lines}"
