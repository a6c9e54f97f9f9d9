"""Makes tests/data/pretrained/*/directions.json: what transformers generates with the models of many
languages there, between all pairs of these. Run once, by hand, after tests/make_pretrained_golden.py:

    pip install 'transformers==5.24.0' 'tokenizers==0.23.3' torch safetensors
    python tests/make_languages_golden.py
"""

import itertools
import json

import torch
import transformers
from make_pretrained_golden import CODES, PLACE, SOURCES

FOLDERS = {"nllb": "m2m_100", "mbart": "mbart"}
SEARCH = {"num_beams": 4, "length_penalty": 0.5, "early_stopping": "never", "min_length": 6}

for name, kind in FOLDERS.items():
    folder = PLACE / name
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    texts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in SOURCES]
    directions = []
    for source, target in itertools.product(CODES[kind], repeat=2):
        start, code = tokenizer.convert_tokens_to_ids([source, target])
        n_best = []
        for ids in texts:
            outputs = model.generate(
                torch.tensor([[start, *ids, tokenizer.eos_token_id]]),
                **SEARCH,
                forced_bos_token_id=code,
                do_sample=False,
                num_return_sequences=SEARCH["num_beams"],
                return_dict_in_generate=True,
                output_scores=True,
            )
            rows = outputs.sequences.tolist()
            ends = all(len(row) < 20 or row[-1] == tokenizer.pad_token_id for row in rows)
            spelled = tokenizer.batch_decode(rows, skip_special_tokens=True)
            scores = outputs.sequences_scores.tolist()
            # where an output is cut, the reference adds </s> at no cost
            n_best.append([[x.strip(" "), y] for x, y in zip(spelled, scores, strict=True)] if ends else None)
        directions.append({"languages": [source, target], "n_best": n_best})
    (folder / "directions.json").write_text(json.dumps(directions, ensure_ascii=False))
    print(name, [(about["languages"], [x and x[0] for x in about["n_best"]]) for about in directions])
