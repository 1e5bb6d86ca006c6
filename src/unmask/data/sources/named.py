"""What a user means by a word on the command line: text in some file, folder, dataset or on standard input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.data.sources.huggingface import is_saved

HUB = "hf:"
"""What stands before the name of a dataset on the Hugging Face hub."""


def source_named(what: str) -> dict[str, Any]:
    """The source for ``-``, ``hf:NAME``, a file or a folder (whether it is there or not), as a recipe writes it."""
    if what == "-":
        return {"name": "stdin"}
    if what.startswith(HUB):
        return {"name": "huggingface", "path": what.removeprefix(HUB)}
    if is_saved(Path(what).expanduser()):
        return {"name": "huggingface", "path": what}
    return {"name": "text", "paths": [what]}
