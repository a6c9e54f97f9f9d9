"""Detection with Transformers (Carion et al. 2020): learned queries become objects, each of which the loss
compares with one object of the picture; the search takes the most probable class of each query."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int
from optax.assignment import hungarian_algorithm

from transformer.config.options import Config
from transformer.decoding.calls import Inputs, as_variables
from transformer.model.layers import ACTIVATIONS, Affine
from transformer.model.masks import Mask
from transformer.model.parameters import Variables, param
from transformer.model.positions import distance_scores
from transformer.model.stack import Memory
from transformer.model.variants.patches import PatchTransformer
from transformer.systems.detection.options import DetectionConfig, DetectionDecodingConfig
from transformer.training.objective import Batch, Context, Loss, Objective, apply_training

BOX_LAYERS = 3


class Predictions(NamedTuple):
    """What each query predicts."""

    classes: Float[Array, "b *l q c"]
    """Logits, the last one of no object."""
    boxes: Float[Array, "b *l q 4"]
    """Centre, width and height, as shares of the picture."""


class DetectionTransformer(PatchTransformer):
    """The decoder reads learned queries instead of tokens, and predicts all objects at once."""

    config: DetectionConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        shape = (c.num_queries, c.d_model)
        self.queries = param(self, "queries", nn.initializers.normal(1.0), shape, (None, "model"))
        self.classifier = Affine(c.vocab_size + 1, ("model", None))
        self.box_inner = [Affine(c.d_model, ("model", "hidden")) for _ in range(BOX_LAYERS - 1)]
        self.box_outer = Affine(4, ("model", None))
        self.query_distances = distance_scores(c, is_causal=False)

    def __call__(  # type: ignore[override]
        self, source: Float[Array, "b h w c"], *, deterministic: bool = True
    ) -> Predictions:
        """The predictions of every decoder layer, as [rows, layers, ...]."""
        memory = self.encode(source, deterministic=deterministic)
        return self.predictions(self.decode(memory, deterministic=deterministic))

    def decode(  # type: ignore[override]
        self, memory: Memory, *, deterministic: bool = True
    ) -> Float[Array, "b l q m"]:
        """The states of the queries after each decoder layer."""
        rows = memory.states.shape[0]
        queries = self.queries.astype(memory.states.dtype)
        x = jnp.broadcast_to(queries, (rows, *queries.shape))
        positions = jnp.arange(queries.shape[0])
        target_mask = jnp.broadcast_to(memory.mask.any(axis=1)[:, None], x.shape[:2])
        cross_mask = Mask(keys=memory.mask)
        shared_scores = self.query_distances(positions, positions)
        states = []
        for layer, views in zip(self.decoder, self.views(memory), strict=True):
            x = layer(x, target_mask, views, Mask(), cross_mask, positions, deterministic, shared_scores)
            states.append(x)
        stacked = jnp.stack(states, axis=1)  # rows first, as devices have them
        flat = stacked.reshape(rows, -1, stacked.shape[-1])  # one normalisation, for statistics of a batch
        if self.config.normalizes_output:
            flat = self.decoder_norm(flat, jnp.tile(target_mask, (1, len(states))), deterministic)
        return flat.reshape(stacked.shape)

    def predictions(self, states: Float[Array, "b l q m"]) -> Predictions:
        """The class and the box of each query, in float32."""
        inner: Callable[[Array], Array] = ACTIVATIONS["relu"]
        x = states.reshape(len(states), -1, states.shape[-1])
        classes = self.classifier(x)
        for layer in self.box_inner:
            x = inner(layer(x))
        boxes = jax.nn.sigmoid(self.box_outer(x).astype(jnp.float32))
        shape = states.shape[:-1]
        return Predictions(classes.astype(jnp.float32).reshape(*shape, -1), boxes.reshape(*shape, 4))


# The search of detection: the most probable class of each query.


@struct.dataclass
class Found:
    """An object for each query, the most probable first."""

    classes: Int[Array, "b q"]
    scores: Float[Array, "b q"]
    """Probability of the class."""
    boxes: Float[Array, "b q 4"]
    """Centre, width and height, as shares of the picture."""
    is_shown: Bool[Array, "b q"]
    """Whether the score reaches the threshold."""


def detection_search(
    model: nn.Module,
    params: Variables,
    inputs: Inputs,
    lines: Int[Array, " b"],
    options: DetectionDecodingConfig,
) -> Found:
    """The objects of each picture. No two of them need be suppressed: each query has been matched with one
    object (Carion et al. 2020).

    Args:
      inputs: `source`, pictures.
    """
    return _search(model, params, inputs["source"], options.threshold)


@functools.partial(jax.jit, static_argnames=("model",))
def _search(model: nn.Module, params: Variables, source: Array, threshold: float | Array) -> Found:
    predictions = model.apply(as_variables(params), source)
    p = jax.nn.softmax(predictions.classes[:, -1])[..., :-1]  # type: ignore[union-attr]
    order = jnp.argsort(-p.max(axis=-1), axis=1)
    scores = jnp.take_along_axis(p.max(axis=-1), order, axis=1)
    classes = jnp.take_along_axis(p.argmax(axis=-1), order, axis=1)
    boxes = jnp.take_along_axis(predictions.boxes[:, -1], order[..., None], axis=1)  # type: ignore[union-attr]
    return Found(classes, scores, boxes, scores >= threshold)


# The loss: generalised IoU of boxes, and a minimum-cost assignment of queries to objects.


LEAST_AREA = 1e-9
"""The least area that another one is divided by."""
LARGEST_COST = 1e6


def corners(boxes: Float[Array, "*n 4"]) -> tuple[Float[Array, "*n 2"], Float[Array, "*n 2"]]:
    """Top left and bottom right."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return centre - size / 2, centre + size / 2


