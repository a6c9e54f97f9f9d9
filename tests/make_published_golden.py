"""Makes tests/data/published.json: for each folder of tests/published_folders.py, the shapes of its tensors
and what `transformers` computes with it. Run once, by hand:

    pip install 'transformers==5.24.0' torch sentencepiece protobuf
    python tests/make_published_golden.py
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from published_folders import DATA, GOLDEN, PUBLISHED, Published, features, write_published
from safetensors import safe_open

LENGTH = 6  # of outputs


def shapes_of(published: Published, size: int, folder: Path) -> dict[str, list[int]]:
    """The tensors that `transformers` saves, renamed as the publisher has them."""
    config = transformers.AutoConfig.for_model(**{**published.config, "vocab_size": size})
    model = getattr(transformers, published.model_class)(config)
    if "T5" in published.model_class and published.config.get("tie_word_embeddings") is False:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
    model.save_pretrained(folder)
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        shapes = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    for name in ("shared.weight", "model.shared.weight", "model.decoder.embed_tokens.weight"):
        if published.table and name in shapes:
            shapes[published.table] = shapes.pop(name)
            break
    if published.is_bare:
        del shapes["final_logits_bias"]
        shapes = {name.removeprefix("model."): shape for name, shape in shapes.items()}
    return shapes | {name: list(shape) for name, shape in published.more.items()}


def golden(name: str, published: Published, scratch: Path) -> dict[str, Any]:
    """What the test compares."""
    size = published.vocab_size
    if size is None:
        size = len(transformers.AutoTokenizer.from_pretrained(DATA / published.words))
        size += published.words != "marian"  # whose <pad> comes last
    shapes = shapes_of(published, size, scratch / "saved")
    write_published(name, scratch / "folder", shapes, size)
    model = getattr(transformers, published.model_class).from_pretrained(scratch / "folder").eval()
    rng = np.random.default_rng(0)
    ids = [[int(index) for index in rng.integers(3, size - 1, LENGTH)] for _ in range(2)]
    start, end = (getattr(model.config, name, None) for name in ("decoder_start_token_id", "eos_token_id"))
    with torch.no_grad():
        if published.words == "whisper":
            inputs = {"input_features": torch.from_numpy(features().transpose(0, 2, 1).copy())}
        else:
            inputs = {"input_ids": torch.tensor([[*ids[0], *([end] if end is not None else [])]])}
        target = {} if start is None else {"decoder_input_ids": torch.tensor([[start, *ids[1]]])}
        logits = model(**inputs, **target).logits[0]
    return {
        "shapes": shapes,
        "vocab_size": size,
        "source": inputs["input_ids"][0].tolist() if "input_ids" in inputs else None,
        "target": [start, *ids[1]] if start is not None else None,
        "log_p": [round(x, 5) for x in logits.log_softmax(-1).amax(-1).tolist()],
        "best": logits.argmax(-1).tolist(),
    }


if __name__ == "__main__":
    made = {}
    for name, published in PUBLISHED.items():
        with tempfile.TemporaryDirectory() as scratch:
            made[name] = golden(name, published, Path(scratch))
        print(name, len(made[name]["shapes"]), made[name]["log_p"][:3])
    GOLDEN.write_text(json.dumps(made, separators=(",", ":")) + "\n")
