"""Export to ONNX: parity with torch for every type of weights, folders that are left alone, refused input."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import unmask
from tests.conftest import make_checkpoint
from tests.encoders import make_encoder
from unmask.convert import onnx as exporting
from unmask.convert.onnx import export_onnx

pytest.importorskip("onnxscript", reason="onnxscript is in the extra export")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is in the extra export")


def logits_of(folder, ids, attention_mask=None, **inputs):
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    mask = np.ones_like(ids) if attention_mask is None else attention_mask
    return session.run(["logits"], {"input_ids": ids, "attention_mask": mask, **inputs})[0]


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-4), ("float16", 1e-2)])
def test_a_folder_has_the_tokenizer_and_logits_of_any_batch_and_length(
    run, refused, mdlm, mdlm_folder, tmp_path, dtype, limit
):
    out = tmp_path / "out"
    code, said, err = run("export", "onnx", mdlm_folder, out, "--dtype", dtype, "--json")
    assert code == 0, err
    report = json.loads(said)
    assert report["dtype"] == dtype
    assert report["difference"] < limit
    names = {"model.onnx", "tokenizer.json", "tokenizer_config.json", "config.json", "unmask.json"}
    assert {path.name for path in out.iterdir()} == names
    assert "exists and is not empty" in refused("export", "onnx", mdlm_folder, out)
    for batch, length in ((1, 5), (4, 1), (2, mdlm.row_length)):
        ids = torch.randint(0, 258, (batch, length), generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            expected = mdlm.denoiser(ids).logits.numpy()
        found = logits_of(out, ids.numpy())
        assert np.isneginf(found[..., mdlm.denoiser.config.mask_token_id]).all(), "the mask is never predicted"
        seen = np.isfinite(expected)
        assert np.abs(found[seen] - expected[seen]).max() < limit
    ids = np.arange(6, dtype=np.int64)[None]
    padded = np.array([[1, 1, 1, 1, 0, 0]], dtype=np.int64)
    alone, together = logits_of(out, ids[:, :4]), logits_of(out, ids, padded)
    np.testing.assert_allclose(alone[..., :256], together[:, :4, :256], atol=1e-4, err_msg="padding is not seen")


def test_int8_is_a_quarter_of_the_size_and_close(tmp_path):
    folder = make_checkpoint(tmp_path / "model", hidden_size=64)
    full, small = export_onnx(folder, tmp_path / "float32"), export_onnx(folder, tmp_path / "int8", "int8")
    assert full.bytes - small.bytes > 0.7 * 4 * sum(p.numel() for p in unmask.load(folder).denoiser.parameters())
    assert 0 < small.divergence < exporting.MAX_DIVERGENCE


def test_causal_and_conditioned_networks(ar, ar_folder, tmp_path):
    assert export_onnx(ar_folder, tmp_path / "ar").difference < 1e-4
    ids = np.arange(9, dtype=np.int64)[None]
    found = logits_of(tmp_path / "ar", ids)
    np.testing.assert_allclose(logits_of(tmp_path / "ar", ids[:, :5]), found[:, :5], atol=1e-4)
    conditioned = make_checkpoint(tmp_path / "model", conditioned=True)
    assert export_onnx(conditioned, tmp_path / "conditioned").inputs == ["input_ids", "attention_mask", "alpha"]
    network, tokens = unmask.load(conditioned).denoiser, torch.full((2, 8), 257)
    alpha = torch.tensor([0.1, 0.9])
    with torch.no_grad():
        expected = network(tokens, alpha=alpha).logits.numpy()
    found = logits_of(tmp_path / "conditioned", tokens.numpy(), alpha=alpha.numpy())
    np.testing.assert_allclose(found[..., :256], expected[..., :256], atol=1e-4)


def test_an_encoder_of_transformers(tmp_path):
    make_encoder(tmp_path / "model")
    assert export_onnx(tmp_path / "model", tmp_path / "out").difference < 1e-4
    assert (tmp_path / "out" / "config.json").is_file()


def test_a_graph_that_differs_from_torch_is_not_written(monkeypatch, mdlm_folder, tmp_path):
    monkeypatch.setattr(exporting, "MAX_DIVERGENCE", 0.0)
    with pytest.raises(unmask.UnmaskError, match="was not written: the int8 logits differ"):
        export_onnx(mdlm_folder, tmp_path / "out", "int8")
    assert list(tmp_path.iterdir()) == []


def test_bad_input_leaves_nothing(refused, mdlm_folder, tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    assert "nowhere" in refused("export", "onnx", "nowhere", tmp_path / "out")
    assert "is not a folder" in refused("export", "onnx", mdlm_folder, file)
    assert "float64" in refused("export", "onnx", mdlm_folder, tmp_path / "out", "--dtype", "float64")
    with pytest.raises(unmask.UnmaskError, match="dtype must be one of"):
        export_onnx(mdlm_folder, tmp_path / "out", "bf16")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == [file]
