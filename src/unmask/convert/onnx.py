"""From a checkpoint to ONNX, for ONNX Runtime on any platform; the written file is checked against torch."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from unmask.checkpoint import CONFIG_FILE, GENERATION_FILE, Checkpoint, load_checkpoint
from unmask.errors import UnmaskError
from unmask.io import atomic_folder, check_new_folder
from unmask.models.build import silence_transformers

Precision = Literal["float32", "float16", "int8"]

MODEL_FILE = "model.onnx"
MAX_DIFFERENCE = {"float32": 1e-4, "float16": 1e-2}
"""The largest difference of a logit from torch's that is accepted (`compare`)."""
MAX_DIVERGENCE = 0.02
"""The largest mean Kullback-Leibler divergence, in nats per token, of int8 predictions from torch's."""
MAX_INLINE_BYTES = 1_800_000_000
"""Larger weights are written beside the graph, since a file of protobuf holds at most 2 GB."""
CHECKED_SHAPES = ((1, 1), (3, 7), (2, None))
"""Batch and length of the canvases that are compared; None is the longest row, or `MAX_CHECKED`."""
MAX_CHECKED = 1024


@dataclass(frozen=True)
class OnnxReport:
    """Summary of an export. `difference` and `divergence` are those of `compare`."""

    source: str
    path: str
    dtype: Precision
    bytes: int
    parameters: int
    difference: float
    divergence: float
    inputs: list[str]
    row_length: int | None
    """Shorter rows must be continued with masks to this length, as `fill` does; None if they need not."""


class Logits(nn.Module):
    """A network as a function of tensors: ids and attention mask [B, L], and alpha [B] if conditioned, to logits."""

    def __init__(self, network: Any, causal: bool) -> None:
        super().__init__()
        self.network, self.causal = network, causal
        self.inputs = ["input_ids", "attention_mask"]
        if getattr(network.config, "conditioned", False):
            self.inputs.append("alpha")

    def forward(self, input_ids: Tensor, attention_mask: Tensor, alpha: Tensor | None = None) -> Tensor:
        if self.causal:
            return self.network(input_ids, attention_mask=attention_mask, use_cache=False).logits
        rows = self.network.hidden(input_ids, alpha, attention_mask)
        return self.network.head(rows, self.network.config.mask_logit)


def export_onnx(src: str | Path | None, dst: str | Path, dtype: Precision = "float32") -> OnnxReport:
    """Write the network of a checkpoint as model.onnx to a new folder, with the tokenizer and the configs.

    The graph takes `input_ids` and `attention_mask`, int64 [batch, length], and `alpha`, float32 [batch], if the
    network is conditioned on it, and returns `logits`, float32 [batch, length, vocabulary]. `float16` and `int8` are
    the types in which weight matrices are stored; the arithmetic is float32.

    After writing, ONNX Runtime runs the file on random canvases of several shapes. Nothing is left behind unless its
    logits differ from torch's by at most 1e-4 (float32) or 1e-2 (float16), or its predictions by at most 0.02 nats per
    token (int8).

    Args:
        src: A checkpoint folder, or a shipped or hub model by its name; None is `stories`.
        dst: The folder to write.
        dtype: How weights are stored.
    """
    path = Path(dst)
    check_export(path, dtype)
    checkpoint = load_checkpoint(src)
    with atomic_folder(path) as folder:
        report = write_onnx(checkpoint, folder, dtype, str(path))
        if checkpoint.tokenizer is not None:
            checkpoint.tokenizer.save_pretrained(folder)
        (folder / CONFIG_FILE).write_text(checkpoint.config.model_dump_json(indent=2) + "\n", encoding="utf-8")
        for name in ("config.json", GENERATION_FILE):
            if (checkpoint.path / name).is_file():
                (folder / name).write_bytes((checkpoint.path / name).read_bytes())
    return report


def write_onnx(checkpoint: Checkpoint, folder: Path, dtype: Precision, shown: str) -> OnnxReport:
    """Write and check model.onnx in an existing folder; report and errors call it `shown`."""
    import onnx

    module = Logits(checkpoint.model, checkpoint.config.objective.causal).eval()
    proto = trace(module)
    if dtype != "float32":
        shrink_weights(proto, dtype)
    file = folder / MODEL_FILE
    large = proto.ByteSize() > MAX_INLINE_BYTES
    onnx.save(proto, str(file), save_as_external_data=large, location=f"{MODEL_FILE}.data")
    difference, divergence = compare(module, file)
    limit = MAX_DIFFERENCE.get(dtype)
    if not (divergence <= MAX_DIVERGENCE if limit is None else difference <= limit):
        raise UnmaskError(
            f"'{shown}' was not written: the {dtype} logits differ from torch's by up to {difference:.2g}, "
            f"{divergence:.2g} nats per token; export to float32, or report this network."
        )
    return OnnxReport(
        source=str(checkpoint.path),
        path=shown,
        dtype=dtype,
        bytes=sum(part.stat().st_size for part in folder.glob(f"{MODEL_FILE}*")),
        parameters=sum(weight.numel() for weight in checkpoint.model.parameters()),
        difference=difference,
        divergence=divergence,
        inputs=module.inputs,
        row_length=getattr(checkpoint.model.config, "row_length", None),
    )


