"""What does not fit into memory is no measurement: one sentence says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from unmask.benchmarks.setup import Setup
from unmask.errors import UnmaskError, is_out_of_memory


@contextmanager
def room_for(setup: Setup) -> Iterator[None]:
    """Where what is measured in this block does not fit, an `UnmaskError` says what would take less."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not is_out_of_memory(error):
            raise
        place = "this machine" if setup.device.type == "cpu" else str(setup.device)
        remedy = "--batch" if setup.batch > 1 else "--length, or take a smaller --size"
        raise UnmaskError(
            f"A batch of {setup.batch} rows of {setup.length} tokens, with a vocabulary of {setup.vocab_size}, does "
            f"not fit into the memory of {place}; lower {remedy}."
        ) from None
