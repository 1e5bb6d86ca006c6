"""Published weights in, published weights out: `convert` makes a checkpoint of them and `export` is the way back.

>>> from unmask import convert
>>> convert.convert("mdlm.ckpt", "checkpoints/mdlm", tokenizer="gpt2", length=1024)
>>> convert.export("checkpoints/mdlm", "mdlm.safetensors")
"""

from __future__ import annotations

from unmask.convert.exporting import ExportReport, export
from unmask.convert.importing import ConversionReport, convert

__all__ = ["ConversionReport", "ExportReport", "convert", "export"]
