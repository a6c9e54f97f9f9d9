"""Recurrent encoder-decoders."""

from transformer.decoding.forced import forced_alignment, forced_scores
from transformer.decoding.search import autoregressive_search
from transformer.systems.recurrent.hard_attention import recurrent_objective
from transformer.systems.recurrent.model import Recurrent, attention
from transformer.systems.system import System

SYSTEM = System(
    model=Recurrent,
    objective=lambda config, _: recurrent_objective(config),
    search=autoregressive_search,
    attentions=attention,
    alignment=forced_alignment(attention),
    scores=forced_scores,
)
