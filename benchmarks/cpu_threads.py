"""Speed of sampling and training on CPUs by threads and how they wait, relative to one thread.

    python benchmarks/cpu_threads.py

Each row is measured as the machine is, and next to a busy process per CPU, in rounds; the figures are medians of the
ratios within a round. Every measurement runs in a new process, because OpenMP reads its settings once. `import unmask`
selects the last row unless torch is imported before it, and the command line takes only as many threads as there are
free CPUs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

SECONDS = 4.0
ROUNDS = 3
LENGTH, BATCH, VOCABULARY = 128, 32, 1024
CPUS = os.cpu_count() or 1
SETTINGS = {
    "1 thread": (1, {}),
    f"{CPUS} threads that spin (default)": (CPUS, {}),
    f"{CPUS} threads, passive": (CPUS, {"OMP_WAIT_POLICY": "passive"}),
}


def measure(threads: int) -> tuple[float, float]:
    """Return texts per second of the shipped model, and training steps per second of the nano DiT."""
    import torch  # before unmask, which would set the waiting policy

    import unmask
    from unmask import registry
    from unmask.objectives.base import Noise
    from unmask.objectives.subs import Subs
    from unmask.process import Batch
    from unmask.schedules import LogLinear

    torch.set_num_threads(threads)
    lm = unmask.load(device="cpu")
    spec = registry.build("model", {"name": "dit", "size": "nano", "dropout": 0.0})
    model = spec.build(VOCABULARY, VOCABULARY - 1, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batch = Batch.of(torch.randint(0, VOCABULARY - 1, (BATCH, LENGTH)))

    def train(step: int) -> None:
        noise = Noise.draw(0, step, torch.arange(BATCH), torch.rand(BATCH), LENGTH)
        Subs().loss(model, batch, LogLinear(), noise).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return per_second(lambda seed: lm.generate(length=64, steps=16, seed=seed)), per_second(train)


def per_second(work: Callable[[int], object]) -> float:
    """Return how often `work` runs in a second, after a first time."""
    work(0)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        done += 1
        work(done)
    return done / (time.perf_counter() - start)


def run_in_process(threads: int, settings: dict[str, str]) -> list[float]:
    """Run `measure` in a process with these environment variables."""
    command = [sys.executable, __file__, str(threads)]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def measure_round() -> list[list[float]]:
    """Return the four speeds of every setting relative to one thread, measured one after another."""
    speeds = []
    for threads, settings in SETTINGS.values():
        quiet = run_in_process(threads, settings)
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(CPUS)]
        try:
            speeds.append(quiet + run_in_process(threads, settings))
        finally:
            for process in busy:
                process.kill()
                process.wait()
    return [[speed / one for speed, one in zip(row, speeds[0], strict=True)] for row in speeds]


def main() -> None:
    """Print the table."""
    print(f"load average {os.getloadavg()[0]:.1f}; relative to 1 thread")
    print(f"{'':<34}{'sample':>8}{'train':>8}{'sample, busy':>14}{'train, busy':>13}")
    rounds = [measure_round() for _ in range(ROUNDS)]
    for words, *rows in zip(SETTINGS, *rounds, strict=True):
        ratios = [statistics.median(column) for column in zip(*rows, strict=True)]
        print("{:<34}{:>8.2f}{:>8.2f}{:>14.2f}{:>13.2f}".format(words, *ratios))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(*measure(int(sys.argv[1])))
    else:
        main()
