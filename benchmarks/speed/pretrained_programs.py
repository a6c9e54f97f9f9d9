"""An update and a search of pretrained shapes with random weights: as `train.py` and `decode.py` run them,
and in PyTorch with `transformers`, on models of the same config.json."""

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.speed.pretrained import LITTLE, RANK, SPECIAL, WORK, adapted, config_of, shape_of

UPDATES = 3
"""Of a timed run."""
RATE = 1e-4
"""Of the updates in PyTorch."""
START = SPECIAL.bos
DEVIATION = 0.02
"""Of random weights."""
Result = dict[str, Any]


def batch_of(name: str, rows: int, quick: bool) -> dict[str, np.ndarray]:
    """Random data without padding: texts of one sentence a row, or recordings with their texts."""
    config, work = config_of(name, 1, quick), LITTLE if quick else WORK
    rng = np.random.default_rng(0)

    def ids(length: int) -> np.ndarray:
        numbers = rng.integers(4, config.model.vocab_size, (rows, length), np.int32)
        numbers[:, -1] = SPECIAL.eos
        return numbers

    if config.system == "speech":
        bands: int = config.data.bands  # type: ignore[attr-defined]
        sound = rng.normal(size=(rows, work.frames, bands)).astype(np.float32)
        return {"source": sound, "target": ids(work.text)}
    return {"source": ids(work.length), "target": ids(work.length)}


def rows_of(name: str, what: str, quick: bool) -> int:
    """The rows of a batch to train on ("update"), or to search ("search")."""
    work = LITTLE if quick else WORK
    if config_of(name, 1).system == "speech":
        return work.recordings * (2 if what == "update" else 1)
    return work.tokens // work.length if what == "update" else work.sentences


def random_params(shapes: Any, matrices: str) -> Any:
    """Weights on the device: norms of one, biases of zero, matrices drawn in this precision."""
    import jax
    import jax.numpy as jnp

    @functools.partial(jax.jit, static_argnums=1)
    def drawn(key: Any, shape: tuple[int, ...]) -> Any:
        return DEVIATION * jax.random.normal(key, shape, matrices)

    def leaf(path: Any, x: Any) -> Any:
        if x.ndim > 1:
            number = sum(map(ord, jax.tree_util.keystr(path)))
            return drawn(jax.random.key(number), x.shape)
        return jnp.full(x.shape, float("scale" in path[-1].key), x.dtype)

    return jax.tree_util.tree_map_with_path(leaf, shapes)


def size_of(params: Any) -> int:
    """The number of parameters."""
    import jax

    return sum(x.size for x in jax.tree.leaves(params))


def update(name: str, quick: bool, adapter: bool = False) -> Callable[[], Result]:
    """Updates of all parameters or of an adapter, after which the loss of the last is returned."""
    import jax
    import jax.numpy as jnp

    from transformer.plan.jobs import Job
    from transformer.runtime.compilation import keep_programs
    from transformer.systems.parameters import declared_parameters, model_shapes
    from transformer.systems.registry import find_system
    from transformer.training.parametrisation import parametrisation_of
    from transformer.training.schedule import make_optimizer
    from transformer.training.sharding import Replicas, configured_step
    from transformer.training.step import TrainState
    from transformer.translator.decoder import Decoder

    keep_programs()
    config = config_of(name, 1, quick)
    config = adapted(config) if adapter else config
    job = Job.of(find_system(config.system), config)
    config, optimizer, layout = job.config, make_optimizer(job.config), Replicas()
    variables = dict(model_shapes(job.system, config))
    shapes = variables.pop("params")
    how = parametrisation_of(config, shapes, declared_parameters(job.system, config))
    params = random_params(shapes, "float32")
    if variables:
        raise ValueError(f"{name} has variables that are no parameters: {', '.join(variables)}")
    step = configured_step(config.training, job.model, job.objective(Decoder.load), optimizer, layout)
    compiled = layout.compile_step(step, donate_state=True)
    trained, fixed = how.split(params)
    start = TrainState(jnp.zeros((), jnp.int32), trained, optimizer.init(trained), {}, None)
    state = layout.place(replace(start, fixed=fixed, parametrisation=how))
    batch = batch_of(name, rows_of(name, "update", quick), quick)
    parameters = size_of(params) + (size_of(trained) if adapter else 0)
    work = {"parameters": parameters, "tokens": batch["target"].size, "steps": UPDATES}
    del params, trained, fixed, start
    if config.data.batching == "packed":
        ones = {f"{side}_segments": np.ones(ids.shape, np.int32) for side, ids in batch.items()}
        batch |= ones
    (placed,) = layout.batches([batch])

    def run() -> Result:
        nonlocal state
        for _ in range(UPDATES):
            state, metrics = compiled(state, placed)
        jax.block_until_ready(state)
        return work | {"loss": float(metrics["nll"])}

    return run


def search(name: str, quick: bool, matrices: str = "bfloat16") -> Callable[[], Result]:
    """A search whose outputs all have the same length.

    Args:
      name: of the model.
      quick: a small one.
      matrices: precision of the weights. The products are in bfloat16.
    """

    from transformer.config.searches import changed_search
    from transformer.decoding.service.queue import Request
    from transformer.decoding.service.service import SearchService
    from transformer.decoding.steering.rules import Rules
    from transformer.plan.jobs import Job
    from transformer.runtime.compilation import keep_programs
    from transformer.systems.parameters import model_shapes
    from transformer.systems.registry import find_system
    from transformer.translator.search_inputs import steered_search

    keep_programs()
    config = config_of(name, 1, quick)
    job = Job.of(find_system(config.system), config)
    task: Any = job.task
    length = (LITTLE if quick else WORK).length
    limits: Mapping[str, Any] = {"max_length": length, "min_length": length - 1}  # <eos> is the last token
    settings = changed_search(job.config.decoding, limits)
    variables = {"params": random_params(model_shapes(job.system, job.config)["params"], matrices)}
    rules = Rules.of(settings, task.config.model.special, job.system.required("search").limits)
    steered = steered_search(job.system, task, settings, [rules])
    fields = {**task.input_fields, **rules.fields}
    service = SearchService(steered, job.model, variables, settings, fields)
    read = rules.example(settings)
    rows = rows_of(name, "search", quick)
    sources = batch_of(name, rows, quick)["source"]
    work = {"parameters": size_of(variables), "tokens": rows * length, "steps": length}

    def run() -> Result:
        requests = [
            Request({"source": source} | read, len(source), line, settings, 1, lambda result, request: result)
            for line, source in enumerate(sources)
        ]
        service.submit(requests)
        futures = [request.future for request in requests]
        wait(futures)
        lengths = {int((future.result().tokens[0] != SPECIAL.pad).sum()) for future in futures}
        if lengths != {length}:
            raise ValueError(f"outputs have {sorted(lengths)} tokens, and not {length}")
        return work

    return run


# In PyTorch


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


def torch_update(name: str, quick: bool, device: str, adapter: bool = False) -> Callable[[], Result]:
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


def torch_search(name: str, quick: bool, device: str) -> Callable[[], Result]:
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


PROGRAMS: dict[tuple[str, str], Callable[..., Callable[[], Result]]] = {
    ("transformer", "update"): update,
    ("transformer", "search"): search,
    ("transformers", "update"): torch_update,
    ("transformers", "search"): torch_search,
}
"""By program and what it does."""
