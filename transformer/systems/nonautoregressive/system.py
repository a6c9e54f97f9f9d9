"""Non-autoregressive Transformers."""

from transformer.model.transformer import cross_attention
from transformer.systems.nonautoregressive.forced import nonautoregressive_attention, nonautoregressive_scores
from transformer.systems.nonautoregressive.model import NonAutoregressiveTransformer
from transformer.systems.nonautoregressive.objective import nonautoregressive_objective
from transformer.systems.nonautoregressive.search import nonautoregressive_search
from transformer.systems.system import System

SYSTEM = System(
    model=NonAutoregressiveTransformer,
    objective=nonautoregressive_objective,
    search=nonautoregressive_search,
    attentions=cross_attention,
    alignment=nonautoregressive_attention,
    scores=nonautoregressive_scores,
)
