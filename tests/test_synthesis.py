"""Speech synthesis: the model, its loss and its search."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init
from tiers import mostly_slow

from transformer import UserError
from transformer.config.methods import GuidanceConfig
from transformer.decoding.forced import sown_attention
from transformer.model.transformer import cross_attention
from transformer.systems.synthesis.options import SynthesisConfig, SynthesisDecodingConfig
from transformer.systems.synthesis.system import Spoken, Synthesiser, synthesis_objective, synthesis_search
from transformer.training.methods.guidance import guided, off_diagonal
from transformer.training.objective import Context

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")
SIZES = {"vocab_size": 9, "num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "bands": 3}
SIZES |= {"prenet_width": 8, "postnet_layers": 2, "postnet_width": 6, "dropout": 0.0}
SOURCE = jnp.array([[4, 5, 6, 2, 0], [7, 2, 0, 0, 0], [8, 4, 4, 5, 2]])
END = float("-inf")


def network(**options):
    model = Synthesiser(SynthesisConfig(**SIZES | options))
    variables = init(model, jax.random.key(0), SOURCE[:1], jnp.zeros((1, 8, 3)))
    return model, variables


def frames(lengths, size=None):
    rng = np.random.default_rng(0)
    batch = np.full((len(lengths), size or max(lengths), 3), END, np.float32)
    for row, length in zip(batch, lengths, strict=True):
        row[:length] = rng.normal(size=(length, 3))
    return jnp.asarray(batch)


def spoken(model, variables, source, target):
    """What a pass gives, in NumPy."""
    return Spoken(*(np.asarray(each) for each in apply(model, variables, source, target)))


def loss_of(model, variables, batch, context=None, objective=synthesis_objective):
    """The loss, as a compiled program; by default in evaluation."""
    context = context or Context()
    return jax.jit(lambda variables: objective(model, variables, batch, context))(variables)


@pytest.mark.thorough
@pytest.mark.by_default("3")
@pytest.mark.parametrize("reduction", mostly_slow([1, 2, 3], [1, 3]))
def test_a_step_reads_only_the_frames_before_it(reduction):
    model, variables = network(reduction=reduction, postnet_layers=0)
    target = frames([9, 9, 9])
    before = spoken(model, variables, SOURCE, target).frames
    for frame in range(9):
        changed = np.array(target)
        changed[:, frame] += 1
        after = spoken(model, variables, SOURCE, jnp.asarray(changed)).frames
        first = (frame // reduction + 1) * reduction
        np.testing.assert_array_equal(after[:, :first], before[:, :first])
        is_read = frame % reduction == reduction - 1  # the last frame of a step
        assert bool((after[:, first:] != before[:, first:]).any()) == (is_read and first < 9)


@pytest.mark.slow
def test_an_utterance_does_not_depend_on_padding_and_others():
    model, variables = network()
    lengths = [7, 2, 10]
    target = frames(lengths, size=14)
    together = spoken(model, variables, SOURCE, target)
    assert np.isfinite(together.refined).all()
    for row, length in enumerate(lengths):
        text = SOURCE[row : row + 1, : int((SOURCE[row] > 0).sum())]
        alone = spoken(model, variables, text, target[row : row + 1, :length])
        np.testing.assert_allclose(together.refined[row, :length], alone.refined[0], atol=1e-5)
        steps = -(-length // 2)
        np.testing.assert_allclose(together.stop[row, :steps], alone.stop[0], atol=1e-5)


@pytest.mark.thorough
def test_the_loss_is_that_of_its_parts():
    model, variables = network()
    lengths, target = [7, 2, 10], frames([7, 2, 10])
    loss = loss_of(model, variables, {"source": SOURCE, "target": target})
    found = spoken(model, variables, SOURCE, target)
    total = refined = stop = 0.0
    for row, length in enumerate(lengths):
        wanted, steps = np.asarray(target[row, :length]), -(-length // 2)
        total += np.abs(np.asarray(found.frames[row, :length]) - wanted).mean(axis=1).sum()
        refined += np.abs(np.asarray(found.refined[row, :length]) - wanted).mean(axis=1).sum()
        for step in range(steps):
            p = 1 / (1 + np.exp(-float(found.stop[row, step])))
            stop -= 5 * np.log(p) if step == steps - 1 else np.log(1 - p)
    assert float(loss.total) == pytest.approx(total + refined + 2 * stop, rel=1e-5)
    assert float(loss.weight) == sum(lengths)
    assert [float(x) for x in loss.metrics["mel"]] == pytest.approx([refined, 19], rel=1e-5)
    assert float(loss.metrics["stop"][1]) == 4 + 1 + 5


@pytest.mark.thorough
def test_guidance_counts_steps_and_not_frames():
    model, variables = network()
    target = frames([7, 2, 10])
    batch = {"source": SOURCE, "target": target}
    options = GuidanceConfig(weight=1.0)
    plain = loss_of(model, variables, batch)
    guiding = guided(synthesis_objective, cross_attention, options)
    found = loss_of(model, variables, batch, objective=guiding)
    attention = jax.jit(lambda v: sown_attention(cross_attention, model, v, {"source": SOURCE}, target))
    weights = np.asarray(attention(variables))
    steps, words = (np.asarray(model.target_mask(target)), np.asarray(model.source_mask(SOURCE)))
    assert steps.sum(axis=1).tolist() == [4, 1, 5]
    off, _ = off_diagonal(jnp.asarray(steps, int), jnp.asarray(words, int), options.width)
    each = (weights * off).sum(axis=2) / words.sum(axis=1)[:, None]
    share = float(plain.weight) / steps.sum()
    assert float(found.total) == pytest.approx(float(plain.total) + share * float(each.sum()), rel=1e-5)


@pytest.mark.slow
def test_training_reads_frames_of_its_own():
    """All of them: as if the frames of a pass before were given, and the target is the same."""
    model, variables = network(own_frames=1.0, prenet_dropout=0.0)
    target = frames([7, 2, 10])
    batch = {"source": SOURCE, "target": target}
    context = Context(key=jax.random.key(1))
    found = loss_of(model, variables, batch, context)
    first = spoken(model, variables, SOURCE, target).frames
    own = jnp.where(jnp.isfinite(target), first, target)
    again = spoken(model, variables, SOURCE, own)
    errors = [
        sum(
            float(np.abs(each[row, :n] - target[row, :n]).mean(axis=1).sum())
            for row, n in enumerate((7, 2, 10))
        )
        for each in (again.frames, again.refined)
    ]
    assert float(found.metrics["mel"][0]) == pytest.approx(errors[1], rel=1e-5)
    assert errors[1] != pytest.approx(float(plain_mel(model, variables, batch)), rel=1e-5)
    none = dataclasses.replace(model.config, own_frames=0.0)
    plain = loss_of(Synthesiser(none), variables, batch, context)
    assert float(plain.metrics["mel"][0]) == pytest.approx(plain_mel(model, variables, batch), rel=1e-5)
    # the gradient does not go through the pass before
    gradient = jax.jit(jax.grad(lambda v: synthesis_objective(model, v, batch, context).total))(variables)
    given = jax.jit(jax.grad(lambda v: reading(model, v, own, batch)))(variables)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), gradient, given)


def plain_mel(model, variables, batch):
    """The error with the frames of the recording, in evaluation."""
    return float(loss_of(model, variables, batch).metrics["mel"][0])


def reading(model, variables, read, batch):
    """The loss of a pass that reads these frames."""
    c, target = model.config, batch["target"]
    spoken = Spoken(*apply(model, variables, batch["source"], read))
    there = jnp.isfinite(target)[..., 0]
    steps = model.target_mask(target)
    last = steps & ~jnp.pad(steps, ((0, 0), (0, 1)))[:, 1:]
    stop = jax.nn.softplus(jnp.where(last, -spoken.stop, spoken.stop))
    stop = (stop * steps * jnp.where(last, 5.0, 1.0)).sum()
    wanted = jnp.where(there[..., None], target, 0)
    errors = [(jnp.abs(each - wanted).mean(-1) * there).sum() for each in (spoken.frames, spoken.refined)]
    return sum(errors) + c.reduction * stop


def options(**changed):
    return SynthesisDecodingConfig(**{"max_length": 12, "prenet_dropout": 0.0, "buckets": (5,)} | changed)


def test_speaking_is_teacher_forcing_with_its_own_frames():
    model, variables = network()
    found = synthesis_search(model, variables, {"source": SOURCE}, jnp.arange(1, 4), options(stop=0.999))
    assert found.lengths.tolist() == [12, 12, 12]
    assert not found.stopped.any()
    # the post-net adds to what is read, so it is switched off to read again
    bare = dataclasses.replace(model.config, postnet_layers=0)
    said = synthesis_search(
        Synthesiser(bare), variables, {"source": SOURCE}, jnp.arange(1, 4), options(stop=0.999)
    ).frames
    again = spoken(model, variables, SOURCE, said)
    np.testing.assert_allclose(again.frames, said, atol=1e-5)
    np.testing.assert_allclose(again.refined, found.frames, atol=1e-5)


@pytest.mark.thorough
def test_an_utterance_ends_where_the_stop_token_says():
    model, variables = network()
    bare = Synthesiser(dataclasses.replace(model.config, postnet_layers=0))
    lines = jnp.arange(1, 4)
    read = synthesis_search(bare, variables, {"source": SOURCE}, lines, options(stop=0.999)).frames
    chances = 1 / (1 + np.exp(-spoken(model, variables, SOURCE, read).stop))
    limit = float(np.median(chances))
    found = synthesis_search(model, variables, {"source": SOURCE}, jnp.arange(1, 4), options(stop=limit))
    for row in range(3):
        ends = np.flatnonzero(chances[row] > limit)
        assert found.lengths[row] == (2 * (ends[0] + 1) if len(ends) else 12)
        assert found.stopped[row] == bool(len(ends))
    empty = synthesis_search(
        model, variables, {"source": jnp.zeros((2, 5), int)}, jnp.arange(1, 3), options()
    )
    assert empty.lengths.tolist() == [0, 0]


@pytest.mark.thorough
def test_noise_belongs_to_the_line():
    model, variables = network()
    noisy = options(prenet_dropout=0.5, stop=0.999)
    together = synthesis_search(model, variables, {"source": SOURCE}, jnp.array([3, 4, 5]), noisy).frames
    alone = synthesis_search(model, variables, {"source": SOURCE[1:2]}, jnp.array([4]), noisy).frames
    np.testing.assert_allclose(together[1], alone[0], atol=1e-5)
    other = synthesis_search(model, variables, {"source": SOURCE[1:2]}, jnp.array([5]), noisy).frames
    assert np.abs(other - alone).max() > 1e-3
    seeded = dataclasses.replace(noisy, seed=1)
    again = synthesis_search(model, variables, {"source": SOURCE[1:2]}, jnp.array([4]), seeded).frames
    assert np.abs(again - alone).max() > 1e-3


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (SynthesisConfig, {"reduction": 0}, "reduction"),
        (SynthesisDecodingConfig, {"prenet_dropout": 1.0}, "prenet-dropout"),
        (SynthesisDecodingConfig, {"stop": 1.0}, "--decoding.stop"),
        (SynthesisDecodingConfig, {"forbidden": ("a",)}, "--decoding.forbidden is for tokens"),
    ],
)
def test_options_that_make_no_sense_are_refused(kind, given, message):
    with pytest.raises(UserError, match=message):
        kind(**given)
