"""Makes tests/data/bert/*: small random BERT models in Hugging Face's format, their hidden states for some
sentences, and with a head the loss of hidden tokens. Run once, by hand, after
tests/make_tokenizers_golden.py:

    pip install 'transformers==5.24.0' torch safetensors
    python tests/make_bert_golden.py
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

DATA = Path(__file__).parent / "data"
SOURCES = ["a dog runs over the green field", "The woman reads!", "ein hund", "\u03a9 \u4e00"]
KINDS: dict[str, dict[str, Any]] = {
    "two-layers": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 24,
    },
    "one-layer": {
        "hidden_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 20,
        "hidden_act": "gelu_new",
        "type_vocab_size": 1,
    },
}


def make(name: str, options: dict[str, Any], with_heads: bool) -> None:
    """Writes a folder."""
    folder = DATA / "bert" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokenizer = transformers.BertTokenizer.from_pretrained(DATA / "tokenizers" / "bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(tokenizer) + 3, max_position_embeddings=32, **options)
    kind = transformers.BertForMaskedLM if with_heads else transformers.BertModel
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.5 if parameter.ndim == 1 else 0.35
            parameter.copy_(spread * torch.randn_like(parameter) + (parameter.ndim == 1))
    model.save_pretrained(folder)
    shutil.copy(DATA / "tokenizers" / "bert" / "vocab.txt", folder)
    batch = tokenizer(SOURCES, padding=True, return_tensors="pt")
    encoder = model.bert if with_heads else model
    with torch.no_grad():
        states = encoder(**batch).last_hidden_state
    golden = {
        "sources": SOURCES,
        "ids": batch["input_ids"].tolist(),
        "states": [[[round(x, 5) for x in row] for row in rows] for rows in states.tolist()],
    }
    if with_heads:
        golden["hidden"] = loss_of_hidden(model, tokenizer, batch)
    (folder / "golden.json").write_text(json.dumps(golden, ensure_ascii=False))


def loss_of_hidden(model: Any, tokenizer: Any, batch: Any) -> dict[str, Any]:
    """What BertForMaskedLM makes of sentences whose second to fourth tokens are hidden: by [MASK], by another
    token, and not at all. Sentences that are shorter have fewer."""
    source, labels = batch["input_ids"].clone(), torch.full_like(batch["input_ids"], -100)
    for row, ids in enumerate(batch["input_ids"].tolist()):
        length = ids.index(tokenizer.sep_token_id)
        for position, hidden in zip((2, 3, 4), (tokenizer.mask_token_id, 7 + row, None), strict=True):
            if position < length:
                labels[row, position] = ids[position]
                source[row, position] = ids[position] if hidden is None else hidden
    with torch.no_grad():
        output = model(input_ids=source, attention_mask=batch["attention_mask"], labels=labels)
    log_p = output.logits.log_softmax(-1)
    chosen = log_p.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return {
        "source": source.tolist(),
        "labels": labels.tolist(),
        "loss": output.loss.item(),
        "log_p": [[round(x, 5) for x in row] for row in torch.where(labels < 0, 0, chosen).tolist()],
    }


if __name__ == "__main__":
    for name, options in KINDS.items():
        make(name, options, with_heads=name == "one-layer")
