"""Training tokens a second on two CPU cores by number of threads and how they wait, alone and beside a busy process.

    python benchmarks/cpu_threads.py

Every figure is a process of its own, since libgomp reads its settings once; all are measured in one run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

SECONDS = 6.0
LENGTH, BATCH, VOCABULARY = 128, 32, 1024
SETTINGS = {
    "1 thread": (1, {}),
    "2 threads, libgomp's default": (2, {}),
    "2 threads, GOMP_SPINCOUNT=10000": (2, {"GOMP_SPINCOUNT": "10000"}),
}


def measure(threads: int) -> float:
    """Tokens a second of forward, backward and AdamW of the nano DiT, after three warm-up steps."""
    import torch

    from unmask import registry
    from unmask.objectives.base import Noise
    from unmask.objectives.subs import Subs
    from unmask.process import Batch
    from unmask.schedules import LogLinear

    torch.set_num_threads(threads)
    spec = registry.build("model", {"name": "dit", "size": "nano", "dropout": 0.0})
    model = spec.build(VOCABULARY, VOCABULARY - 1, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batch = Batch.of(torch.randint(0, VOCABULARY - 1, (BATCH, LENGTH)))

    def step(number: int) -> None:
        noise = Noise.draw(0, number, torch.arange(BATCH), torch.rand(BATCH), LENGTH)
        Subs().loss(model, batch, LogLinear(), noise).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for number in range(3):
        step(number)
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        step(steps)
        steps += 1
    return steps * BATCH * LENGTH / (time.perf_counter() - start)


def in_a_process(threads: int, settings: dict[str, str]) -> float:
    """`measure` in a process with these environment variables."""
    command = [sys.executable, __file__, str(threads)]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Print the table."""
    for words, (threads, settings) in SETTINGS.items():
        idle = in_a_process(threads, settings)
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            beside = in_a_process(threads, settings)
        finally:
            busy.kill()
            busy.wait()
        print(f"{words:<34}{idle:>8.0f} idle{beside:>8.0f} beside a busy process", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measure(int(sys.argv[1])))
    else:
        main()
