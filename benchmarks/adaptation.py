"""Tokens that a masked model needs to reach a bound: from the weights of an autoregressive one, and from scratch.

    python benchmarks/adaptation.py my.txt --steps 300

Both runs have the same architecture, text, tokenizer, optimizer and batches; `--from` names the autoregressive model.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from unmask.checkpoint import find_checkpoint
from unmask.config import Recipe, parse_recipe
from unmask.models.build import read_config
from unmask.training import train
from unmask.training.callbacks import read_log
from unmask.training.run import recipe_from

Curve = list[tuple[int, float, float]]
"""Steps, bits per token and their error."""


def adapted_recipe(options: argparse.Namespace) -> Recipe:
    """The recipe of `unmask train TEXT --from CKPT objective=subs` at the size of this comparison."""
    every = max(1, options.steps // options.points)
    overrides = [
        "objective={name: subs, weight: flat}",
        "data.policy=packed",
        f"data.length={options.length}",
        f"model.annealing_steps={options.annealing}",
        "model.dropout=0",
        f"optimizer.learning_rate={options.learning_rate}",
        f"training.steps={options.steps}",
        f"training.batch_size={options.batch_size}",
        f"training.validate_every={every}",
        f"training.save_every={options.steps}",
        "training.keep_best=0",
        "training.validation_rows=128",
    ]
    return recipe_from(options.text, options.checkpoint, overrides)


def scratch_recipe(adapted: Recipe) -> Recipe:
    """The same recipe with a fresh network of the same size, as `stories` has it."""
    config = read_config(Path(adapted.model.path))
    model = {
        "name": "dit",
        "hidden_size": config.hidden_size,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "qk_norm": config.qk_norm,
        "absolute_positions": True,
        "dropout": 0.0,
    }
    return parse_recipe({**adapted.model_dump(mode="json"), "model": model})


def validation_curve(recipe: Recipe, out: Path) -> Curve:
    train(recipe, out)
    bounds = [(record["step"], record["validation"]) for record in read_log(out) if "validation" in record]
    return [(step, bound["bits_per_token"], bound["bits_per_token_mc_stderr"]) for step, bound in bounds]


def first_step_below(curve: Curve, bits: float) -> int | None:
    """The first measured step whose bound is at most `bits`."""
    return next((step for step, found, _ in curve if found <= bits), None)


def compare(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The curves of both runs, and the steps in which the adapted one reaches the last bound of the other."""
    adapted = adapted_recipe(options)
    curves = {
        "from the autoregressive model": validation_curve(adapted, folder / "adapted"),
        "from scratch": validation_curve(scratch_recipe(adapted), folder / "scratch"),
    }
    first, second = curves.values()
    tokens = options.batch_size * options.length
    return {
        "tokens_per_step": tokens,
        "curves": curves,
        "bits_per_token": second[-1][1],
        "steps": {
            "from the autoregressive model": first_step_below(first, second[-1][1]),
            "from scratch": options.steps,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--from", dest="checkpoint", default="stories-ar")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--points", type=int, default=10, help="bounds that are measured in a run")
    parser.add_argument("--annealing", type=int, default=50)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=0.001)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    find_checkpoint(options.checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        report = compare(options, Path(folder))
    if options.json:
        print(json.dumps(report, indent=2))
        return
    for label, curve in report["curves"].items():
        print(label)
        for step, bits, error in curve:
            print(f"  {step * report['tokens_per_step']:>9,} tokens  {bits:.3f} ± {error:.3f} bits per token")
    reached = report["steps"]["from the autoregressive model"]
    print(f"The bound of the run from scratch, {report['bits_per_token']:.3f}, is reached after {reached} steps.")


if __name__ == "__main__":
    main()
