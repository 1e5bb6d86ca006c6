"""DNA as tokens: one a base."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from unmask.data.dna import LETTERS
from unmask.data.inventory import Inventory
from unmask.data.tokenizers import CharTokenizer, Documents, TokenizerComponent

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class DNATokenizer(TokenizerComponent):
    """Bases: A, C, G, T, N have the ids 0 to 4, [MASK] is 5; no EOS. Any other letter is an error.

    `unmask.data.dna.reverse_complement` gives the ids of the opposite strand.
    """

    name: Literal["dna"] = "dna"

    def build(self, documents: Documents, inventory: Inventory | None = None) -> PreTrainedTokenizerFast:
        """The same for every text."""
        return CharTokenizer(alphabet=LETTERS).build(documents)
