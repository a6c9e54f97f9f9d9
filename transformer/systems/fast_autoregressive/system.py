"""AT and FAT."""

from transformer.decoding.forced import forced_alignment, forced_scores
from transformer.decoding.search import autoregressive_search
from transformer.systems.fast_autoregressive.model import FastAutoregressive
from transformer.systems.recurrent.model import attention
from transformer.systems.system import System
from transformer.training.objective import translation_objective

SYSTEM = System(
    model=FastAutoregressive,
    objective=lambda config, _: translation_objective(config.training.label_smoothing),
    search=autoregressive_search,
    attentions=attention,
    alignment=forced_alignment(attention),
    scores=forced_scores,
)
