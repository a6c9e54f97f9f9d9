"""A training step here and in PyTorch: the same network, weights, batch, loss and optimizer.

`python -m benchmarks.speed.training [tiny] [base]`, on a CPU. Both networks must agree on the loss of a
batch. Dropout, label smoothing and Adam are included; there is no padding. In bfloat16, parameters and Adam's
state are float32 (PyTorch: autocast). Packed rows have several sentences, separated by masks. PyTorch's label
smoothing is over all classes including the target, which is the same work.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.command import run
from benchmarks.measure import Contestant, side_by_side
from benchmarks.speed.peers import Row, compare, rows_of

if TYPE_CHECKING:
    from transformer.config.options import Config


@dataclass(frozen=True)
class Case:
    """A size of network and batch."""

    name: str
    num_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    vocab_size: int
    rows: int
    time: int
    dropout: float = 0.1
    dtype: str = "float32"
    sentences: int = 1
    window: int | None = None
    mechanism: str = "dot-product"
    device: str = "cpu"
    updates: int = 1
    """Updates of a timed run, which ends when the last one has."""

    @property
    def tokens(self) -> int:
        """Target tokens of a batch."""
        return self.rows * self.time


CASES = {
    "tiny": Case("tiny", 4, 128, 256, 4, vocab_size=9_800, rows=128, time=32),
    "base": Case("base", 6, 512, 2048, 8, vocab_size=16_000, rows=32, time=32),
}
SMOOTHING, RATE = 0.1, 1e-4


def batch_of(case: Case) -> dict[str, np.ndarray]:
    """Random sentences without padding."""
    rng = np.random.default_rng(0)
    shape = (case.rows, case.time)
    batch = {side: rng.integers(4, case.vocab_size, shape, np.int32) for side in ("source", "target")}
    length = case.time // case.sentences
    for ids in batch.values():
        ids[:, length - 1 :: length] = 2
    if case.sentences > 1:
        segments = np.broadcast_to(np.arange(case.time, dtype=np.int32) // length + 1, shape)
        batch |= {f"{side}_segments": segments for side in ("source", "target")}
    return batch


def case_of(name: str, config: "Config", length: int = 32, **more: Any) -> Case:
    """The network of a config, and its batch on one device: in the longest bucket, of sentences of `length`
    if rows are packed. `more` are other fields of the case.

    Args:
      name: of the case.
      config: with precision and batching decided.
      length: of a sentence in a packed row. It must divide the longest bucket.
    """
    from transformer.plan.jobs import Job
    from transformer.systems.registry import find_system

    job = Job.of(find_system(config.system), config)
    batching, m = job.task.batching(), job.config.model
    longest = batching.buckets[-1]
    return Case(
        name,
        *(m.num_layers, m.d_model, m.d_ff, m.num_heads, m.vocab_size),
        rows=batching.rows(longest),
        time=max(longest),
        dropout=m.dropout,
        dtype=m.dtype,
        sentences=max(longest) // length if batching.packed else 1,
        **more,
    )


def contestants(case: Case) -> list[Contestant]:
    """Ours, and PyTorch in eager mode and compiled."""
    return [
        Contestant("transformer", jax_step, {"case": case}),
        Contestant("torch eager", torch_step, {"case": case, "compiled": False}),
        Contestant("torch.compile", torch_step, {"case": case, "compiled": True}),
    ]


def packed_contestants(case: Case, without: Sequence[str] = ()) -> list[Contestant]:
    """Ours with packed rows; compiled PyTorch with them, and without their masks, as if each row were one
    sentence: its fastest attention takes no mask.

    Args:
      case: of packed rows.
      without: "torch", "torch-unmasked": programs to leave out.
    """
    found = [Contestant("transformer", jax_step, {"case": case})]
    if "torch" not in without:
        found.append(Contestant("torch.compile", torch_step, {"case": case, "compiled": True}))
    if "torch-unmasked" not in without:
        unmasked = {"case": replace(case, sentences=1), "compiled": True}
        found.append(Contestant("torch.compile, no masks", torch_step, unmasked))
    return found


def network(case: Case) -> Any:
    """The model's config."""
    from transformer import TransformerConfig

    names = ("num_layers", "d_model", "d_ff", "num_heads", "vocab_size", "window", "mechanism")
    sizes = {name: getattr(case, name) for name in names}
    return TransformerConfig(**sizes, dropout=case.dropout, dtype=case.dtype)  # type: ignore[arg-type]


