"""Networks from a folder: a config.json and weights that fit it exactly, opened by the Auto classes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.utils import logging

from unmask.errors import UnmaskError
from unmask.models.config import CausalConfig


def read_config(path: Path) -> Any:
    """The network's configuration in a checkpoint folder."""
    if not (path / "config.json").is_file():
        raise UnmaskError(
            f"There is no checkpoint at '{path}'; give the folder that 'unmask train' or 'convert' wrote."
        )
    try:
        return AutoConfig.from_pretrained(path, local_files_only=True)
    except UnmaskError:
        raise
    except Exception as error:
        raise UnmaskError(f"'{path / 'config.json'}' cannot be read ({first_line(error)}); restore it.") from error


def open_network(path: Path, causal: bool, **options: Any) -> Any:
    """The network in a folder; `options` go to `from_pretrained`. Keys and shapes must be those of its config."""
    opener: Any = AutoModelForCausalLM if causal else AutoModelForMaskedLM
    try:
        with quietly():
            model, report = opener.from_pretrained(path, output_loading_info=True, local_files_only=True, **options)
    except UnmaskError:
        raise
    except Exception as error:
        raise UnmaskError(
            f"The weights in '{path}' cannot be opened ({first_line(error)}); the file may be damaged."
        ) from error
    wrong = [*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]]
    if wrong:
        raise UnmaskError(
            f"The weights in '{path}' do not fit its config.json: {wrong[0]} and {len(wrong) - 1} more keys."
        )
    return model


def reads_forward(config: Any) -> bool:
    """Whether networks of this configuration see only what stands before."""
    return isinstance(config, CausalConfig)


@contextmanager
def quietly() -> Iterator[None]:
    """Keep transformers from drawing bars over ours, and what it imports (DeepSpeed) from printing among our output."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if shown:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """What an error of a library says first, short enough for a sentence of ours."""
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
