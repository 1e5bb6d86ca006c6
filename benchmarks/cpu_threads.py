"""Training tokens per second on two CPU cores by threads and their waiting policy, idle and next to a busy process.

    python benchmarks/cpu_threads.py

Every measurement runs in a new process because libgomp reads its settings once.
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
    """Return tokens per second of forward, backward and AdamW of the nano DiT, after three warm-up steps."""
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


def run_in_process(threads: int, settings: dict[str, str]) -> float:
    """Run `measure` in a process with these environment variables."""
    command = [sys.executable, __file__, str(threads)]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Print the table."""
    for words, (threads, settings) in SETTINGS.items():
        idle = run_in_process(threads, settings)
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            loaded = run_in_process(threads, settings)
        finally:
            busy.kill()
            busy.wait()
        print(f"{words:<34}{idle:>8.0f} idle{loaded:>8.0f} next to a busy process", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measure(int(sys.argv[1])))
    else:
        main()
