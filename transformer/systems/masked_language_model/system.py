"""Masked language models (BERT, Devlin et al. 2019): an encoder with a head, the loss of hidden tokens, and
sentences of which the objective hides tokens."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from transformer.config.options import Config
from transformer.data.sequences import Example, Field, Fields, id_dtype
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.model.layers import ACTIVATIONS, Affine
from transformer.model.normalization import normalization
from transformer.model.parameters import Arguments, Variables
from transformer.model.stack import TransformerEncoder
from transformer.runtime.text import has_text
from transformer.systems.masked_language_model.options import MaskedLanguageModelConfig
from transformer.systems.system import System
from transformer.tasks.metrics.scores import ACCURACY, PERPLEXITY, Metric, Score
from transformer.tasks.task import Evaluation
from transformer.tasks.vocabulary import TextsAlone
from transformer.training.cross_entropy import output_cross_entropy
from transformer.training.objective import Batch, Context, Loss, Objective, apply_training

# The encoder with BERT's head (Devlin et al. 2019).


class MaskedLanguageModel(TransformerEncoder):
    """Predicts the token at every position, from tokens of which some are hidden."""

    config: MaskedLanguageModelConfig

    def setup(self) -> None:
        super().setup()
        self.head = Affine(self.config.d_model, ("hidden", "model"))
        self.head_norm = normalization(self.config)

    def __call__(  # type: ignore[override]
        self, source: Int[Array, "b s"], *, deterministic: bool = True
    ) -> Float[Array, "b s v"]:
        return self.output(self.hidden(source, deterministic=deterministic))

    def hidden(  # type: ignore[override]
        self, source: Int[Array, "b s"], *, deterministic: bool = True
    ) -> Float[Array, "b s m"]:
        """The head's states, the input of `output`."""
        memory = self.encode(source, deterministic=deterministic)
        x = ACTIVATIONS[self.config.activation](self.head(memory.states))
        return self.head_norm(x, memory.mask, deterministic)


# The loss of hidden tokens.


MASKED, REPLACED = 0.8, 0.1
"""Of the tokens to predict: the share that is masked, and that is replaced by a random token (Devlin et al.
2019, section 3.1). The others are unchanged."""
FACTOR = 0x9E3779B1
"""An odd number, whose powers tell the positions of a sentence apart."""


class Hidden(NamedTuple):
    """Sentences of which some tokens are hidden."""

    source: Int[Array, "b s"]
    """What the encoder reads."""
    predicted: Bool[Array, "b s"]
    """True at the tokens to predict."""


def masked_lm_objective(config: Config) -> Objective:
    """Label-smoothed cross-entropy of the hidden tokens.

    What is hidden depends on the seed, the number of updates, the sentence and the position alone: not on
    the batch, the number of devices or of slices. In evaluation it depends on the sentence and the position.

    The metrics are `nll`, the unsmoothed negative log-likelihood in nats, and `correct`, both of each hidden
    token.
    """
    smoothing, seed = config.training.label_smoothing, config.training.seed

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        assert isinstance(model, MaskedLanguageModel)
        key = jax.random.key(0)
        if not context.deterministic:
            key = jax.random.fold_in(jax.random.key(seed), context.step)
        target = batch["source"]
        hidden = hide(key, target, model.config)

        def run(model: MaskedLanguageModel) -> tuple[Array, Array]:
            return model.output_factors(model.hidden(hidden.source, deterministic=context.deterministic))

        outputs, sown = apply_training(model, variables, context, rngs=context.rngs("dropout"), method=run)
        states, table = outputs
        weights = hidden.predicted.astype(jnp.float32)
        loss, nll, correct = output_cross_entropy(states, table, target, weights, smoothing)
        weight = weights.sum()
        return Loss(loss, weight, {"nll": (nll, weight), "correct": (correct, weight)}, **sown)

    return objective


def hide(key: Array, ids: Int[Array, "b s"], config: MaskedLanguageModelConfig) -> Hidden:
    """Hides tokens of sentences. Special tokens are not predicted.

    Args:
      key: of the seed and the update. Each draw also depends on the sentence and the position.
      ids: the sentences.
      config: which share, and the id of the mask.
    """
    rows = jax.vmap(jax.random.fold_in, (None, 0))(key, _digests(ids, config.special.pad))
    of_tokens = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))
    keys = of_tokens(rows, jnp.arange(ids.shape[1], dtype=jnp.uint32))

    def draw(key: Array) -> tuple[Array, Array, Array]:
        first, second = jax.random.uniform(key, (2,))
        return first, second, jax.random.randint(jax.random.fold_in(key, 1), (), 0, config.vocab_size)

    chosen, outcome, drawn = jax.vmap(jax.vmap(draw))(keys)
    predicted = (chosen < config.mask_share) & ~_is_special(ids, config)
    replaced = jnp.where(outcome < MASKED, config.mask, jnp.where(outcome < MASKED + REPLACED, drawn, ids))
    return Hidden(jnp.where(predicted, replaced, ids), predicted)


