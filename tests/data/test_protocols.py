"""Protocols find their data, split them as stated and undo the tokenization of published corpora."""

import gzip
import json
import os

import pytest

from unmask import registry
from unmask.data.protocols import (
    LM1B_RULES,
    PROTOCOLS,
    PTB_RULES,
    WIKITEXT_RULES,
    Part,
    Protocol,
    ProtocolSource,
    get_protocol,
    read_articles,
    read_between,
    read_lines,
    read_whole,
    substitute,
)
from unmask.data.split import split_source
from unmask.errors import UnmaskError
from unmask.evaluation.zero_shot import evaluation_part


@pytest.mark.parametrize(
    ("rules", "tokenized", "text"),
    [
        (WIKITEXT_RULES, " He had a guest @-@ starring role . \n", "He had a guest-starring role.\n"),
        (WIKITEXT_RULES, " ( 24 in ) 1 @,@ 000 @.@ 5 % \n", "(24 in) 1,000.5%\n"),
        (WIKITEXT_RULES, " \" Teddy 's Story \" did n't end ; \n", "\"Teddy's Story\" didn't end;\n"),
        (WIKITEXT_RULES, " = = Early life = = \n", "= = Early life = =\n"),
        (PTB_RULES, "no it was n't <unk> 's $ N million", "no it wasn't <unk>'s $N million"),
        (LM1B_RULES, "`` It 's over , '' he said ( twice ) .", '"It\'s over," he said (twice).'),
    ],
)
def test_tokenization_is_undone(rules, tokenized, text):
    assert substitute(rules, tokenized) == text


def test_articles_start_at_headings_after_a_blank_line():
    lines = [
        " \n",
        " = One = \n",
        " \n",
        " = = Part = = \n",
        " with L \n",
        " = 1 and k = \n",
        " 2 \n",
        " \n",
        " = Two = \n",
    ]
    first, second = read_articles(lines)
    assert first.startswith(" = One = \n")
    assert " = 1 and k = \n" in first
    assert second == " = Two = \n"


def test_texts_between_separators():
    assert list(read_between("<|end|>", ["a\n", "b\n", "<|end|>\n", "c"])) == ["a\nb\n", "c"]


@pytest.fixture
def tiny_data(tmp_path, monkeypatch):
    """Files of three protocols, one of them compressed."""
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    for folder in ("wiki", "text8", "ag_news"):
        (tmp_path / folder).mkdir()
    articles = [f"Title {n}\nText of article {n}.\n" for n in range(5)]
    (tmp_path / "wiki/wiki-train.txt").write_text("<|endofdocument|>\n".join(articles))
    with gzip.open(tmp_path / "wiki/wiki-validation.txt.gz", "wt") as file:
        file.write("Held out.\n")
    (tmp_path / "ag_news/test.csv").write_text('"3","A title","A ""quoted"" description"\n')
    return tmp_path


def test_training_and_validation_parts_are_the_split(tiny_data):
    split = split_source(ProtocolSource(protocol="wiki"), fraction=0.5)
    assert [document.text for document in split.documents(validation=True)] == ["Held out.\n"]
    assert split.train.documents == 5


def test_training_text_can_be_limited(tiny_data):
    whole = [document.text for document in ProtocolSource(protocol="wiki").documents()]
    size = len(whole[0]) + 5
    limited = [document.text for document in ProtocolSource(protocol="wiki", characters=size).documents()]
    assert limited == [whole[0], whole[1][:5], "Held out.\n"]


def test_records_are_read_by_protocol(tiny_data):
    assert [one.text for one in get_protocol("ag_news").documents("test")] == ['A title A "quoted" description']


def test_files_in_two_languages_are_read_together(tiny_data):
    (tiny_data / "multi30k").mkdir()
    (tiny_data / "multi30k/val.de").write_text("Ein Hund.\nZwei\n")
    (tiny_data / "multi30k/val.en").write_text("A dog.\nTwo\n")
    assert [one.text for one in get_protocol("multi30k").documents("validation")] == ["Ein Hund.\tA dog.", "Zwei\tTwo"]
    (tiny_data / "multi30k/val.en").write_text("A dog.\n")
    with pytest.raises(UnmaskError, match="Multi30k do not have equally many lines"):
        list(get_protocol("multi30k").documents("validation"))


