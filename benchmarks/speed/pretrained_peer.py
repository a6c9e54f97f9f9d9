"""The same updates and searches in PyTorch with `transformers`, on models of the same config.json."""

from collections.abc import Callable
from typing import Any

from benchmarks.speed.pretrained import LITTLE, RANK, SPECIAL, WORK, config_of, shape_of
from benchmarks.speed.pretrained_programs import UPDATES, Result, batch_of, rows_of

RATE = 1e-4
START = SPECIAL.bos


def described(name: str, quick: bool = False) -> dict[str, Any]:
    """config.json of the model that is measured here, with its dropout."""
    family, published = shape_of(name, quick)
    assert family.describe is not None
    model: Any = config_of(name, 1, quick).model
    ids = {f"{token}_token_id": getattr(SPECIAL, token) for token in ("pad", "bos", "eos")}
    sizes = {key: published[key] for key in ("vocab_size", "num_mel_bins") if key in published}
    return {**family.describe(model), **sizes, **ids, "decoder_start_token_id": START}


def network(name: str, quick: bool, device: str, dtype: str) -> Any:
    """The model on the device, with random weights of this precision."""
    import torch
    import transformers

    kind = getattr(transformers, shape_of(name)[0].model_class)
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(device):
            return kind(kind.config_class(**described(name, quick)))
    finally:
        torch.set_default_dtype(before)


def inputs_of(name: str, what: str, quick: bool, device: str, dtype: str) -> dict[str, Any]:
    """The arguments of the model: the source, and for an update the target."""
    import torch

    batch = batch_of(name, rows_of(name, what, quick), quick)
    source = torch.from_numpy(batch["source"]).to(device)
    if source.ndim == 3:
        inputs = {"input_features": source.transpose(1, 2).contiguous().to(getattr(torch, dtype))}
    else:
        inputs = {"input_ids": source.long(), "attention_mask": torch.ones_like(source).long()}
    if what == "update":
        inputs["labels"] = torch.from_numpy(batch["target"]).long().to(device)
    return inputs


def about(model: Any) -> Result:
    """Its size, and how it computes attention."""
    parameters = sum(x.numel() for x in model.parameters())
    return {"parameters": parameters, "attention": model.config._attn_implementation}


def update(name: str, quick: bool, device: str, adapter: bool = False) -> Callable[[], Result]:
    """Updates with autocast to bfloat16, gradient checkpointing and fused AdamW; of an adapter by `peft`."""
    import torch

    model = network(name, quick, device, "float32").train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.config.use_cache = False
    if adapter:
        import peft

        options = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear")
        model = peft.get_peft_model(model, options)
    optimizer = torch.optim.AdamW([x for x in model.parameters() if x.requires_grad], lr=RATE, fused=True)
    inputs = inputs_of(name, "update", quick, device, "float32")
    work = about(model) | {"tokens": inputs["labels"].numel(), "steps": UPDATES}

    def run() -> Result:
        for _ in range(UPDATES):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, torch.bfloat16):
                loss = model(**inputs).loss
            loss.backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return work | {"loss": loss.item()}

    return run


def search(name: str, quick: bool, device: str) -> Callable[[], Result]:
    """`generate` in bfloat16 with as many beams, whose outputs all have the same length."""
    import torch
    from transformers import GenerationMixin

    model = network(name, quick, device, "bfloat16").eval()
    inputs = inputs_of(name, "search", quick, device, "bfloat16")
    length = (LITTLE if quick else WORK).length
    rows = rows_of(name, "search", quick)
    inputs["decoder_input_ids"] = torch.full((rows, 1), START, device=device)
    options = {"num_beams": config_of(name, 1).decoding.num_hypotheses, "do_sample": False}
    options |= {"min_new_tokens": length, "max_new_tokens": length}
    work = about(model) | {"tokens": rows * length, "steps": length}

    def run() -> Result:
        # not Whisper's own method, which cuts recordings into parts and calls this one
        outputs = GenerationMixin.generate(model, **inputs, **options).cpu()
        if outputs.shape != (rows, 1 + length):
            raise ValueError(f"outputs have {outputs.shape[1] - 1} tokens, and not {length}")
        return work

    return run
