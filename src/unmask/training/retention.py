"""Which checkpoints stay on disk: the newest, and those with the lowest validation bound."""

from __future__ import annotations

from pathlib import Path

from unmask.training.checkpoints import read_progressed
from unmask.training.runfolder import all_checkpoints, prune, publish, show_best


class Retention:
    """Keeps the newest `keep` and the best `keep_best` checkpoints of a run."""

    def __init__(self, out: Path, keep: int, keep_best: int) -> None:
        self.out = out
        self.keep = keep
        self.keep_best = keep_best

    def improves(self, bits_per_token: float) -> bool:
        """Whether a bound that was just measured is lower than that of every checkpoint there is."""
        if not self.keep_best:
            return False
        ranked = self._ranked()
        return not ranked or bits_per_token < ranked[0][0]

    def saved(self, checkpoint: Path) -> None:
        """Show a new checkpoint as the latest and the best one as the best, and remove those that nothing keeps."""
        publish(self.out, checkpoint)
        best = [path for _, path in self._ranked()[: self.keep_best]]
        if best:
            show_best(self.out, best[0])
        prune(self.out, self.keep, spared=best)

    def _ranked(self) -> list[tuple[float, Path]]:
        """The checkpoints whose bound is known, best first; of equal ones the older."""
        known = [(read_progressed(path).bits_per_token, path) for path in all_checkpoints(self.out)]
        return sorted((bits, path) for bits, path in known if bits is not None)
