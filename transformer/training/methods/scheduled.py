"""Scheduled sampling: the decoder learns from its own predictions, of the step before (Bengio et al. 2015) or
of an earlier pass over the whole target (Mihaylova and Martins 2019; Duckworth et al. 2019)."""

import functools
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.methods import ScheduledConfig
from transformer.config.options import Config
from transformer.decoding.hooks import never_predicted
from transformer.decoding.sampling import drawn
from transformer.model.encoder_decoder import EncoderDecoder, packed
from transformer.model.parameters import Variables, logits
from transformer.training.cross_entropy import in_slices
from transformer.training.objective import (
    Batch,
    Context,
    Loss,
    Objective,
    TranslationObjective,
    apply_training,
)


def share_of_target(options: ScheduledConfig, step: Int[Array, ""] | int) -> Float[Array, ""]:
    """The share of tokens that are the target's own in this update: from 1 down to 1 - `share` (Bengio et al.
    2015, section 2.4)."""
    done = jnp.asarray(step, jnp.float32)
    k = float(options.updates)
    match options.decay:
        case "linear":
            share = 1 - done / k
        case "exponential":
            share = jnp.exp(-done / k)
        case _:
            share = k / (k + jnp.exp(jnp.minimum(done / k, 80.0)))
    return jnp.maximum(share, 1 - options.share)


def scheduled_objective(config: Config, plain: TranslationObjective) -> Objective:
    """Cross-entropy of a pass whose decoder reads predictions of the model at some positions, see
    `ScheduledConfig`. The encoder runs once. In evaluation it is `plain`.

    The metrics are those of `plain`, and `replaced`, the share of tokens that are predictions.
    """
    options = config.scheduled

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        if context.deterministic:
            return plain(model, variables, batch, context)
        assert isinstance(model, EncoderDecoder)
        target_input, segments = plain.decoder_input(model, batch)
        rngs = context.rngs("dropout", "where", "which")
        assert rngs
        dropout = {"dropout": rngs["dropout"]}
        memory, encoder = apply_training(
            model,
            variables,
            context,
            **plain.inputs_of(batch),
            **packed(segments and segments[0]),
            deterministic=False,
            rngs=dropout,
            method="encode",
        )

        def run(model: EncoderDecoder, embedded: Array | None) -> tuple[Array, Array]:
            hidden = model.decode(
                memory, target_input, **packed(segments), deterministic=False, embedded=embedded
            )
            return model.output_factors(hidden)

        is_word = batch["target"] != model.config.special.pad
        share = share_of_target(options, context.step)
        draws = jax.random.uniform(rngs["where"], target_input.shape)
        starts = target_input == model.config.special.bos
        replaced = (draws >= share) & is_word & ~starts
        if options.predictions == "steps":

            def run_by_steps(model: Any) -> tuple[Array, Array]:
                choose = functools.partial(_chosen, model, options, rngs["which"])
                return model.output_factors(model.decode_own(memory, target_input, replaced, choose))  # type: ignore[no-any-return]

            factors, decoder = apply_training(model, variables, context, rngs=dropout, method=run_by_steps)
        else:
            mixed = None
            for index in range(options.passes):
                keys = {name: jax.random.fold_in(key, index + 1) for name, key in rngs.items()}
                # not by `apply_training`: this pass does not count in running statistics
                earlier: Any = model.apply(variables, mixed, rngs={"dropout": keys["dropout"]}, method=run)
                if options.gradient == "last":
                    earlier = jax.lax.stop_gradient(earlier)
                predicted = predictions(model, options, earlier, keys["which"])
                mixed = with_predictions(model, variables, target_input, predicted, replaced)
            factors, decoder = apply_training(model, variables, context, mixed, rngs=dropout, method=run)
        loss = plain.of_factors(model, batch, factors, _merged(encoder, decoder))
        num_tokens = is_word.sum().astype(jnp.float32)
        metrics = {**loss.metrics, "replaced": (replaced.sum().astype(jnp.float32), num_tokens)}
        return replace(loss, metrics=metrics)

    return objective


def _possible(model: EncoderDecoder, scores: Float[Array, "*b v"]) -> Float[Array, "*b v"]:
    """Logits of tokens that may be predicted."""
    return jnp.where(never_predicted(model.config.search_ids, scores.shape[-1]), -jnp.inf, scores)


def _chosen(
    model: EncoderDecoder,
    options: ScheduledConfig,
    key: Array,
    scores: Float[Array, "b v"],
    time: Int[Array, ""],
) -> Int[Array, " b"]:
    """What the model predicts with these logits."""
    possible = _possible(model, scores)
    if options.tokens == "sample":
        return drawn(jax.random.uniform(jax.random.fold_in(key, time), possible.shape[:1]), possible)
    return possible.argmax(axis=-1)


def predictions(
    model: EncoderDecoder, options: ScheduledConfig, factors: tuple[Array, Array], key: Array
) -> tuple[Int[Array, "b t k"], Float[Array, "b t k"]]:
    """What the model predicts after each token: ids, and their shares of the embedding."""
    hidden, table = factors
    size = table.shape[0]
    times = jnp.broadcast_to(jnp.arange(hidden.shape[1]), hidden.shape[:2])

    def choose(hidden: Array, times: Array) -> tuple[Array, Array]:
        scores = _possible(model, logits(hidden, table))
        if options.tokens == "mixture":
            best, ids = jax.lax.top_k(scores, min(options.top_k, size))
            return ids, jax.nn.softmax(best)
        if options.tokens == "sample":
            keys = jax.vmap(lambda time: jax.random.fold_in(key, time))(times[0])
            uniform = jax.vmap(lambda key: jax.random.uniform(key, scores.shape[:1]), out_axes=1)(keys)
            ids = drawn(uniform, scores)[..., None]
        else:
            ids = scores.argmax(axis=-1)[..., None]
        return ids, jnp.ones(ids.shape, jnp.float32)

    predicted: tuple[Array, Array] = in_slices(choose, size, hidden, times)
    return predicted


def with_predictions(
    model: EncoderDecoder,
    variables: Variables,
    target_input: Int[Array, "b t"],
    predicted: tuple[Int[Array, "b t k"], Float[Array, "b t k"]],
    replaced: Bool[Array, "b t"],
) -> Float[Array, "b t m"]:
    """The embedded input of the decoder, with the predictions after the token before at the replaced
    positions."""

    def run(model: EncoderDecoder) -> Array:
        ids, shares = predicted
        embedded = jax.vmap(model.embed_target, in_axes=-1, out_axes=-2)(ids)
        mean = (embedded * shares[..., None].astype(embedded.dtype)).sum(axis=-2)
        after = jnp.pad(mean[:, :-1], ((0, 0), (1, 0), (0, 0)))
        return jnp.where(replaced[..., None], after, model.embed_target(target_input))

    mixed: Any = model.apply(variables, method=run)
    return mixed  # type: ignore[no-any-return]


def _merged(encoder: dict[str, Variables], decoder: dict[str, Variables]) -> dict[str, Variables]:
    """What both passes have sown."""
    return {name: {**encoder[name], **decoder[name]} for name in encoder}
