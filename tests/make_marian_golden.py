"""Makes tests/data/marian*: small random Marian models in Hugging Face's format, and its results for some
sentences. Run once, by hand:

    pip install 'transformers==5.23.0' torch safetensors sentencepiece
    python tests/make_marian_golden.py

The tests then need neither torch nor transformers.
"""

import io
import json
import shutil
from pathlib import Path

import sentencepiece
import torch
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

PLACE = Path(__file__).parent / "data"
TEXT = {
    "en": [
        "a dog runs over the green field",
        "two men ride their bikes on the street",
        "the woman reads a book in the park",
        "children play with a ball near the water",
    ],
    "de": [
        "ein hund rennt über das grüne feld",
        "zwei männer fahren fahrrad auf der straße",
        "die frau liest ein buch im park",
        "kinder spielen mit einem ball am wasser",
    ],
}
SOURCES = ["a dog reads a book", ">>de<< two children near the park", "the xylophone", "men run", "Ω"]
SEARCHES = [
    {"num_beams": 4, "length_penalty": 1.0, "early_stopping": False},
    {"num_beams": 3, "length_penalty": 0.3, "early_stopping": True},
    {"num_beams": 4, "length_penalty": 0.5, "early_stopping": "never"},
]


def train_spm(lines: list[str], path: Path) -> list[str]:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=48,
        hard_vocab_limit=False,
        bos_id=-1,
        pad_id=-1,
        unk_id=0,
        eos_id=1,
        normalization_rule_name="identity",  # the usual one takes 240 kB
    )
    path.write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [processor.id_to_piece(index) for index in range(2, processor.vocab_size())]


def make(name: str, separate: bool, seed: int, end: float, generation: dict | None = None, **sizes) -> None:
    """`end`, added to the logit of </s>, and the seed are chosen so that sentences end by themselves.

    `generation` is the content of generation_config.json, as in OPUS-MT models.
    """
    folder = PLACE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # the model of a language has pieces that the vocabulary lacks, as in OPUS-MT
    pieces = [
        train_spm(TEXT[lang], folder / file)[:-2]
        for lang, file in (("en", "source.spm"), ("de", "target.spm"))
    ]
    if not separate:
        pieces = [sorted(set(pieces[0] + pieces[1] + [">>de<<"]))]
    words = [["</s>", "<unk>", *some] for some in pieces]
    size = max(map(len, words)) + 1
    words = [[*some, *(f"unused{n}" for n in range(size - 1 - len(some))), "<pad>"] for some in words]
    for file, some in zip(("vocab.json", "target_vocab.json"), words, strict=False):
        text = json.dumps({word: index for index, word in enumerate(some)}, ensure_ascii=False)
        (folder / file).write_text(text + "\n")
    config = MarianConfig(
        vocab_size=size,
        decoder_vocab_size=size,
        share_encoder_decoder_embeddings=not separate,
        scale_embedding=True,
        max_position_embeddings=64,
        pad_token_id=size - 1,
        decoder_start_token_id=size - 1,
        eos_token_id=0,
        forced_eos_token_id=0,
        dropout=0.0,
        d_model=16,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        **sizes,
    )
    torch.manual_seed(seed)
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for key, x in model.named_parameters():
            if "embed_positions" not in key:
                spread = 0.4 if "embed" in key or "shared" in key else 0.35 if "weight" in key else 0.1
                x.copy_(torch.randn_like(x) * spread + ("norm.weight" in key))
        model.final_logits_bias.normal_(0, 0.5)
        model.final_logits_bias[0, 0] += end
        if generation:  # as in OPUS-MT models, where most logits are below the 0 of <pad>
            model.final_logits_bias -= 8
            model.final_logits_bias[0, size - 1] = 0
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_tokens.weight[size - 1] = 0
    if generation is not None:
        model.generation_config.update(**generation, bad_words_ids=[[size - 1]])
    model.save_pretrained(folder)
    if generation is None:
        (folder / "generation_config.json").unlink()
    names = {"target_vocab_file": str(folder / "target_vocab.json")} if separate else {}
    tokenizer = MarianTokenizer(
        str(folder / "source.spm"),
        str(folder / "target.spm"),
        str(folder / "vocab.json"),
        separate_vocabs=separate,
        **names,
    )
    inputs = tokenizer(SOURCES, return_tensors="pt", padding=True)
    targets = torch.randint(2, size - 1, (len(SOURCES), 6))
    targets[:, 0] = size - 1
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=targets).logits
    golden = {
        "sources": SOURCES,
        "source_ids": inputs["input_ids"].tolist(),
        "target_ids": targets.tolist(),
        "logits": [[[round(x, 5) for x in row] for row in rows] for rows in logits.tolist()],
        "searches": [],
    }
    if generation:
        best = [
            model.generate(**inputs, num_beams=4, max_length=40, renormalize_logits=said).tolist()
            for said in (True, False)
        ]
        assert best[0] != best[1], "the probability of <pad> makes no difference"
    for options in SEARCHES[: 1 if separate else None]:
        found = model.generate(
            **inputs,
            **options,
            max_length=40,
            num_return_sequences=options["num_beams"],
            bad_words_ids=[[size - 1]],
            output_scores=True,
            return_dict_in_generate=True,
        )
        said = [[index for index in row if index != size - 1] for row in found.sequences.tolist()]
        # at the limit the reference counts </s> as certain; no sentence here reaches it
        assert all(row[-1] == 0 and len(row) < 39 for row in said), max(map(len, said))
        texts = tokenizer.batch_decode(found.sequences, skip_special_tokens=True)
        golden["searches"].append(
            {"options": options, "ids": said, "texts": texts, "scores": found.sequences_scores.tolist()}
        )
    text = json.dumps(golden, ensure_ascii=False)
    (folder / "golden.json").write_text(text + "\n")


RENORMALIZED = {
    "renormalize_logits": True,
    "num_beams": 4,
    "early_stopping": "never",
    "length_penalty": 0.5,
    "max_length": 40,
    "no_repeat_ngram_size": 0,
}


if __name__ == "__main__":
    make(
        "marian",
        separate=False,
        seed=5,
        end=4,
        encoder_layers=2,
        decoder_layers=1,
        activation_function="swish",
    )
    make(
        "marian-separate",
        separate=True,
        seed=1,
        end=6,
        encoder_layers=1,
        decoder_layers=2,
        activation_function="relu",
    )
    make(
        "marian-renormalized",
        separate=False,
        seed=3,
        end=8.5,
        generation=RENORMALIZED,
        encoder_layers=1,
        decoder_layers=1,
        activation_function="swish",
    )
