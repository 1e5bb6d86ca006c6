"""Time to quality: training time of the recipe text8-speedrun and the bound it reaches.

    head -c 72000000 text8 > text8-72m.txt
    python benchmarks/speedrun.py text8-72m.txt
    python benchmarks/speedrun.py text8-72m.txt model='{name: dit, size: small, dropout: 0.0}' training.steps=900

A short run compiles the kernels first. `seconds` is the whole run: reading, noise, optimizer, EMA and log, and after
the last step the bound of the validation rows and the checkpoint; `tokens_per_second` is tokens over these seconds.
`seconds_to_last_step` ends with the last step.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch

from unmask.config import Recipe, read_recipe
from unmask.training import train
from unmask.training.callbacks import read_log

WARM_UP = 8


def recipe(text: Path, overrides: list[str], *more: str) -> Recipe:
    """Read the recipe for this text."""
    return read_recipe("text8-speedrun", [f"data.source.paths=[{text.resolve()}]", *overrides, *more])


def main() -> None:
    """Warm up, run, print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    run = recipe(options.text, options.overrides)
    brief = [f"training.{key}={WARM_UP}" for key in ("steps", "validate_every", "save_every")]
    with tempfile.TemporaryDirectory() as folder:
        train(recipe(options.text, options.overrides, *brief), Path(folder) / "warm-up")
        result = train(run, Path(folder) / "run")
        to_last_step = max(line["seconds"] for line in read_log(Path(folder) / "run") if "seconds" in line)
    tokens = run.training.steps * run.training.batch_size * run.data.length
    bound = result.bound.as_dict()
    found = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "seconds": result.seconds,
        "seconds_to_last_step": to_last_step,
        "tokens_per_second": tokens / result.seconds,
        "bits_per_char": bound["bits_per_char"],
        "error_of_draws": bound["bits_per_char_mc_stderr"],
        "error_of_data": bound["bits_per_char_data_stderr"],
        "bits_per_token": bound["bits_per_token"],
        "validation_tokens": bound["tokens"],
        "recipe": run.model_dump(mode="json"),
    }
    json.dump(found, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
