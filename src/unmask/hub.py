"""Checkpoints on the Hugging Face hub: download, upload and the model card."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UnmaskError, first_line
from unmask.io import HUB_TIMEOUT

if TYPE_CHECKING:
    from unmask.pipeline import MaskedDiffusionLM

FILES = ["*.safetensors", "*.json", "*.txt", "*.model", "*.md", "*.yaml", "*.jinja"]
"""Weights, configs, tokenizer files and descriptions; nothing that holds code."""
NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def is_hub_name(name: str) -> bool:
    """Whether a string can be the name of a repository, "org/name", and is not below a folder on disk."""
    return NAME.fullmatch(name) is not None and not Path(name).parent.is_dir()


def download(name: str, revision: str | None = None) -> Path:
    """The folder of a model of the hub, downloaded if the cache does not have its newest version.

    Without a connection the version in the cache is used.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    version = "" if revision is None else f" with the revision '{revision}'"
    files: dict[str, Any] = {"revision": revision, "allow_patterns": FILES, "ignore_patterns": "*/*"}
    try:
        HfApi().model_info(name, revision=revision, timeout=HUB_TIMEOUT)
        return Path(snapshot_download(name, **files))
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise UnmaskError(
            f"There is no checkpoint at '{name}', and no public model{version} of this name on the Hugging Face hub; "
            "check the name, or log in with 'hf auth login' if the model is private."
        ) from error
    except Exception as error:
        try:
            return Path(snapshot_download(name, local_files_only=True, **files))
        except Exception:
            raise UnmaskError(
                f"There is no checkpoint at '{name}', and the Hugging Face hub cannot be reached to look for a model"
                f"{version} of this name ({first_line(error)}); connect to the internet once, or name a folder."
            ) from error


def upload(folder: Path, name: str, *, private: bool | None = None, token: str | None = None) -> str:
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


def model_card(lm: MaskedDiffusionLM, name: str) -> str:
    """The README of a model that has none."""
    parameters = sum(weight.numel() for weight in lm.denoiser.parameters())
    kind = "An autoregressive" if lm.causal else "A masked diffusion"
    tags = ["language-model"] if lm.causal else ["masked-diffusion", "language-model"]
    config = lm.config
    return "\n".join(
        [
            "---",
            "library_name: unmask",
            f"pipeline_tag: {'text-generation' if lm.causal else 'fill-mask'}",
            "tags:",
            *(f"- {tag}" for tag in tags),
            "---",
            "",
            f"# {name.rpartition('/')[2]}",
            "",
            f"{kind} language model with {parameters:,} parameters.",
            "",
            "```python",
            "import unmask",
            "",
            f'lm = unmask.load("{name}")',
            "lm.generate(2)",
            "```",
            "",
            f"Objective `{config.objective.name}`, schedule `{config.schedule.name}`, rows of {config.length} tokens "
            f"(`{config.policy.name}`), unmask {config.version}.",
            "",
        ]
    )
