"""What the parallel decoders learn: the words of a draft's places, and the plan made before it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config import Config
from transformer.errors import UserError
from transformer.nonautoregressive.config import NonAutoregressiveConfig
from transformer.nonautoregressive.model import NonAutoregressiveTransformer, copied_places
from transformer.training.cross_entropy import cross_entropy, output_cross_entropy
from transformer.training.objective import Batch, Metrics, Objective

Fertility = Callable[[Int[Array, "b s"], Int[Array, "b t"]], Int[Array, "b s"]]


def nonautoregressive_objective(config: Config) -> Objective:
    """Cross-entropy of the words at the draft's open places, plus that of the plan.

    Its metrics are those of `translation_objective`, counted over the open places, and `plan`, the
    plan's own loss. Without an rng, all places of a masked draft are open.

    Raises:
      UserError: fertilities are wanted but the teacher is missing, or cuts words otherwise; there
        are fewer <bos> than training sentences may be long.
    """
    c, smoothing = config.model, config.training.label_smoothing
    assert isinstance(c, NonAutoregressiveConfig)
    if c.decoder_input == "bos" and c.bos_length < config.data.max_length:
        raise UserError(
            f"--model.bos-length {c.bos_length} is less than --data.max-length {config.data.max_length}: "
            "raise it"
        )
    fertility_of = teacher_fertilities(config) if c.decoder_input == "fertility" else None

    def objective(
        model: NonAutoregressiveTransformer,
        variables: Any,
        batch: Batch,
        rng: Array | None,
        step: Int[Array, ""],
    ) -> tuple[Float[Array, ""], Float[Array, ""], Metrics, Any]:
        source, target = batch["source"], batch["target"]
        words = target != c.special.pad
        fertility, open_places = None, words
        match c.decoder_input:
            case "length":
                draft = jnp.where(words, c.special.bos, c.special.pad)
            case "bos":
                draft = jnp.full((target.shape[0], c.bos_length), c.special.bos)
            case "fertility":
                assert fertility_of
                fertility = jnp.minimum(fertility_of(source, target), c.max_fertility)
                draft = copied_places(source, fertility, words, c.special.pad)
            case "masked":
                open_places = words if rng is None else draw_places(jax.random.fold_in(rng, 1), words)
                draft = jnp.where(open_places, c.special.bos, target)

        def run(model: NonAutoregressiveTransformer) -> tuple[tuple[Array, Array], Array | None]:
            memory = model.encode(source, deterministic=rng is None)
            hidden = model.decode(memory, draft, deterministic=rng is None)
            return model.output_factors(hidden[:, : target.shape[1]]), model.plan(memory)

        rngs = None if rng is None else {"dropout": rng}
        found: Any = model.apply(variables, rngs=rngs, method=run)
        factors, plan = found
        weights = open_places.astype(jnp.float32)
        loss, nll, correct = output_cross_entropy(*factors, target, weights, smoothing)
        planned = jnp.zeros(())
        if fertility is not None:
            read = (source != c.special.pad).astype(jnp.float32)
            planned = c.fertility_weight * (cross_entropy(plan, fertility) * read).sum()
        elif plan is not None:
            kinds = length_class(source, words, c)
            filled = words.any(axis=1).astype(jnp.float32)
            planned = c.length_weight * (cross_entropy(plan, kinds) * filled).sum()
        metrics = {"nll": nll, "correct": correct, "plan": jax.lax.stop_gradient(planned)}
        return loss + planned, weights.sum(), metrics, variables

    return objective  # type: ignore[return-value]


def length_class(
    source: Int[Array, "b s"], words: Bool[Array, "b t"], config: NonAutoregressiveConfig
) -> Int[Array, " b"]:
    """The class of target minus source length; differences beyond the span count as its ends."""
    difference = words.sum(axis=1) - (source != config.special.pad).sum(axis=1)
    return jnp.clip(difference, -config.length_span, config.length_span) + config.length_span


def draw_places(key: Array, words: Bool[Array, "b t"]) -> Bool[Array, "b t"]:
    """Which words to mask: of each sentence a number drawn evenly from one to all of them, then so
    many of them at random (Ghazvininejad et al. 2019, section 2.2)."""
    of_number, of_place = jax.random.split(key)
    many = words.sum(axis=1)
    number = 1 + jnp.floor(jax.random.uniform(of_number, many.shape) * many).astype(many.dtype)
    lot = jnp.where(words, jax.random.uniform(of_place, words.shape), 2.0)
    rank = jnp.argsort(jnp.argsort(lot, axis=1), axis=1)
    return words & (rank < number[:, None])


def teacher_fertilities(config: Config) -> Fertility:
    """How many target tokens looked mostly at each source token, by the teacher's cross-attention.

    Raises:
      UserError: there is no teacher, or its vocabulary is not that of this run.
    """
    c = config.model
    assert isinstance(c, NonAutoregressiveConfig)
    if c.teacher is None:
        raise UserError(
            "fertilities are learned from an autoregressive teacher: give its run directory as "
            "--model.teacher RUN, and its vocabulary as --data.source-tokenizer RUN/source.model"
        )
    # here, since the translator imports the list of systems, and that this module
    from transformer.decoding.translator import Translator

    teacher = Translator.load(c.teacher)
    sizes = teacher.config.model.vocab_size, teacher.config.model.output_size
    if sizes != (c.vocab_size, c.output_size):
        raise UserError(
            f"the teacher {c.teacher} has a vocabulary of {sizes[0]}, this run one of {c.vocab_size}: give "
            f"--data.source-tokenizer {c.teacher / 'source.model'}"
        )

    variables = jax.device_get(teacher.variables)  # of no device: each layout of devices takes its own copy

    def fertilities(source: Int[Array, "b s"], target: Int[Array, "b t"]) -> Int[Array, "b s"]:
        traced = jax.tree.map(jnp.asarray, variables)
        weights = teacher.system.alignment(teacher.model, traced, source, target)
        weights = jnp.where((source != c.special.pad)[:, None, :], weights, -1)
        looked = jax.nn.one_hot(weights.argmax(axis=-1), source.shape[1], dtype=jnp.int32)
        return (looked * (target != c.special.pad)[:, :, None]).sum(axis=1)

    return fertilities
