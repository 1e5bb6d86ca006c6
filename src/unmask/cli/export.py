"""`unmask export`: a checkpoint for other runtimes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from unmask.cli.common import Json, checkpoint_argument, print_result
from unmask.io import check_new_folder, check_writable

app = typer.Typer(no_args_is_help=True, help="Export a checkpoint for other runtimes.")

CheckpointName = Annotated[str, checkpoint_argument("A checkpoint folder or a shipped model ('unmask list shipped').")]
Precision = Literal["float32", "float16", "int8"]


@app.command("onnx")
def export_onnx(
    checkpoint: CheckpointName,
    folder: Annotated[Path, typer.Argument(help="The new folder to write.", metavar="DIR")],
    dtype: Annotated[Precision, typer.Option(help="How weights are stored; the arithmetic is float32.")] = "float32",
    as_json: Json = False,
) -> None:
    """Write model.onnx with the tokenizer and the configs, and compare its logits with torch's.

    Inputs are input_ids and attention_mask, int64 of any batch and length; the output is logits.

    Examples:

        unmask export onnx stories stories-onnx

        unmask export onnx runs/mine mine-onnx --dtype int8
    """
    check_new_folder(folder, "name a new folder")
    check_writable(folder)
    from unmask.convert import onnx

    report = onnx.export_onnx(checkpoint, folder, dtype)
    text = f"Wrote {folder}: {report.bytes / 1e6:.1f} MB in {dtype}. "
    text += f"Checked against torch: logits differ by at most {report.difference:.1e}, "
    text += f"predictions by {report.divergence:.1e} nats per token."
    if report.row_length is not None:
        text += f"\nContinue shorter rows with masks to {report.row_length} tokens, as in training."
    print_result(asdict(report), text, as_json)


@app.command("web")
def export_web(
    checkpoint: CheckpointName,
    folder: Annotated[Path, typer.Argument(help="The new folder to write.", metavar="DIR")],
    dtype: Annotated[Precision, typer.Option(help="How weights are stored; the arithmetic is float32.")] = "int8",
    runtime: Annotated[
        Path, typer.Option(help="The folder node_modules with onnxruntime-web and @huggingface/tokenizers.")
    ] = Path("node_modules"),
    as_json: Json = False,
) -> None:
    """Write the playground with the model in it: a static folder that runs in a browser, without a server.

    It works from file:// and from any static host. The runtime comes from npm:

        npm install onnxruntime-web @huggingface/tokenizers

    Examples:

        unmask export web stories stories-web

        unmask export web runs/mine mine-web --dtype float16 --runtime ~/node_modules
    """
    check_new_folder(folder, "name a new folder")
    check_writable(folder)
    from unmask.convert import web

    report = web.export_web(checkpoint, folder, dtype, runtime)
    text = f"Wrote {folder}: {report.bytes / 1e6:.1f} MB in {dtype}; open {folder / 'index.html'} in a browser. "
    text += f"Predictions differ from torch's by {report.divergence:.1e} nats per token."
    print_result(asdict(report), text, as_json)
