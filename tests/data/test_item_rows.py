"""Questions with answers: what is given is frozen, everywhere from the row to the loss and the sampler."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from unmask import registry
from unmask.data.encoding import encode, encode_one
from unmask.data.length_policies import Overlaid, Prompted, rows_of_texts
from unmask.data.split import prepare
from unmask.errors import UnmaskError
from unmask.objectives.base import Noise
from unmask.process import Batch
from unmask.schedules import LogLinear

LETTERS = registry.build("tokenizer", {"name": "char", "alphabet": "0123456789.=:"}).build(lambda: iter(()))
BYTES = registry.build("tokenizer", "byte").build(lambda: iter(()))


def rows(policy, texts, length, tokenizer=LETTERS):
    ids = encode(tokenizer, texts)
    return rows_of_texts(
        policy, ids, length, tokenizer.eos_token_id, texts=texts, encode=partial(encode_one, tokenizer)
    )


def shown(row, tokenizer=LETTERS):
    return tokenizer.decode(row.input_ids[0]), "".join("x" if one else "-" for one in row.frozen[0])


def test_an_overlaid_row_is_the_answer_and_what_the_question_gives():
    table = rows(Overlaid(), ["1..4=1234", "....=4321"], 4)
    assert len(table) == 2
    assert shown(table[0]) == ("1234", "x--x")
    assert shown(table[1]) == ("4321", "----")
    both = table[[1, 0]]
    assert both.attention_mask.all()
    assert both.document.tolist() == [[1] * 4, [0] * 4]
    assert both.frozen.tolist() == [[False] * 4, [True, False, False, True]]


def test_with_the_question_before_it_the_same_cells_are_open():
    table = rows(Overlaid(asks=True), ["1..4=1234", ".3..=4321"], 9)
    assert shown(table[0]) == ("1..4=1234", "xxxxxx--x")
    assert shown(table[1]) == (".3..=4321", "xxxxx-x--")
    alone = rows(Overlaid(), ["1..4=1234", ".3..=4321"], 4)
    assert (table[:].frozen[:, 5:] == alone[:].frozen).all()


@pytest.mark.parametrize(("texts", "length", "asks"), [(["1.=12"], 4, False), (["1.=12", "1=1"], 2, False)])
def test_a_question_has_the_length_of_its_answer(texts, length, asks):
    with pytest.raises(UnmaskError, match=r"equally many tokens with one between.* data\.length is"):
        rows(Overlaid(asks=asks), texts, length)
    with pytest.raises(UnmaskError, match="equally many tokens"):
        rows(Overlaid(asks=True), ["12=2"], 4)


def test_everything_up_to_the_first_separator_is_given():
    table = rows(Prompted(), ["12=34", "1=2=3"], 7)
    assert shown(table[0])[1][:5] == "xxx--"
    assert shown(table[1])[1][:5] == "xx---"
    assert table[0].attention_mask[0].tolist() == [True] * 5 + [False] * 2


def test_an_answer_ends_with_a_learnt_eos_and_any_character_may_separate():
    table = rows(Prompted(separator="\t"), ["un chat\ta cat"], 16, BYTES)
    row = table[0]
    assert row.frozen[0].tolist() == [True] * 8 + [False] * 8
    assert row.input_ids[0, 13] == BYTES.eos_token_id
    assert row.attention_mask[0].tolist() == [True] * 14 + [False] * 2


def test_what_is_no_item_is_refused():
    with pytest.raises(UnmaskError, match="looks for '=' between a question and its answer, and document 1 has none"):
        rows(Prompted(), ["1=2", "12"], 5)
    with pytest.raises(UnmaskError, match="is 2 tokens;"):
        rows(Prompted(separator="=:"), ["1=2"], 5)
    with pytest.raises(UnmaskError, match="do not fit in a row of 4"):
        rows(Prompted(), ["12=345"], 4)


def test_bytes_are_not_those_of_the_question():
    for table in (rows(Overlaid(), ["1..4=1234"], 4), rows(Prompted(), ["12=34"], 5)):
        assert table.bytes is None
        assert table.characters is None
        assert table.document_bytes.tolist() == [0]


@pytest.mark.parametrize(("policy", "length"), [({"name": "overlaid"}, 16), ({"name": "overlaid", "asks": True}, 33)])
def test_a_corpus_of_puzzles_has_its_givens_frozen(policy, length):
    source = registry.build("source", {"name": "sudoku", "box": 2, "bases": 8, "count": 40, "validation": 5})
    corpus = prepare(source, registry.build("tokenizer", {"name": "char", "alphabet": "1234.="}))
    train, validation = corpus.rows(registry.build("policy", policy), length)
    assert (len(train), len(validation)) == (40, 5)
    documents = [document.text for document in source.documents()]
    row = validation[3]
    question, answer = documents[43].split("=")
    assert corpus.tokenizer.decode(row.input_ids[0])[-16:] == answer
    assert row.frozen[0, -16:].tolist() == [cell != "." for cell in question]


@pytest.mark.parametrize(("model", "objective", "asks"), [("dit", "subs", False), ("causal", "ar", True)])
def test_givens_are_neither_masked_nor_counted(model, objective, asks):
    table = rows(Overlaid(asks=asks), ["1..4=1234", ".3.1=4321"], 9 if asks else 4)[:]
    batch = Batch.of(*map(torch.from_numpy, (table.input_ids, table.attention_mask, table.frozen)))
    spec = {"name": model, "hidden_size": 16, "layers": 1, "heads": 1}
    network = registry.build("model", spec).build(len(LETTERS), LETTERS.mask_token_id, 9).eval()
    noise = Noise.draw(0, 0, torch.arange(2), torch.tensor([0.99, 0.99]), table.input_ids.shape[1])
    terms = registry.build("objective", objective).loss(network, batch, LogLinear(), noise)
    assert (terms.counted.numpy() == ~table.frozen).all()
    assert int(terms.count) == 4
    assert (terms.nelbo[batch.frozen] == 0).all()
    assert (terms.nelbo[batch.target_mask] > 0).any()
