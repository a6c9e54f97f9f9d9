"""What training and decoding need to know about a model, and what is decided for the kind of device."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from transformer.config.decoding import DecodingConfig
from transformer.config.model import ModelConfig
from transformer.config.options import Config
from transformer.config.ranges import typed
from transformer.config.searches import check_beam
from transformer.decoding.forced import Attentions, forced_alignment, forced_scores
from transformer.decoding.searches.search import AutoregressiveSearch, autoregressive_search
from transformer.runtime.errors import UserError
from transformer.tasks.outputs import DecodingTask
from transformer.tasks.task import Task
from transformer.tasks.text import TextTask
from transformer.tasks.texts.translation import Translation
from transformer.training.objective import Carry, Objective, translation_objective

_LACKS = {
    "search": "does not decode",
    "scores": "does not score given outputs",
    "alignment": "has no alignments",
    "attentions": "sows no attention to the source",
    "fluency": "does not score texts alone",
}


def described(config: Config) -> str:
    """What messages call models of a config that predict all tokens at once: the system, or the part of it
    that they are."""
    return "CTC alone" if config.model.ctc_weight == 1 else config.system


def stepwise(search: Any) -> AutoregressiveSearch | None:
    """A search if it writes one token after another, each of which can be forbidden, forced and scored by
    other models. None: it predicts all tokens at once, or there is none."""
    return search if isinstance(search, AutoregressiveSearch) else None


@typed
@dataclass(frozen=True)
class System:
    """A model, its task, its objective and what can be done with it. None: it cannot be done."""

    model: type[nn.Module]
    """Built from the model's options. A subclass of another system's model can be initialised from it."""
    objective: Callable[[Config, Callable[[Path], Any]], Objective]
    """(config, load_teacher) -> Objective; load_teacher opens a run as a `Decoder`."""
    search: Callable[..., Any] | None = None
    """(model, variables, inputs, lines, options) -> a pytree of arrays with rows first, which the task makes
    into outputs; for text a `SearchResult`, as from `autoregressive_search`."""
    attentions: Attentions | None = None
    """(what the model has sown in "intermediates") -> [layer, batch, head, target, source]: its attention to
    the source, which training can guide."""
    alignment: Callable[..., Any] | None = None
    """(model, variables, inputs, target) -> [batch, target, source]: the attention of each target step."""
    scores: Callable[..., Any] | None = None
    """(model, variables, inputs, target) -> `TokenScores`: log P of each target token."""
    fluency: Callable[..., Any] | None = None
    """(model, variables, ids) -> of each sentence the sum of log P of its tokens, and their number: what a
    text is worth without a source."""
    task: type[Task] = Translation
    """The task, which says what the inputs and outputs are."""
    carry: Callable[[Config, bool], Carry] = lambda config, evaluating: ()
    """(config, evaluating) -> the initial memory of the rows of a batch, in training or in evaluation: arrays
    `[rows, ...]`; empty for most models."""
    packs: bool = False
    """Whether it supports several sentences per row (packed batches)."""
    copies: bool = False
    """Whether it can output out-of-vocabulary words."""
    by_model: Callable[["System", ModelConfig], "System"] = lambda system, model: system
    """(system, options of the model) -> what can be done with a model of these options, if not all have the
    same parts."""

    @property
    def stepwise(self) -> AutoregressiveSearch | None:
        """The search, if it writes one token after another. None: it does not, or there is none."""
        return stepwise(self.search)

    def required(self, ability: str) -> Callable[..., Any]:
        """Its search, scores, alignment, attentions or fluency.

        Raises:
          UserError: it has none.
        """
        function: Callable[..., Any] | None = getattr(self, ability)
        if function is None:
            raise UserError(f"this system {_LACKS[ability]}")
        return function

    def search_with(self, model: ModelConfig, options: DecodingConfig) -> Any:
        """Its search with some options of the search, of a model with these.

        Raises:
          UserError: it has none.
        """
        search = self.required("search")
        if (steps := stepwise(search)) and steps.by_options:
            return steps.by_options(steps, model, options)
        return search

    def check_search(self, task: DecodingTask, settings: DecodingConfig) -> None:
        """Raises UserError if it cannot search for the outputs of a task with these options."""
        if self.stepwise:
            check_beam(settings, task.config.model)
        elif isinstance(task, TextTask) and task.needs_steps:
            raise UserError(
                f"{task.needs_steps}: it needs a model that writes token by token, and "
                f"{described(task.config)} predicts all tokens at once"
            )
        if settings.ctc_weight is not None and not task.config.model.ctc_weight:
            raise UserError(
                f"--decoding.ctc-weight {settings.ctc_weight:g}: it is for runs of system speech that were "
                "trained with --model.ctc-weight, and this one has no CTC; leave it out"
            )
        if settings.coverage_penalty:
            option, name = "--decoding.coverage-penalty", task.config.system
            if self.alignment is None:
                raise UserError(f"{option}: {name} has no alignments; leave it out")
            if not np.issubdtype(task.fields[task.inputs[0]].dtype, np.integer):
                raise UserError(f"{option}: what {name} reads has no words to cover; leave it out")
        task.check_search(settings)


def autoregressive(model: type[nn.Module], attentions: Attentions, **more: Any) -> System:
    """The system of a model that writes one token after another and is trained by cross-entropy.

    Args:
      model: as in `System`, like attentions.
      more: further fields, or others than those of such systems.
    """
    usual: dict[str, Any] = {
        "objective": lambda config, _: translation_objective(config.training.label_smoothing),
        "search": autoregressive_search,
        "alignment": forced_alignment(attentions),
        "scores": forced_scores,
    }
    return System(model=model, attentions=attentions, **usual | more)


# What is decided for the kind of device where a config leaves it open.


def packs(system: System, config: Config) -> bool:
    """Whether a row may have several sentences."""
    return system.packs and not config.model.packing_conflict and not config.reward.share


def decided_for(system: System, config: Config, platform: str) -> Config:
    """The config with what depends on the kind of device, "cpu", "gpu" or "tpu", as far as it is left open:
    on accelerators the fastest precision and batches that the system supports."""
    accelerated = platform != "cpu"
    dtype: Any = config.model.DTYPES[-1] if accelerated else "float32"
    if config.model.dtype == "auto":
        config = replace(config, model=replace(config.model, dtype=dtype))
    if config.data.batching == "auto":
        batching: Any = "packed" if accelerated and packs(system, config) else "buckets"
        config = replace(config, data=replace(config.data, batching=batching))
    return config
