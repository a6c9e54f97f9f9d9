"""The test of `transformer doctor`: a tiny training step and a tiny beam search on each device.

A process of its own, since a driver may end it or hang: `python -m transformer.commands.trial` prints a JSON
object for each thing that it has found out, so what was found before remains known.
"""

import functools
import json
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from transformer.runtime.files import Json

MOST_DEVICES = 16  # that are tested one by one
CLOSE = 0.02  # of the loss, relative: accelerators multiply with 8 to 10 bits
SOURCE = ((5, 6, 7, 2), (8, 9, 2, 0))
TARGET = ((7, 6, 5, 2), (9, 8, 2, 0))


def main() -> int:
    """Prints the findings, one on a line."""
    for finding in findings():
        print(json.dumps(finding), flush=True)
    return 0


def findings() -> Iterator[Json]:
    """The devices of this process, then the result on each of them, then that of all together. Each has
    `error` instead if that failed."""
    try:
        import jax

        from transformer.runtime.compilation import keep_programs

        keep_programs()
        devices = jax.local_devices()
    except Exception as error:  # of JAX, or of a library of an accelerator
        yield {"error": _first_line(error)}
        return
    yield {
        "backend": jax.default_backend(),
        "processes": jax.process_count(),
        "devices": [_described(device) for device in devices],
    }
    for device in devices[:MOST_DEVICES]:
        yield {"device": device.id, **_tried([device])}
    if len(devices) > 1:
        yield {"device": "all", **_tried(devices)}


def _described(device: Any) -> Json:
    description: Json = {"id": device.id, "platform": device.platform, "kind": device.device_kind}
    with suppress(Exception):  # not on every platform
        memory = device.memory_stats()
        description |= {"memory": memory["bytes_limit"], "memory_in_use": memory["bytes_in_use"]}
    return description


def _tried(devices: list[Any]) -> Json:
    """The losses of two updates, what the search finds, and the seconds of both with compilation."""
    start = time.monotonic()
    try:
        losses, tokens = _learn_and_search(devices)
    except Exception as error:  # whatever is wrong with the device
        return {"error": _first_line(error)}
    return {"losses": losses, "tokens": tokens, "seconds": round(time.monotonic() - start, 2)}


def _learn_and_search(devices: list[Any]) -> tuple[list[float | None], list[list[int]]]:
    """Two updates with the same rows on each device, without dropout, so that the losses do not depend on
    the number of devices; then a search on the first one."""
    import jax
    import numpy as np

    from transformer.decoding.beam import beam_search
    from transformer.training.sharding import Replicas

    model, step, state = _small_training()
    rows = {
        name: np.tile(np.array(ids, np.int32), (len(devices), 1))
        for name, ids in (("source", SOURCE), ("target", TARGET))
    }
    if len(devices) > 1:
        layout = Replicas(devices)
        state, step = layout.place(state), layout.compile_step(step)
        batches = list(layout.batches([rows, rows]))
    else:
        state, rows = jax.device_put((state, rows), devices[0])
        batches = [rows, rows]
    losses = []
    for batch in batches:
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    if len(devices) > 1:
        return _finite(losses), []
    result = beam_search(model, state.params, rows["source"], beam_size=2, max_length=4)
    return _finite(losses), np.asarray(result.tokens[:, 0]).tolist()


@functools.cache
def _small_training() -> tuple[Any, Any, Any]:
    """A Transformer, its training step, and its first state, with parameters of NumPy: compiling an
    initialisation takes seconds."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import numpy as np

    from transformer.config.options import Config
    from transformer.config.training import OptimizerConfig, TrainingConfig
    from transformer.config.transformer import TransformerConfig
    from transformer.model.transformer import Transformer
    from transformer.training.objective import translation_objective
    from transformer.training.schedule import make_optimizer
    from transformer.training.step import TrainState, make_train_step

    sizes = TransformerConfig(
        vocab_size=16, num_layers=1, d_model=8, d_ff=16, num_heads=2, dropout=0.0, dtype="float32"
    )
    config = Config(
        model=sizes,
        optimizer=OptimizerConfig(schedule="constant", peak=1e-2, warmup_steps=1),
        training=TrainingConfig(steps=2),
    )
    model, optimizer = Transformer(sizes), make_optimizer(config)
    ids = jax.ShapeDtypeStruct((1, 4), np.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), ids, ids)["params"]
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda x: random.standard_normal(x.shape, np.float32), nn.unbox(shapes))
    state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), {}, None)
    step = make_train_step(model, translation_objective(0.1), optimizer, seed=0)
    return model, jax.jit(step, static_argnames="axis_name"), state


def _finite(values: list[float]) -> list[float | None]:
    """The values as JSON can write them."""
    return [value if math.isfinite(value) else None for value in values]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines or [type(error).__name__])[0][:300]


def failures(results: list[Json]) -> Iterator[str]:
    """A sentence for each device that does not work."""
    for result in results:
        name, losses = _name(result), result.get("losses", [])
        if "error" in result:
            yield (
                f"the test on {name} failed ({result['error']}): update its driver and JAX; python -m "
                "transformer.commands.trial shows more"
            )
        elif None in losses:
            yield f"the loss on {name} is not finite: update the driver of the device and JAX"
        elif not losses[-1] < losses[0]:
            yield f"an update on {name} did not lower the loss: update the driver of the device and JAX"


def disagreements(results: list[Json]) -> Iterator[str]:
    """A sentence for each device that works, and computes another loss or finds another output than the first
    one that works."""
    first, *further_results = [result for result in results if not list(failures([result]))] or [{}]
    for result in further_results:
        differs = abs(result["losses"][-1] - first["losses"][-1]) > CLOSE * first["losses"][-1]
        if differs or (result["tokens"] and result["tokens"] != first["tokens"]):
            yield (
                f"{_name(result)} and {_name(first)} do not agree: one of them computes wrong numbers; test "
                "each alone (CUDA_VISIBLE_DEVICES)"
            )


def _name(result: Json) -> str:
    return "all devices together" if result["device"] == "all" else f"device {result['device']}"


if __name__ == "__main__":
    raise SystemExit(main())
