"""One update: its learning rate, loss and optimizer, independently of how the batch is split.

Tolerances: gradients and losses are float32 sums of some thousand terms around 1, so another order of
summation changes them by about 1e-6 of their size; 1e-5 is allowed.
"""

import math

import flax.linen as nn
import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toy_batches import BOS, EOS, a_batch, state_of

from transformer.config.model import SpecialIds
from transformer.config.options import Config
from transformer.config.training import OptimizerConfig
from transformer.model.encoder_decoder import decoder_input, shift_right
from transformer.model.statistics import Sums
from transformer.model.transformer import Transformer
from transformer.tasks.texts.translation import Translation
from transformer.training import sharding
from transformer.training.cross_entropy import cross_entropy
from transformer.training.objective import Context, Loss, translation_objective
from transformer.training.schedule import learning_rate, make_optimizer
from transformer.training.sharding import MappedReplicas, Replicas
from transformer.training.step import EvalState, init_state, make_eval_step, make_train_step

OBJECTIVE = translation_objective(0.1)

EXAMPLE = Translation.example(Config())


def assert_close(first, second, tolerance=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance), first, second)


def assert_same_bits(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


# --- the learning rate ---


@pytest.mark.parametrize("step", [1, 2, 4000, 4001, 100_000])
def test_the_papers_learning_rate(step):
    rate = learning_rate(OptimizerConfig(scale=2.0), 512, 100_000)
    expected = 2.0 * 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    assert rate(step - 1) == pytest.approx(expected, rel=1e-6)  # optax counts from 0


@pytest.mark.parametrize(
    ("schedule", "step", "factor"),
    [
        ("inverse_sqrt", 400, 0.5),
        ("inverse_sqrt", 850, math.sqrt(100 / 850)),
        ("cosine", 350, 0.75),  # a third of the way: (1 + cos 60°) / 2
        ("cosine", 850, 0.0),
        ("constant", 850, 1.0),
        ("exponential", 300, 1.0),
        ("exponential", 301, 0.9),
        ("exponential", 850, 0.9**2),
        ("plateau", 850, 1.0),
    ],
)
def test_the_other_learning_rates(schedule, step, factor):
    config = OptimizerConfig(schedule=schedule, peak=3e-3, warmup_steps=100, decay_steps=300)
    rate = learning_rate(config, 512, total_steps=850)
    assert rate(0) == pytest.approx(3e-3 / 100, rel=1e-6)
    assert rate(99) == pytest.approx(3e-3, rel=1e-6)
    assert jax.vmap(rate)(jnp.arange(850)).max() <= np.float32(3e-3)
    assert rate(step - 1) == pytest.approx(3e-3 * factor, rel=1e-6, abs=1e-9)


def test_a_training_may_be_all_warm_up():
    config = OptimizerConfig(schedule="cosine", peak=3e-3, warmup_steps=100)
    rates = jax.vmap(learning_rate(config, 512, total_steps=100))(jnp.arange(100))
    np.testing.assert_allclose(rates, 3e-3 * np.arange(1, 101) / 100, rtol=1e-6)


# --- the loss ---


def test_shift_right():
    target = jnp.array([[5, 6, EOS, 0], [7, EOS, 8, EOS]])
    np.testing.assert_array_equal(shift_right(target, BOS), [[BOS, 5, 6, EOS], [BOS, 7, EOS, 8]])
    segments = jnp.array([[1, 1, 1, 0], [1, 1, 2, 2]])
    expected = [[BOS, 5, 6, BOS], [BOS, 7, BOS, 8]]
    np.testing.assert_array_equal(shift_right(target, BOS, segments), expected)


def test_the_decoder_input_is_padded_like_the_target():
    """Here <pad> is 9, and 0 is a word."""
    special = SpecialIds(pad=9, bos=BOS, eos=EOS)
    target = jnp.array([[5, 0, EOS, 9, 9], [7, EOS, 8, 0, EOS], [9, 9, 9, 9, 9]])
    expected = [[BOS, 5, 0, 9, 9], [BOS, 7, EOS, 8, 0], [9, 9, 9, 9, 9]]
    np.testing.assert_array_equal(decoder_input(target, special), expected)
    segments = jnp.array([[1, 1, 1, 0, 0], [1, 1, 2, 2, 2], [0, 0, 0, 0, 0]])
    expected[1] = [BOS, 7, BOS, 8, 0]
    np.testing.assert_array_equal(decoder_input(target, special, segments), expected)


def test_packed_rows_have_the_loss_of_their_sentences(tiny, random_variables):
    model = Transformer(tiny(num_layers=1))
    variables = random_variables(model)
    alone = {
        "source": np.array([[4, 5, EOS], [6, EOS, 0]]),
        "target": np.array([[7, EOS, 0], [8, 9, EOS]]),
    }
    packed = {
        "source": np.array([[4, 5, EOS, 6, EOS, 0]]),
        "target": np.array([[7, EOS, 8, 9, EOS, 0]]),
        "source_segments": np.array([[1, 1, 1, 2, 2, 0]]),
        "target_segments": np.array([[1, 1, 2, 2, 2, 0]]),
    }
    measure = jax.jit(make_eval_step(model, OBJECTIVE))
    state = EvalState(variables)
    sums, packed_sums = (measure(state, jax.tree.map(jnp.asarray, b))[1] for b in (alone, packed))
    assert sums["loss"][1] == packed_sums["loss"][1] == 5
    assert_close(sums, packed_sums)


# --- the optimizer ---


def gradients_like(params, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(x.shape, np.float32)), params)


