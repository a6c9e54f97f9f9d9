"""Models that copy words of the source."""

from transformer.systems.copying.model import CopyingTransformer, pointer
from transformer.systems.copying.objective import copying_objective
from transformer.systems.copying.search import copying_scores, copying_search, pointers
from transformer.systems.system import System

SYSTEM = System(
    model=CopyingTransformer,
    objective=lambda config, _: copying_objective(config),
    search=copying_search,
    attentions=pointer,
    alignment=pointers,
    scores=copying_scores,
    copies=True,
)
