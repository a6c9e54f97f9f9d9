"""Makes tests/data/tokenizers/*: small vocabularies of each kind, and what the tokenizers of Hugging Face's
transformers make of some lines. Run once, by hand:

    pip install 'transformers==5.24.0' 'tokenizers==0.23.3' 'sentencepiece==0.2.3' protobuf
    python tests/make_tokenizers_golden.py

With text files, it makes vocabularies of 8,000 pieces of them instead, and prints on how many of 2,000 lines,
most of them damaged, the tokenizers here differ from those:

    python tests/make_tokenizers_golden.py TEXT ...
"""

import json
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import sentencepiece
import transformers
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer

from transformer.config.model import SpecialIds
from transformer.interop.folders.pieces import read_pieces
from transformer.interop.pretrained import detect

PLACE = Path(__file__).parent / "data" / "tokenizers"
TEXT = [
    "a dog runs over the green field, and two men don't see it.",
    "The woman reads a book in the park; the children play with a ball.",
    "ein hund rennt über das grüne Feld, und zwei Männer sehen ihn nicht.",
    "Kinder spielen mit einem Ball am Wasser, weil es heiß ist.",
    "un chien court à travers le pré, et l'été est là.",
    "собака бежит по полю, а дети читают книгу",
    "ο σκύλος τρέχει στο πράσινο λιβάδι",
    "一只狗跑过绿色的田野。孩子们在公园里看书。",
    "الكلب يركض في الحقل",
]
ODD = [
    *("😀", "👩‍👩‍👧", "🇩🇪", "é", "e\u0301", "ﬁ", "ＡＢ１２", "½", "\u00a0", "\u3000", "\t", "  ", "   "),
    *(
        "\u200b",
        "\u200d",
        "\ufeff",
        "\u2028",
        "\x85",
        "\x07",
        "\u00ad",
        "שלום",
        "नमस्ते",
        "ไทย",
        "한국어",
        "日本語",
    ),
    *("<s>", "</s>", "<unk>", "<pad>", "<extra_id_0>", "[MASK]", "eng_Latn", "en_XX", "<|en|>", "▁", "Ġ"),
    *("##ing", "\ufffd", "𝒳", "...", "“x”", " .", " ,", " 's", " n't", "\x00", "İ", "ß", "<0x41>", "A" * 30),
]
RULES = "FB01\t66 69\nFF21\t41\nFF22\t42\nA0\t20\n3000\t20\n9\t20\n65 301\tE9\n"  # SentencePiece's are 240 KB
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
WHISPER = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|startofprev|>", "<|notimestamps|>"]
KINDS = {  # folder: model_type, class of the tokenizer
    "bart": ("bart", "BartTokenizer"),
    "bert": ("bert", "BertTokenizer"),
    "m2m": ("m2m_100", "M2M100Tokenizer"),
    "mbart": ("mbart", "MBart50Tokenizer"),
    "nllb": ("m2m_100", "NllbTokenizer"),
    "pegasus": ("pegasus", "PegasusTokenizer"),
    "t5": ("t5", "T5Tokenizer"),
    "whisper": ("whisper", "WhisperTokenizer"),
}


def damaged(texts: list[str], count: int) -> list[str]:
    """Lines of a text, most of them with odd characters and spaces."""
    draw = random.Random(0)
    lines = []
    for number in range(count):
        line = draw.choice(texts)
        for _ in range(draw.randint(1, 5) if number % 4 else 0):
            at = draw.randint(0, len(line))
            odd = draw.choice(["", " "]) + draw.choice(ODD) + draw.choice(["", " "])
            line = line[:at] + odd + line[at:]
        if number % 7 == 0:
            line = draw.choice([" ", "  ", "\t", ""]) + line + draw.choice([" ", "   ", ""])
        lines.append(line)
    return lines


def pieces_of(texts: list[str], size: int, kind: str, rules: Path | None, **ids: int) -> bytes:
    """A SentencePiece model."""
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"normalization_rule_tsv": str(rules)} if rules else {}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_prefix=f"{folder}/pieces",
            vocab_size=size,
            model_type=kind,
            hard_vocab_limit=False,
            minloglevel=2,
            **options,
            **ids,
        )
        return Path(f"{folder}/pieces.model").read_bytes()


