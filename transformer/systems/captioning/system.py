"""Captioning."""

from transformer.decoding.forced import forced_alignment, forced_scores
from transformer.decoding.search import AutoregressiveSearch, limits_of_options
from transformer.model.patches import PatchTransformer
from transformer.model.transformer import cross_attention
from transformer.systems.captioning.task import Captioning
from transformer.systems.system import System
from transformer.training.objective import translation_objective

SYSTEM = System(
    model=PatchTransformer,
    objective=lambda config, _: translation_objective(config.training.label_smoothing),
    search=AutoregressiveSearch(limits=limits_of_options),
    attentions=cross_attention,
    alignment=forced_alignment(cross_attention),
    scores=forced_scores,
    task=Captioning,
)
