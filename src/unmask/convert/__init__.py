"""Published weights to checkpoints (`convert`) and back (`export`).

>>> from unmask import convert
>>> convert.convert("mdlm.ckpt", "checkpoints/mdlm", tokenizer="gpt2", length=1024)
>>> convert.export("checkpoints/mdlm", "mdlm.safetensors")
"""

from __future__ import annotations

from unmask.convert.exporting import ExportReport, export
from unmask.convert.importing import ConversionReport, convert

__all__ = ["ConversionReport", "ExportReport", "convert", "export"]
