"""Published weights in, published weights out: `convert` makes a checkpoint of them and `export` is the way back.

>>> from unmask import conversion
>>> conversion.convert("mdlm.ckpt", "checkpoints/mdlm", tokenizer="gpt2", length=1024)
>>> conversion.export("checkpoints/mdlm", "mdlm.safetensors")
"""

from __future__ import annotations

from unmask.conversion.exporting import ExportReport, export
from unmask.conversion.importing import ConversionReport, convert

__all__ = ["ConversionReport", "ExportReport", "convert", "export"]