def updates_of(optimizer, params, gradients):
    """The updates of the optimizer for successive gradients."""
    state, update, updates = optimizer.init(params), jax.jit(optimizer.update), []
    for gradient in gradients:
        done, state = update(gradient, state, params)
        updates.append(done)
    return updates


def optimizer_with(**options):
    options = {"schedule": "constant", "warmup_steps": 1, "peak": 0.1, **options}
    return make_optimizer(Config(optimizer=OptimizerConfig(**options)))


PARAMS = {"matrix": jnp.ones((3, 4)), "bias": jnp.ones(5)}


def test_adam_by_hand():
    gradients = [gradients_like(PARAMS, seed) for seed in range(3)]
    updates = updates_of(optimizer_with(schedule="paper", warmup_steps=2), PARAMS, gradients)
    for name in PARAMS:
        first, second = 0.0, 0.0
        for step, (gradient, update) in enumerate(zip(gradients, updates, strict=True), start=1):
            g = np.asarray(gradient[name], float)
            first, second = 0.9 * first + 0.1 * g, 0.98 * second + 0.02 * g**2
            rate = 512**-0.5 * min(step**-0.5, step * 2**-1.5)
            corrected = first / (1 - 0.9**step), second / (1 - 0.98**step)
            expected = -rate * corrected[0] / (np.sqrt(corrected[1]) + 1e-9)
            np.testing.assert_allclose(update[name], expected, rtol=1e-5)


def test_clipping_to_a_global_norm():
    small, large = gradients_like(PARAMS, 0), jax.tree.map(lambda x: 10 * x, gradients_like(PARAMS, 1))
    norm = math.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(large)))
    assert norm > 8
    clipped = jax.tree.map(lambda x: x * 8 / norm, large)
    # Adam is invariant to the scale of one gradient, but not to the ratio of two
    assert_close(
        updates_of(optimizer_with(clip_norm=8.0), PARAMS, [small, large]),
        updates_of(optimizer_with(), PARAMS, [small, clipped]),
    )


def test_weight_decay_is_for_matrices_only(tiny, random_variables):
    params = random_variables(Transformer(tiny(num_layers=1, attention_bias=True)))["params"]
    nothing = jax.tree.map(jnp.zeros_like, params)
    update = updates_of(optimizer_with(weight_decay=0.5), params, [nothing])[0]
    for path, param in jax.tree_util.tree_leaves_with_path(params):
        moved = update
        for key in path:
            moved = moved[key.key]
        decays = path[-1].key in ("table", "kernel", "query", "key", "value", "out")
        expected = -0.1 * 0.5 * param if decays else 0 * param
        np.testing.assert_allclose(moved, expected, rtol=1e-6, err_msg=jax.tree_util.keystr(path))


# --- the update ---


@pytest.fixture(scope="module")
def model(tiny):
    return Transformer(tiny(num_layers=1))


@pytest.fixture(scope="module")
def params(model, random_variables):
    return random_variables(model)["params"]


