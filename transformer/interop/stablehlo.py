"""Exports a model as programs in StableHLO, which `jax.export` loads without this package.

| file | |
|---|---|
| encoder.bin | `(params, source [rows, length]) -> cache`: what the decoder reads of the sources |
| decoder.bin | `(params, cache, tokens [rows]) -> (logits [rows, vocabulary], cache)`: one step |
| params.npz | the parameters by their names |
| programs.json | special ids, first ids, the number of rows, their length |
| source.model, target.model, tokenizer.json | the vocabulary |

A cache is a list of arrays. The number of rows, and the length of rows of sources and outputs, are those of
the export.
"""

import importlib.util
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import export
from jaxtyping import Array, Float, Int

from transformer.config.ranges import LONGEST
from transformer.config.transformer import StackConfig
from transformer.data.tokenizers.hub import HubTokenizer
from transformer.decoding import calls
from transformer.interop.folders.folder import as_json, check_new
from transformer.interop.folders.pieces import PIECES
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.runtime.files import folder_whole, writing
from transformer.systems.registry import system_of
from transformer.tasks.texts.text_to_text import TextToText
from transformer.translator.translator import translation_of

PLATFORMS = ("cpu", "cuda", "tpu")
LENGTH = 128
"""Maximum tokens of a source and of an output, unless another number is given."""
ROWS = 4096
"""Most sentences that a program takes at once."""
Params = dict[str, Array]
Cache = list[Array]


def export_stablehlo(
    run_dir: Path | str,
    folder: Path | str,
    checkpoint: str | int = "best",
    rows: int = 1,
    length: int = LENGTH,
) -> Path:
    """Writes the encoder and a step of the decoder.

    Args:
      run_dir: a run directory.
      folder: a new folder.
      checkpoint: as in `Translator.load`.
      rows: sentences that a program takes at once.
      length: maximum tokens of a source, with <eos>, and of an output.

    Raises:
      UserError: the system has no such programs; the folder exists; a number is out of range.
    """
    for name, value, largest in (("rows", rows, ROWS), ("length", length, LONGEST)):
        if not 1 <= value <= largest:
            raise UserError(f"--{name} {value}: must be from 1 to {largest:,}")
    if importlib.util.find_spec("flatbuffers") is None:
        raise UserError("--to stablehlo needs flatbuffers: pip install '.[stablehlo]'")
    run, folder = Run(run_dir), Path(folder)
    check_new(folder)
    config = run.config
    system = system_of(config)
    can = system.stepwise and issubclass(system.task, TextToText)
    if not can or system.copies:
        raise UserError(
            f"{run.name} holds a {config.system} model: only models that translate token by token, without "
            "copying, are exported as programs"
        )
    positions = (length, config.model.longest, config.model.longest_source)
    length = min(limit for limit in positions if limit is not None)
    options = replace(config.model, dtype="float32")
    if isinstance(options, StackConfig):
        options = replace(options, attention="einsum")
    model = system.model(options)
    task = translation_of(run)
    params = {".".join(path): x for path, x in flatten_dict(run.variables(checkpoint)["params"]).items()}
    shapes = {name: jax.ShapeDtypeStruct(x.shape, jnp.float32) for name, x in params.items()}
    structures: list[Any] = []  # the structure of the cache, whose leaves a program takes

    def variables(flat: Params) -> dict[str, Any]:
        return {"params": unflatten_dict({tuple(name.split(".")): x for name, x in flat.items()})}

    def encoder(flat: Params, source: Int[Array, "b s"]) -> Cache:
        cache = calls.init_cache(model, variables(flat), {"source": source}, 1, length)
        leaves, structure = jax.tree.flatten(cache)
        structures.append(structure)
        return leaves

    def decoder(flat: Params, cache: Cache, tokens: Int[Array, " b"]) -> tuple[Float[Array, "b v"], Cache]:
        logits, after = calls.advance(model, variables(flat), structures[0].unflatten(cache), tokens[:, None])
        return logits[:, 0], jax.tree.leaves(after)

    ids = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    encoded = export.export(jax.jit(encoder), platforms=PLATFORMS)(shapes, ids)
    leaves = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in encoded.out_avals]
    newest = jax.ShapeDtypeStruct((rows,), jnp.int32)
    stepped = export.export(jax.jit(decoder), platforms=PLATFORMS)(shapes, leaves, newest)

    special, (source, target) = config.model.search_ids, task.tokenizers
    description = {
        "pad": special.pad,
        "bos": special.bos,
        "eos": special.eos,
        "never_predicted": list(special.never_predicted),
        "source_start": list(source.start),
        "target_start": list(target.start if target.forces_start else ()),
        "rows": rows,
        "length": length,
    }
    stored = io.BytesIO()
    arrays: dict[str, Any] = {name: np.asarray(x, np.float32) for name, x in params.items()}
    np.savez(stored, **arrays)
    with writing(folder), folder_whole(folder, tidy=True) as partial:
        (partial / "encoder.bin").write_bytes(encoded.serialize())
        (partial / "decoder.bin").write_bytes(stepped.serialize())
        (partial / "params.npz").write_bytes(stored.getvalue())
        (partial / "programs.json").write_bytes(as_json(description))
        task.save(partial)
        if isinstance(source, HubTokenizer):
            (partial / PIECES).write_bytes(source.model.encode())
    return folder
