"""The folder of a model: found by its name on a hub, its JSON files with the types of their fields, its
tensors, and the folder of an exported model."""

import contextlib
import functools
import io
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Set
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from transformer.config.corpus import CODE
from transformer.config.decoding import DecodingConfig
from transformer.interop.folders.search import search_from_hub
from transformer.interop.folders.unused import observed, without_limits
from transformer.runtime.errors import UserError, first_line
from transformer.runtime.files import (
    Json,
    MiB,
    brief,
    brief_json,
    fault_of,
    folder_whole,
    open_regular,
    parse_object,
    read_text,
    writing,
)
from transformer.runtime.text import printable

# The types of fields in the JSON files of a folder, as far as an import reads them: a value of another type
# is refused by name, instead of being ignored or taken for something else.


_FILES = ("config.json", "generation_config.json", "preprocessor_config.json", "tokenizer_config.json")
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "true or false": (
        (bool,),
        "add_prefix_space add_source_bos add_source_eos bias clean_up_tokenization_spaces do_lower_case "
        "do_sample is_decoder is_multilingual legacy_behaviour norm_first renormalize_logits "
        "scale_decoder_outputs scale_embedding share_encoder_decoder_embeddings source_begins_with_bos "
        "source_end strip_accents tie_word_embeddings tokenize_chinese_chars",
    ),
    "a whole number": (
        (int,),
        "d_ff d_kv d_model decoder_attention_heads decoder_ffn_dim decoder_layers dim_feedforward "
        "encoder_attention_heads encoder_ffn_dim encoder_layers feature_size hidden_size hop_length "
        "intermediate_size max_position_embeddings max_source_positions max_target_positions n_fft nhead "
        "num_attention_heads num_encoder_layers num_heads num_hidden_layers num_layers num_mel_bins "
        "relative_attention_max_distance relative_attention_num_buckets sampling_rate type_vocab_size "
        "vocab_size",
    ),
    "a whole number or null": (
        (int, type(None)),
        "bos_token_id decoder_start_token_id decoder_vocab_size forced_bos_token_id num_decoder_layers "
        "pad_token_id target_vocab_size unk_token_id",
    ),
    "a number": (
        (int, float),
        "activation_dropout attention_dropout attention_probs_dropout_prob dropout dropout_rate "
        "hidden_dropout_prob layer_norm_eps",
    ),
    "a number or null": ((int, float, type(None)), "layer_norm_epsilon"),
    "a text": (
        (str,),
        "activation activation_function decoder_start_token feed_forward_proj hidden_act language_codes "
        "model_type position_embedding_type source_lang target_lang tokenizer_class",
    ),
    "a text or an object": ((str, dict), "bos_token cls_token eos_token unk_token"),
    "a whole number, a list or null": ((int, list, type(None)), "eos_token_id forced_eos_token_id"),
    "a list": (
        (list,),
        "bad_words_ids begin_suppress_tokens suppress_ids suppress_ids_begin suppress_tokens",
    ),
    "a list or an object": ((list, dict), "additional_special_tokens extra_special_tokens"),
    "an object": ((dict,), "quantization_config tensors"),
}
"""What a field has to be: its types in Python, and the names of fields."""
_BY_NAME = {name: (types, words) for words, (types, names) in _TYPES.items() for name in names.split()}


def check_fields(path: Path, content: Json) -> None:
    """Raises UserError if a field in a JSON file of a folder has another type than an import reads. Null is
    always valid, except as a size or a rate, and a file of words is not read."""
    if path.name not in _FILES:
        return
    for name in content.keys() & _BY_NAME.keys():
        (types, words), value = _BY_NAME[name], content[name]
        is_switch = isinstance(value, bool) and bool not in types
        is_missing = value is None and int not in types
        if not is_missing and (is_switch or not isinstance(value, types)):
            raise UserError(f"{path}: {name} is {brief_json(value)}, not {words}")


# Finds pretrained models by their name on Hugging Face's hub, with the library huggingface_hub.


log = logging.getLogger("transformer")
FILES = [
    *("config.json", "generation_config.json", "preprocessor_config.json", "special_tokens_map.json"),
    *("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "vocab.json", "target_vocab.json"),
    *("vocab.txt", "merges.txt", "*.spm", "spiece.model", "sentencepiece.bpe.model"),
    *("model.safetensors", "model-*.safetensors", "model.safetensors.index.json"),
]
"""What an import may read. Pickles and programs are never fetched."""
_CONVERSION = ("Adding `safetensors` variant of this model", "SFconvertbot")
"""Title and author of the pull request in which the hub converts pickles, as `transformers` looks for it."""
_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)


