"""Makes tests/data/updates.json: the losses of ten updates of small models in `transformers`, by AdamW with
clipping and weight decay. Run once, by hand:

    pip install 'transformers==5.24.0' torch
    python tests/make_updates_golden.py

The tests then need neither torch nor transformers.
"""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
FOLDERS = ("pretrained/t5", "pretrained/bart", "pretrained/pegasus", "marian")
UPDATES, RATE, DECAY, CLIP, BETAS, EPSILON = 10, 1e-2, 0.1, 1.0, (0.9, 0.98), 1e-5
IGNORED = -100
"""The label of padding."""


def golden(folder: Path) -> dict[str, Any]:
    """A batch, and the losses of training on it."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder).train()
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    for name, parameter in model.named_parameters():  # as these classes make them; loading forgets it
        if "embed_positions" in name and folder.name in ("marian", "pegasus"):
            parameter.requires_grad_(False)
    about, seeded = model.config, torch.Generator().manual_seed(3)
    labels = torch.randint(3, 50, (3, 7), generator=seeded)
    labels[:, -1] = labels[1, 5] = about.eos_token_id
    labels[1, 6] = IGNORED
    source = torch.randint(3, 50, (3, 6), generator=seeded)
    source[:, -1] = source[2, 4] = about.eos_token_id
    source[2, 5] = about.pad_token_id
    inputs = {"input_ids": source, "attention_mask": (source != about.pad_token_id).long()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, betas=BETAS, eps=EPSILON)
    losses = []
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(round(float(loss), 6))
    return {"source": source.tolist(), "labels": labels.tolist(), "losses": losses}


if __name__ == "__main__":
    made = {name: golden(DATA / name) for name in FOLDERS}
    (DATA / "updates.json").write_text(json.dumps(made) + "\n")
    for name, found in made.items():
        print(name, found["losses"])
