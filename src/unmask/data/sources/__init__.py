"""Sources of text: files and folders in many formats, standard input, Hugging Face datasets."""

from __future__ import annotations

from unmask.data.sources.base import Document, Source, source_spec
from unmask.data.sources.text import StdinSource, TextSource

__all__ = ["Document", "Source", "StdinSource", "TextSource", "source_spec"]
