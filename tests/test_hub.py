from __future__ import annotations

import time

import pytest
from huggingface_hub import constants

from unmask.data.sources.huggingface import HuggingFaceSource
from unmask.errors import UnmaskError
from unmask.evaluation.judge import open_judge
from unmask.io import offline_if_unreachable


def test_without_a_connection_judges_and_datasets_fail_at_once(monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with offline_if_unreachable():
        assert constants.is_offline_mode()
    assert not constants.is_offline_mode()
    pytest.importorskip("datasets")
    start = time.monotonic()
    with pytest.raises(UnmaskError, match="judge 'org/none' cannot be opened"):
        open_judge("org/none")
    with pytest.raises(UnmaskError, match="dataset 'org/none' could not be read"):
        list(HuggingFaceSource(path="org/none").documents())
    assert time.monotonic() - start < 10, "no retries"
