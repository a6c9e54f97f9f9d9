"""Makes tests/data/pretrained/*: small random models of several families in Hugging Face's format, and its
results for some sentences. Run once, by hand:

    pip install 'transformers==5.24.0' 'tokenizers==0.23.3' torch safetensors
    python tests/make_pretrained_golden.py

The tests then need neither torch nor transformers.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

PLACE = Path(__file__).parent / "data" / "pretrained"
TEXT = [
    "a dog runs over the green field",
    "two men ride their bikes on the street",
    "the woman reads a book in the park",
    "ein hund rennt über das grüne feld",
    "kinder spielen mit einem ball am wasser",
]
SOURCES = ["a dog reads a book", "two children near the park", "the  xylophone ", "men run", "Ω"]
SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 1},
    {"num_beams": 4, "length_penalty": 1.0, "early_stopping": False},
    {"num_beams": 3, "length_penalty": 0.3, "early_stopping": True, "no_repeat_ngram_size": 2},
    {"num_beams": 4, "length_penalty": 0.5, "early_stopping": "never", "min_length": 6},
]
PAD_FIRST = ["<pad>", "</s>", "<unk>"]
SPECIALS = {"t5": PAD_FIRST, "pegasus": PAD_FIRST}
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
CODES = {"mbart": ["en_XX", "de_DE"], "m2m_100": ["eng_Latn", "deu_Latn"]}
BEFORE = {"bart": "<s>", "mbart": "en_XX", "m2m_100": "eng_Latn"}
FORCED = {"bart": "<s>", "mbart": "de_DE", "m2m_100": "deu_Latn"}
SIZES: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 24,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 64,
}
T5: dict[str, Any] = {
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
PEGASUS: dict[str, Any] = {
    **SIZES,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "scale_embedding": True,
    "activation_function": "relu",
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {  # folder: model type, class of the model, options
    "bart": ("bart", "BartForConditionalGeneration", SIZES),
    "mbart": (
        "mbart",
        "MBartForConditionalGeneration",
        {**SIZES, "scale_embedding": True, "decoder_start_token_id": 2},
    ),
    "pegasus": ("pegasus", "PegasusForConditionalGeneration", PEGASUS),
    "nllb": ("m2m_100", "M2M100ForConditionalGeneration", {**SIZES, "scale_embedding": True}),
    "t5": ("t5", "T5ForConditionalGeneration", T5),
    "t5-1.1": (
        "t5",
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
}


def make_tokenizer(kind: str) -> Tokenizer:
    """Byte-level BPE for BART, BPE of words with marks for NLLB, unigram models for the others."""
    special = SPECIALS.get(kind, FAIRSEQ)
    trainer: Any
    if kind == "bart":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    else:
        is_bpe = kind == "m2m_100"
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>") if is_bpe else models.Unigram())
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        options = {"vocab_size": 60, "special_tokens": special}
        if is_bpe:
            trainer = trainers.BpeTrainer(**options)
        else:
            trainer = trainers.UnigramTrainer(**options, unk_token="<unk>")
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens(CODES.get(kind, []))
    before = BEFORE.get(kind)
    names = ["</s>", *([before] if before else [])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{before} $A </s>" if before else "$A </s>",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in names],
    )
    return tokenizer


def make(name: str, kind: str, model_class: str, options: dict[str, Any], seed: int) -> bool:
    """Writes a folder. Returns whether enough searches end by themselves: where an output is cut, the
    reference adds </s> at no cost, so n-best lists with one of these are left out."""
    folder = PLACE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(kind), unk_token="<unk>", pad_token="<pad>", eos_token="</s>"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(kind, vocab_size=len(fast) + 1, **options)
    model = getattr(transformers, model_class)(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if kind == "pegasus" and "embed_positions" in parameter_name:
                continue  # sinusoids
            spread = 0.5 if parameter.ndim == 1 else 0.35
            parameter.copy_(spread * torch.randn_like(parameter) + (parameter.ndim == 1))
        model.get_input_embeddings().weight[model.config.eos_token_id] *= 2
        if name == "t5-1.1":  # its embeddings are one matrix in every published model
            model.encoder.embed_tokens.weight = model.decoder.embed_tokens.weight = model.shared.weight
            model.lm_head.weight = torch.nn.Parameter(0.35 * torch.randn_like(model.shared.weight))
            model.lm_head.weight[model.config.eos_token_id] *= 2
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias += 0.3 * torch.randn_like(model.final_logits_bias)
    meant = model.generation_config
    meant.forced_bos_token_id = fast.convert_tokens_to_ids(FORCED[kind]) if kind in FORCED else None
    meant.forced_eos_token_id = model.config.eos_token_id
    meant.bad_words_ids = [[model.config.pad_token_id]]
    meant.max_length = 20
    model.save_pretrained(folder)
    batch = fast(SOURCES, padding=True, return_tensors="pt")
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    targets = torch.randint(3, len(fast), (len(SOURCES), 9))
    targets[:, 0] = model.config.decoder_start_token_id
    golden: dict[str, Any] = {"languages": CODES.get(kind, [None, None]), "sources": SOURCES}
    golden["source_ids"] = inputs["input_ids"].tolist()
    golden["target_ids"] = targets.tolist()
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=targets).logits
        golden["logits"] = [[[round(x, 5) for x in row] for row in rows] for rows in logits[:2].tolist()]
        golden["searches"] = []
        for search in SEARCHES:
            beams = search["num_beams"]
            output = model.generate(
                **inputs,
                **search,
                do_sample=False,
                num_return_sequences=beams,
                return_dict_in_generate=True,
                output_scores=True,
            )
            texts = fast.batch_decode(output.sequences, skip_special_tokens=True)
            scores = output.sequences_scores.tolist() if beams > 1 else [None] * len(SOURCES)
            hypotheses = [[text.strip(" "), score] for text, score in zip(texts, scores, strict=True)]
            n_best = [hypotheses[row * beams : (row + 1) * beams] for row in range(len(SOURCES))]
            ends = [
                len(row) < meant.max_length or row[-1] == fast.pad_token_id
                for row in output.sequences.tolist()
            ]
            kept = [
                n_best[row] if all(ends[row * beams : (row + 1) * beams]) else None
                for row in range(len(SOURCES))
            ]
            golden["searches"].append({**search, "n_best": kept})
    whole = [n_best for search in golden["searches"] for n_best in search["n_best"] if n_best]
    if len(whole) < 6 or len({n_best[0][0] for n_best in whole}) < 2:
        return False
    print(
        f"{name}, seed {seed}: {len(whole)} whole n-best lists, such as {[n_best[0][0] for n_best in whole]}"
    )
    (folder / "golden.json").write_text(json.dumps(golden, ensure_ascii=False))
    return True


if __name__ == "__main__":
    for name, family in FAMILIES.items():
        assert any(make(name, *family, seed) for seed in range(200))