@pytest.fixture(scope="module")
def plain_update(model, params):
    """One update of 8 rows by gradient descent with rate 1, so that it is the gradient itself."""
    step = jax.jit(make_train_step(model, OBJECTIVE, optax.sgd(1.0), seed=0))
    return step(state_of(params, optax.sgd(1.0)), a_batch())


def test_the_gradient_is_that_of_the_mean_loss(model, params, plain_update):
    batch = jax.tree.map(jnp.asarray, a_batch())

    def mean_loss(params):
        target = batch["target"]
        logits = model.apply({"params": params}, batch["source"], shift_right(target, BOS))
        return cross_entropy(logits, target, 0.1).mean(where=target != 0)

    loss, gradients = jax.jit(jax.value_and_grad(mean_loss))(params)
    state, metrics = plain_update
    assert_close(state.params, jax.tree.map(jnp.subtract, params, gradients))
    assert metrics["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert metrics["weight"] == (batch["target"] != 0).sum()
    norm = math.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(gradients)))
    assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    assert state.step == 1


@pytest.mark.slow
def test_accumulation_changes_nothing(model, params, plain_update):
    step = jax.jit(make_train_step(model, OBJECTIVE, optax.sgd(1.0), seed=0, accumulate=4))
    state, metrics = step(state_of(params, optax.sgd(1.0)), a_batch())
    assert_close((state.params, metrics), (plain_update[0].params, plain_update[1]))


@pytest.mark.thorough
def test_running_statistics_move_by_the_mean_of_the_batch(model, params):
    """Over slices of unequal numbers of words, once an update."""

    def counting(model, variables, batch, context):
        loss = OBJECTIVE(model, variables, batch, context)
        return loss.replace(statistics={"usual": Sums(loss.total, loss.weight, momentum=0.5)})

    batch = a_batch()
    for accumulate in (1, 2):
        optimizer = optax.sgd(0.0)
        state = state_of(params, optimizer).replace(statistics={"statistics": {"usual": jnp.float32(3.0)}})
        step = jax.jit(make_train_step(model, counting, optimizer, seed=0, accumulate=accumulate))
        after, metrics = step(state, batch)
        usual = after.statistics["statistics"]["usual"]
        assert usual == pytest.approx(1.5 + 0.5 * float(metrics["loss"]), rel=1e-5)


@pytest.mark.thorough
def test_metrics_have_weights_of_their_own_and_rows_keep_their_memory(model, params):
    def objective(model, variables, batch, context):
        loss = OBJECTIVE(model, variables, batch, context)
        rows = (batch["target"] != 0).any(axis=1).astype(jnp.float32)
        metrics = {"words a row": (loss.weight, rows.sum())}
        return loss.replace(metrics=metrics, carry=context.carry + batch["target"].sum(axis=1))

    batch = a_batch()
    for accumulate in (1, 4):
        state = state_of(params, optax.sgd(0.0)).replace(carry=jnp.arange(8))
        step = jax.jit(make_train_step(model, objective, optax.sgd(0.0), seed=0, accumulate=accumulate))
        after, metrics = step(state, batch)
        assert metrics["words a row"] == pytest.approx((batch["target"] != 0).sum() / 8)
        np.testing.assert_array_equal(after.carry, np.arange(8) + batch["target"].sum(axis=1))


def test_random_streams_differ_by_name_step_and_slice():
    seen = []

    def objective(model, variables, batch, context):
        keys = context.rngs("dropout", "mask")
        draws = {name: (jax.random.uniform(key), jnp.ones(())) for name, key in keys.items()}
        seen.append(set(draws))
        return Loss(0 * variables["params"]["x"], jnp.ones(()), draws)

    step = jax.jit(make_train_step(nn.Module(), objective, optax.sgd(1.0), seed=0))
    state, first = step(state_of({"x": jnp.zeros(())}, optax.sgd(1.0)), a_batch())
    _, second = step(state, a_batch())
    assert len({float(x) for metrics in (first, second) for x in (metrics["dropout"], metrics["mask"])}) == 4
    assert Context().rngs("dropout") is None


