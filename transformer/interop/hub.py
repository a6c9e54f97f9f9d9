"""Finds pretrained models by their name on Hugging Face's hub, with the library huggingface_hub."""

import contextlib
import functools
import logging
import re
from pathlib import Path
from typing import Any, NamedTuple

from transformer.runtime.errors import UserError, first_line

log = logging.getLogger("transformer")
FILES = [
    *("config.json", "generation_config.json", "preprocessor_config.json", "special_tokens_map.json"),
    *("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "vocab.json", "target_vocab.json"),
    *("vocab.txt", "merges.txt", "*.spm", "spiece.model", "sentencepiece.bpe.model"),
    *("model.safetensors", "model-*.safetensors", "model.safetensors.index.json"),
]
"""What an import may read. Pickles and programs are never fetched."""
_CONVERSION = ("Adding `safetensors` variant of this model", "SFconvertbot")
"""Title and author of the pull request in which the hub converts pickles, as `transformers` looks for it."""
_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)


class Located(NamedTuple):
    """The folder of a model."""

    folder: Path
    origin: str
    """What a run says of where its model comes from: a name and its revision, or "imported" for a folder."""


@functools.cache
def located(name: str, revision: str | None = None) -> Located:
    """The folder of a model: that of this name or, if there is none, one that is downloaded.

    The library keeps what it has downloaded, and asks no network if HF_HUB_OFFLINE is set.

    Args:
      name: a folder, or a name such as facebook/nllb-200-distilled-600M.
      revision: a branch, tag or commit of the hub. None: the main branch or, if that has only pickles, the
        hub's own conversion of it.

    Raises:
      UserError: there is neither; the library is missing; the model cannot be downloaded, or has no
        safetensors.
    """
    if Path(name).exists():
        if revision is not None:
            raise UserError(f"--revision: {name} is a folder, not the name of a model on a hub; leave it out")
        return Located(Path(name), "imported")
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise UserError(f"{name}: no such folder")
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise UserError(
            f"{name}: no such folder. If it is a name on Hugging Face's hub, install what downloads it: "
            "pip install '.[hub]'"
        ) from error
    try:
        folder = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=FILES))
    except Exception as error:  # the library and its network raise their own errors
        said = first_line(error).removesuffix(".")
        raise UserError(f"{name}: no such folder, and it cannot be had from the hub: {said}") from error
    if not any(folder.glob("*.safetensors")):
        if revision is None and (converted := _conversion(huggingface_hub, name)):
            log.warning(
                "%s has no safetensors: the hub's conversion of its pickles is read, %s", name, converted
            )
            return located(name, converted)
        raise UserError(
            f"{name}: the hub has no safetensors of it, and pickles are not read, as they can execute code. "
            "Look for a revision with safetensors (--revision), or convert the model with transformers"
        )
    return Located(folder, f"imported from {name}, revision {folder.name}")


def _conversion(library: Any, name: str) -> str | None:
    """The revision in which the hub has converted the newest pickles of a model, if there is one that can be
    found."""
    with contextlib.suppress(Exception):  # the library and its network raise their own errors
        api = library.HfApi()
        newest = api.list_repo_commits(name)[0].commit_id
        for discussion in library.get_repo_discussions(name):
            is_conversion = (discussion.title, discussion.author) == _CONVERSION
            if is_conversion and discussion.is_pull_request and discussion.status == "open":
                commits = api.list_repo_commits(name, revision=discussion.git_reference)
                if [commit.commit_id for commit in commits[1:2]] == [newest]:
                    return str(discussion.git_reference)
    return None