class Located(NamedTuple):
    """The folder of a model."""

    folder: Path
    origin: str
    """What a run says of where its model comes from: a name and its revision, or "imported" for a folder."""


@functools.cache
def located(name: str, revision: str | None = None) -> Located:
    """The folder of a model: that of this name or, if there is none, one that is downloaded.

    The library keeps what it has downloaded, and asks no network if HF_HUB_OFFLINE is set.

    Args:
      name: a folder, or a name such as facebook/nllb-200-distilled-600M.
      revision: a branch, tag or commit of the hub. None: the main branch or, if that has only pickles, the
        hub's own conversion of it.

    Raises:
      UserError: there is neither; the library is missing; the model cannot be downloaded, or has no
        safetensors.
    """
    if Path(name).exists():
        if revision is not None:
            raise UserError(f"--revision: {name} is a folder, not the name of a model on a hub; leave it out")
        return Located(Path(name), "imported")
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise UserError(f"{name}: no such folder")
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise UserError(
            f"{name}: no such folder. If it is a name on Hugging Face's hub, install what downloads it: "
            "pip install '.[hub]'"
        ) from error
    try:
        folder = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=FILES))
    except Exception as error:  # the library and its network raise their own errors
        reason = first_line(error).removesuffix(".")
        raise UserError(f"{name}: no such folder, and it cannot be had from the hub: {reason}") from error
    if not any(folder.glob("*.safetensors")):
        if revision is None and (converted := _conversion(huggingface_hub, name)):
            log.warning(
                "%s has no safetensors: the hub's conversion of its pickles is read, %s", name, converted
            )
            return located(name, converted)
        raise UserError(
            f"{name}: the hub has no safetensors of it, and pickles are not read, as they can execute code. "
            "Look for a revision with safetensors (--revision), or convert the model with transformers"
        )
    return Located(folder, f"imported from {name}, revision {folder.name}")


def _conversion(library: Any, name: str) -> str | None:
    """The revision in which the hub has converted the newest pickles of a model, if there is one that can be
    found."""
    with contextlib.suppress(Exception):  # the library and its network raise their own errors
        api = library.HfApi()
        newest = api.list_repo_commits(name)[0].commit_id
        for discussion in library.get_repo_discussions(name):
            is_conversion = (discussion.title, discussion.author) == _CONVERSION
            if is_conversion and discussion.is_pull_request and discussion.status == "open":
                commits = api.list_repo_commits(name, revision=discussion.git_reference)
                if [commit.commit_id for commit in commits[1:2]] == [newest]:
                    return str(discussion.git_reference)
    return None


# Reads the folder of a model: its JSON files, its tensors, its search options.


CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer_config.json"
LANGUAGES = ("source_lang", "target_lang")
"""Fields of tokenizer_config.json."""
_REAL = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
"""The types of safetensors that weights have."""
_METHODS = {"gptq": "GPTQ", "awq": "AWQ", "fp8": "float8", "fbgemm_fp8": "float8"}
"""The names of methods of quantisation, by that in config.json."""
_SIGNS = {
    ".SCB": "bitsandbytes, 8 bits",
    ".absmax": "bitsandbytes, 4 bits",
    ".g_idx": "GPTQ",
    ".qzeros": "AWQ",
    ".weight_packed": "compressed-tensors",
    ".weight._data": "quanto",
    ".weight_scales": "EETQ",
    ".weight_scale": "float8",
    ".weight_scale_inv": "float8",
}
"""How the names of tensors end that methods of quantisation store. The first one counts."""
_DEQUANTISED = ", or load this one with transformers, call its dequantize(), and save it with save_pretrained"
_POINTER = b"version https://git-lfs"
_READ = (*FILES, "*.bin", "*.npz", "*.yml", "*vocabulary*")
_OTHERS = ("pytorch_model", "tf_model", "flax_model", "rust_model", "training_args", "optimizer")
"""How the names of files begin that other programs read."""


