"""The convolutional encoder-decoder."""

from transformer.decoding.forced import forced_alignment, forced_scores
from transformer.decoding.search import autoregressive_search
from transformer.systems.convolutional.model import Convolutional, attention
from transformer.systems.system import System
from transformer.training.objective import translation_objective

SYSTEM = System(
    model=Convolutional,
    objective=lambda config, _: translation_objective(config.training.label_smoothing),
    search=autoregressive_search,
    attentions=attention,
    alignment=forced_alignment(attention),
    scores=forced_scores,
)
