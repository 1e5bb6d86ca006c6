"""Where a network computes, by the name that a user gives it."""

from __future__ import annotations

import torch

from unmask.errors import UnmaskError


def device_named(name: str | torch.device | None, dtype: torch.dtype = torch.float32) -> torch.device:
    """The device of this name, tried out with numbers of a type; without a name the GPU where there is one."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=dtype, device=device).add_(1).item()
    except (RuntimeError, AssertionError, TypeError, ImportError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]  # torch goes on about itself
        raise UnmaskError(f"The device '{name}' cannot be used here ({reason}); name another, or none.") from error
    return device
