"""Speech recognition."""

from dataclasses import replace
from typing import Any

from transformer.config.decoding import DecodingConfig
from transformer.config.model import ModelConfig
from transformer.decoding.calls import forced_alignment, forced_scores
from transformer.decoding.searches.ctc import CtcScores, CtcSearch
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.model.transformer import cross_attention
from transformer.systems.speech.model import SpeechTransformer, limits_of_frames
from transformer.systems.speech.objective import speech_objective
from transformer.systems.speech.options import ctc_weight_of
from transformer.systems.speech.task import SpeechToText
from transformer.systems.system import System


def search_by_options(search: AutoregressiveSearch, model: ModelConfig, options: DecodingConfig) -> Any:
    """Attention, CTC, or both, as the options ask for it."""
    weight = ctc_weight_of(model, options)
    if weight == 1:
        return CtcSearch(search.limits)
    return replace(search, hook=CtcScores(weight, model.special)) if weight else search


def by_model(system: System, model: ModelConfig) -> System:
    """What can be done with CTC alone, which has no decoder; with other models all."""
    if getattr(model, "ctc_weight", 0) != 1:
        return system
    return replace(system, search=CtcSearch(limits_of_frames), attentions=None, alignment=None, scores=None)


SYSTEM = System(
    model=SpeechTransformer,
    objective=speech_objective,
    search=AutoregressiveSearch(limits=limits_of_frames, by_options=search_by_options),
    attentions=cross_attention,
    alignment=forced_alignment(cross_attention),
    scores=forced_scores,
    task=SpeechToText,
    by_model=by_model,
)
