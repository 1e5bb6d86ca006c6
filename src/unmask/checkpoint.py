"""Checkpoint folders on disk and on the Hugging Face hub: find, read, write and upload them.

A folder has config.json, model.safetensors, tokenizer files, unmask.json and perhaps generation_config.json, the
default options of generation. unmask.json is the `CheckpointConfig`: schedule, objective, length policy and protocol of
the training run. `unmask.load` and the Auto classes of transformers open the same folder.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from dataclasses import dataclass
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from unmask import __version__
from unmask.data.encoding import vocabulary_size
from unmask.data.tokenizers import framed_tokenizer, load_published, open_tokenizer
from unmask.errors import UnmaskError, first_line
from unmask.io import HUB_TIMEOUT, atomic_folder, is_intact, read_json, reading, write_checksums
from unmask.registry import build, field

SHIPPED = Path(str(files("unmask") / "shipped"))
DEFAULT_MODEL = "stories"
DEFAULT_AR_MODEL = "stories-ar"
"""The autoregressive model trained on the same data."""
CONFIG_FILE = "unmask.json"
GENERATION_FILE = "generation_config.json"
HUB = "hf:"
HUB_FILES = ["*.safetensors", "*.json", "*.txt", "*.model", "*.md", "*.yaml", "*.jinja"]
"""Weights, configs, tokenizer files and descriptions; nothing that holds code."""
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""Names of repositories, "org/name"."""
ENCODER_LENGTH = 512
"""Tokens per row of an encoder without unmask.json, if it takes more."""


def shipped_models() -> list[str]:
    """The names of the models that ship with the package."""
    return sorted(file.parent.name for file in SHIPPED.glob(f"*/{CONFIG_FILE}"))


def find_checkpoint(name: str | Path | None = None, revision: str | None = None) -> Path:
    """The folder of a checkpoint: a path, the name of a shipped or hub model, or (None) the default model.

    A checkpoint folder on disk takes precedence over a shipped model of the same name, and any existing path over a
    model of the hub; "hf:NAME" is always one of the hub.
    """
    if not isinstance(name, str | PathLike | None):
        raise UnmaskError(f"A checkpoint must be a path or a name, got {name!r}.")
    if isinstance(name, str) and name.startswith(HUB):
        return download(name.removeprefix(HUB), revision)
    named = DEFAULT_MODEL if name is None else name
    path = Path(named)
    if str(path) in shipped_models() and (name is None or not is_checkpoint(path)):
        return SHIPPED / path
    if name in (None, "") or not os.path.exists(path):
        if isinstance(name, str) and HUB_NAME.fullmatch(name) and not path.parent.is_dir():
            return download(name, revision)
        raise UnmaskError(
            f"There is no checkpoint at '{named}'; give a folder written by 'unmask train' or 'unmask convert', a name "
            f"on the Hugging Face hub (org/name), or a shipped model: {', '.join(shipped_models()) or 'none'}."
        )
    return path


