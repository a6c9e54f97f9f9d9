"""Seven small systems, written against the public contracts only: what the contracts are tested with.

| | |
|---|---|
| frames | real-valued inputs: up to 200 frames of 80 features become digits |
| memory | a decoder-only language model that carries memory from batch to batch |
| tracked | a layer with running statistics of its activations and of their gradients |
| matrices | a decoder whose cache is one matrix per head |
| waves | real-valued outputs, with its own search |
| images | pictures become labels: no array of an example is a sequence |
| forbidden | a search hook that forbids a token |
"""

from toys import forbidden, frames, images, matrices, memory, tracked, waves
from toys.task import ToyData, ToyTask
from transformer import Options, register
from transformer.config.corpus import DataConfig

TOYS = {
    "toy-frames": frames.SYSTEM,
    "toy-memory": memory.SYSTEM,
    "toy-tracked": tracked.SYSTEM,
    "toy-matrices": matrices.SYSTEM,
    "toy-waves": waves.SYSTEM,
    "toy-images": images.SYSTEM,
    "toy-forbidden": forbidden.SYSTEM,
}


TRAINED = (
    *(*TOYS, "language-model", "masked-lm", "tagging"),
    *("speech", "synthesis", "nonautoregressive-synthesis"),
    *("captioning", "detection"),
)
"""What is trained in several layouts: the toys, and the systems of this package that do not translate."""
STATEFUL = ("toy-memory", "toy-tracked", "language-model")
"""Those that a checkpoint has more of than parameters."""
QUICK = ("toy-tracked",)
"""What the default tier trains in several layouts: running statistics."""


def register_toys() -> None:
    """Makes them known, as another package would."""
    for name, system in TOYS.items():
        register(name, Options(data=DataConfig if is_text(name) else ToyData), system)


def is_text(name: str) -> bool:
    """Whether it translates."""
    return not issubclass(TOYS[name].task, ToyTask)


def buckets(name: str) -> tuple[int, ...]:
    """The padded lengths of its inputs."""
    return {"toy-frames": (80, 200), "toy-waves": (2,)}.get(name, (8,))