@pytest.mark.thorough
def test_rows_of_padding_change_nothing(model, params, plain_update):
    longer = jax.tree.map(lambda rows: np.pad(rows, ((0, 3), (0, 0))), a_batch())
    step = jax.jit(make_train_step(model, OBJECTIVE, optax.sgd(1.0), seed=0))
    state, metrics = step(state_of(params, optax.sgd(1.0)), longer)
    assert_close((state.params, metrics), (plain_update[0].params, plain_update[1]))


@pytest.mark.thorough
def test_dropout_follows_the_seed_and_the_step(tiny, params):
    model, still = Transformer(tiny(num_layers=1, activation_dropout=0.3)), optax.sgd(0.0)

    def two_losses(seed):
        step = jax.jit(make_train_step(model, OBJECTIVE, still, seed=seed))
        state, first = step(state_of(params, still), a_batch())
        return float(first["loss"]), float(step(state, a_batch())[1]["loss"])

    first, later = two_losses(7)
    assert two_losses(7) == (first, later)
    assert len({first, later, *two_losses(8)}) == 4


def test_the_state_starts_from_the_seed(tiny):
    model = Transformer(tiny(num_layers=1, d_ff=16))
    state, again = (init_state(model, optax.sgd(0.1), 3, EXAMPLE, average=kept) for kept in (True, False))
    assert_same_bits(state.params, again.params)
    assert_same_bits(state.params, state.average)
    assert again.average is None
    assert again.best_variables == again.variables
    assert state.best_variables["params"] is state.average
    assert state.step == 0


@pytest.mark.thorough
def test_moving_average_by_hand_while_buffers_are_given_away(model):
    optimizer, decay = optax.sgd(0.5), 0.8
    step = make_train_step(model, OBJECTIVE, optimizer, seed=0, ema=decay)
    on_devices = Replicas().compile_step(step, donate_state=True)
    state = Replicas().place(init_state(model, optimizer, 0, EXAMPLE, average=True))
    expected = jax.tree.map(lambda x: np.array(x, float), state.params)
    for batch in Replicas().batches([a_batch(seed=seed) for seed in range(3)]):
        given = state
        state, _ = on_devices(given, batch)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given.params))
        expected = jax.tree.map(
            lambda average, new: decay * average + (1 - decay) * np.asarray(new, float),
            expected,
            state.params,
        )
    assert_close(state.average, expected)
    average, newest = (tree["source_embedding"]["table"] for tree in (state.average, state.params))
    assert not np.allclose(average, newest)


@pytest.mark.parametrize("layout_class", [Replicas, MappedReplicas])
def test_options_of_the_compiler_change_no_result(model, params, monkeypatch, layout_class):
    optimizer, layout = optax.sgd(0.5), layout_class()
    pure = make_train_step(model, OBJECTIVE, optimizer, seed=0)

    def after_a_step(options):
        monkeypatch.setattr(sharding, "COMPILER", options)
        step = layout.compile_step(pure, donate_state=True)
        given = layout.place(state_of(params, optimizer))
        (batch,) = layout.batches([a_batch()])
        step.lower(given, batch).compile()
        state, _ = step(given, batch)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given.params))
        return state.params

    assert_same_bits(after_a_step({}), after_a_step({"cpu": {"xla_cpu_enable_fast_min_max": False}}))
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        after_a_step({"cpu": {"xla_no_such_option": "1"}})


@pytest.mark.thorough
def test_nothing_is_compiled_after_warm_up(model, params):
    traced, compiled = [], []

    def counting(*args):
        traced.append(1)
        return OBJECTIVE(*args)

    def listener(event, seconds, **_):
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    optimizer = make_optimizer(Config())
    step = Replicas().compile_step(
        make_train_step(model, counting, optimizer, seed=0, ema=0.9), donate_state=True
    )
    state = Replicas().place(state_of(params, optimizer, average=True))
    shapes = [{"longest": 6}, {"longest": 9}]
    jax.monitoring.register_event_duration_secs_listener(listener)
    for round_ in range(3):
        for number, batch in enumerate(Replicas().batches([a_batch(**shape) for shape in shapes])):
            state, metrics = step(state, batch)
            float(metrics["loss"])
            if round_ == 0:
                assert len(traced) == number + 1
        if round_ == 0:
            assert compiled  # the listener works
            compiled.clear()
    assert len(traced) == len(shapes)
    assert not compiled