def first_of(folder: Path, *names: str) -> Path:
    """The first of these files that is there. Raises UserError if none is."""
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise UserError(f"{folder}: there is no {' and no '.join(names)}")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the name of a file to errors, except to those that name its folder, or another file there."""
    folder = path if path.is_dir() else path.parent
    try:
        yield
    except UserError as error:
        if str(error).startswith((f"{folder}/", f"{folder}:", f"{folder} ")):
            raise
        raise UserError(f"{path}: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: not the config of a model that is known here: {fault_of(error)}") from error


def read_json(path: Path, change: Callable[[str], str] = str) -> Json:
    """The content of a JSON file, whose text is changed before it is parsed. Raises UserError if it cannot be
    read, or a field has another type than an import reads."""
    try:
        content = parse_object(change(read_text(path)))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; the folder of a model has one") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    check_fields(path, content)
    return observed(path, content)


def tokenizer_options(folder: Path) -> Json:
    """The content of tokenizer_config.json, as by `without_limits`; empty if there is none."""
    path = folder / TOKENIZER
    return read_json(path, without_limits) if path.exists() else {}


def named_languages(folder: Path) -> tuple[str | None, str | None]:
    """The languages of source and target that a folder names."""
    options = tokenizer_options(folder)
    named = (options.get(name) for name in LANGUAGES)
    source, target = (name if isinstance(name, str) and CODE.fullmatch(name) else None for name in named)
    return source, target


def tensors(folder: Path) -> "Shards":
    """The tensors in the model.safetensors of a folder, or in the several files that
    model.safetensors.index.json names.

    Raises:
      UserError: there is no such file; one is damaged; the index says something else than the files; the
        weights are quantised.
    """
    path = folder / WEIGHTS
    index = folder / INDEX
    files: dict[str | None, Path] = {}
    if index.exists():
        with naming(index):
            files = _shards(folder, read_json(index))
    if not files or (path.exists() and path not in files.values()):
        files = {None: path}
    more = [*folder.glob("model-*.safetensors"), *[index] * (None in files and index.exists())]
    if more := sorted({*more}.difference(files.values())):
        counting = WEIGHTS if None in files else f"{INDEX}, which does not name it,"
        log.warning("Not imported: %s: %s counts", printable(more[0], but=""), counting)
    shards = Shards(files)
    if method := _quantisation(folder, shards):
        raise UserError(
            f"{folder}: its weights are quantised ({method}), and only those in float16, bfloat16, float32 "
            "and float64 are read. Import the model that they were made from"
            + _DEQUANTISED
            * ("bitsandbytes" in method)
        )
    return shards


def _quantisation(folder: Path, shards: "Shards") -> str | None:
    """The method by which the weights of a folder are quantised, if they are."""
    config = read_json(folder / CONFIG).get("quantization_config") if (folder / CONFIG).exists() else None
    if isinstance(config, dict):
        method = str(config.get("quant_method", "bitsandbytes"))
        bits = f", {4 if config.get('load_in_4bit') else 8} bits" if method == "bitsandbytes" else ""
        return _METHODS.get(method, method) + bits
    for ending, method in _SIGNS.items():
        if any(name.endswith(ending) for name in shards.names):
            return method
    return next(("float8" for dtype in shards.types if dtype.startswith("F8")), None)


def _shards(folder: Path, index: Json) -> dict[str | None, Path]:
    """The file of each tensor, by the content of an index."""
    files: dict[str | None, Path] = {}
    for name, file in index["weight_map"].items():
        if not isinstance(file, str) or Path(file).name != file:
            raise UserError(f"{brief(name)} is in {brief(str(file))}, which is not a file of this folder")
        files[name] = folder / file
    return files


LONGEST_HEADER = 16 * MiB  # of a file of safetensors: 100,000 tensors; published ones have 1 MiB at most


class Shards:
    """Tensors in one or several files of safetensors, whose headers are read once. A file is open only while
    one of its tensors is read, so memory holds one tensor at a time.

    Args:
      files: the file of each tensor; of None: a file whose tensors all count.

    Raises:
      UserError: a file is missing or damaged, lacks a tensor, or has one that `files` does not expect in it.
    """

    def __init__(self, files: dict[str | None, Path]) -> None:
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, str] = {}
        self._starts: dict[str, int] = {}
        for path in dict.fromkeys(files.values()):
            with _opened(path) as file:
                size = int.from_bytes(file.read(8), "little")
                if size > LONGEST_HEADER:
                    raise ValueError(f"a header of {size:,} bytes, of {LONGEST_HEADER:,} at most")
                with safe_open(path, framework="numpy"):  # checks sizes and offsets
                    header = parse_object(file.read(size).decode())
            header.pop("__metadata__", None)
            for name, tensor in header.items():
                if (indexed_path := files.get(name, files.get(None))) != path:
                    where = f"says is in {indexed_path.name}" if indexed_path else "does not name"
                    raise UserError(f"{path} has the tensor {name}, which {INDEX} {where}")
                self._files[name] = path
                self._shapes[name] = tuple(tensor["shape"])
                self._types[name] = tensor["dtype"]
                self._starts[name] = 8 + size + tensor["data_offsets"][0]
        if missing := [name for name in files if name is not None and name not in self._files]:
            raise UserError(f"{files[missing[0]]} has no tensor {missing[0]}, which {INDEX} says is there")

    @property
    def names(self) -> Set[str]:
        """The names of all tensors."""
        return self._files.keys()

    @property
    def types(self) -> Set[str]:
        """The types of tensors, as safetensors names them."""
        return {*self._types.values()}

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor, or None if there is none."""
        return self._shapes.get(name)

    def __call__(self, name: str) -> np.ndarray | None:
        """A tensor in float32, or None if there is none.

        Raises:
          UserError: the file is damaged; the tensor is not one of real numbers.
        """
        path = self._files.get(name)
        if path is None:
            return None
        if (type_name := self._types[name]) not in _REAL:
            raise UserError(
                f"{path}: tensor {name} is of type {type_name}, and weights are read in {', '.join(_REAL)}. "
                "Convert it with the program that wrote it: here such numbers have no meaning"
            )
        dtype, shape = np.dtype(_REAL[type_name]), self._shapes[name]
        content = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
        with _opened(path) as file, np.errstate(over="ignore"):  # too large: not finite, which is refused
            file.seek(self._starts[name])
            if file.readinto(content.data) < len(content):
                raise ValueError("it has become shorter while it was read")
            return np.asarray(content.view(dtype).reshape(shape), np.float32)