def check_export(folder: Path, dtype: str) -> None:
    """Raise `UnmaskError` unless the folder is new, the dtype is known and the extra `export` is installed."""
    check_new_folder(folder, "name a new folder")
    if dtype not in get_args(Precision):
        raise UnmaskError(f"dtype must be one of {', '.join(get_args(Precision))}, got {dtype!r}.")
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UnmaskError(
            f"Export to ONNX needs the package {error.name}; run: pip install 'unmask[export]'."
        ) from error


def trace(module: Logits) -> Any:
    """The graph of a network with a dynamic batch and length."""
    config = module.network.config
    longest = config.max_length
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=1, max=longest)
    dimensions = [{0: batch, 1: length}, {0: batch, 1: length}, {0: batch}][: len(module.inputs)]
    inputs = tuple(canvas(module, 2, min(16, longest)).values())
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            module,
            inputs,
            dynamo=True,
            verbose=False,
            input_names=module.inputs,
            output_names=["logits"],
            dynamic_shapes=tuple(dimensions) if longest > 1 else None,
        )
    assert program is not None, "only a dry run returns none"
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warnings of torch's exporter, which are about its own internals."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), silence_transformers():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def canvas(module: Logits, batch: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Inputs of random tokens, half of them masked; all but the first row are padded at the end."""
    config = module.network.config
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, config.vocab_size, (batch, length), generator=generator)
    masked = torch.rand(batch, length, generator=generator) < 0.5
    attention_mask = torch.ones(batch, length, dtype=torch.int64)
    attention_mask[1:, length - length // 4 :] = 0
    inputs = [ids.masked_fill(masked, config.mask_token_id), attention_mask, torch.linspace(0.2, 0.8, batch)]
    return dict(zip(module.inputs, inputs, strict=False))  # a network without conditioning takes no alpha


def shrink_weights(proto: Any, dtype: Precision) -> None:
    """Store the weight matrices of a graph as float16, or as int8 with scales, and convert them on use.

    An int8 matrix has a scale per row or per column, whichever gives the smaller error. ONNX Runtime converts the
    weights once, when it loads the file.
    """
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    nodes = []
    for stored in list(proto.graph.initializer):
        if stored.data_type != TensorProto.FLOAT or len(stored.dims) != 2 or math.prod(stored.dims) < 256:
            continue
        weight, name = numpy_helper.to_array(stored), stored.name
        small = f"{name}.{dtype}"
        if dtype == "float16":
            values = [numpy_helper.from_array(weight.astype(np.float16), small)]
            nodes.append(helper.make_node("Cast", [small], [name], to=TensorProto.FLOAT))
        else:
            scales = [np.maximum(np.abs(weight).max(axis=axis, keepdims=True), 1e-12) / 127 for axis in (0, 1)]
            scale = min(scales, key=lambda one: np.square(weight - np.rint(weight / one) * one).sum())
            levels = np.rint(weight / scale).astype(np.int8)
            values = [numpy_helper.from_array(levels, small), numpy_helper.from_array(scale, f"{small}.scale")]
            nodes.append(helper.make_node("Cast", [small], [f"{small}.cast"], to=TensorProto.FLOAT))
            nodes.append(helper.make_node("Mul", [f"{small}.cast", f"{small}.scale"], [name]))
        proto.graph.initializer.remove(stored)
        proto.graph.initializer.extend(values)
    for node in reversed(nodes):
        proto.graph.node.insert(0, node)


@torch.no_grad()
def compare(module: Logits, file: Path) -> tuple[float, float]:
    """The largest difference of a logit from torch's, and the mean divergence of predictions in nats per token.

    The difference is divided by the standard deviation of the logits if that is above 1, since rounding grows with it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    differences, divergences = [], []
    for seed, (batch, length) in enumerate(CHECKED_SHAPES):
        inputs = canvas(module, batch, min(length or MAX_CHECKED, module.network.config.max_length), seed)
        seen = inputs["attention_mask"].bool()
        expected = module(*inputs.values())[seen].double()
        (logits,) = session.run(["logits"], {name: value.numpy() for name, value in inputs.items()})
        found = torch.from_numpy(logits)[seen].double()
        finite = expected.isfinite()
        if not torch.equal(finite, found.isfinite()):
            return math.inf, math.inf
        differences.append(float((found - expected)[finite].abs().max() / expected[finite].std().clamp_min(1.0)))
        p, q = expected.log_softmax(-1), found.log_softmax(-1)
        divergences.append((p.exp() * (p - q)).masked_fill(~finite, 0.0).sum(-1))
    return max(differences), float(torch.cat(divergences).mean().clamp_min(0.0))  # rounding can make it negative
