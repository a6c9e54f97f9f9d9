"""Imports BERT as a run of the system `masked-lm`, which is trained further, or becomes the encoder of other
models (`train.py --init-encoder-from`)."""

from pathlib import Path

import jax
import jax.numpy as jnp

from transformer.config import Config, SpecialIds
from transformer.config.texts import SentencesConfig
from transformer.interop.architectures.bert import HEAD, STORAGE, bert_options
from transformer.interop.conversion import imported_params
from transformer.interop.reading import CONFIG, naming, read_json, tensors
from transformer.interop.unused import unused
from transformer.interop.vocabularies.files import read_pieces
from transformer.model.parameters import Params, declarations
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.systems.masked_language_model.model import MaskedLanguageModel
from transformer.systems.masked_language_model.options import MaskedLanguageModelConfig
from transformer.systems.masked_language_model.task import MaskedLanguageModelling
from transformer.systems.presets import preset

MODEL_TYPE = "bert"
_SPECIAL = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
_MASK = "[MASK]"


def import_bert(folder: Path, run_dir: Path | str, origin: str = "imported") -> Run:
    """Writes a run directory from BERT. Texts begin with [CLS] and end with [SEP]. A head that is not stored
    is initialised as before training.

    Args:
      folder: with config.json, model.safetensors, and tokenizer.json or vocab.txt.
      run_dir: a new directory, for `train.py --init-encoder-from` and `--init-from`.
      origin: what the run says of where it comes from.

    Raises:
      UserError: a file is missing, damaged or of another kind of model.
    """
    described, source = read_json(folder / CONFIG), tensors(folder)
    pieces = read_pieces(folder)
    ids = {name: pieces.id_of(piece) for name, piece in (_SPECIAL | {"mask": _MASK}).items()}
    if missing := [(_SPECIAL | {"mask": _MASK})[name] for name, index in ids.items() if index is None]:
        raise UserError(f"the vocabulary of {folder} has no {missing[0]}")
    mask = ids.pop("mask")
    with naming(folder / CONFIG):
        size = described["vocab_size"]
        special = SpecialIds(**ids)  # type: ignore[arg-type]  # none is None
        model = MaskedLanguageModelConfig(
            vocab_size=size, special=special, mask_id=mask, **bert_options(described)
        )
        tokenizer = pieces.tokenizer(size, special, [special.bos])
    data = SentencesConfig(dataset=origin, max_length=min(SentencesConfig.max_length, model.max_positions))
    config = Config(system="masked-lm", model=model, data=data, decoding=preset("masked-lm").decoding)
    network, example = MaskedLanguageModel(model), MaskedLanguageModelling.example(config)

    def initial() -> Params:
        params: Params = network.init(jax.random.key(0), *(jnp.zeros(x.shape, x.dtype) for x in example))
        return params["params"]

    with naming(folder):
        declared = declarations(network, example)
        params = imported_params(STORAGE, described, model, source, declared, initial)
    task = MaskedLanguageModelling(config, tokenizer)
    return Run.create(run_dir, config, task, variables={"params": params}, unused=unused(folder))


def has_head(folder: Path) -> bool:
    """Whether a folder has the head that predicts hidden tokens."""
    return f"{HEAD}transform.dense.weight" in tensors(folder).names