def download(name: str, revision: str | None) -> Path:
    """The folder of a model of the hub, downloaded if the cache does not have its newest version.

    Without a connection the version in the cache is used.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    version = "" if revision is None else f" with the revision '{revision}'"
    options: dict[str, Any] = {"revision": revision, "allow_patterns": HUB_FILES, "ignore_patterns": "*/*"}
    try:
        HfApi().model_info(name, revision=revision, timeout=HUB_TIMEOUT)
        return Path(snapshot_download(name, **options))
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise UnmaskError(
            f"There is no checkpoint at '{name}', and no public model{version} of this name on the Hugging Face hub; "
            "check the name, or log in with 'hf auth login' if the model is private."
        ) from error
    except Exception as error:
        try:
            return Path(snapshot_download(name, local_files_only=True, **options))
        except Exception:
            raise UnmaskError(
                f"There is no checkpoint at '{name}', and the Hugging Face hub cannot be reached to look for a model"
                f"{version} of this name ({first_line(error)}); connect to the internet once, or name a folder."
            ) from error


def is_checkpoint(what: str | Path) -> bool:
    """Whether a folder on disk is a checkpoint or a run with one."""
    path = Path(what)
    if os.path.isfile(path / CONFIG_FILE):  # False for a text too long for a name
        return True
    return (network_type(path) or "").startswith("unmask-")  # as `save_pretrained` of transformers writes it


def network_type(path: Path) -> str | None:
    """The type of the network in a folder, or None if there is no config.json of transformers."""
    try:
        return str(json.loads((path / "config.json").read_text(encoding="utf-8"))["model_type"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


class CheckpointConfig(BaseModel):
    """The content of unmask.json."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schedule: field("schedule") = Field(default_factory=lambda: build("schedule", "loglinear"))  # type: ignore[valid-type]
    objective: field("objective") = Field(default_factory=lambda: build("objective", "subs"))  # type: ignore[valid-type]
    policy: field("policy") = Field(default_factory=lambda: build("policy", "packed"))  # type: ignore[valid-type]
    length: int = Field(ge=1)
    protocol: dict[str, Any] = Field(default_factory=dict)
    """Source, tokenizer and split of the data; the origin of converted weights."""
    version: str = __version__


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint: the Hugging Face model in eval mode, its tokenizer (or None) and its config."""

    model: Any
    tokenizer: Any
    config: CheckpointConfig
    path: Path


def write_checkpoint(
    folder: Path,
    model: Any,
    tokenizer: Any,
    config: CheckpointConfig,
    state_dict: dict[str, Any] | None = None,
    generation_config: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Write the files of a checkpoint into an existing folder; `state_dict` replaces the weights of the model.

    `generation_config` are the default options of generation, `options` those of `save_pretrained`, such as
    `max_shard_size`.
    """
    from unmask.models.build import silence_transformers

    policy, causal, begin = config.policy, config.objective.causal, getattr(model.config, "bos_token_id", None)
    max_length, frame = model.config.max_length, getattr(model.config, "frame", None)
    if tokenizer is not None:
        end = policy.ends_with_eos and not policy.supervises_padding and not causal
        framed = framed_tokenizer(tokenizer, max_length + len(frame or ()), begin=begin, end=end, frame=frame)
        if hasattr(model, "input_names"):
            framed.init_kwargs["model_input_names"] = framed.model_input_names = model.input_names
        framed.save_pretrained(folder)
        if causal:
            model.generation_config.update(eos_token_id=framed.eos_token_id, pad_token_id=framed.pad_token_id)
    if hasattr(model.config, "row_length"):
        model.config.row_length = min(config.length, max_length) if policy.supervises_padding else None
    with silence_transformers():
        model.save_pretrained(folder, state_dict=state_dict, **options)
    (folder / CONFIG_FILE).write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
    if generation_config:
        file = folder / GENERATION_FILE  # there already if the network is autoregressive
        stored = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        file.write_text(json.dumps(stored | generation_config, indent=2) + "\n", encoding="utf-8")
    write_checksums(folder)


def save_checkpoint(folder: str | Path, model: Any, tokenizer: Any, config: CheckpointConfig) -> None:
    """Write a checkpoint atomically."""
    with atomic_folder(Path(folder)) as temporary:
        write_checkpoint(temporary, model, tokenizer, config)


def load_checkpoint(
    folder: str | Path | None = None, revision: str | None = None, as_stored: bool = False
) -> Checkpoint:
    """Load a checkpoint folder, the last checkpoint of a run folder, or a shipped model; weights become float32.

    With `as_stored` converted diffusion language models keep the dtype of their files, which are memory-mapped.

    No code in the folder is run. Weights and tokenizer.json must match their checksums, if these are recorded; the
    other files may be edited, with a warning.
    """
    from unmask.models.build import load_network
    from unmask.models.encoder import Encoder

    path = find_checkpoint(folder, revision)
    latest = path / "latest"  # training may replace it at any time, so it is resolved once
    source = latest.resolve() if (latest / CONFIG_FILE).is_file() else path
    config = read_checkpoint_config(source)
    model = load_network(source, causal=config.objective.causal, as_stored=as_stored)
    tokenizer = None
    if isinstance(model, Encoder) and not (source / CONFIG_FILE).is_file():
        warnings.warn(
            f"'{folder}' is an encoder without fine-tuning, so its bound is not trained for high mask rates; "
            f"fine-tune it with 'unmask train TEXT --from {folder}'.",
            stacklevel=2,
        )
        tokenizer = load_published(str(source))
    elif (source / "tokenizer_config.json").exists():
        tokenizer = open_tokenizer(source)
    if tokenizer is not None:
        size, mask = vocabulary_size(tokenizer), tokenizer.mask_token_id
        if size > model.config.vocab_size or mask not in (None, model.config.mask_token_id):
            raise UnmaskError(
                f"The tokenizer in '{path}' has {size} tokens with the mask at {mask}, but its network has "
                f"{model.config.vocab_size} with the mask at {model.config.mask_token_id}; restore the tokenizer."
            )
    for name in ("config.json", "tokenizer_config.json", CONFIG_FILE, GENERATION_FILE):
        if not is_intact(source / name):
            warnings.warn(f"'{path / name}' has changed since the checkpoint was written.", stacklevel=2)
    return Checkpoint(model.eval(), tokenizer, config, path)


