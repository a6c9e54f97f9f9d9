"""The encoder-decoder Transformer (Vaswani et al. 2017)."""

from transformer.decoding.forced import forced_alignment, forced_scores
from transformer.decoding.searches.search import autoregressive_search
from transformer.model.transformer import Transformer, cross_attention
from transformer.systems.system import System
from transformer.training.objective import translation_objective

SYSTEM = System(
    model=Transformer,
    objective=lambda config, _: translation_objective(config.training.label_smoothing),
    search=autoregressive_search,
    attentions=cross_attention,
    alignment=forced_alignment(cross_attention),
    scores=forced_scores,
    packs=True,
)
