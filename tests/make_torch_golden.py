"""Makes tests/data/torch/*: small random models of torch.nn.Transformer as in PyTorch's tutorial on
translation, and their results for some sentences. Run once, by hand:

    pip install 'torch==2.14.1' safetensors
    python tests/make_torch_golden.py
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

PLACE = Path(__file__).parent / "data" / "torch"
SPECIAL = ["<unk>", "<pad>", "<bos>", "<eos>"]
SOURCE = ["ein", "hund", "läuft", "über", "das", "grüne", "feld", "und", "zwei", "männer", "sehen"]
TARGET = ["a", "dog", "runs", "over", "the", "green", "field", "and", "two", "men", "see", "it", "."]
SOURCES = ["ein hund läuft", "zwei männer sehen das grüne feld", "und xylophon", "feld"]
SIZES = {"d_model": 16, "nhead": 2, "dim_feedforward": 20}
KINDS: dict[str, dict[str, Any]] = {
    "post": {"num_encoder_layers": 2, "num_decoder_layers": 1, "activation": "relu", "norm_first": False},
    "pre": {"num_encoder_layers": 1, "num_decoder_layers": 2, "activation": "gelu", "norm_first": True},
    "plain": {"num_encoder_layers": 1, "num_decoder_layers": 1, "bias": False},
}
LONGEST = 12


class Embedding(nn.Module):
    """Of tokens, scaled."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)


class Positions(nn.Module):
    """Sinusoids."""

    def __init__(self, width: int, longest: int = 40) -> None:
        super().__init__()
        rates = torch.exp(-torch.arange(0, width, 2) * math.log(10000) / width)
        angles = torch.arange(longest)[:, None] * rates
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(longest, width)
        self.register_buffer("pos_embedding", table[:, None])

    def forward(self, embedded: torch.Tensor) -> torch.Tensor:
        return embedded + self.pos_embedding[: embedded.shape[0]]


class Model(nn.Module):
    """Time first, as in the tutorial."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        width = options["d_model"]
        self.transformer = nn.Transformer(dropout=0.0, **options)
        self.generator = nn.Linear(width, len(SPECIAL + TARGET))
        self.src_tok_emb = Embedding(len(SPECIAL + SOURCE), width)
        self.tgt_tok_emb = Embedding(len(SPECIAL + TARGET), width)
        self.positional_encoding = Positions(width)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        length = target.shape[0]
        padded = (source == 1).T
        hidden = self.transformer(
            self.positional_encoding(self.src_tok_emb(source)),
            self.positional_encoding(self.tgt_tok_emb(target)),
            tgt_mask=torch.triu(torch.ones(length, length, dtype=torch.bool), 1),
            src_key_padding_mask=padded,
            tgt_key_padding_mask=(target == 1).T,
            memory_key_padding_mask=padded,
        )
        return self.generator(hidden)


def make(name: str, options: dict[str, Any], seed: int) -> bool:
    """Writes a folder. Returns whether the outputs differ, and some end by themselves."""
    folder = PLACE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(seed)
    model = Model(**SIZES, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 if parameter.ndim == 1 else 0.35
            parameter.copy_(spread * torch.randn_like(parameter) + (parameter.ndim == 1) * 0.5)
        model.generator.bias[3] += 1.0
        words = {word: index for index, word in enumerate(SPECIAL + SOURCE)}
        rows = [[2, *(words.get(word, 0) for word in text.split()), 3] for text in SOURCES]
        source = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], padding_value=1)
        target = torch.full((1, len(SOURCES)), 2)
        for _ in range(LONGEST):
            scores = model(source, target)[-1]
            scores[:, [1, 2]] = -torch.inf
            target = torch.cat([target, scores.argmax(-1)[None]])
        logits = model(source, target[:7])
    texts = []
    for row in target[1:].T.tolist():
        end = row.index(3) if 3 in row else LONGEST
        texts.append(" ".join((SPECIAL + TARGET)[index] for index in row[:end]))
    if len(set(texts)) < 3 or "" in texts or all(3 not in row for row in target.T.tolist()):
        return False
    save_file(
        {key: value.contiguous() for key, value in model.state_dict().items()}, folder / "model.safetensors"
    )
    config = {
        "model_type": "torch.nn.Transformer",
        **SIZES,
        **options,
        "vocab_size": len(SPECIAL + SOURCE),
        "target_vocab_size": len(SPECIAL + TARGET),
        "unk_token_id": 0,
        "pad_token_id": 1,
        "decoder_start_token_id": 2,
        "eos_token_id": 3,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "source_vocabulary.txt").write_text("\n".join(SPECIAL + SOURCE) + "\n")
    (folder / "target_vocabulary.txt").write_text("\n".join(SPECIAL + TARGET) + "\n")
    golden = {
        "sources": SOURCES,
        "source_ids": source.T.tolist(),
        "target_ids": target[:7].T.tolist(),
        "logits": [[[round(x, 5) for x in row] for row in rows] for rows in logits.transpose(0, 1).tolist()],
        "greedy": texts,
    }
    (folder / "golden.json").write_text(json.dumps(golden, ensure_ascii=False))
    print(name, seed, texts)
    return True


if __name__ == "__main__":
    for name, options in KINDS.items():
        assert any(make(name, options, seed) for seed in range(300))
