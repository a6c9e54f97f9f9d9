"""Writes the folder of an exported model."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from transformer.interop.reading import WEIGHTS
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, folder_whole


def check_new(folder: Path) -> None:
    """Raises UserError if there is something in a folder that an export would write."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists: name a new folder")


def write_folder(
    folder: Path, tensors: Mapping[str, np.ndarray], files: Mapping[str, bytes], described: Mapping[str, Json]
) -> None:
    """Writes a folder as Hugging Face has it, whole or not at all.

    Args:
      folder: a new one.
      tensors: of model.safetensors.
      files: others, by their names.
      described: the content of JSON files, by their names.

    Raises:
      UserError: it cannot be written.
    """
    try:
        with folder_whole(folder) as partial:
            # safetensors writes the memory of an array, whatever its strides
            contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
            (partial / WEIGHTS).write_bytes(save(contiguous, metadata={"format": "pt"}))
            for name, content in files.items():
                (partial / name).write_bytes(content)
            for name, about in described.items():
                (partial / name).write_bytes(as_json(about))
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}") from error


def as_json(content: Json) -> bytes:
    """JSON as these folders have it."""
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()
