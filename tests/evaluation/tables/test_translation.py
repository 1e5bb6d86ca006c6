"""The table of translation."""

from __future__ import annotations

import pytest

from tests.evaluation.tables.conftest import SMALLEST, make_table
from unmask.errors import UnmaskError
from unmask.evaluation.tables import get_experiment
from unmask.evaluation.tables.base import Scale
from unmask.evaluation.tables.workspace import Workspace, run_experiment


def test_mdlm_has_a_row_for_each_number_of_steps(tmp_path):
    pytest.importorskip("sacrebleu")
    table, trained = make_table(tmp_path, "translation", Scale("toy-translation", SMALLEST, documents=4))
    assert trained == ["MDLM, seed 0", "MDLM encoder-decoder, seed 0", "AR, seed 0"]
    steps = ("1 step", "4 steps", "16 steps", "one token per call")
    masked = [f"{label}, {words}" for label in ("MDLM", "MDLM encoder-decoder") for words in steps]
    assert list(table.rows) == [*masked, "AR"]
    assert [table.rows[row]["calls"].value for row in table.rows][:2] == [1, 4]
    assert all(row["BLEU"].interval is not None for row in table.rows.values())


@pytest.mark.parametrize(
    ("name", "on", "message"),
    [("translation", "stdlib", "pairs of texts"), ("table1", "toy-translation", "plain text")],
)
def test_data_of_another_kind_are_refused(tmp_path, name, on, message):
    with pytest.raises(UnmaskError, match=f"'{name}' needs {message}"):
        run_experiment(get_experiment(name), "tiny", on, Workspace(tmp_path))
