"""The memory that the import of a large pretrained model takes, on a sparse folder of zeros.

    python -m benchmarks.speed.importing FOLDER

writes a model of the shape of NLLB-200 3.3B (13 GB that take no space on the disk) in parts of 5 GB, imports
it in its own process, and prints the most memory that this process held, its mapped files included.
"""

import argparse
import json
import multiprocessing
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.command import run
from benchmarks.measure import peak_memory_of_host
from transformer.interop.architectures.bart import M2M_100
from transformer.interop.folders.conversion import stored_shapes
from transformer.interop.folders.family import described_model
from transformer.interop.pretrained import import_model

GB = 10**9


def main(command_line: list[str] | None = None) -> None:
    """Writes the folder, imports it, prints a row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="new folder for the model and the run")
    parser.add_argument("--layers", type=int, default=24, help="of encoder and decoder")
    parser.add_argument("--d-model", type=int, default=2048)
    parser.add_argument("--d-ff", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=256206)
    parser.add_argument("--part", type=float, default=5, help="gigabytes of a file")
    arguments = parser.parse_args(command_line)
    model, run_dir = arguments.folder / "model", arguments.folder / "run"
    model.mkdir(parents=True)
    described = _described(arguments)
    largest, total = _write(model, described, round(arguments.part * GB))
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        before, peak, seconds = pool.apply(_imported, (model, run_dir))
    shutil.rmtree(arguments.folder)
    print(
        f"{total / GB:.2f} GB in parts of up to {largest / GB:.2f} GB: imported in {seconds:.0f} s of CPU "
        f"time with at most {peak / GB:.2f} GB of memory ({before / GB:.2f} GB before it began), "
        f"{peak / largest:.2f} times the largest part"
    )


def _described(arguments: argparse.Namespace) -> dict[str, object]:
    sizes = {"layers": arguments.layers, "ffn_dim": arguments.d_ff, "attention_heads": 16}
    sides = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}
    ids = {"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2}
    return {
        "model_type": M2M_100.model_type,
        "activation_function": "relu",
        "scale_embedding": True,
        "d_model": arguments.d_model,
        "vocab_size": arguments.vocabulary,
        **sides,
        **ids,
    }


def _write(folder: Path, described: dict[str, object], part: int) -> tuple[int, int]:
    """Writes the folder; returns the bytes of the largest part and of all."""
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}, unk_token="<unk>"))
    tokenizer.add_special_tokens(["eng_Latn", "deu_Latn"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(described))
    model = described_model(M2M_100, described, (), 3)
    sizes, index = [], {}
    for number, shapes in enumerate(_parts(stored_shapes(M2M_100.storage, described, model), part)):
        name = f"model-{number}.safetensors"
        sizes.append(_write_zeros(folder / name, shapes))
        index |= dict.fromkeys(shapes, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return max(sizes), sum(sizes)


def _bytes(shape: tuple[int, ...]) -> int:
    size = 4
    for length in shape:
        size *= length
    return size


def _parts(shapes: dict[str, tuple[int, ...]], limit: int) -> Iterator[dict[str, tuple[int, ...]]]:
    part: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        if part and sum(map(_bytes, part.values())) + _bytes(shape) > limit:
            yield part
            part = {}
        part[name] = shape
    yield part


def _write_zeros(path: Path, shapes: dict[str, tuple[int, ...]]) -> int:
    """Writes a file of safetensors whose values are a hole; returns its length."""
    header, end = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + _bytes(shape)]}
        end += _bytes(shape)
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return end


def _imported(model: Path, run: Path) -> tuple[int, int, float]:
    """Bytes of memory before and at most, and seconds of CPU time."""
    begun = time.process_time()
    before = peak_memory_of_host()
    import_model(model, run, "eng_Latn", "deu_Latn")
    return before, peak_memory_of_host(), time.process_time() - begun


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