def check_no_pointers(folder: Path) -> None:
    """Raises UserError if a file that an import may read is not the file, but what Git LFS has in place of
    it."""
    for path in sorted(folder.iterdir()):
        if not any(fnmatch(path.name, pattern) for pattern in _READ) or path.name.startswith(_OTHERS):
            continue
        with contextlib.suppress(OSError), open_regular(path) as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise UserError(
                    f"{path} is a pointer of Git LFS, not the file itself: run `git lfs pull` in {folder}"
                )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    """A file of safetensors."""
    if not os.path.exists(path):  # a name in an index may be longer than a file's
        pickles = sorted(path.parent.glob("pytorch_model*.bin"))
        reason = "; the folder of a model has one"
        if pickles:
            reason = (
                f": {pickles[0].name} is a pickle, which could execute anything when read. If you trust it, "
                "load it with the from_pretrained of transformers and save it again with save_pretrained"
            )
        raise UserError(f"{path}: no such file{reason}")
    try:
        with open_regular(path) as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def search_options(folder: Path) -> Json:
    """The search options, which older models have in config.json. As in `transformers`, that counts only if
    there is no other file."""
    return read_json(searched_file(folder))


def searched_file(folder: Path) -> Path:
    """The file that has the search options."""
    return folder / (GENERATION if (folder / GENERATION).exists() else CONFIG)


def search_of(folder: Path, generation: Json, vocab_size: int) -> DecodingConfig:
    """The model's own search options."""
    with naming(searched_file(folder)):
        return search_from_hub(generation, vocab_size)


def check_new(folder: Path) -> None:
    """Raises UserError if there is something in a folder that an export would write."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists: name a new folder")


def write_folder(
    folder: Path, tensors: Mapping[str, np.ndarray], files: Mapping[str, bytes], described: Mapping[str, Json]
) -> None:
    """Writes a folder as Hugging Face has it, whole or not at all.

    Args:
      folder: a new one.
      tensors: of model.safetensors.
      files: others, by their names.
      described: the content of JSON files, by their names.

    Raises:
      UserError: it cannot be written.
    """
    with writing(folder), folder_whole(folder, tidy=True) as partial:
        # safetensors writes the memory of an array, whatever its strides
        contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
        (partial / WEIGHTS).write_bytes(save(contiguous, metadata={"format": "pt"}))
        for name, content in files.items():
            (partial / name).write_bytes(content)
        for name, options in described.items():
            (partial / name).write_bytes(as_json(options))


def as_json(content: Json | list[str]) -> bytes:
    """JSON as these folders have it."""
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()
