"""A page of what a language model writes: its attention, and its search."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from transformer.config.ranges import Option
from transformer.explorer.attention import Attention, Weights
from transformer.explorer.explorer import FILES, UNIT, Explorer, origin_of, outputs_of, tree_of
from transformer.explorer.page_files import page_of
from transformer.model.parameters import Variables
from transformer.model.statistics import INTERMEDIATES, layers_sown
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.systems.language_model.api import Generator
from transformer.systems.language_model.system import LanguageModel
from transformer.systems.language_model.task import Generated


def explore_texts(
    generator: Generator,
    prompts: Sequence[str],
    *,
    n_best: int | None = None,
    lines: Sequence[int] = (),
    **options: Option,
) -> Explorer:
    """A page with what a language model writes after some prompts: the attention of every layer and head, and
    for beam search the search tree.

    Args:
      prompts: texts, which may be empty.
      n_best: number of outputs of each. None: all that the search returns.
      lines: the number of each, which the page shows. None given: from 1.
      options: any field of `DecodingConfig`.

    Raises:
      UserError: there is no prompt, a prompt has unknown characters, or an option has an invalid value.
    """
    if isinstance(prompts, str) or not prompts:
        raise UserError("nothing to explore: give a list of prompts")
    results = generator.decode(prompts, n_best=n_best, **options)
    settings = generator.settings(n_best, options)
    texts: list[Json] = []
    for line, prompt, outputs in zip(lines or range(1, len(results) + 1), prompts, results, strict=True):
        shown = outputs_of(outputs, attention_of_text(generator, prompt, outputs, **options))
        tree = tree_of(generator, prompt, settings, **options)
        item = {
            "line": line,
            "text": prompt,
            "cut": 0,
            "rest": "",
            "hypotheses": shown,
            "terms": [],
            "tree": tree,
        }
        texts.append(item)
    data = {"unit": UNIT, "origin": origin_of(generator), "sentences": texts}
    return Explorer(page_of(data, FILES), len(results), sum(map(len, results)))


def attention_of_text(
    generator: Generator, prompt: str, outputs: Sequence[Generated], **options: Option
) -> list[Attention]:
    """The attention weights of prompts and what follows them: only of kind decoder, from each token to those
    before it.

    Args:
      prompt: a text; of long ones the end, as in the search.
      outputs: some of `generator.decode([prompt])[0]`.
      options: fields of `DecodingConfig`, as passed to the search.
    """
    task, model = generator.task, generator.model
    assert isinstance(model, LanguageModel)
    settings = generator.settings(None, options)
    attentions = []
    (example,) = task.input_examples([prompt], settings.buckets[-1])
    for output in outputs:
        ids = [*example["source"], *output.ids][:-1]
        padded = np.array([[*ids, *[task.special.pad] * (-len(ids) % 16)]])
        weights = np.asarray(_weights_of_text(model, generator.variables, padded))[:, 0]
        size = len(ids)
        empty = np.zeros((0, 0, 0, 0), np.float32)
        target = tuple(task.tokenizer.pieces([*ids[1:], output.ids[-1]]))
        inputs = tuple(task.tokenizer.pieces(ids))
        attentions.append(Attention((), target, inputs, empty, weights[:, :, :size, :size], empty))
    return attentions


@functools.partial(jax.jit, static_argnums=0)
def _weights_of_text(
    model: LanguageModel, variables: Variables, ids: Int[Array | np.ndarray, "b t"]
) -> Weights:
    """The weights of self-attention as in generation: no further back than the memory."""
    _, sown = model.apply(variables, ids, method="encode", mutable=[INTERMEDIATES])
    layers = layers_sown(sown[INTERMEDIATES], "layers")
    return jnp.stack([layer["self_attention"]["weights"][0] for layer in layers])
