"""What surrounds a recording and needs no GPU."""

from __future__ import annotations

import gc

import pytest

from unmask.models.inference import no_garbage_collection


@pytest.fixture
def collector():
    """Puts Python's garbage collector back as it was."""
    before = gc.isenabled()
    yield
    (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_lies_for_a_while_and_no_longer(collector, enabled):
    (gc.enable if enabled else gc.disable)()
    with no_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled() == enabled


def test_an_error_brings_the_collector_back(collector):
    gc.enable()
    with pytest.raises(ValueError, match="on purpose"), no_garbage_collection():
        raise ValueError("on purpose")
    assert gc.isenabled()
