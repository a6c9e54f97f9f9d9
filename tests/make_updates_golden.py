"""Makes tests/data/updates.json: the losses of ten updates of small models in `transformers`, by AdamW with
clipping and weight decay, of all parameters and of low-rank changes by `peft`. Run once, by hand:

    pip install 'transformers==5.24.0' 'peft==0.21.2' torch
    python tests/make_updates_golden.py

The tests then need none of them.
"""

import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

DATA = Path(__file__).parent / "data"
UPDATES, RATE, DECAY, CLIP, BETAS, EPSILON = 10, 1e-2, 0.1, 1.0, (0.9, 0.98), 1e-5
RANK, ALPHA = 2, 4.0
IGNORED = -100
"""The label of padding."""


class Case(NamedTuple):
    """A training."""

    folder: str
    """The model, in tests/data."""
    model_class: str = "AutoModelForSeq2SeqLM"
    """What loads it."""
    rate: float = RATE
    """The rate of learning."""
    adapted: tuple[str, ...] | None = None
    """The modules that have low-rank changes, by how their names end. None: all parameters are trained."""
    pattern: tuple[str, ...] = ()
    """The same modules as `--adapter.pattern` here."""


QUERIES = ("*attention.query", "*attention.value")
_SPEECH, _MASKED = "AutoModelForSpeechSeq2Seq", "AutoModelForMaskedLM"
_T5 = ("q", "k", "v", "o", "wi", "wo")
_BERT = ("query", "key", "value", "dense")
CASES = {
    # at the rate of the others, the losses of T5 1.1 in float32 and in float64 are 10 % apart in torch itself
    "T5 1.1": Case("pretrained/t5-1.1", rate=3e-4),
    "T5": Case("pretrained/t5"),
    "BART": Case("pretrained/bart"),
    "mBART": Case("pretrained/mbart"),
    "NLLB": Case("pretrained/nllb"),
    "Pegasus": Case("pretrained/pegasus"),
    "Marian": Case("marian"),
    "Marian, separate vocabularies": Case("marian-separate"),
    "Whisper": Case("whisper", _SPEECH),
    "BERT": Case("bert/one-layer", _MASKED),
    "T5, LoRA": Case("pretrained/t5", adapted=_T5, pattern=("encoder", "decoder")),
    "BART, LoRA": Case("pretrained/bart", adapted=("q_proj", "v_proj"), pattern=QUERIES),
    "NLLB, LoRA": Case("pretrained/nllb", adapted=("q_proj", "v_proj"), pattern=QUERIES),
    "Whisper, LoRA": Case("whisper", _SPEECH, adapted=("q_proj", "v_proj"), pattern=QUERIES),
    "BERT, LoRA": Case("bert/one-layer", _MASKED, adapted=_BERT),
}


def heard(bands: int, frames: int) -> np.ndarray:
    """Noise that Whisper hears, `[3, frames, bands]`."""
    return np.random.default_rng(1).normal(size=(3, frames, bands)).astype(np.float32)


def first_factor(name: str, inputs: int) -> np.ndarray:
    """A of a matrix with a low-rank change, `[inputs, rank]`, by the name of its tensor. B is zero."""
    drawn = np.random.default_rng(zlib.crc32(name.encode())).normal(size=(inputs, RANK))
    return (drawn / inputs**0.5).astype(np.float32)


def _with_changes(model: Any, adapted: tuple[str, ...]) -> tuple[Any, list[str]]:
    """The model with low-rank changes, and the names of the matrices that have one."""
    import peft
    import torch

    settings = peft.LoraConfig(r=RANK, lora_alpha=int(ALPHA), target_modules=[*adapted], lora_dropout=0.0)
    model, names = peft.get_peft_model(model, settings), []
    for name, module in model.named_modules():
        if isinstance(module, peft.tuners.lora.Linear):
            names.append(name.removeprefix("base_model.model.") + ".weight")
            factor = module.lora_A["default"].weight
            with torch.no_grad():
                factor.copy_(torch.from_numpy(first_factor(names[-1], factor.shape[1]).T))
    return model, sorted(names)


def golden(case: Case) -> dict[str, Any]:
    """A batch, and the losses of training on it."""
    import torch
    import transformers

    model = getattr(transformers, case.model_class).from_pretrained(DATA / case.folder).train()
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout", "activation_dropout", "layerdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    for name, parameter in model.named_parameters():  # as these classes make them; loading forgets it
        if "embed_positions" in name and case.folder.partition("-")[0] in ("marian", "pretrained/pegasus"):
            parameter.requires_grad_(False)
    about, seeded = model.config, torch.Generator().manual_seed(3)
    size = min(50, (getattr(about, "decoder_vocab_size", None) or 51) - 1)  # the last one is <pad>
    labels = torch.randint(3, size, (3, 7), generator=seeded)
    source = torch.randint(3, size, (3, 6), generator=seeded)
    if about.is_encoder_decoder:
        labels[:, -1] = labels[1, 5] = source[:, -1] = source[2, 4] = about.eos_token_id
        labels[1, 6] = IGNORED
    else:
        labels = labels[:, :6].contiguous()
        labels[:, ::2] = labels[2, 5] = IGNORED
    source[2, 5] = about.pad_token_id
    inputs = {"input_ids": source, "attention_mask": (source != about.pad_token_id).long()}
    if case.model_class == _SPEECH:
        sound = heard(about.num_mel_bins, 2 * about.max_source_positions)
        inputs = {"input_features": torch.from_numpy(sound).transpose(1, 2)}
    names: list[str] = []
    if case.adapted:
        model, names = _with_changes(model, case.adapted)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=case.rate, weight_decay=DECAY, betas=BETAS, eps=EPSILON
    )
    losses = []
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(round(float(loss.detach()), 6))
    return {"source": source.tolist(), "labels": labels.tolist(), "adapted": names, "losses": losses}


if __name__ == "__main__":
    made = {name: golden(case) for name, case in CASES.items()}
    (DATA / "updates.json").write_text(json.dumps(made) + "\n")
    for name, found in made.items():
        print(name, found["losses"])
