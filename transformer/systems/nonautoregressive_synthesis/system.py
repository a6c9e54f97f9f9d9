"""Non-autoregressive speech synthesis."""

from functools import partial

from transformer.decoding.forced import sown_attention
from transformer.model.transformer import cross_attention
from transformer.systems.nonautoregressive_synthesis.model import NonAutoregressiveSynthesiser
from transformer.systems.nonautoregressive_synthesis.objective import nonautoregressive_synthesis_objective
from transformer.systems.nonautoregressive_synthesis.search import nonautoregressive_synthesis_search
from transformer.systems.synthesis.task import TextToSpeech
from transformer.systems.system import System

SYSTEM = System(
    model=NonAutoregressiveSynthesiser,
    objective=nonautoregressive_synthesis_objective,
    search=nonautoregressive_synthesis_search,
    attentions=cross_attention,
    alignment=partial(sown_attention, cross_attention),
    task=TextToSpeech,
)