def initial_params(case: Case) -> Any:
    """The initial weights of all contestants, from NumPy so that every process has the same."""
    import jax
    import jax.numpy as jnp

    from transformer import Transformer

    ids = jnp.ones((1, 2), jnp.int32)
    shapes = jax.eval_shape(Transformer(network(case)).init, jax.random.key(0), ids, ids)["params"]
    rng = np.random.default_rng(1)

    def draw(path: Any, shape: Any) -> np.ndarray:
        name = path[-1].key
        if name in ("scale", "bias"):
            return np.full(shape.shape, float(name == "scale"), np.float32)
        return rng.normal(0, case.d_model**-0.5, shape.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def jax_update(case: Case) -> tuple[Callable[..., Any], Any]:
    """The step that `train.py` runs, for one device, and its first state."""
    import jax

    from transformer import Transformer
    from transformer.config.options import Config
    from transformer.config.training import OptimizerConfig
    from transformer.tasks.texts.translation import Translation
    from transformer.training.objective import translation_objective
    from transformer.training.schedule import make_optimizer
    from transformer.training.step import init_state, make_train_step

    model = Transformer(network(case))
    config = Config(
        model=model.config, optimizer=OptimizerConfig(schedule="constant", peak=RATE, warmup_steps=1)
    )
    optimizer = make_optimizer(config)
    variables = {"params": jax.tree.map(jax.numpy.asarray, initial_params(case))}
    state = init_state(model, optimizer, 0, Translation.example(Config()), variables=variables)
    return make_train_step(model, translation_objective(SMOOTHING), optimizer, seed=0), state


def jax_step(case: Case) -> Callable[[], float]:
    """Updates as `train.py` runs them; returns the loss per token of the last."""
    from transformer.runtime.compilation import keep_programs
    from transformer.training.sharding import Replicas

    keep_programs()
    step, state = jax_update(case)
    step, state = Replicas().compile_step(step, donate_state=True), Replicas().place(state)
    batch = next(iter(Replicas().batches([batch_of(case)])))

    def run() -> float:
        nonlocal state
        for _ in range(case.updates):
            state, metrics = step(state, batch)
        return float(metrics["nll"])

    return run


def torch_step(case: Case, compiled: bool) -> Callable[[], float]:
    """The same updates in PyTorch, with its fused attention and its fused Adam."""
    import contextlib

    import torch
    from torch.nn import functional as F

    from benchmarks.speed.torch_transformer import TorchTransformer

    device = "cuda" if case.device == "gpu" else case.device
    half = case.dtype == "bfloat16"
    precision = torch.autocast(device, torch.bfloat16) if half else contextlib.nullcontext()
    model = TorchTransformer(case)
    model.take(initial_params(case))
    model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9, fused=True)
    source, given, target, *masks = torch_batch(case, device)

    def loss_of() -> tuple[Any, Any]:
        with precision:
            log_p = F.log_softmax(model(source, given, *masks).flatten(0, 1), dim=-1)
            nll = F.nll_loss(log_p, target.flatten())
            loss = (1 - SMOOTHING) * nll - SMOOTHING * log_p.mean()
        return loss, nll.detach()

    forward = torch.compile(loss_of) if compiled else loss_of

    def run() -> float:
        for _ in range(case.updates):
            optimizer.zero_grad(set_to_none=True)
            loss, nll = forward()
            loss.backward()
            optimizer.step()
        return float(nll)

    return run


def torch_batch(case: Case, device: str) -> list[Any]:
    """Source, decoder input, target; and for packed rows a mask."""
    import torch

    batch = batch_of(case)
    length = case.time // case.sentences
    given = np.roll(batch["target"], 1, axis=1)
    given[:, ::length] = 1
    arrays = [torch.from_numpy(ids).long() for ids in (batch["source"], given, batch["target"])]
    if case.sentences > 1:
        segments = torch.from_numpy(batch["source_segments"].copy())
        arrays.append((segments[:, :, None] == segments[:, None, :])[:, None])
    return [array.to(device) for array in arrays]


def check_losses(case: Case) -> None:
    """Compares the losses of both networks on the first batch, with the same weights and without dropout.

    Raises:
      RuntimeError: they disagree.
    """
    import jax
    import torch
    from torch.nn import functional as F

    from benchmarks.speed.torch_transformer import TorchTransformer
    from transformer import SpecialIds, Transformer
    from transformer.model.encoder_decoder import decoder_input

    case = replace(case, dtype="float32", device="cpu", rows=min(case.rows, 8))
    batch, params = jax.tree.map(jax.numpy.asarray, batch_of(case)), initial_params(case)
    segments = tuple(ids for name, ids in batch.items() if name.endswith("segments")) or None
    given = decoder_input(batch["target"], SpecialIds(), segments and segments[1])
    variables = {"params": jax.tree.map(jax.numpy.asarray, params)}
    logits = Transformer(network(case)).apply(variables, batch["source"], given, segments=segments)
    ours = -np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), batch["target"][..., None], -1).mean()
    model = TorchTransformer(case).eval()
    model.take(params)
    source, told, target, *masks = torch_batch(case, "cpu")
    with torch.no_grad():
        theirs = F.cross_entropy(model(source, told, *masks).flatten(0, 1), target.flatten())
    if not abs(ours - float(theirs)) <= 1e-4 * float(theirs):
        raise RuntimeError(f"the networks disagree: their losses are {ours} and {theirs}")


def section(size: str, given: argparse.Namespace) -> list[Row]:
    """The rows of a size."""
    case = CASES[size]
    if given.quick:
        case = replace(case, num_layers=1, vocab_size=200, rows=8)
    check_losses(case)
    measured = side_by_side(contestants(case), given.rounds)
    return rows_of(f"training step, {size}", measured, case.tokens, "tokens/s", [None] * len(measured))


def main(arguments: list[str] | None = None) -> None:
    """Measures the chosen sizes, prints their tables, writes OUTPUT.json and OUTPUT.png."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    compare(parser, {size: partial(section, size) for size in CASES}, arguments, ["torch"])


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