def generalised_iou(a: Float[Array, "*n 4"], b: Float[Array, "*n 4"]) -> Float[Array, "*n"]:
    """IoU less the share of the smallest box around both that neither covers (Rezatofighi et al. 2019,
    Algorithm 1), from -1 to 1."""
    (a_start, a_end), (b_start, b_end) = corners(a), corners(b)
    shared = _area(jnp.minimum(a_end, b_end) - jnp.maximum(a_start, b_start))
    union = a[..., 2] * a[..., 3] + b[..., 2] * b[..., 3] - shared
    around = _area(jnp.maximum(a_end, b_end) - jnp.minimum(a_start, b_start))
    iou = shared / jnp.maximum(union, LEAST_AREA)
    return iou - (around - union) / jnp.maximum(around, LEAST_AREA)


def _area(size: Float[Array, "*n 2"]) -> Float[Array, "*n"]:
    return jnp.prod(jnp.maximum(size, 0), axis=-1)


def matched_queries(costs: Float[Array, "b q n"], objects: Int[Array, " b"]) -> Int[Array, "b n"]:
    """The query of each object, with the lowest total cost (Carion et al. 2020, Eq. 1); no query has two.

    Args:
      costs: of each query and object. There are at least as many queries as objects.
      objects: how many of the objects there are in each row. The others get the queries that are left.
    """
    is_object = jnp.arange(costs.shape[2]) < objects[:, None]
    finite = jnp.nan_to_num(costs, nan=LARGEST_COST, posinf=LARGEST_COST, neginf=-LARGEST_COST)
    # queries that are left cost the same for whatever is not there, so the others decide
    costs = jnp.where(is_object[:, None, :], finite, 0)

    def of_row(costs: Float[Array, "q n"]) -> Int[Array, " n"]:
        queries, columns = hungarian_algorithm(costs)
        return jnp.zeros(costs.shape[1], jnp.int32).at[columns].set(queries)

    return jax.vmap(of_row)(costs)


NO_OBJECT = -1
"""The class that pads the objects of a picture."""
L1_WEIGHT, GIOU_WEIGHT = 5.0, 2.0
"""The weights of the two losses of boxes, beside 1 for the class (Carion et al. 2020, appendix A.4)."""


