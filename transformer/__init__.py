"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) in JAX and Flax.

Each public name is imported on first use, so `import transformer` is fast.
"""

import importlib
import sys

if sys.version_info < (3, 11):  # noqa: UP036 (pip refuses that, a checkout on the path does not)
    raise ImportError(
        f"transformer needs Python 3.11 or newer, and this is {sys.version.split()[0]}: make an environment "
        "with a newer one"
    )

TYPE_CHECKING = False  # as type checkers know it; importing typing takes as long as all else here
if TYPE_CHECKING:
    __version__: str
    from transformer.config.corpus import DataConfig as DataConfig
    from transformer.config.decoding import BeamConfig as BeamConfig
    from transformer.config.decoding import DecodingConfig as DecodingConfig
    from transformer.config.model import SpecialIds as SpecialIds
    from transformer.config.options import Config as Config
    from transformer.config.searches import GreedyConfig as GreedyConfig
    from transformer.config.searches import MbrConfig as MbrConfig
    from transformer.config.searches import SampleConfig as SampleConfig
    from transformer.config.training import OptimizerConfig as OptimizerConfig
    from transformer.config.training import TrainingConfig as TrainingConfig
    from transformer.config.transformer import EncoderConfig as EncoderConfig
    from transformer.config.transformer import TransformerConfig as TransformerConfig
    from transformer.data.tokenizers.trained import train_tokenizer as train_tokenizer
    from transformer.decoding.beam import beam_search as beam_search
    from transformer.decoding.sampling import greedy_search as greedy_search
    from transformer.decoding.sampling import sample as sample
    from transformer.decoding.scores import SearchResult as SearchResult
    from transformer.decoding.service.queue import Expired as Expired
    from transformer.decoding.service.queue import QueueFull as QueueFull
    from transformer.model.encoder_decoder import decoder_input as decoder_input
    from transformer.model.transformer import Transformer as Transformer
    from transformer.runs.run import Run as Run
    from transformer.runtime.errors import UserError as UserError
    from transformer.systems.captioning.api import Captioner as Captioner
    from transformer.systems.detection.api import Detector as Detector
    from transformer.systems.language_model.api import Generator as Generator
    from transformer.systems.parameters import register as register
    from transformer.systems.presets import PRESETS as PRESETS
    from transformer.systems.presets import VARIANTS as VARIANTS
    from transformer.systems.presets import variant as variant
    from transformer.systems.registry import Options as Options
    from transformer.systems.registry import Preset as Preset
    from transformer.systems.registry import Variant as Variant
    from transformer.systems.speech.api import Transcriber as Transcriber
    from transformer.systems.synthesis.api import Synthesizer as Synthesizer
    from transformer.systems.system import System as System
    from transformer.systems.tagging.api import Tagger as Tagger
    from transformer.tasks.outputs import DecodingTask as DecodingTask
    from transformer.tasks.outputs import Lines as Lines
    from transformer.tasks.task import Task as Task
    from transformer.tasks.text import Hypothesis as Hypothesis
    from transformer.tasks.text import TextTask as TextTask
    from transformer.tasks.texts.glossary import Glossary as Glossary
    from transformer.tasks.texts.text_to_text import TextToText as TextToText
    from transformer.tasks.texts.translation import Translation as Translation
    from transformer.trainer.train import train as train
    from transformer.training.objective import Context as Context
    from transformer.training.objective import Loss as Loss
    from transformer.training.objective import translation_objective as translation_objective
    from transformer.training.schedule import make_optimizer as make_optimizer
    from transformer.training.step import TrainState as TrainState
    from transformer.training.step import init_state as init_state
    from transformer.training.step import make_eval_step as make_eval_step
    from transformer.training.step import make_train_step as make_train_step
    from transformer.translator.decoder import Decoder as Decoder
    from transformer.translator.translator import Translator as Translator

_HOMES = {
    "config.decoding": ("BeamConfig", "DecodingConfig"),
    "config.searches": ("GreedyConfig", "MbrConfig", "SampleConfig"),
    "config.options": ("Config",),
    "config.corpus": ("DataConfig",),
    "config.transformer": ("EncoderConfig", "TransformerConfig"),
    "config.training": ("OptimizerConfig", "TrainingConfig"),
    "config.model": ("SpecialIds",),
    "decoding.service.queue": ("QueueFull", "Expired"),
    "decoding.beam": ("beam_search",),
    "decoding.scores": ("SearchResult",),
    "decoding.sampling": ("greedy_search", "sample"),
    "translator.decoder": ("Decoder",),
    "systems.captioning.api": ("Captioner",),
    "systems.detection.api": ("Detector",),
    "systems.language_model.api": ("Generator",),
    "systems.synthesis.api": ("Synthesizer",),
    "systems.speech.api": ("Transcriber",),
    "systems.tagging.api": ("Tagger",),
    "translator.translator": ("Translator",),
    "tasks.task": ("Task",),
    "tasks.outputs": ("DecodingTask", "Lines"),
    "tasks.text": ("TextTask", "Hypothesis"),
    "tasks.texts.glossary": ("Glossary",),
    "tasks.texts.text_to_text": ("TextToText",),
    "tasks.texts.translation": ("Translation",),
    "data.tokenizers.trained": ("train_tokenizer",),
    "runtime.errors": ("UserError",),
    "model.encoder_decoder": ("decoder_input",),
    "model.transformer": ("Transformer",),
    "systems.parameters": ("register",),
    "systems.presets": ("PRESETS", "VARIANTS", "variant"),
    "runs.run": ("Run",),
    "systems.registry": ("Options", "Preset", "Variant"),
    "systems.system": ("System",),
    "trainer.train": ("train",),
    "training.objective": ("Context", "Loss", "translation_objective"),
    "training.schedule": ("make_optimizer",),
    "training.step": ("TrainState", "init_state", "make_eval_step", "make_train_step"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, "__version__"])


def __getattr__(name: str) -> object:
    if name == "__version__":
        from transformer.runtime.invocation import version_of

        return version_of("transformer-jax")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
