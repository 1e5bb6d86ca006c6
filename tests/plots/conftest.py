"""Figures that are drawn and not written."""

from __future__ import annotations

from typing import Any

import pytest

from unmask.plots import style


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The Matplotlib figures drawn so far."""
    drawn: list[Any] = []
    monkeypatch.setattr(style, "write_figure", lambda figure, path: drawn.append(figure))
    return drawn
