"""Translates a file with CTranslate2 as in its documentation, to compare whole processes. (It imports nothing
else, which would count as its time.)"""

import json
import sys
from pathlib import Path

import ctranslate2
import sentencepiece

if __name__ == "__main__":
    *paths, beam, alpha, longest = json.loads(sys.argv[1])
    converted, spm_folder, source, output = map(Path, paths)
    cut = sentencepiece.SentencePieceProcessor(model_file=str(spm_folder / "source.spm"))
    join = sentencepiece.SentencePieceProcessor(model_file=str(spm_folder / "target.spm"))
    lines = source.read_text(encoding="utf-8").splitlines()
    translator = ctranslate2.Translator(str(converted), device="cpu", inter_threads=2, intra_threads=1)
    found = translator.translate_batch(
        [[*pieces, "</s>"] for pieces in cut.encode(lines, out_type=str)],
        beam_size=beam,
        length_penalty=alpha,
        max_decoding_length=longest,
        max_batch_size=32,
    )
    texts = (join.decode_pieces(result.hypotheses[0]) for result in found)
    output.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
