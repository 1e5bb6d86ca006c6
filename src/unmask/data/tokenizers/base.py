"""What the tokenizer components have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from unmask.data.inventory import Inventory
from unmask.data.sources import Document
from unmask.registry import Component

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

Documents = Callable[[], Iterator[Document]]

EOS = "[EOS]"
MASK = "[MASK]"


class TokenizerComponent(Component):
    """What every tokenizer component does."""

    @abstractmethod
    def build(self, documents: Documents, inventory: Inventory | None = None) -> PreTrainedTokenizerFast:
        """Make the tokenizer.

        documents: gives the training text, from its start at each call. inventory: that text's, where it is known; what
        was learnt from the same text before is then found again.
        """


def vocabulary_size(tokenizer: PreTrainedTokenizerFast) -> int:
    """The number of rows of an embedding for it: the largest id plus one, special tokens (the mask too) included."""
    return max(tokenizer.get_vocab().values()) + 1


def with_special_tokens(tokenizer: Tokenizer, **special_tokens: str) -> PreTrainedTokenizerFast:
    """The tokenizer as a plain Hugging Face one, with these tokens added where it has not got them."""
    from transformers import PreTrainedTokenizerFast

    new = [token for token in dict.fromkeys(special_tokens.values()) if tokenizer.token_to_id(token) is None]
    tokenizer.add_special_tokens(new)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        **special_tokens,  # type: ignore[arg-type]
    )
