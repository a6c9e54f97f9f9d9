"""Compares exported models with the ones that were imported, as `transformers` and CTranslate2 read them.

Run by hand, once for each family of tests/data/pretrained, here t5:

    transformer import tests/data/pretrained/t5 RUN      # with the languages that golden.json names
    transformer export RUN EXPORTED
    pip install 'transformers==5.24.0' 'ctranslate2==4.8.5' torch      # may be another environment
    python tests/compare_exports.py EXPORTED tests/data/pretrained/t5/golden.json
    python tests/compare_exports.py EXPORTED tests/data/whisper        # for Whisper: the folder it was
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
import transformers


def main() -> None:
    """Prints a line about logits, n-best lists and CTranslate2."""
    folder, golden_file = sys.argv[1:]
    if Path(golden_file).is_dir():
        return compare_whisper(folder, golden_file)
    golden = json.loads(Path(golden_file).read_text())
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sources = torch.tensor(golden["source_ids"])
    is_text = (sources != model.config.pad_token_id).long()
    targets = torch.tensor(golden["target_ids"])
    with torch.no_grad():
        logits = model(input_ids=sources, attention_mask=is_text, decoder_input_ids=targets).logits.numpy()
        expected = np.array(golden["logits"])
        difference = np.abs(logits[: len(expected)] - expected).max()
        equal: list[bool] = []
        for search in golden["searches"]:
            options = {name: value for name, value in search.items() if name != "n_best"}
            beams = options["num_beams"]
            ids = model.generate(
                input_ids=sources, attention_mask=is_text, num_return_sequences=beams, **options
            )
            texts = [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
            for index, n_best in enumerate(search["n_best"]):
                if n_best is not None:  # it was not cut at the limit
                    found = texts[index * beams : (index + 1) * beams]
                    equal.append(found == [text.strip() for text, _ in n_best])
        print(
            f"{model.config.model_type}: logits within {difference:.1e}, {sum(equal)} of {len(equal)} n-best"
        )
        print(f"CTranslate2: {compare_ctranslate2(model, tokenizer, golden, sources)} greedy outputs equal")


def compare_whisper(folder: str, original: str) -> None:
    """Both on the same noise: logits, greedy outputs with and without times, and CTranslate2's."""
    features = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 80, 3000)).astype(np.float32))
    ids = torch.tensor([[257, 258, 261, 265, 40, 41]])
    logits, outputs = [], []
    search = transformers.GenerationConfig.from_pretrained(folder)
    for path in (folder, original):
        model = transformers.WhisperForConditionalGeneration.from_pretrained(path).eval()
        model.generation_config = search  # that of the tests is older than transformers reads
        with torch.no_grad():
            logits.append(model(input_features=features[:1], decoder_input_ids=ids).logits)
            options = {"language": "en", "task": "transcribe", "num_beams": 1, "max_length": 30}
            outputs.append(
                [model.generate(features, return_timestamps=timed, **options) for timed in (False, True)]
            )
    difference = (logits[0] - logits[1]).abs().max()
    equal = sum(bool((mine == its).all()) for mine, its in zip(*outputs, strict=True))
    print(f"whisper: logits within {difference:.1e}, {equal} of {len(outputs[0])} greedy batches equal")


def compare_ctranslate2(model: Any, tokenizer: Any, golden: dict[str, Any], sources: Any) -> str:
    """Its converter refuses models with more rows than tokens, which those of the tests have: tokens are
    added."""
    tokenizer.add_tokens([f"unused {index}" for index in range(len(tokenizer), model.config.vocab_size)])
    rows = [[int(index) for index in row if index != model.config.pad_token_id] for row in sources]
    tokens = [tokenizer.convert_ids_to_tokens(row) for row in rows]
    first = model.generation_config.forced_bos_token_id
    prefix = None if first is None else [[tokenizer.convert_ids_to_tokens(first)]] * len(tokens)
    with tempfile.TemporaryDirectory() as work:
        whole, converted = f"{work}/whole", f"{work}/converted"
        model.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        converter = ["ct2-transformers-converter", "--model", whole, "--output_dir", converted]
        subprocess.run(converter, check=True, capture_output=True)
        results = ctranslate2.Translator(converted).translate_batch(
            tokens, target_prefix=prefix, beam_size=1, min_decoding_length=0, max_decoding_length=19
        )
    ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
    texts = [tokenizer.decode(row, skip_special_tokens=True).strip() for row in ids]
    greedy = golden["searches"][0]["n_best"]
    equal = [text == n_best[0][0].strip() for text, n_best in zip(texts, greedy, strict=True) if n_best]
    return f"{sum(equal)} of {len(equal)}"


if __name__ == "__main__":
    main()
