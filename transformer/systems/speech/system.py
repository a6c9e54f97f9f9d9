"""Speech recognition."""

from transformer.decoding.forced import forced_alignment, forced_scores
from transformer.decoding.search import AutoregressiveSearch
from transformer.model.transformer import cross_attention
from transformer.systems.speech.model import SpeechTransformer, limits_of_frames
from transformer.systems.speech.task import SpeechToText
from transformer.systems.system import System
from transformer.training.objective import translation_objective

SYSTEM = System(
    model=SpeechTransformer,
    objective=lambda config, _: translation_objective(config.training.label_smoothing),
    search=AutoregressiveSearch(limits=limits_of_frames),
    attentions=cross_attention,
    alignment=forced_alignment(cross_attention),
    scores=forced_scores,
    task=SpeechToText,
)
