"""Puts a folder on the Hugging Face hub; `dadlm.load("owner/name")` takes it from there again."""

import re
from pathlib import Path

from dadlm.errors import CheckpointError, ConfigError


def check_name(name: str) -> None:
    """Before anything is written for it."""
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name, re.ASCII):
        raise ConfigError(f"a model on the hub is called OWNER/NAME, got {name!r}")


def push(folder: Path, name: str, private: bool = False) -> str:
    """Upload all files of a folder to the repository `name`, made if it is not there; its address.

    Who you are is known to huggingface_hub (hf auth login, or HF_TOKEN).
    """
    from huggingface_hub import HfApi  # here, because it takes a second to import

    check_name(name)
    try:
        api = HfApi()
        address = api.create_repo(name, repo_type="model", private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload by dadlm")
    except Exception as error:  # of half a dozen libraries, all meaning that the hub did not take it
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(
            f"the hub did not take {name}: {reason} (hf auth login says who you are)"
        ) from error
    return str(address)
