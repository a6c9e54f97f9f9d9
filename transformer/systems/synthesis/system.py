"""Speech synthesis."""

from functools import partial

from transformer.decoding.forced import sown_attention
from transformer.model.transformer import cross_attention
from transformer.systems.synthesis.model import Synthesiser
from transformer.systems.synthesis.objective import synthesis_objective
from transformer.systems.synthesis.search import synthesis_search
from transformer.systems.synthesis.task import TextToSpeech
from transformer.systems.system import System

SYSTEM = System(
    model=Synthesiser,
    objective=lambda config, _: synthesis_objective,
    search=synthesis_search,
    attentions=cross_attention,
    alignment=partial(sown_attention, cross_attention),  # the model shifts the frames itself
    task=TextToSpeech,
)