def detection_objective(config: Config) -> Objective:
    """The Hungarian loss (Eq. 2): each object is compared with the query that it is matched with, the other
    queries with the class of no object. It is the sum over the decoder layers.

    The batch has `source`, pictures; `classes`, [rows, objects], padded by -1; `boxes`, [rows, objects, 4]:
    centre, width and height, as shares of the picture.

    The weight is the number of objects. The metrics are those of the last layer: `class_nll`, in nats of
    each query; `l1` and `giou_loss` of each object.
    """

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        rngs, deterministic = context.rngs("dropout"), context.deterministic
        predictions, sown = apply_training(
            model, variables, context, batch["source"], deterministic=deterministic, rngs=rngs
        )
        is_picture = jnp.isfinite(batch["source"]).all(axis=(1, 2, 3))
        classes = jnp.where(is_picture[:, None], batch["classes"], NO_OBJECT)
        options: DetectionConfig = model.config  # type: ignore[attr-defined]

        def of_layer(predictions: Predictions) -> dict[str, tuple[Array, Array]]:
            return set_losses(predictions, classes, batch["boxes"], is_picture, options)

        layers = predictions if options.auxiliary_loss else jax.tree.map(lambda x: x[:, -1:], predictions)
        losses = jax.vmap(of_layer, in_axes=1)(layers)
        totals = {name: sums for name, (sums, _) in losses.items()}
        total = totals["weighted_nll"] + L1_WEIGHT * totals["l1"] + GIOU_WEIGHT * totals["giou_loss"]
        last = {name: (sums[-1], weights[-1]) for name, (sums, weights) in losses.items()}
        del last["weighted_nll"]
        return Loss(total.sum(), last["l1"][1], last, **sown)

    return objective


def set_losses(
    predictions: Predictions,
    classes: Int[Array, "b n"],
    boxes: Float[Array, "b n 4"],
    is_picture: Array,
    options: DetectionConfig,
) -> dict[str, tuple[Array, Array]]:
    """The sums of the losses of one layer, and their weights.

    Args:
      predictions: of each query.
      classes: of the objects, padded by -1.
      boxes: of the objects.
      is_picture: False for rows that pad the batch.
      options: of the model.
    """
    is_object = classes != NO_OBJECT
    chosen = jax.lax.stop_gradient(matching(predictions, classes, boxes))
    rows = jnp.arange(len(classes))[:, None]
    log_p = jax.nn.log_softmax(predictions.classes)
    empty = log_p.shape[-1] - 1
    expected = jnp.full(log_p.shape[:2], empty).at[rows, chosen].set(jnp.where(is_object, classes, empty))
    nll = -jnp.take_along_axis(log_p, expected[..., None], axis=-1)[..., 0] * is_picture[:, None]
    weights = jnp.where(expected == empty, options.empty_weight, 1.0)
    predicted = jnp.take_along_axis(predictions.boxes, chosen[..., None], axis=1)
    l1 = jnp.abs(predicted - boxes).sum(axis=-1)
    giou_loss = 1 - generalised_iou(predicted, boxes)
    objects = is_object.sum().astype(jnp.float32)
    queries = is_picture.sum().astype(jnp.float32) * nll.shape[1]
    return {
        "weighted_nll": ((nll * weights).sum(), objects),
        "class_nll": (nll.sum(), queries),
        "l1": (jnp.where(is_object, l1, 0).sum(), objects),
        "giou_loss": (jnp.where(is_object, giou_loss, 0).sum(), objects),
    }


def matching(
    predictions: Predictions, classes: Int[Array, "b n"], boxes: Float[Array, "b n 4"]
) -> Int[Array, "b n"]:
    """The query of each object: by the probability of its class, and the losses of its box."""
    p = jax.nn.softmax(predictions.classes)
    of_class = jnp.take_along_axis(p, jnp.maximum(classes, 0)[:, None, :], axis=-1)
    predicted, expected = predictions.boxes[:, :, None], boxes[:, None]
    l1 = jnp.abs(predicted - expected).sum(axis=-1)
    giou = generalised_iou(*jnp.broadcast_arrays(predicted, expected))
    return matched_queries(L1_WEIGHT * l1 - of_class - GIOU_WEIGHT * giou, (classes != NO_OBJECT).sum(axis=1))
