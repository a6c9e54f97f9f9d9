"""Pretrained models as declarations: what a family is in terms of the options and parameters here."""

from transformer.interop.architectures.bart import BART, M2M_100, MBART, PEGASUS
from transformer.interop.architectures.marian import MARIAN
from transformer.interop.architectures.t5 import MT5, T5
from transformer.interop.architectures.torch_transformer import TORCH

ARCHITECTURES = {
    family.model_type: family for family in (MARIAN, BART, MBART, PEGASUS, M2M_100, T5, MT5, TORCH)
}
"""By the `model_type` of their config.json. An export takes the first that describes the model."""
