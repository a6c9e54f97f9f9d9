"""The encoder-decoder Transformer (Vaswani et al. 2017)."""

from transformer.model.transformer import Transformer, cross_attention
from transformer.systems.system import autoregressive

SYSTEM = autoregressive(Transformer, cross_attention, packs=True)
