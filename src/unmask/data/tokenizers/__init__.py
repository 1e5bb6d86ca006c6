"""Text to token ids and back: four kinds of tokenizer, all handed out as plain `PreTrainedTokenizerFast` objects.

So a tokenizer saves, loads and decodes as every Hugging Face tokenizer does. Encoding goes through `encode` here, which
adds no special tokens and reads the literal text ``[MASK]`` or ``[EOS]`` in a document as the ordinary characters it is
made of: only the program hides or ends a text, never the text itself.
"""

from unmask.data.tokenizers.base import EOS, MASK, Documents, TokenizerComponent, vocabulary_size
from unmask.data.tokenizers.bpe import BPETokenizer
from unmask.data.tokenizers.encoder import Encoder, encode, encode_one, encoder_of
from unmask.data.tokenizers.published import HuggingFaceTokenizer
from unmask.data.tokenizers.symbols import ByteTokenizer, CharTokenizer

__all__ = [
    "EOS",
    "MASK",
    "BPETokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "Documents",
    "Encoder",
    "HuggingFaceTokenizer",
    "TokenizerComponent",
    "encode",
    "encode_one",
    "encoder_of",
    "vocabulary_size",
]
