"""Examples in files that are mapped into memory: `<field>.<dtype>` has the values of all examples, one after
the other, `<field>.ends` where each ends."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from transformer.data.sequences import Arrays, Example, Fields, Sequences, arrays_of, sides
from transformer.runtime.errors import UserError
from transformer.runtime.files import folder_whole


def stored(folder: Path, fields: Fields, chunks: Iterable[list[Example]]) -> Arrays:
    """The examples stored in a folder, which is written on first use.

    Args:
      folder: appears when it is complete, so that an interrupted preparation starts again.
      fields: of the examples.
      chunks: all examples, a part at a time. They are read if the folder does not exist.

    Raises:
      UserError: the folder cannot be written, or its files are damaged.
    """
    if not folder.exists():
        try:
            with folder_whole(folder) as partial:
                _write(partial, fields, chunks)
        except OSError as error:
            if not folder.exists():  # else another process has written it meanwhile
                raise UserError(f"cannot write {folder}: {error.strerror}; see --data.cache-dir") from error
    try:
        return _opened(folder, fields)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged ({error}); remove it to prepare the examples again") from error


def _write(folder: Path, fields: Fields, chunks: Iterable[list[Example]]) -> None:
    with contextlib.ExitStack() as stack:
        values = {name: stack.enter_context(open(folder / _name(name, fields), "wb")) for name in fields}
        ends = {name: stack.enter_context(open(folder / f"{name}.ends", "wb")) for name in sides(fields)}
        totals = dict.fromkeys(ends, 0)
        for file in ends.values():
            np.zeros(1, np.int64).tofile(file)
        for examples in chunks:
            for name, array in arrays_of(examples, fields).items():
                if isinstance(array, Sequences):
                    array.values.tofile(values[name])
                    (array.ends[1:] + totals[name]).tofile(ends[name])
                    totals[name] += len(array.values)
                else:
                    array.tofile(values[name])


def _opened(folder: Path, fields: Fields) -> Arrays:
    arrays: dict[str, Sequences | np.ndarray] = {}
    for name, field in fields.items():
        values = _mapped(folder / _name(name, fields), field.dtype).reshape(-1, *field.shape)
        if field.padded:
            ends = _mapped(folder / f"{name}.ends", "int64")
            if not len(ends) or ends[-1] != len(values):
                raise ValueError(f"{name} is not complete")
            arrays[name] = Sequences(values, ends)
        else:
            arrays[name] = values
    if len({len(array) for array in arrays.values()}) > 1:
        raise ValueError("its fields have different numbers of examples")
    return arrays


def _name(name: str, fields: Fields) -> str:
    return f"{name}.{fields[name].dtype}"


def _mapped(path: Path, dtype: str) -> Shaped[np.ndarray, " n"]:
    if not path.stat().st_size:  # nothing can be mapped
        return np.zeros(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))
