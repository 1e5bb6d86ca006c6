"""Time to quality: training time of the recipe text8-speedrun and the bound it reaches.

    head -c 74000000 text8 > text8-74m.txt
    python benchmarks/speedrun.py text8-74m.txt
    python benchmarks/speedrun.py text8-74m.txt model='{name: dit, size: small, dropout: 0.0}' training.steps=900

The last 2 million characters are the test text, which no trial behind the recipe has seen; the run itself holds out the
2 million before them for validation. A short run compiles the kernels first. `seconds` is the whole run: reading,
noise, optimizer, EMA and log, and after the last step the bound of the validation rows and the checkpoint;
`tokens_per_second` is tokens over these seconds. `seconds_to_last_step` ends with the last step.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch

import unmask
from unmask.config import Recipe, read_recipe
from unmask.evaluation.perplexity import evaluation_rows
from unmask.training import train
from unmask.training.callbacks import read_log

WARM_UP = 8
TEST_CHARACTERS = 2_000_000


def recipe(text: Path, overrides: list[str], *more: str) -> Recipe:
    """Read the recipe for this text."""
    return read_recipe("text8-speedrun", [f"data.source.paths=[{text.resolve()}]", *overrides, *more])


def main() -> None:
    """Warm up, run, print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--test-characters", type=int, default=TEST_CHARACTERS)
    options = parser.parse_args()
    brief = [f"training.{key}={WARM_UP}" for key in ("steps", "validate_every", "save_every")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text, test = folder / "text8.txt", folder / "test.txt"
        characters = options.text.read_text(encoding="utf-8")
        text.write_text(characters[: -options.test_characters], encoding="utf-8")
        test.write_text(characters[-options.test_characters :], encoding="utf-8")
        run = recipe(text, options.overrides)
        train(recipe(text, options.overrides, *brief), folder / "warm-up")
        result = train(run, folder / "run")
        to_last_step = max(line["seconds"] for line in read_log(folder / "run") if "seconds" in line)
        lm = unmask.load(folder / "run")
        bound = lm.evaluate(evaluation_rows(lm, [str(test)])).headline.as_dict()
    tokens = run.training.steps * run.training.batch_size * run.data.length
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
        "test_tokens": bound["tokens"],
        "validation_bits_per_char": result.bound.as_dict()["bits_per_char"],
        "recipe": run.model_dump(mode="json"),
    }
    json.dump(found, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
