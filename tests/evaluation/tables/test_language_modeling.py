"""What is undone in `engineering`."""

from __future__ import annotations

from unmask.evaluation.tables.language_modeling import ENGINEERING


def test_engineering_undoes_one_thing_at_a_time(reproduce, monkeypatch):
    for label in ("learned instead of rotary positions", "i.i.d. instead of low-discrepancy t"):
        monkeypatch.delitem(ENGINEERING, label)
    table = reproduce("engineering")
    assert list(table.rows) == [f"{model}, {label}" for model in ("MDLM", "D3PM") for label in ENGINEERING]
    for model in ("MDLM", "D3PM"):
        best, bytes_ = (table.rows[f"{model}, {label}"] for label in ("all of them", "bytes instead of BPE"))
        assert best["difference"] == "-"
        assert bytes_["difference"].value == bytes_["bits per byte"].value - best["bits per byte"].value