def test_parts_of_one_file_are_disjoint_and_complete(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    (tmp_path / "t.txt").write_text("abcdefghij")
    cuts = {"train": (0, 6), "validation": (6, 8), "test": (8, 10)}
    parts = {name: Part(("t.txt",), {}, cut) for name, cut in cuts.items()}
    protocol = Protocol("t", "", parts, {"name": "char"}, 4, {"name": "packed"}, read_whole)
    assert [next(protocol.documents(name)).text for name in parts] == ["abcdef", "gh", "ij"]
    for name, ends in (("text8", (90, 95, 100)), ("text8-74m", (70, 72, 74))):
        found = [part.characters for part in PROTOCOLS[name].parts.values()]
        million = [end * 1_000_000 for end in ends]
        assert found == [(0, million[0]), (million[0], million[1]), (million[1], million[2])]


@pytest.mark.parametrize("name", ["stdlib", "toy-translation", "a file"])
def test_parts_are_disjoint_and_complete(tmp_path, name):
    if name == "a file":
        name = str(tmp_path / "a.txt")
        (tmp_path / "a.txt").write_text("\n\n".join(f"Paragraph {n}." for n in range(400)))
    parts = [[one.text for one in get_protocol(name).documents(part)] for part in ("train", "validation", "test")]
    assert all(parts)
    source = registry.build("source", get_protocol(name).parts["train"].source)
    assert sum(map(len, parts)) == sum(1 for _ in source.documents())


def test_without_files_the_hub_is_read(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    lines = [" = One = \n", " \n", " text . \n", " \n", " = Two = \n"]
    datasets.Dataset.from_dict({"text": lines}).save_to_disk(tmp_path / "saved")
    part = Part(("missing.txt",), {"name": "huggingface", "path": str(tmp_path / "saved"), "split": "test"})
    protocol = Protocol("p", "", {"test": part}, {}, 4, {}, read_lines, group=read_articles)
    assert len(list(protocol.documents("test"))) == 2
    gone = Part(("missing.txt",), {"name": "huggingface", "path": str(tmp_path / "gone"), "split": "test"})
    with pytest.raises(UnmaskError, match=r"gone.*set UNMASK_DATA to a folder with missing\.txt"):
        list(Protocol("p", "", {"test": gone}, {}, 4, {}, read_lines).documents("test"))


@pytest.mark.parametrize(
    ("name", "part", "message"),
    [
        ("wikki", "test", "no protocol or file named 'wikki'. Did you mean 'wiki'?"),
        ("wiki", "test", "set UNMASK_DATA to a folder with wiki/wiki-test.txt"),
        ("lambada", "train", "has no train part, only test"),
    ],
)
def test_missing_data_are_one_sentence(tiny_data, name, part, message):
    with pytest.raises(UnmaskError) as error:
        list(get_protocol(name).documents(part))
    assert message in str(error.value)


def test_a_test_part_that_is_kept_back_is_replaced_by_the_validation_part(tiny_data):
    assert evaluation_part(get_protocol("wiki")).name == "wiki:validation"
    (tiny_data / "wiki/wiki-test.txt").write_text("Kept back.\n")
    assert evaluation_part(get_protocol("wiki")).name == "wiki"
    assert evaluation_part(get_protocol("ptb")).name == "ptb"  # the hub has it


def test_a_file_of_another_kind_is_refused(tiny_data):
    (tiny_data / "ag_news/test.csv").write_text("only, two\n")
    with pytest.raises(UnmaskError, match="not a file of the protocol 'ag_news'"):
        list(get_protocol("ag_news").documents("test"))


@pytest.mark.skipif("UNMASK_DATA" not in os.environ, reason="UNMASK_DATA names no folder with the real data")
@pytest.mark.parametrize(
    ("name", "part", "documents"),
    [
        ("wikitext-2", "validation", 60),
        ("wikitext-2", "test", 60),
        ("ptb", "test", 3761),
        ("lambada", "test", 5153),
        ("ag_news", "test", 7600),
        ("wiki", "validation", 200),
        ("multi30k", "validation", 1014),
        ("multi30k", "test", 1000),
    ],
)
def test_published_sizes(name, part, documents):
    assert sum(1 for _ in get_protocol(name).documents(part)) == documents


def test_every_protocol_is_complete():
    for protocol in PROTOCOLS.values():
        assert protocol.about
        assert protocol.parts
        for part in protocol.parts.values():
            assert part.files or part.source
        json.dumps([protocol.tokenizer, protocol.policy, protocol.length])
