"""A training step here and in PyTorch: the same network, weights, batch, loss and optimizer.

Dropout, label smoothing and Adam included; no padding. PyTorch's label smoothing spreads over all classes,
the target among them, instead of the others: the same work.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.measure import Contestant


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
    """Random sentences, none of them padded."""
    rng = np.random.default_rng(0)
    shape = (case.rows, case.time)
    batch = {side: rng.integers(4, case.vocab_size, shape, np.int32) for side in ("source", "target")}
    for ids in batch.values():
        ids[:, -1] = 2
    return batch


def contestants(case: Case) -> list[Contestant]:
    """Ours, and PyTorch as it comes and compiled."""
    return [
        Contestant("transformer", jax_step, {"case": case}),
        Contestant("torch eager", torch_step, {"case": case, "compiled": False}),
        Contestant("torch.compile", torch_step, {"case": case, "compiled": True}),
    ]


def network(case: Case) -> Any:
    """The model's config."""
    from transformer import TransformerConfig

    sizes = {
        name: getattr(case, name) for name in ("num_layers", "d_model", "d_ff", "num_heads", "vocab_size")
    }
    return TransformerConfig(**sizes, dropout=case.dropout, dtype=case.dtype)  # type: ignore[arg-type]


def initial_params(case: Case) -> Any:
    """The weights that everybody begins with, drawn by NumPy so that every process has the same."""
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


def jax_step(case: Case) -> Callable[[], float]:
    """The step that `train.py` runs; returns its loss per token."""
    import jax

    from transformer import Transformer
    from transformer.config import Config, OptimizerConfig
    from transformer.parallel import device_batches, pmap_step, replicate
    from transformer.training.objective import translation_objective
    from transformer.training.schedule import make_optimizer
    from transformer.training.step import init_state, make_train_step

    model = Transformer(network(case))
    config = Config(
        model=model.config, optimizer=OptimizerConfig(schedule="constant", peak=RATE, warmup_steps=1)
    )
    optimizer = make_optimizer(config)
    variables = {"params": jax.tree.map(jax.numpy.asarray, initial_params(case))}
    state = replicate(init_state(model, optimizer, 0, variables=variables))
    step = pmap_step(
        make_train_step(model, translation_objective(SMOOTHING), optimizer, seed=0), donate_state=True
    )
    batch = next(iter(device_batches([batch_of(case)])))

    def run() -> float:
        nonlocal state
        state, metrics = step(state, batch)
        return float(metrics["nll"])

    return run


def torch_step(case: Case, compiled: bool) -> Callable[[], float]:
    """The same step in PyTorch, with its fused attention and its fused Adam."""
    import torch
    from torch.nn import functional as F

    from benchmarks.torch_transformer import TorchTransformer

    model = TorchTransformer(case)
    model.take(initial_params(case))
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9, fused=True)
    source, target = (torch.from_numpy(ids).long() for ids in batch_of(case).values())
    given = torch.cat([torch.ones_like(target[:, :1]), target[:, :-1]], dim=1)

    def loss_of() -> tuple[Any, Any]:
        logits = model(source, given).flatten(0, 1)
        loss = F.cross_entropy(logits, target.flatten(), label_smoothing=SMOOTHING)
        with torch.no_grad():
            nll = F.cross_entropy(logits, target.flatten())
        return loss, nll

    forward = torch.compile(loss_of) if compiled else loss_of

    def run() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss, nll = forward()
        loss.backward()
        optimizer.step()
        return float(nll)

    return run


def losses_without_dropout(case: Case) -> dict[str, float]:
    """What both say of the first batch with the same weights: the networks are one."""
    import torch
    from torch.nn import functional as F

    from benchmarks.torch_transformer import TorchTransformer
    from transformer import Transformer
    from transformer.model.encoder_decoder import shift_right

    batch, params = batch_of(case), initial_params(case)
    import jax

    logits = Transformer(network(case)).apply(
        {"params": params}, batch["source"], shift_right(jax.numpy.asarray(batch["target"]), 1)
    )
    ours = -np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), batch["target"][..., None], -1).mean()
    model = TorchTransformer(case).eval()
    model.take(params)
    source, target = (torch.from_numpy(ids).long() for ids in batch.values())
    given = torch.cat([torch.ones_like(target[:, :1]), target[:, :-1]], dim=1)
    with torch.no_grad():
        theirs = F.cross_entropy(model(source, given).flatten(0, 1), target.flatten())
    assert math.isfinite(ours)
    return {"transformer": float(ours), "torch": float(theirs)}
