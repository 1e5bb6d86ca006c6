"""The rows of an evaluation: the validation split of the training data, or given texts."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.config import DataConfig
from unmask.data.split import prepare
from unmask.errors import UnmaskError
from unmask.evaluation.perplexity import evaluation_rows
from unmask.pipeline import MaskedDiffusionLM


def trained_on(mdlm: MaskedDiffusionLM, **data: object) -> MaskedDiffusionLM:
    """A copy of the model that records this training data."""
    config = mdlm.config.model_copy(update={"protocol": {"data": data} if data else {}})
    return MaskedDiffusionLM(mdlm.denoiser, mdlm.tokenizer, config)


def test_rows_are_those_of_the_validation_split(mdlm):
    data = DataConfig(source={"name": "markov", "count": 60, "length": 96}, length=48, validation=0.25, seed=3)
    lm = trained_on(mdlm, **data.model_dump(mode="json"))
    _, held_out = prepare(data.source, mdlm.tokenizer, 0.25, 3).rows(lm.config.policy, 48)
    rows = evaluation_rows(lm)
    assert np.array_equal(rows[:].input_ids, held_out[:].input_ids)
    few = evaluation_rows(lm, count=3, length=12)
    assert (len(few), few.length) == (3, 12)


def test_given_texts_replace_the_validation_split(mdlm, tmp_path):
    (tmp_path / "lines.jsonl").write_text('{"body": "first text"}\n{"body": "second text"}\n')
    rows = evaluation_rows(mdlm, [str(tmp_path / "lines.jsonl")], field="body", length=8)
    assert mdlm.decode(rows[:].input_ids.ravel().tolist()).startswith("first te")
    for data, words in (
        ({}, "does not record its training data; name texts with --data"),
        ({"source": {"name": "stdin"}}, "was trained on standard input, which is gone"),
        ({"source": {"name": "text", "paths": ["nowhere.txt"]}}, r"cannot be read \(.*nowhere.txt.*\); name texts"),
    ):
        with pytest.raises(UnmaskError, match=words):
            evaluation_rows(trained_on(mdlm, **data))
