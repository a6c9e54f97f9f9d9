"""Speech recognition: the model, its options, times of words, error rates."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init
from tiers import mostly_slow

from transformer import PRESETS, UserError
from transformer.config.records import RecordingsConfig
from transformer.systems.speech.options import SpeechConfig
from transformer.systems.speech.system import SILENCE, Convolution, SpeechTransformer, limits_of_frames
from transformer.tasks.media.timing import Word, spans, timed
from transformer.tasks.metrics.error_rates import character_errors, sentence_errors, word_errors

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")
pytest.importorskip("jiwer", reason="pip install '.[speech]'")

SIZES = {"vocab_size": 9, "num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "channels": 6}


def network(**options):
    model = SpeechTransformer(SpeechConfig(**SIZES | {"dropout": 0.0} | options))
    return model, init(model, jax.random.key(0), jnp.zeros((1, 8, 5)), jnp.zeros((1, 2), int))


def frames(lengths, bands=5, size=None):
    rng = np.random.default_rng(0)
    batch = np.full((len(lengths), size or max(lengths), bands), SILENCE, np.float32)
    for row, length in zip(batch, lengths, strict=True):
        row[:length] = rng.normal(size=(length, bands))
    return jnp.asarray(batch)


# The model


@pytest.mark.parametrize("width", [1, 3, 5])
@pytest.mark.parametrize("length", [1, 6, 7])
def test_a_halving_is_a_product_with_the_frames_around_every_second_one(width, length):
    config = SpeechConfig(**SIZES, kernel_width=width)
    x = frames([length, 3 if length > 3 else 1])
    there = jnp.isfinite(x[..., 0])
    variables = init(Convolution(config, 2), jax.random.key(1), x, there)
    kernel, bias = variables["params"]["kernel"], np.arange(6.0)
    variables = {"params": {"kernel": kernel, "bias": jnp.asarray(bias)}}
    found = apply(Convolution(config, 2), variables, x, there)
    assert found.shape == (2, -(-length // 2), 6)
    for row, place in itertools.product(range(2), range(found.shape[1])):
        total = bias.copy()
        for tap in range(width):
            frame = 2 * place + tap - width // 2
            if 0 <= frame < length and there[row, frame]:
                total += x[row, frame] @ np.asarray(kernel)[tap]
        np.testing.assert_allclose(found[row, place], np.maximum(total, 0), atol=1e-5)


@pytest.mark.by_default("3")
@pytest.mark.parametrize("convolutions", mostly_slow([1, 2, 3], [1, 3]))
def test_what_is_heard_does_not_depend_on_padding_and_other_recordings(convolutions):
    model, variables = network(convolutions=convolutions)
    lengths = [37, 12, 1, 24]
    together, target = frames(lengths, size=48), jnp.array([[1, 4, 5, 6]] * 4)
    logits = apply(model, variables, together, target)
    memory = apply(model, variables, together, method="encode")
    for row, length in enumerate(lengths):
        alone = together[row : row + 1, :length]
        expected = apply(model, variables, alone, method="encode").states
        kept = -(-length // 2**convolutions)
        assert expected.shape[1] == kept == int(memory.mask[row].sum())
        np.testing.assert_allclose(memory.states[row, :kept], expected[0], atol=1e-5)
        np.testing.assert_allclose(logits[row], apply(model, variables, alone, target[:1])[0], atol=1e-5)


@pytest.mark.thorough
def test_masks_hide_parts_in_training_only_and_never_the_end():
    model, variables = network(masks=2, mask_bands=2, mask_frames=10)
    source, target = frames([30, 20], size=40), jnp.array([[1, 4], [1, 5]])

    def states(key, deterministic):
        rngs = {"dropout": jax.random.key(key)}
        memory = apply(model, variables, source, method="encode", deterministic=deterministic, rngs=rngs)
        return memory.states, memory.mask

    plain, mask = states(0, True)
    np.testing.assert_array_equal(plain, states(1, True)[0])
    first, second = states(0, False), states(1, False)
    assert np.abs(first[0] - second[0]).max() > 1e-3
    np.testing.assert_array_equal(mask, first[1])
    assert np.isfinite(apply(model, variables, source, target)).all()


def test_limits_of_outputs():
    options = dataclasses.replace(PRESETS["speech"].decoding, extra_length=3)
    inputs = {"source": frames([8, 5, 1], size=12)}
    inputs["source"] = jnp.concatenate([inputs["source"], jnp.full((1, 12, 5), SILENCE)])
    found = limits_of_frames(inputs, SpeechConfig().special, options)
    assert found.longest == 6
    assert found.each.tolist() == [5, 5, 4, 0]
    cut = limits_of_frames(inputs, SpeechConfig().special, dataclasses.replace(options, max_length=2))
    assert (cut.longest, cut.each.tolist()) == (2, [2, 2, 2, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share_embeddings": "all"}, "sound has no embedding"),
        ({"kernel_width": 2}, "must be odd"),
        ({"mask_share": 1.5}, "mask-share"),
        ({"convolutions": 0}, "convolutions"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        SpeechConfig(**options)


def test_speeds_and_masks_are_checked():
    with pytest.raises(UserError, match="--data.speeds"):
        RecordingsConfig(speeds=(0.0,))
    with pytest.raises(UserError, match="--data.speeds"):
        RecordingsConfig(speeds=())


# When words were said


def test_spans_are_the_best_division_of_all():
    rng = np.random.default_rng(0)
    for rows, columns in ((1, 4), (2, 5), (3, 7), (4, 4)):
        weights = rng.random((rows, columns))

        def total(cuts, weights=weights):
            return sum(weights[row, a:b].sum() for row, (a, b) in enumerate(itertools.pairwise(cuts)))

        inner = itertools.combinations(range(1, columns), rows - 1)
        best = max(((0, *cuts, columns) for cuts in inner), key=total)
        assert spans(weights) == list(itertools.pairwise(best))


class Letters:
    """A tokenizer of letters, where 9 is a space."""

    def decode(self, ids):
        return "".join(" " if index == 9 else "abcdefgh"[index] for index in ids)


def test_a_word_lasts_from_its_first_token_to_its_last():
    weights = np.kron(np.eye(5), np.ones((1, 3)))  # each token has three positions
    found = timed((0, 1, 9, 2, 99), weights, Letters(), 0.1)
    assert found == (Word("ab", 0.0, 0.9), Word("c", 0.9, 1.2))
    more = timed((0, 9, 1, 99), np.ones((4, 2)), Letters(), 0.1)  # tokens than positions
    assert more == (Word("a", 0.0, 0.1), Word("b", 0.1, 0.15))  # the space belongs to the first


def test_words_end_before_the_padding():
    weights = np.kron(np.eye(5), np.ones((1, 3)))
    found = timed((0, 1, 9, 2, 99), weights, Letters(), 0.1, end=0.65)
    assert found == (Word("ab", 0.0, 0.5), Word("c", 0.5, 0.6))


# Error rates


def test_error_rates_of_a_worked_example():
    references = ["one two three four", "five", "six seven"]
    found = word_errors(["one three five", "five", "six six seven"], references)
    # two deleted, four becomes five; six inserted: 3 errors of 7 words
    assert found.value == pytest.approx(100 * 3 / 7)
    assert "1 substituted, 1 deleted, 1 inserted, of 7" in found.detail
    assert word_errors([""], ["one two"]).value == 100
    assert sentence_errors(["one  two", "five", ""], ["one two", "six", "a"]).value == pytest.approx(200 / 3)


def test_words_that_are_heard_in_silence_are_inserted():
    found = word_errors(["one two", "five six", ""], ["one two three", "", ""])
    assert found.value == pytest.approx(100 * 3 / 3)  # one deleted, two inserted, of three that were said
    assert "0 substituted, 1 deleted, 2 inserted, of 3" in found.detail
    assert word_errors([""], [""]).value == 0
    assert word_errors(["one"], [""]).detail == "1 word heard where nothing is said"
    assert word_errors(["one two", ""], ["", " "]).detail == "2 words heard where nothing is said"
    assert character_errors(["one"], [""]).detail == "3 characters heard where nothing is said"
    assert sentence_errors(["", "one", " "], ["", "", ""]).value == pytest.approx(100 / 3)
