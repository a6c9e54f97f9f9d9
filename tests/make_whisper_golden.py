"""Makes tests/data/whisper/*: a small random Whisper model in Hugging Face's format, and its results for two
sounds. Run once, by hand:

    pip install 'transformers==5.24.0' 'tokenizers==0.23.3' torch
    python tests/make_whisper_golden.py

The tests then need neither torch nor transformers.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from invented_sound import SOUNDS, sound
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

PLACE = Path(__file__).parent / "data" / "whisper"
CODES = ["en", "de"]
TASKS = ["translate", "transcribe"]
OTHERS = ["startoflm", "startofprev", "nospeech", "notimestamps"]
LONGEST = 32
FRAMES = slice(0, 3000, 120)
SEARCHES: list[dict[str, Any]] = [
    {"language": "en", "task": "transcribe", "return_timestamps": False},
    {"language": "de", "task": "translate", "return_timestamps": False},
    {"language": "en", "task": "transcribe", "return_timestamps": True},
]


def make_tokenizer() -> tuple[Tokenizer, dict[str, int]]:
    """The bytes as words, and the tokens of Whisper."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    named = ["endoftext", "startoftranscript", *CODES, *TASKS, *OTHERS]
    tokenizer.add_special_tokens([f"<|{name}|>" for name in named])
    tokenizer.add_tokens([f"<|{index * 0.02:.2f}|>" for index in range(1501)])
    return tokenizer, {name: tokenizer.token_to_id(f"<|{name}|>") for name in named}


def main(seed: int) -> None:
    """Writes the folder."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    tokenizer, ids = make_tokenizer()
    tokenizer.save(str(PLACE / "tokenizer.json"), pretty=False)
    extractor = WhisperFeatureExtractor()
    extractor.save_pretrained(PLACE)
    torch.manual_seed(seed)
    config = WhisperConfig(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=8,
        encoder_layers=1,
        decoder_layers=2,
        encoder_ffn_dim=12,
        decoder_ffn_dim=16,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        max_target_positions=LONGEST,
        pad_token_id=ids["endoftext"],
        bos_token_id=ids["endoftext"],
        eos_token_id=ids["endoftext"],
        decoder_start_token_id=ids["startoftranscript"],
        suppress_tokens=[7, 9],
        begin_suppress_tokens=[11, ids["endoftext"]],
    )
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "encoder.embed_positions" not in name:
                parameter.copy_(0.5 * torch.randn_like(parameter) + (parameter.ndim == 1 and "norm" in name))
        model.model.decoder.embed_tokens.weight[ids["endoftext"]] *= 1.4
    generation = model.generation_config
    options: dict[str, Any] = dict(
        lang_to_id={f"<|{code}|>": ids[code] for code in CODES},
        task_to_id={task: ids[task] for task in TASKS},
        no_timestamps_token_id=ids["notimestamps"],
        is_multilingual=True,
        max_initial_timestamp_index=50,
        suppress_tokens=[
            7,
            9,
            ids["startoftranscript"],
            *(ids[name] for name in [*CODES, *TASKS, *OTHERS[:3]]),
        ],
        begin_suppress_tokens=[11, ids["endoftext"]],
        eos_token_id=ids["endoftext"],
        pad_token_id=ids["endoftext"],
        decoder_start_token_id=ids["startoftranscript"],
        max_length=LONGEST,
    )
    for name, value in options.items():
        setattr(generation, name, value)
    model.save_pretrained(PLACE)
    waves = [sound(number) for number in range(SOUNDS)]
    features = extractor(waves, sampling_rate=16_000, return_tensors="pt").input_features
    start = [ids["startoftranscript"], ids["en"], ids["transcribe"], ids["notimestamps"]]
    target = torch.tensor([[*start, 40, 50, 60, 70]] * SOUNDS)
    with torch.no_grad():
        logits = model(input_features=features, decoder_input_ids=target).logits
        searches = [{**search, "ids": searched(model, features, search)} for search in SEARCHES]
    golden = {
        "features": features[:, :, FRAMES].numpy().round(5).tolist(),
        "target_ids": target.tolist(),
        "logits": logits[:1, :, :300].numpy().round(5).tolist(),
        "searches": searches,
    }
    (PLACE / "golden.json").write_text(json.dumps(golden) + "\n")
    for search in searches:
        print(search["ids"])


def searched(model: Any, features: Any, search: dict[str, Any]) -> list[list[int]]:
    """The ids of the most probable outputs, step by step, after those that are forced."""
    meant = model.generation_config
    start = [meant.decoder_start_token_id, meant.lang_to_id[f"<|{search['language']}|>"]]
    start.append(meant.task_to_id[search["task"]])
    rules: list[Any] = [
        SuppressTokensLogitsProcessor(meant.suppress_tokens),
        SuppressTokensAtBeginLogitsProcessor(meant.begin_suppress_tokens, begin_index=len(start)),
    ]
    if search["return_timestamps"]:
        rules.append(WhisperTimeStampLogitsProcessor(meant, begin_index=len(start)))
    else:
        start.append(meant.no_timestamps_token_id)
        rules[1] = SuppressTokensAtBeginLogitsProcessor(meant.begin_suppress_tokens, begin_index=len(start))
    outputs = []
    for row in features:
        ids = list(start)
        while len(ids) < LONGEST and (len(ids) == len(start) or ids[-1] != meant.eos_token_id):
            scores = model(input_features=row[None], decoder_input_ids=torch.tensor([ids])).logits[:, -1]
            for rule in rules:
                scores = rule(torch.tensor([ids]), scores)
            ids.append(int(scores.argmax()))
        outputs.append(ids[len(start) :])
    return outputs


if __name__ == "__main__":
    main(seed=int(sys.argv[1]) if len(sys.argv) > 1 else 12)
