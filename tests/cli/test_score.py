"""`unmask score` and `unmask eval`: bounds with their errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import make_checkpoint
from unmask.objectives.subs import MaskCount

UNLIKE = "~~~~~~~~ 000"
BOOK = "a few words to be scored\n" * 8


def test_every_unit_has_its_error(reported, mdlm_folder, ar_folder):
    result = reported("score", mdlm_folder, "some text", "--steps", 8, "--precision", 0.2)
    assert result["agree"] is True
    assert set(result["bounds"]) == {"mask-count", "continuous"}
    assert result["discrete"]["8"]["nats"] > 0
    headline = result["headline"]
    for unit in ("bits_per_token", "bits_per_byte", "bits_per_char", "perplexity"):
        assert headline[f"{unit}_mc_stderr"] > 0
    exact = reported("score", ar_folder, "some text", "other text")["headline"]
    assert exact["exact"]
    assert exact["mc_stderr"] == 0
    assert exact["data_stderr"] > 0


def test_notes_explain_errors_and_padding(run, mdlm_folder, ar_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draws, data = "Monte-Carlo error", "data error"
    for folder, texts, shown in (
        (mdlm_folder, ["some text"], {draws}),
        (mdlm_folder, ["some text", UNLIKE], {draws, data}),
        (ar_folder, ["some text"], set()),
        (ar_folder, ["some text", UNLIKE], {data}),
    ):
        out = run("score", folder, *texts, "--precision", 2)[1]
        assert {words for words in (draws, data) if words in out} == shown
        assert ("±" in out) == bool(shown)
        assert ("at most 2 bits per token; lower --precision" in " ".join(out.split())) == (draws in shown)
    Path("book.txt").write_text(BOOK)
    with monkeypatch.context() as patch:
        patch.setattr("unmask.likelihood.MAX_PASSES", 2)
        _, out, _ = run("eval", mdlm_folder, "--data", "book.txt", "--precision", 1e-5, "--rows", 1)
    assert "The error is above the target of 1e-05 bits per token" in " ".join(out.split())
    filled = make_checkpoint(tmp_path / "filled", policy="supervised_eos")
    for folder, padded in ((filled, True), (mdlm_folder, False)):
        out = run("score", folder, "some text", "--precision", 2)[1]
        assert "10 tokens" in out, "nine bytes and one end"
        assert ("EOS" in out) == padded


def test_the_default_precision_is_that_of_the_library(run, reported, mdlm_folder, mdlm):
    assert reported("score", mdlm_folder, "the cat")["headline"]["nats"] == mdlm.score("the cat").nats
    out = run("score", mdlm_folder, "the cat")[1]
    assert "Stopped after 256 draws; --precision 0.05 draws until" in " ".join(out.split())


def test_estimators_that_disagree_exit_with_1(run, mdlm_folder, monkeypatch):
    right = MaskCount.terms

    def wrong(self, *args):
        terms = right(self, *args)
        return type(terms)(**{**vars(terms), "diffusion": 2 * terms.diffusion})

    monkeypatch.setattr(MaskCount, "terms", wrong)
    code, _, err = run("score", mdlm_folder, "a text of several words", "--precision", 0.05)
    assert code == 1
    assert "disagree" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("score", "{mdlm}", ""), "no tokens"),
        (("score", "{mdlm}", "a text", "--steps", str(10**30)), "less than or equal to 1000000"),
        (("eval", "{mdlm}"), "--data"),
        (("eval", "{mdlm}", "--data", "missing.txt"), "missing.txt"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(refused, mdlm_folder, arguments, words):
    assert words in refused(*[one.format(mdlm=mdlm_folder) for one in arguments])


def test_eval_scores_a_file_whatever_the_checkpoint_is_called(reported, printed, mdlm_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(BOOK)
    shutil.copytree(mdlm_folder, "generation")
    for words in (("./generation",), ("perplexity", "generation"), (mdlm_folder,)):
        assert reported("eval", *words, "--data", "book.txt")["headline"]["bytes"] == Path("book.txt").stat().st_size
    out = printed("eval", "generation/", "--data", "book.txt")
    assert "perplexity" in out
    assert "±" in out


def test_missing_training_data_are_asked_for(refused, mdlm_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(mdlm_folder, "shipped")
    card = json.loads(Path("shipped/unmask.json").read_text())
    card["protocol"] = {"data": {"source": {"name": "text", "paths": ["stories-0.txt"]}, "tokenizer": "byte"}}
    Path("shipped/unmask.json").write_text(json.dumps(card))
    message = refused("eval", "shipped")
    assert "stories-0.txt" in message
    assert "--data" in message


def test_each_of_several_texts_has_a_row_and_so_has_the_total(printed, reported, shipped_models, mdlm_folder):
    lines = printed("score", mdlm_folder, "[bold] text", UNLIKE, "--precision", 2).splitlines()
    (first,), (second,), (total,) = (
        [line for line in lines if line.startswith(word)] for word in ("[bold]", UNLIKE, "all ")
    )
    assert (first.count("±"), second.count("±"), total.count("±")) == (2, 2, 4)
    words = ["a text with spaces is no checkpoint", "nor is this one"]
    assert len(reported("score", *words, "--precision", 5)["headline"]["each"]) == 2


def test_a_text_may_be_longer_than_a_file_name(reported, shipped_models, mdlm_folder):
    assert reported("score", mdlm_folder, "x" * 300, "--precision", 5)["headline"]["characters"] == 300
    assert reported("score", "word " * 80, "--precision", 5)["headline"]["characters"] == 400


def test_training_data_are_found_from_another_folder(reported, refused, mdlm_folder, tmp_path, monkeypatch):
    (tmp_path / "project" / "runs").mkdir(parents=True)
    (tmp_path / "project" / "book.txt").write_text(BOOK * 20)
    run = tmp_path / "project" / "runs" / "mine"
    shutil.copytree(mdlm_folder, run)
    card = json.loads((run / "unmask.json").read_text())
    card["protocol"] = {"data": {"source": {"name": "text", "paths": ["book.txt"]}, "tokenizer": "byte"}}
    (run / "unmask.json").write_text(json.dumps(card))
    monkeypatch.chdir(tmp_path)
    assert reported("eval", run, "--rows", 1)["headline"]["tokens"] > 0
    assert "ships without its training data; name texts with --data" in refused("eval")


@pytest.fixture(scope="module")
def dna_folder(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("models") / "dna", tokenizer_name="dna")


@pytest.fixture
def variants(tmp_path, monkeypatch):
    """A genome and a VCF file with a substitution, an insertion and a deletion that is not written in bases."""
    pytest.importorskip("pyfaidx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    Path("g.fa").write_text(f">chr1\n{'ACGTTGCA' * 20}\n")
    Path("v.vcf").write_text("#CHROM\tPOS\tID\tREF\tALT\n1\t9\trs1\tA\tG,ACC,<DEL>\n")
    return ["--vcf", "v.vcf", "--fasta", "g.fa"]


def test_variants_are_a_table_or_json(run, dna_folder, variants):
    code, out, err = run("score", dna_folder, *variants)
    assert code == 0, err
    header, *lines = [line.split("\t") for line in out.splitlines()]
    assert header == ["chrom", "pos", "id", "ref", "alt", "log_ratio", "stderr", "ref_nats", "alt_nats"]
    assert [line[:5] for line in lines] == [["1", "9", "rs1", "A", "G"], ["1", "9", "rs1", "A", "ACC"]]
    assert "Left out: 1 alternative allele" in err
    code, shown, _ = run("score", dna_folder, *variants, "--batch-size", "5", "--out", "scores.tsv")
    assert (code, shown, Path("scores.tsv").read_text()) == (0, "", out)
    run("score", dna_folder, *variants, "--out", "scores.json", "--both-strands")
    report = json.loads(Path("scores.json").read_text())
    assert report["both_strands"] is True
    assert report["left_out"] == 1
    assert [one["alt"] for one in report["variants"]] == ["G", "ACC"]
    assert all(one["stderr"] > 0 for one in report["variants"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--vcf", "v.vcf"], "--vcf and --fasta belong together"),
        (["--vcf", "v.vcf", "--fasta", "none.fa"], "no file 'none.fa', here or below the folder"),
        (["--vcf", "none.vcf", "--fasta", "g.fa"], "no file 'none.vcf'"),
        (["--vcf", "v.vcf", "--fasta", "g.fa", "ACGT"], "takes a checkpoint and no texts"),
        (["--vcf", "v.vcf", "--fasta", "g.fa", "--out", "none/scores.tsv"], "none"),
        (["--vcf", "v.vcf", "--fasta", "g.fa", "--precision", "0.1"], "or --precision; leave them out"),
        (["ACGT", "--out", "scores.tsv"], "options of --vcf"),
        (["ACGT", "--draws", "32"], "options of --vcf"),
        (["ACXT", "--both-strands"], "got 'X'"),
        (["ACGT", "--both-strands", "--given", "AC"], "excludes --given"),
        ([], "Give texts to score"),
    ],
)
def test_wrong_options_of_variants(refused, dna_folder, variants, arguments, words):
    checkpoint = [dna_folder] if arguments else []
    assert words in refused("score", *checkpoint, *arguments)
