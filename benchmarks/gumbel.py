"""Effect of naive Gumbel draws on texts: step-by-step ancestral sampling with noise in float32 and in float64.

    python benchmarks/gumbel.py stories --judge PATH --steps 128 --steps 1000 --steps 10000

Each step draws every masked position from the posterior: the mask with probability s/t, else a token, by the argmax of
V + 1 Gumbel numbers -log(-log u). A float32 u is a multiple of 2^-24, so no Gumbel number exceeds 16.6. Texts end at
their first EOS. They are compared with texts of the same checkpoint by `AncestralSampler`, whose draws are exact.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.evaluation.generation import GenerationSettings, Texts, generate_texts, measure
from unmask.evaluation.judge import Judge, open_judge
from unmask.pipeline import MaskedDiffusionLM, load

PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
ENTRIES = 1 << 28
"""Gumbel numbers in memory at a time."""


def gumbel(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Draw Gumbel numbers the usual way; u = 0 gives minus infinity, which is never the maximum."""
    u = torch.rand(shape, dtype=dtype, device=generator.device, generator=generator)
    return -torch.log(-torch.log(u))


@torch.no_grad()
def naive_sample(lm: MaskedDiffusionLM, n: int, steps: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Sample canvases [n, L] in `steps` steps of the posterior; the network reads only rows that have changed."""
    generator = torch.Generator(lm.device).manual_seed(seed)
    mask, length = lm.text_processor.mask_token_id, lm.config.length
    ids = torch.full((n, length), mask, device=lm.device)
    log_p = _log_predictions(lm, ids)
    times = torch.arange(steps, -1, -1, dtype=torch.float64) / steps
    rates = lm.config.schedule.mask_rate(times).tolist()
    for rate, next_rate in itertools.pairwise(rates):
        stay = next_rate / rate
        row, position = (ids == mask).nonzero(as_tuple=True)
        tokens = torch.cat(list(_draw(log_p, row, position, stay, mask, dtype, generator)))
        changed = row[tokens != mask].unique()
        ids[row, position] = tokens
        if len(changed):
            log_p[changed] = _log_predictions(lm, ids[changed])
    return ids


def _draw(
    log_p: Tensor, row: Tensor, position: Tensor, stay: float, mask: int, dtype: torch.dtype, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield the next tokens [N] of the masked positions in parts; the mask token if a position stays masked."""
    log_stay = torch.tensor(stay, dtype=torch.float64).log()
    log_reveal = torch.tensor(-stay, dtype=torch.float64).log1p()
    for part in torch.arange(len(row), device=row.device).split(ENTRIES // log_p.shape[-1]):
        log_q = log_p[row[part], position[part]].to(dtype) + log_reveal.to(log_p.device, dtype)
        log_q[:, mask] = log_stay.to(log_p.device, dtype)
        yield (log_q + gumbel(tuple(log_q.shape), dtype, generator)).argmax(dim=-1)


def _log_predictions(lm: MaskedDiffusionLM, ids: Tensor) -> Tensor:
    """Log-probabilities [B, L, V] of an unconditioned network; the mask token has minus infinity."""
    return lm.denoiser.head(lm.denoiser.hidden(ids)).float().log_softmax(-1)


def judged(judge: Judge, texts: Texts, **about: Any) -> dict[str, Any]:
    """Return one row of the results."""
    ids = judge.encode(texts.texts)
    figures = measure(texts, ids, judge.nll(ids))
    kept = ("perplexity", "entropy", "repetition", "characters")
    return about | {name: one and one.as_dict() for name in kept for one in [figures[name]]}


def main() -> None:
    """Print a line of JSON for each number of steps and precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--judge", required=True)
    parser.add_argument("--steps", type=int, action="append", required=True)
    parser.add_argument("--noise", choices=PRECISIONS, action="append", help="the default is both")
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lm, judge = load(options.checkpoint, dtype="float32"), open_judge(options.judge)
    for steps in options.steps:
        for noise in options.noise or PRECISIONS:
            start = time.perf_counter()
            ids = naive_sample(lm, options.n, steps, PRECISIONS[noise], options.seed)
            texts = Texts([lm.decode(row) for row in ids.tolist()], np.full(options.n, float(steps)))
            print_json(judged(judge, texts, steps=steps, noise=noise, seconds=time.perf_counter() - start))
        exact = generate_texts(lm, lm.sampler(steps), GenerationSettings(options.n, seed=options.seed))
        print_json(judged(judge, exact, steps=steps, noise="exact, given that a text ends once"))


def print_json(row: dict[str, Any]) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
