"""BERT's vocabulary: texts begin with [CLS] and end with [SEP], and so do those of its new decoder."""

from pathlib import Path

from transformer.config import Config, TransformerConfig
from transformer.interop.architectures.architecture import (
    Architecture,
    Languages,
    Tokenizers,
    VocabularyFiles,
)
from transformer.interop.vocabularies.hub import HubVocabulary
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json

NAMES = {"pad_token_id": "[PAD]", "decoder_start_token_id": "[CLS]", "eos_token_id": "[SEP]"}


class BertVocabulary(HubVocabulary):
    """As `Vocabulary`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for name, piece in NAMES.items():
            if (index := self._pieces.id_of(piece)) is None:
                raise UserError(f"the vocabulary of {folder} has no {piece}")
            self.ids[name] = index

    def tokenizers(
        self, architecture: Architecture, described: Json, model: TransformerConfig, languages: Languages
    ) -> Tokenizers:
        """As `Vocabulary.tokenizers`."""
        if any(languages):
            raise UserError("--source-language, --target-language: texts of this model have no code")
        return self._tokenizer(model, [model.special.bos]), self._tokenizer(model, [])

    @staticmethod
    def exported(tokenizers: Tokenizers, config: Config) -> VocabularyFiles | None:
        """As `Vocabulary.exported`."""
        return None