def make(place: Path, texts: list[str], size: int, rules: Path | None) -> None:
    """Writes a folder for each kind of tokenizer: its own files, and tokenizer.json."""
    standard = {"unk_id": 0, "bos_id": 1, "eos_id": 2}
    t5 = pieces_of(texts, size, "unigram", rules, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    fairseq = pieces_of(texts, size, "unigram", rules, **standard)
    bpe = pieces_of(texts, size, "bpe", rules, **standard)
    byte_level, word_pieces = ByteLevelBPETokenizer(), BertWordPieceTokenizer()
    byte_level.train_from_iterator(texts, max(size, 300), special_tokens=[*FAIRSEQ, "<mask>"])
    word_pieces.train_from_iterator(texts, size)
    models = {
        "t5": ("spiece.model", t5),
        "pegasus": ("spiece.model", t5),
        "mbart": ("sentencepiece.bpe.model", fairseq),
        "nllb": ("sentencepiece.bpe.model", bpe),
        "m2m": ("sentencepiece.bpe.model", bpe),
    }
    short: dict[str, dict[str, Any]] = {"t5": {"extra_ids": 3}, "pegasus": {"offset": 5}} if rules else {}
    for name, (model_type, tokenizer_class) in KINDS.items():
        folder = place / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if name in models:
            (folder / models[name][0]).write_bytes(models[name][1])
        elif name == "bert":
            word_pieces.save_model(str(folder))
        else:
            byte_level.save_model(str(folder))
        if name == "m2m":
            processor = sentencepiece.SentencePieceProcessor(model_proto=bpe)
            words = FAIRSEQ + [processor.IdToPiece(index) for index in range(3, processor.GetPieceSize())]
            numbers = {word: number for number, word in enumerate(words)}
            (folder / "vocab.json").write_text(json.dumps(numbers, ensure_ascii=False))
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        tokenizer = getattr(transformers, tokenizer_class).from_pretrained(folder, **short.get(name, {}))
        if name == "nllb":
            tokenizer.add_tokens(["eng_Latn", "deu_Latn"], special_tokens=True)
        if name == "whisper":
            tokenizer.add_tokens(WHISPER, special_tokens=True)
        tokenizer.save_pretrained(folder)
        languages = ["eng_Latn", "deu_Latn"] if name == "nllb" else []
        if languages := list(tokenizer.lang_code_to_id) if name == "mbart" else languages:
            (folder / "special_tokens_map.json").write_text(
                json.dumps({"additional_special_tokens": languages})
            )


def compared(folder: Path, lines: list[str], tokenizer_class: str) -> dict[str, Any]:
    """What `transformers` makes of lines, and what the tokenizer here does otherwise."""
    theirs = getattr(transformers, tokenizer_class).from_pretrained(folder)
    names = ("pad", "eos"), ("bos", "cls", "pad", "eos"), ("eos", "sep"), ("unk",)
    ids_of = {
        kind: getattr(theirs, f"{kind}_token_id", None) for kind in ("pad", "bos", "cls", "eos", "sep", "unk")
    }
    special = SpecialIds(
        *[next(ids_of[kind] for kind in kinds if ids_of[kind] is not None) for kinds in names]
    )
    ours = read_pieces(folder, detect(folder).older).tokenizer(len(theirs) + 200, special)
    ids = theirs(lines, add_special_tokens=False).input_ids
    draw = random.Random(1)
    drawn = [draw.choices(range(len(theirs)), k=8) for _ in lines]
    texts, of_drawn = (
        [theirs.decode(row, skip_special_tokens=True) for row in rows] for rows in (ids, drawn)
    )
    encoded = ours.encode_all(lines)
    return {
        "special": vars(special),
        "lines": lines,
        "ids": ids,
        "texts": texts,
        "drawn": drawn,
        "texts_of_drawn": of_drawn,
        "differ": [
            [line for line, row, expected in zip(lines, encoded, ids, strict=True) if row != expected],
            [text for text, row in zip(texts, ids, strict=True) if ours.decode(row) != text],
            [text for text, row in zip(of_drawn, drawn, strict=True) if ours.decode(row) != text],
        ],
    }


def compare(texts: list[str]) -> None:
    """Prints on how many lines the tokenizers differ."""
    lines = damaged(texts, 2000)
    special = re.compile("<|[a-z]_[A-Z]|[\x85\u2028]")
    plain = [" ".join(line.split()) for line in damaged(texts, 3000) if not special.search(line)][:2000]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        make(place, texts, 8000, None)
        for name, (_, tokenizer_class) in KINDS.items():
            kinds = {"m2m": ["other files"], "whisper": ["tokenizer.json"]}
            for kind in kinds.get(name, ["tokenizer.json", "other files"]):
                if kind == "other files":
                    (place / name / "tokenizer.json").unlink(missing_ok=True)
                for title, chosen in (("as they are", lines), ("plain", plain)):
                    differ = compared(place / name, chosen, tokenizer_class)["differ"]
                    print(f"{name:8} {kind:15} {title:20} ids, texts, drawn:", *map(len, differ), flush=True)


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    if sys.argv[1:]:
        compare([line for path in sys.argv[1:] for line in Path(path).read_text().splitlines() if line])
    else:
        with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
            rules.write(RULES)
            rules.flush()
            make(PLACE, TEXT * 3, 200, Path(rules.name))
        for name, (_, tokenizer_class) in KINDS.items():
            golden = compared(PLACE / name, damaged(TEXT, 24), tokenizer_class)
            print(name, golden.pop("differ"))
            (PLACE / name / "golden.json").write_text(json.dumps(golden, ensure_ascii=False))
