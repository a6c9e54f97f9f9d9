"""Makes tests/data/folders.json: what `transformers` makes of the folders of tests/data/pretrained and
tests/data/marian with other ids in their files. Run once, by hand:

    pip install 'transformers==5.24.0' torch
    python tests/make_folders_golden.py

The tests then need neither torch nor transformers.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
SOURCES = ["a dog reads a book", "two children near the park", "men run", "the street", "a ball", "kinder"]
BEAMS = 3
CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"


def around(before: list[str], after: list[str]) -> dict[str, Any]:
    """A post-processor with these pieces before and after a text, whose ids `changed` fills in."""
    return {"post_processor": [before, after]}


def ids(start: int, forced: int | None, **more: int) -> dict[str, Any]:
    """Other ids where a search begins."""
    both = {"decoder_start_token_id": start, **more}
    return {CONFIG: both, GENERATION: {**both, "forced_bos_token_id": forced, "forced_eos_token_id": None}}


FOLDERS: dict[
    str, tuple[str, dict[str, Any]]
] = {  # the name of a case: a folder, and what changes in its files
    "bart without a forced start": ("pretrained/bart", ids(2, None)),
    "bart forced to begin with a word": ("pretrained/bart", ids(2, 70)),
    "bart that begins with its bos": ("pretrained/bart", ids(0, None)),
    "bart that begins with its bos, forced": ("pretrained/bart", ids(0, 0)),
    "bart with the ids of KoBART": (
        "pretrained/bart",
        {**ids(2, None, bos_token_id=2), TOKENIZER: {"post_processor": None}},
    ),
    "bart whose sources begin with nothing": ("pretrained/bart", {TOKENIZER: around([], ["</s>"])}),
    "bart with another start of searches": ("pretrained/bart", {GENERATION: {"decoder_start_token_id": 0}}),
    "t5 whose sources have no end": ("pretrained/t5", {TOKENIZER: {"post_processor": None}}),
    "t5 forced to begin with a word": ("pretrained/t5", {GENERATION: {"forced_bos_token_id": 20}}),
    "t5 that begins with a word": ("pretrained/t5", ids(20, None)),
    "pegasus that begins with its end": ("pretrained/pegasus", ids(1, None)),
    "nllb with another pad": (
        "pretrained/nllb",
        {CONFIG: {"pad_token_id": 62}, GENERATION: {"pad_token_id": 62}},
    ),
    "marian forced to begin with a word": ("marian", {CONFIG: {"forced_bos_token_id": 9}}),
}


def changed(name: str, folder: Path) -> Path:
    """A folder of `FOLDERS`."""
    origin, changes = FOLDERS[name]
    shutil.copytree(DATA / origin, folder, ignore=shutil.ignore_patterns("golden.json"))
    for file, options in changes.items():
        about = json.loads((folder / file).read_text())
        about |= options
        if isinstance(options.get("post_processor"), list):
            about["post_processor"] = template(about, *options["post_processor"])
        (folder / file).write_text(json.dumps(about, ensure_ascii=False))
    return folder


def template(tokenizer: dict[str, Any], before: list[str], after: list[str]) -> dict[str, Any]:
    """A post-processor of `tokenizers`."""
    numbers = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    pieces: Any = [{"SpecialToken": {"id": piece, "type_id": 0}} for piece in before]
    pieces += [{"Sequence": {"id": "A", "type_id": 0}}]
    pieces += [{"SpecialToken": {"id": piece, "type_id": 0}} for piece in after]
    special = {piece: {"id": piece, "ids": [numbers[piece]], "tokens": [piece]} for piece in before + after}
    return {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": special}


def golden(folder: Path) -> dict[str, Any]:
    """What `transformers` makes of a folder: ids of sources, some logits, and the best outputs."""
    import torch  # which those who only read `FOLDERS` lack
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(SOURCES, padding=True, return_tensors="pt")
    pad = model.config.pad_token_id
    lengths = batch["attention_mask"].sum(1)
    sources = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, pad)
    inputs = {"input_ids": sources, "attention_mask": batch["attention_mask"]}
    found: dict[str, Any] = {
        "ids": [row[:length] for row, length in zip(sources.tolist(), lengths.tolist(), strict=True)]
    }
    with torch.no_grad():
        target = torch.tensor([[model.generation_config.decoder_start_token_id, 11, 12, 13]] * 2)
        two = {name: x[:2] for name, x in inputs.items()}
        logits = model(**two, decoder_input_ids=target).logits[..., :16]
        found["logits"] = [[[round(x, 4) for x in row] for row in rows] for rows in logits.tolist()]
        for beams in (1, BEAMS):
            output = model.generate(
                **inputs, num_beams=beams, do_sample=False, max_length=12, bad_words_ids=[[pad]],
                length_penalty=1.0, early_stopping=False, no_repeat_ngram_size=0, min_length=7,
            )  # fmt: skip
            found[f"beams {beams}"] = output.tolist()
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        made = {
            name: golden(changed(name, Path(scratch, str(number)))) for number, name in enumerate(FOLDERS)
        }
    (DATA / "folders.json").write_text(json.dumps(made) + "\n")
    for name, found in made.items():
        print(name, found["ids"][:1], found["beams 1"][:2])
