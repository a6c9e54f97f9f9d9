"""Pretrained models as declarations: what a family is in terms of the options and parameters here."""

from typing import Any

from transformer.interop.architectures.bart import BART, M2M_100, MBART, PEGASUS
from transformer.interop.architectures.bert import BERT
from transformer.interop.architectures.marian import MARIAN
from transformer.interop.architectures.t5 import MT5, T5
from transformer.interop.architectures.torch_transformer import TORCH
from transformer.interop.architectures.whisper import CONVERTED_WHISPER, WHISPER
from transformer.interop.folders.family import Family

FAMILIES: dict[str, Family[Any]] = {
    family.model_type: family
    for family in (MARIAN, BART, MBART, PEGASUS, M2M_100, T5, MT5, TORCH, WHISPER, BERT)
}
"""By the `model_type` of their config.json. An export takes the first that describes the model."""
CONVERTED: dict[str, Family[Any]] = {"WhisperSpec": CONVERTED_WHISPER}
"""Families of models in CTranslate2's folders, by the specification that model.bin names; a Transformer's is
not among them."""