def read_checkpoint_config(path: Path) -> CheckpointConfig:
    """Read unmask.json of a checkpoint folder; a network that transformers saved without it gets the defaults."""
    file = path / CONFIG_FILE
    if not file.is_file():
        if network_type(path) is not None:
            return _default_config(path)
        raise UnmaskError(
            f"'{path}' is not a checkpoint, it has no {CONFIG_FILE}; create one with 'unmask train' or 'convert'."
        )
    with reading(f"'{file}' cannot be read", "restore it or train again"):
        return CheckpointConfig(**read_json(file))


def _default_config(path: Path) -> CheckpointConfig:
    """The settings of a network without unmask.json, inferred from its config and its tokenizer."""
    from unmask.models.build import read_config
    from unmask.models.config import AutoregressiveConfig
    from unmask.models.encoder import EncoderConfig

    network = read_config(path)
    if isinstance(network, EncoderConfig):
        return CheckpointConfig(policy="packed", length=min(network.max_length, ENCODER_LENGTH))
    tokenizer = open_tokenizer(path) if (path / "tokenizer_config.json").exists() else None
    causal = isinstance(network, AutoregressiveConfig)
    policy = "packed"
    if getattr(network, "row_length", None) is not None:
        policy = "supervised_eos"
    elif tokenizer is not None and (eos := tokenizer.eos_token_id) is not None:
        policy = "padded" if causal or tokenizer("")["input_ids"] == [eos] else "packed"
    length = getattr(network, "row_length", None) or network.max_length
    config = CheckpointConfig(objective="ar" if causal else "subs", policy=policy, length=length)
    warnings.warn(
        f"'{path}' has no {CONFIG_FILE}; it is opened with the objective {config.objective.name}, the schedule "
        f"{config.schedule.name} and the length policy {policy}, rows of {length} tokens.",
        stacklevel=2,
    )
    return config


def read_generation_config(folder: Path) -> dict[str, Any]:
    """The default options of generation in a checkpoint, as `unmask.load` validates them; none without the file.

    Fields that only transformers has are ignored; `do_sample: false` is temperature 0, `top_k: 0` no top-k.
    """
    from unmask.generation_config import SAMPLER_FIELDS, TOKEN_FIELDS

    file = folder / GENERATION_FILE
    if not file.is_file():
        return {}
    with reading(f"'{file}' cannot be used", "correct or delete it"):
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it must be a JSON object")
    defaults = {name: content[name] for name in TOKEN_FIELDS | SAMPLER_FIELDS if content.get(name) is not None}
    if defaults.get("top_k") == 0:
        del defaults["top_k"]
    if content.get("do_sample") is False:
        defaults["temperature"] = 0.0
    return defaults


def upload(folder: Path, name: str, private: bool | None, token: str | None) -> str:
    """Upload the files of a folder to a repository, which is created if there is none; return its address."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload with unmask")
    except Exception as error:
        raise UnmaskError(
            f"The model could not be uploaded to '{name}' ({first_line(error)}); check the name and the connection, "
            "and log in with 'hf auth login'."
        ) from error
    return str(address)


def model_card(name: str, model: Any, config: CheckpointConfig) -> str:
    """The README of a model that has none."""
    causal = config.objective.causal
    kind, task = ("An autoregressive", "text-generation") if causal else ("A masked diffusion", "fill-mask")
    masked_tag = "" if causal else "- masked-diffusion\n"
    parameters = sum(weight.numel() for weight in model.parameters())
    row = f"rows of {config.length} tokens (`{config.policy.name}`)"
    return f"""---
library_name: unmask
pipeline_tag: {task}
tags:
{masked_tag}- language-model
---

# {name.rpartition("/")[2]}

{kind} language model with {parameters:,} parameters.

```python
import unmask

lm = unmask.load("{name}")
lm.generate(2)
```

Objective `{config.objective.name}`, schedule `{config.schedule.name}`, {row}, unmask {config.version}.
"""
