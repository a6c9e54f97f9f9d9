"""Simultaneous translation: a sentence is translated while it arrives (wait-k, Ma et al. 2019)."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from transformer.config.decoding import RULES, names_of
from transformer.config.ranges import Option, shown
from transformer.config.searches import METHODS
from transformer.decoding.calls import as_variables, special_ids
from transformer.decoding.forced import whole
from transformer.decoding.hooks import never_predicted
from transformer.model.parameters import Variables
from transformer.runtime.errors import UserError
from transformer.runtime.hosts import refuse_forked
from transformer.runtime.text import has_text
from transformer.tasks.texts.requests import TranslationRequest
from transformer.tasks.texts.text_to_text import TextToText
from transformer.translator.decoder import Decoder

SHORTEST = 16
"""The least length to which ids are padded. Others are doubled, so there are few programs."""
_USED = {"method", "extra_length", "max_length", "buckets"}
_REFUSED = {*RULES, "noise", "input_dropout", "shortlist"}  # where they are switched on, also in the run
_UNUSED = set().union(*map(names_of, METHODS.values())) - _USED - _REFUSED
"""Options of searches that change nothing in a translation that grows."""


class SimultaneousTranslator(Decoder[TextToText]):
    """A translator whose model may have learned to translate a sentence before it has read all of it."""

    def simultaneous(self, words: Iterable[str], **options: Option) -> Iterator[str]:
        """Yields the translation of a sentence while its words arrive: token t as soon as K + t - 1 tokens of
        the source are there (`--model.wait-k K`), the rest after the last word. Together they are the
        translation that greedy search finds. Words are read no earlier than they are needed.

        Args:
          words: those of one sentence, with their punctuation.
          options: of greedy search: `max_length`, `extra_length` and `buckets`.

        Yields:
          Texts to append to each other.

        Raises:
          UserError: the model reads whole sentences, a word is no text, an option is of no use, or outputs
            of this run are steered, such as by a language model.
        """
        wait_k, settings = self.waits_for(**options), self.settings(None, {"method": "greedy", **options})
        refuse_forked()
        special, output, words_so_far, shown = self.task.special, list[int](), list[str](), ""
        for word in itertools.chain(words, [None]):
            if word is not None:
                words_so_far.append(_text_of(word))
            text = " ".join(words_so_far)
            if not has_text(text):
                continue
            output = output or list(self.task.start(TranslationRequest(text), 1))
            (example,) = self.task.input_examples([TranslationRequest(text)], settings.buckets[-1])
            source = example["source"] if word is None else example["source"][:-1]
            limit = len(example["source"]) + settings.extra_length
            limit = limit if settings.max_length is None else min(limit, settings.max_length)
            while word is None or len(output) + wait_k <= len(source):
                following = special.eos if len(output) >= limit - 1 else self._following(source, output)
                if following == special.eos:
                    return
                output.append(following)
                text = self.task.spell(output)
                if len(text) > len(shown) and text.startswith(shown):
                    yield text[len(shown) :]
                    shown = text

    def waits_for(self, **options: Option) -> int:
        """How many tokens of a source must be there before the first of its translation: K of wait-k.

        Args:
          options: as of `simultaneous`.

        Raises:
          UserError: the model reads whole sentences, an option is of no use, or outputs of this run are
            steered, such as by a language model.
        """
        wait_k: int | None = getattr(self.config.model, "wait_k", None)
        if wait_k is None:
            raise UserError("this model reads whole sentences: train one with --model.wait-k")
        check_used(options)
        settings = self.settings(None, {"method": "greedy", **options})
        refused = [*settings.steered, *settings.noisy, *["shortlist"] * settings.shortlist]
        if self.task.needs_steps or refused:
            option = self.task.needs_steps or f"--decoding.{refused[0]}"
            raise UserError(
                f"{option.replace('_', '-')}: not for translations that are shown while they grow; leave it "
                "out, or translate whole sentences"
            )
        if self.language_model:
            raise UserError(
                "translations that are shown while they grow are without the language model: remove it, by "
                "use_language_model(None)"
            )
        if self.bias:
            raise UserError(
                "translations that are shown while they grow are without names: remove them, by "
                "use_names(None)"
            )
        return wait_k

    def _following(self, source: list[int], output: list[int]) -> int:
        """The most probable token after those of the output."""
        special = self.task.special
        inputs = _padded([special.bos, *output], special.pad)
        variables = as_variables(self.variables)
        row = _padded(list(source), special.pad)
        return int(_most_probable(self.model, variables, row, inputs, len(output)))


def check_used(options: Mapping[str, Option]) -> None:
    """Raises UserError if one of these options of a search, by name, is of no use for a translation that
    grows: it is that of greedy search, of one sentence at a time."""
    for name, value in options.items():
        if (name in _UNUSED) or (name == "method" and value != "greedy"):
            option = f"{name.replace('_', '-')}{f' {value}' * (name == 'method')}"
            raise UserError(
                f"--decoding.{option}: translations that are shown while they grow are those of greedy "
                "search, one at a time; leave it out"
            )


def _text_of(word: object) -> str:
    if not isinstance(word, str):
        raise UserError(f"words must be texts, not {shown(word)}")
    return word


def _padded(ids: list[int], pad: int) -> Int[np.ndarray, "1 t"]:
    size = max(SHORTEST, 1 << (len(ids) - 1).bit_length())
    return np.array([[*ids, *[pad] * (size - len(ids))]], np.int32)


@functools.partial(jax.jit, static_argnums=0)
def _most_probable(
    model: nn.Module,
    variables: Variables,
    source: Int[Array, "1 s"],
    inputs: Int[Array, "1 t"],
    position: Int[Array, ""] | int,
) -> Int[Array, ""]:
    """The most probable token at a position of the output, given the decoder's inputs until there."""
    logits = jnp.asarray(whole(model, variables, {"source": source}, inputs))[0, position]
    never = never_predicted(special_ids(model), len(logits))
    return jnp.where(never, -jnp.inf, logits).argmax()
