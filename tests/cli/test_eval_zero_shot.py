"""`unmask eval zero-shot` on small data: every checkpoint on every data set, with errors, labels and reports."""

from __future__ import annotations

import json

import pytest

from unmask.evaluation.zero_shot import parse_parts, protocol_rows


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    for folder in ("wiki", "ptb", "science"):
        (tmp_path / folder).mkdir()
    documents = "<|endofdocument|>\n".join(f"Article {n} is {'very ' * n}long.\n" for n in range(6))
    (tmp_path / "wiki/wiki-validation.txt").write_text(documents)
    (tmp_path / "ptb/ptb.test.txt").write_text("no it was n't \n but N <unk> did \n")
    (tmp_path / "science/scitldr_A_test.jsonl").write_text('{"source": ["One.", "Two."]}\n{"source": ["Three."]}\n')
    return tmp_path


def test_report_has_every_checkpoint_on_every_data_set(data, mdlm, mdlm_folder, ar_folder, reported, tmp_path):
    out = tmp_path / "report.json"
    arguments = ("eval", "zero-shot", mdlm_folder, ar_folder, "--on", "ptb,scitldr,wiki:validation")
    report = reported(*arguments, "--documents", 2, "--out", out)
    assert json.loads(out.read_text()) == report
    found = {(one["checkpoint"], one["protocol"], one["part"]): one for one in report["results"]}
    assert len(found) == 6
    assert {one["documents"] for one in found.values()} == {2}
    assert found["ar", "scitldr", "test"]["stand_in"] == "arxiv"
    rows, _ = protocol_rows(mdlm, *parse_parts("wiki:validation"), 2)
    expected = mdlm.evaluate(rows).headline
    headline = found["mdlm", "wiki", "validation"]["headline"]
    assert headline["bits_per_byte"] == pytest.approx(expected.bits_per_byte)
    assert headline["bits_per_byte_data_stderr"] > 0
    assert headline["bits_per_byte_mc_stderr"] > 0


def test_documents_are_evenly_spaced(data, mdlm):
    (part,) = parse_parts("wiki:validation")
    for wanted, names in ((3, [0, 2, 4]), (4, [0, 1, 3, 4]), (9, range(6))):
        rows, count = protocol_rows(mdlm, part, wanted)
        text = "".join(f"Article {n} is {'very ' * n}long.\n" for n in names)
        assert (count, rows.document_bytes.sum()) == (len(names), len(text))


def test_tables_name_stand_ins_and_the_training_data(data, ar_folder, printed):
    shown = printed("eval", "zero-shot", ar_folder, "--on", "ptb,scitldr")
    assert "perplexity per token" in shown
    assert "bits per byte" in shown
    assert "scitldr (stand-in for arxiv)" in shown
    assert "±" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--on", "ptbb"), "no protocol or file named 'ptbb'. Did you mean 'ptb'?"),
        (("--on", ","), "--on must name at least one protocol"),
        (("--on", "wiki:dev"), "no part named 'dev'"),
        (("--on", "wiki"), "set UNMASK_DATA to a folder with wiki/wiki-test.txt"),
    ],
)
def test_bad_input_is_one_sentence(data, ar_folder, refused, arguments, words):
    assert words in refused("eval", "zero-shot", ar_folder, *arguments)
