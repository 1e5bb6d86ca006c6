"""Texts that are read in parts, and the digest that identifies a corpus."""

from __future__ import annotations

from unmask.data.documents import CorpusDigest, Document, in_parts, numbered


def test_a_text_in_parts_becomes_documents_of_the_largest_size(monkeypatch) -> None:
    monkeypatch.setattr("unmask.data.documents.MAX_CHARACTERS", 4)
    first, last = Document("a", "xxyy", more=True), Document("a", "zz")
    assert list(in_parts("a", ["xx", "", "yy", "zz"])) == [first, last]
    assert not list(in_parts("a", [""]))
    whole, *rest = numbered("b", ["one", "", ["xx", "yy", "z"], "two"])
    assert whole == Document("b#0", "one")
    assert rest == [Document("b#1", "xxyy", more=True), Document("b#1", "z"), Document("b#2", "two")]


def test_the_digest_depends_on_documents_and_not_on_their_parts() -> None:
    def digest(*documents: Document) -> str:
        return CorpusDigest.of(documents).hexdigest

    whole = digest(Document("a", "héllo"), Document("b", ""))
    assert digest(Document("a", "h", True), Document("a", "éllo", True), Document("a", ""), Document("b", "")) == whole
    for other in (
        [Document("a", "h"), Document("a", "éllo"), Document("b", "")],
        [Document("a", "héllob"), Document("", "")],
        [Document("", "héllo"), Document("ab", "")],
        [Document("b", ""), Document("a", "héllo")],
        [Document("a", "héllo")],
        [Document("llo", "héa"), Document("b", "")],
    ):
        assert digest(*other) != whole


def test_digests_combine_in_order() -> None:
    one, other = (CorpusDigest.of([Document(name, name * 3)]) for name in "aé")
    both = CorpusDigest.combine([one, other])
    assert (both.documents, both.bytes, both.characters) == (2, 9, 6)
    assert both.hexdigest != CorpusDigest.combine([other, one]).hexdigest
    assert CorpusDigest.combine([one]).hexdigest == one.hexdigest != both.hexdigest
