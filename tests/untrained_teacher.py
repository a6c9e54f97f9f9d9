"""An autoregressive synthesiser with its initial parameters, as a teacher for tests."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp

from transformer import Config
from transformer.systems.synthesis.options import SynthesisConfig, VoiceConfig
from transformer.systems.synthesis.system import Synthesiser


def untrained_teacher(config: Config) -> Callable[[Path], SimpleNamespace]:
    """A loader of a teacher for a model of system nonautoregressive-synthesis."""

    def load(_: Path) -> SimpleNamespace:
        known = {field.name for field in fields(VoiceConfig)}
        given = {name: value for name, value in vars(config.model).items() if name in known}
        model = Synthesiser(SynthesisConfig(**given))
        example = jnp.full((1, 2), 2), jnp.zeros((1, 8, model.config.bands))
        variables = jax.jit(model.init)(jax.random.key(0), *example)
        return SimpleNamespace(model=model, variables=variables)

    return load
