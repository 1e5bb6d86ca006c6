"""Tokenizers that somebody else made: from a folder, or by name from the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from unmask.data.inventory import Inventory
from unmask.data.tokenizers.base import MASK, Documents, TokenizerComponent, with_special_tokens
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class HuggingFaceTokenizer(TokenizerComponent):
    """A published tokenizer: a local folder, or a name on the Hugging Face hub; no code from there is run.

    path: the folder or name. A folder with bare vocabulary files serves too: ``vocab.json`` with ``merges.txt`` (as
    GPT-2 has, where ``<|endoftext|>`` is the EOS), or ``vocab.txt`` (as BERT has; it is lower-cased when the vocabulary
    has no capitals). A tokenizer without mask token gets [MASK] as its last id, so GPT-2's vocabulary becomes 50,258;
    one without EOS uses its separator token as EOS where it has one (BERT's [SEP]).
    """

    name: Literal["huggingface"] = "huggingface"
    path: str

    def build(self, documents: Documents, inventory: Inventory | None = None) -> PreTrainedTokenizerFast:
        """Load it; the documents are not looked at."""
        tokenizer = _load(self.path)
        if tokenizer.eos_token_id is None and tokenizer.sep_token is not None:
            tokenizer.eos_token = tokenizer.sep_token
        if tokenizer.mask_token_id is None:
            tokenizer.add_special_tokens({"mask_token": MASK})
        return tokenizer


def _load(path: str) -> PreTrainedTokenizerFast:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return _load_published(path)
    if any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "config.json")):
        return _load_published(str(folder))
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _load_bare_bpe(folder)
    if (folder / "vocab.txt").is_file():
        return _load_bare_wordpiece(folder)
    raise UnmaskError(
        f"The folder {folder} has no tokenizer in it (tokenizer.json, vocab.json with merges.txt, or vocab.txt); "
        "name a folder that has one."
    )


def _load_published(path: str) -> PreTrainedTokenizerFast:
    """Through AutoTokenizer, then as the plain class, so that a checkpoint does not depend on the special one."""
    from transformers import AutoTokenizer

    try:
        published = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:
        raise UnmaskError(
            f"No tokenizer could be loaded from '{path}', neither as a folder here nor as a name on the Hugging Face "
            f"hub ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}); "
            "check the name, and the network if it is on the hub."
        ) from error
    if getattr(published, "backend_tokenizer", None) is None:
        raise UnmaskError(f"The tokenizer '{path}' has no fast version (tokenizer.json); choose one that has.")
    tokens = {name: getattr(published, name) for name in _NAMED_TOKENS if getattr(published, name, None) is not None}
    return with_special_tokens(published.backend_tokenizer, **tokens)


def _load_bare_bpe(folder: Path) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    end = "<|endoftext|>"
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return with_special_tokens(tokenizer, bos_token=end, eos_token=end, unk_token=end)


def _load_bare_wordpiece(folder: Path) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece.from_file(str(folder / "vocab.txt"), unk_token="[UNK]"))
    ordinary = (token for token in tokenizer.get_vocab() if not token.startswith("["))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not any(token != token.lower() for token in ordinary))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return with_special_tokens(
        tokenizer, unk_token="[UNK]", sep_token="[SEP]", pad_token="[PAD]", cls_token="[CLS]", mask_token=MASK
    )