def _digests(ids: Int[Array, "b s"], pad: int) -> UInt32[Array, " b"]:
    """A number for each sentence, which does not depend on its padding."""
    powers = jnp.cumprod(jnp.full(ids.shape[1], FACTOR, jnp.uint32))
    tokens = jnp.where(ids == pad, 0, ids + 1).astype(jnp.uint32)
    return (tokens * powers).sum(axis=1, dtype=jnp.uint32)


# Scores of sentences.


@functools.partial(jax.jit, static_argnums=0)
def pseudo_log_likelihoods(
    model: MaskedLanguageModel, variables: Variables, ids: Int[Array, "b s"]
) -> tuple[Float[Array, " b"], Int[Array, " b"]]:
    """The sum over the tokens of a sentence of log P of each, given all others, in nats, and their number
    (Salazar et al. 2020, Eq. 1). Special tokens, which are never predicted, are left out.

    Args:
      model: with these variables. It reads a sentence once for each of its positions.
      variables: see above.
      ids: the sentences, each closed by <eos>, then <pad>.
    """
    counted = ~_is_special(ids, model.config)

    def at_position(position: Int[Array, ""]) -> Float[Array, " b"]:
        hidden = ids.at[:, position].set(model.config.mask)

        def run(model: MaskedLanguageModel) -> Array:
            states = jax.lax.dynamic_slice_in_dim(model.hidden(hidden), position, 1, axis=1)
            return model.output(states)[:, 0]

        logits = jnp.asarray(model.apply(variables, method=run))
        log_p = jax.nn.log_softmax(logits)
        return jnp.take_along_axis(log_p, ids[:, position, None], axis=1)[:, 0]

    log_p = jax.lax.map(at_position, jnp.arange(ids.shape[1]))
    return jnp.where(counted, log_p.T, 0).sum(axis=1), counted.sum(axis=1)


def _is_special(ids: Int[Array, "b s"], config: MaskedLanguageModelConfig) -> Bool[Array, "b s"]:
    """True at tokens that are neither hidden nor predicted."""
    special = config.special
    return jnp.isin(ids, jnp.asarray([special.pad, special.bos, special.eos, special.unk, config.mask]))


# Masked language modelling: sentences, of which the objective hides tokens.


class MaskedLanguageModelling(TextsAlone):
    """Predicts hidden tokens of sentences.

    Args:
      config: of the run.
      tokenizer: of the text.
    """

    criterion = PERPLEXITY
    unit = "sentences"
    vocabulary_file = "source.model"  # as of the source of a translation
    counted = "source"

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        self.fields = {"source": Field(fill=self.special.pad)}

    # To batches

    @staticmethod
    def example(config: Config) -> Arguments:
        """Shapes of the ids of a sentence."""
        return (jax.ShapeDtypeStruct((1, 2), jnp.int32),)

    @property
    def stored_fields(self) -> Fields:
        """Ids in as few bytes as they need."""
        return {"source": Field(id_dtype(self.tokenizer.num_ids))}

    def examples(self, records: Sequence[str], *, truncate: bool = False) -> list[Example]:
        """The ids of each sentence, closed by <eos>."""
        longest = self.config.data.max_length - 1 if truncate else None
        encoded = self.tokenizer.encode_all(records)
        return [{"source": [*ids[:longest], self.special.eos]} for ids in encoded]

    def stored_examples(self, records: Sequence[str]) -> list[Example]:
        """The ids of each sentence; none of one without text."""
        pairs = zip(records, self.examples(records), strict=True)
        return [example if has_text(text) else {"source": []} for text, example in pairs]

    def texts_of_fields(self, record: str) -> Mapping[str, tuple[str, Tokenizer]]:
        return {"source": (record, self.tokenizer)}

    def filled(self, record: str) -> Mapping[str, bool]:
        return {"sentence": has_text(record)}

    # Scores

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """Perplexity of a hidden token, and how many are predicted."""
        model = self.config.model
        assert isinstance(model, MaskedLanguageModelConfig)
        signature = f"vocabulary:{model.vocab_size}|hidden:{model.mask_share}"

        def perplexity(evaluation: Evaluation) -> Score:
            value = math.exp(min(evaluation.means["nll"], 700))
            return Score(value, signature, f"{value:.2f}")

        def accuracy(evaluation: Evaluation) -> Score:
            value = 100 * evaluation.means["correct"]
            return Score(value, signature, f"{value:.2f}")

        return {PERPLEXITY: perplexity, ACCURACY: accuracy}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """The negative log-likelihood of a hidden token in nats, and the percentage that is predicted."""
        return {"nll": means["nll"], "accuracy": 100 * means["correct"]}


SYSTEM = System(
    model=MaskedLanguageModel,
    objective=lambda config, _: masked_lm_objective(config),
    fluency=pseudo_log_likelihoods,
    task=MaskedLanguageModelling,
)
