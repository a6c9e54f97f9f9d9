"""The tokenizer of a Marian model."""

import re
from collections.abc import Sequence

from transformer.config import SpecialIds
from transformer.data.features.pieces import PiecesTokenizer


class MarianTokenizer(PiecesTokenizer):
    """A `PiecesTokenizer` whose texts may begin with the code of the target language, such as >>deu<<. It
    shows <unk> as U+2047."""

    kind = "marian"

    def __init__(
        self, model: bytes, words: list[str | None], special: SpecialIds, start: Sequence[int] = ()
    ) -> None:
        super().__init__(model, words, special, start)
        self._apart = re.compile(r"\A(>>[^<]*<<)")
        self._silent = {special.pad, special.bos, special.eos}
