"""Marian's own folders, in and out: a model in `.npz` or `.bin`, vocabularies, search options.

| | Marian | here |
|---|---|---|
| decoding starts | with a zero vector | `--model.zero-start` |
| sinusoids | sines, then cosines | `--model.positions sinusoidal-halves` |
| SSRU decoder | `transformer-decoder-autoreg: rnn`, `dec-cell: ssru` | `--model.decoder-recurrence ssru` |
| padding | has no id | a last row of the embeddings, never generated |

Names of parameters are those of Marian's `transformer.h`.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from transformer.config.decoding import BeamConfig, DecodingConfig
from transformer.config.options import Config
from transformer.config.searches import GreedyConfig
from transformer.config.transformer import TransformerConfig
from transformer.data.tokenizers.lossless import opened as opened_pieces
from transformer.data.tokenizers.pieces import MarianTokenizer
from transformer.data.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizer
from transformer.decoding.searches.shortlist import Shortlist
from transformer.interop.architectures.marian import WITHOUT_LANGUAGES
from transformer.interop.folders.conversion import exported_tensors, stored_names
from transformer.interop.folders.family import (
    NEVER_GENERATED,
    Family,
    Names,
    Opened,
    Request,
    Storage,
    Tensor,
    Tokenizers,
    Vocabulary,
    described_model,
    undescribed,
)
from transformer.interop.folders.folder import check_new, naming
from transformer.interop.folders.items import WHOLE, Yaml, marian_file, parse_number, parse_yaml, write_npz
from transformer.interop.folders.pieces import read_sentencepiece, words_by_id
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, MiB, folder_whole, prefixed_errors, read_text, writing
from transformer.tasks.task import Task
from transformer.tasks.texts.translation import Translation

_NORMS = {("", "an"): "post", ("n", "a"): "pre"}
"""By what Marian does before and after a sublayer: normalise (n) and add the input (a)."""
_SIDES = {"source": "encoder", "target": "decoder"}
_SUBLAYERS = {
    "self_attention": "self_",
    "recurrence": "rnn_",
    "cross_attention": "context_",
    "feed_forward": "ffn_",
}
_NORMED = {
    "self_residual": "self_Wo_",
    "cross_residual": "context_Wo_",
    "feed_forward_residual": "ffn_ffn_",
}
_LEAVES = {
    **{name: f"W{name[0]}" for name in ("query", "key", "value")},
    **{f"{name}_bias": f"b{name[0]}" for name in ("query", "key", "value")},
    "out": "Wo",
    "out_bias": "bo",
    "input.kernel": "W",
    "forget.kernel": "Wf",
    "forget.bias": "bf",
    "inner.kernel": "W1",
    "inner.bias": "b1",
    "outer.kernel": "W2",
    "outer.bias": "b2",
}
_EMBEDDINGS = {
    "source_embedding": "encoder_Wemb",
    "target_embedding": "decoder_Wemb",
    "output_embedding": "decoder_ff_logit_out_Wt",
}
_SHARED = "Wemb"
_TIES = {  # tied-embeddings-all or both, tied-embeddings-src, tied-embeddings
    (True, True): "all",
    (True, False): "inputs",
    (False, True): "target",
    (False, False): "none",
}
OUTPUT_BIAS = "decoder_ff_logit_out_b"
_UNSUPPORTED = {  # options, and the values with which they have no effect
    "type": ("transformer",),
    "transformer-no-projection": ("false",),
    "transformer-rnn-projection": ("false",),
    "transformer-train-position-embeddings": ("false",),
    "transformer-train-positions": ("false",),
    "transformer-pool": ("false",),
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-ffn-depth": ("2", "0"),
    "layer-normalization": ("false",),
    "lemma-dim-emb": ("0",),
    "ulr": ("false",),
}


def with_padding(described: Yaml) -> Json:
    """What a model.yml says of a network, and the id more that is padding here, and the start."""
    pad = max(vocabulary_sizes(described))
    return {**described, "vocab_size": pad + 1, "pad_token_id": pad, "decoder_start_token_id": pad}


def network_options(described: Json, names: Collection[str]) -> dict[str, Any]:
    """The options of a network, without special ids.

    Args:
      described: the content of model.yml.
      names: of all arrays.

    Raises:
      UserError: it has options that are not supported here.
      KeyError, ValueError, TypeError: an option is missing, or has no such value.
    """
    for name, values in _UNSUPPORTED.items():
        if described.get(name, values[0]) not in values:
            raise UserError(f"{name} is {described[name]}; supported is {values[0]}")
    sizes = vocabulary_sizes(described)
    if any(name in names for name in ("encoder_Wpos", "decoder_Wpos", "Wpos")):
        raise UserError("positions are learned, which is not supported for Marian's files")
    depths = {side: _whole_number(described, f"{side}-depth") for side in ("enc", "dec")}
    for side, depth in depths.items():
        if not 1 <= depth <= len(names):
            raise UserError(f"{side}-depth is {depth}, and there are {len(names)} arrays")
    steps = ("preprocess", "postprocess", "postprocess-emb", "postprocess-top")
    processing = {f"transformer-{step}": str(described.get(f"transformer-{step}", "")) for step in steps}
    before, after, embedding, top = (value.replace("d", "") for value in processing.values())
    if (before, after) not in _NORMS or {embedding, top} - {"", "n"} or (before == "n" and top != "n"):
        written = ", ".join(
            f"transformer-{step} {described.get(f'transformer-{step}', '')!r}" for step in steps
        )
        raise UserError(f"{written}: supported is post-norm (dan), and pre-norm (n, da) with a last norm (n)")
    activation = described.get("transformer-ffn-activation", "swish")
    if activation not in ("relu", "swish"):
        raise UserError(f"transformer-ffn-activation {activation}: supported are relu and swish")
    ties_all = _is_true(described, "tied-embeddings-all")
    ties = [ties_all or _is_true(described, name) for name in ("tied-embeddings-src", "tied-embeddings")]
    size = max(sizes) + 1
    return dict(
        vocab_size=size,
        target_vocab_size=None if ties[0] else size,
        share_embeddings=_TIES[ties[0], ties[1]],
        num_layers=depths["enc"],
        decoder_layers=depths["dec"],
        d_model=_whole_number(described, "dim-emb"),
        d_ff=_whole_number(described, "transformer-dim-ffn"),
        num_heads=_whole_number(described, "transformer-heads"),
        norm=_NORMS[before, after],
        final_norm=top == "n",
        embedding_norm=embedding == "n",
        activation=activation,
        dropout=0.0,
        attention_bias=True,
        output_bias=True,
        positions="sinusoidal-halves",
        zero_start=True,
        decoder_recurrence=_recurrence(described),
    )


def vocabulary_sizes(described: Yaml) -> tuple[int, int]:
    """Rows of source and target embedding, without padding."""
    source, target = (int(parse_number(size, WHOLE)) for size in described["dim-vocabs"])
    return source, target


def _recurrence(described: Yaml) -> str:
    layer = described.get("transformer-decoder-autoreg", "self-attention")
    cell = described.get("dec-cell")
    if layer == "self-attention":
        return "none"
    if layer == "rnn" and cell == "ssru":
        return "ssru"
    of_cell = f" with dec-cell {cell}" if layer == "rnn" else ""
    raise UserError(
        f"transformer-decoder-autoreg {layer}{of_cell}: supported are self-attention, and rnn with dec-cell "
        "ssru"
    )


def _whole_number(described: Yaml, name: str) -> int:
    value = described[name]
    if not isinstance(value, str):
        raise UserError(f"{name} is a list, not a number")
    try:
        return int(parse_number(value, WHOLE))
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None


def _is_true(described: Yaml, name: str) -> bool:
    return described.get(name, "false") == "true"


def layer_numbers(described: Yaml, depth: int) -> list[int]:
    """The number in names of each decoder layer, from 1: tied layers have the same."""
    tied = described.get("transformer-tied-layers") or range(1, depth + 1)
    numbers = list(map(int, tied))
    if len(numbers) != depth:
        raise UserError(f"transformer-tied-layers has {len(numbers)} numbers for {depth} layers")
    return numbers


def network_description(config: TransformerConfig, sizes: tuple[int, int]) -> Yaml:
    """The content of model.yml, as far as it has options for those of the network."""
    before, after = {norm: ops for ops, norm in _NORMS.items()}[config.norm]
    inputs, outputs = {value: ties for ties, value in _TIES.items()}[config.share_embeddings]
    is_recurrent = config.decoder_recurrence == "ssru"
    options: dict[str, Any] = {
        "type": "transformer",
        "version": "v1.9.56",
        "dim-vocabs": list(map(str, sizes)),
        "dim-emb": config.d_model,
        "enc-depth": config.num_layers,
        "dec-depth": config.decoder_depth,
        "dec-cell": config.decoder_recurrence if is_recurrent else "gru",
        "enc-cell": "gru",
        "enc-type": "bidirectional",
        "transformer-decoder-autoreg": "rnn" if is_recurrent else "self-attention",
        "transformer-dim-ffn": config.d_ff,
        "transformer-ffn-depth": 2,
        "transformer-ffn-activation": config.activation,
        "transformer-heads": config.num_heads,
        "transformer-preprocess": before,
        "transformer-postprocess": after.replace("a", "da"),
        "transformer-postprocess-emb": "dn" if config.embedding_norm else "d",
        "transformer-postprocess-top": "n" if config.normalizes_output else "",
        "transformer-no-projection": False,
        "transformer-train-position-embeddings": False,
        "transformer-tied-layers": [],
        "transformer-guided-alignment-layer": "last",
        "tied-embeddings": outputs and not inputs,
        "tied-embeddings-src": inputs and not outputs,
        "tied-embeddings-all": inputs and outputs,
        "output-omit-bias": False,
        "layer-normalization": False,
        "lemma-dim-emb": 0,
        "input-types": [],
        "skip": False,
        "right-left": False,
        "ulr": False,
    }
    words = {True: "true", False: "false"}
    as_text = {name: words[x] if isinstance(x, bool) else x for name, x in options.items()}
    return {name: value if isinstance(value, list) else str(value) for name, value in as_text.items()}


def _tensor(path: Names, described: Yaml, model: TransformerConfig) -> Tensor:
    component, *inner = path
    if component == "output_bias":
        order = _order(described, model, "target")
        return Tensor((OUTPUT_BIAS,), "row", order=order, filler=NEVER_GENERATED, if_missing=0.0)
    if component in _EMBEDDINGS:
        side = "source" if component == "source_embedding" else "target"
        return Tensor(_tables(component, model), order=_order(described, model, side))
    stack, module = component.rsplit("_", 1)
    leaf = inner[-1]
    if module == "positions":
        return Tensor((f"{_SIDES[stack]}_emb_ln_{leaf}_pre",), "row")
    if module == "norm":
        return Tensor((f"{stack}_top_ln_{leaf}",), "row")
    numbers = layer_numbers(described, model.decoder_depth) if stack == "decoder" else None
    layer = f"{stack}_l{numbers[int(module)] if numbers else int(module) + 1}_"
    sublayer = inner[0]
    if sublayer in _SUBLAYERS:
        name = _LEAVES[".".join(inner[1:])]
        return Tensor((f"{layer}{_SUBLAYERS[sublayer]}{name}",), "in-out" if name[0] == "W" else "row")
    suffix = "_pre" if model.norm == "pre" else ""
    prefix = _NORMED[sublayer]
    if sublayer == "self_residual" and stack == "decoder" and model.decoder_recurrence != "none":
        prefix = "rnn_" if suffix else "rnn_ffn_"
    return Tensor((f"{layer}{prefix}ln_{leaf}{suffix}",), "row")


def _tables(table: str, model: TransformerConfig) -> Names:
    """The names of a matrix of words, among them those of the matrices that it is tied to."""
    source, target, output = _EMBEDDINGS.values()
    match table, model.share_embeddings:
        case "source_embedding", "all":
            return _SHARED, source, target, output
        case "source_embedding", "inputs":
            return _SHARED, source, target
        case "target_embedding", "target":
            return target, output
    return (_EMBEDDINGS[table],)


def _order(described: Yaml, model: TransformerConfig, side: str) -> list[int]:
    """The row of each word, and none for padding."""
    size = vocabulary_sizes(described)[side == "target"]
    return [*range(size), *[-1] * (model.vocab_size - size)]


# The folder.


_OTHERS = ("lex", "optimizer", "pytorch_model", "training_args")  # names of other files begin so
_VOCABULARIES = (("srcvocab*.spm", "trgvocab*.spm"), ("*vocab*.spm",) * 2, ("*vocab*.yml",) * 2)
_PIECES = ("source.spm", "target.spm")
_IGNORED = ("word-penalty", "max-length-factor", "max-length-crop", "allow-unk")
_NO_EFFECT = ("0", "false")

Words = list[str | None]
"""The piece of each id."""


class MarianFilesVocabulary(Vocabulary):
    """One or two SentencePiece models or, with those, lists of words in YAML."""

    def __init__(self, folder: Path, family: Family[Any]) -> None:
        self._paths = _vocabulary_files(folder, _decoder_options(folder))
        self._words = [_words(*pair) for pair in zip(self._paths, map(folder.joinpath, _PIECES), strict=True)]
        pairs = zip(self._paths, self._words, strict=True)
        ids, target_ids = (_special_ids(path, words) for path, (_, words) in pairs)
        if ids != target_ids:
            source, target = self._paths
            raise UserError(f"{source} and {target} have other ids of </s> or <unk>, which is not supported")
        eos, self.unk = ids
        self.ids: Json = {"eos_token_id": eos}

    def tokenizers(self, opened: Opened, model: TransformerConfig, request: Request) -> Tokenizers:
        sizes = vocabulary_sizes(opened.described)
        source, target = (
            _tokenizer(path, *words, size, model)
            for path, words, size in zip(self._paths, self._words, sizes, strict=True)
        )
        return source, target


class MarianFiles(Family[TransformerConfig]):
    """Marian's own files, such as those of Firefox Translations: a model (`.npz` or `.bin`), one or two
    vocabularies (`.spm`, or `.yml` with source.spm and target.spm), and optionally the decoder's options
    (`config.yml`, `decoder.yml`).

    Integers become real numbers. The multipliers of activations in a model of integers (`*_QuantMultA`) are
    not read: `--int8` quantises activations as they come.
    """

    def opened(self, folder: Path) -> Opened:
        """Opens a folder, with the decoder's options in place of generation_config.json."""
        options = _decoder_options(folder)
        path = _model(folder, options)
        file = marian_file(path)
        with naming(path):
            return Opened(folder, path, with_padding(file.description), file, options)

    def decoding(self, opened: Opened, model: TransformerConfig) -> DecodingConfig:
        """The model's own search, which divides scores by length^normalize."""
        options = opened.generation
        try:
            beam_size = int(parse_number(_one(options.get("beam-size", "12")), WHOLE))
            penalty = parse_number(_one(options.get("normalize", "0")))
        except ValueError as error:
            raise UserError(f"beam-size or normalize: {error}") from error
        if not options:
            return BeamConfig()
        if beam_size == 1:
            return GreedyConfig(penalty="power", length_penalty=penalty)
        return BeamConfig(beam_size=beam_size, penalty="power", length_penalty=penalty, stop="full")

    def task(self, config: Config, tokenizers: Tokenizers, folder: Path) -> Task:
        """The task of a run, with the lexical shortlist if the folder has one."""
        files = list(folder.glob("lex*.bin"))
        shortlist = Shortlist.read(files[0], config.model.output_size) if len(files) == 1 else None
        return Translation(config, tokenizers, shortlist)

    def kept(self, folder: Path) -> dict[str, Json]:
        """No JSON file belongs to such a model."""
        return {}

    def ignored(self, folder: Path) -> list[str]:
        """A sentence for each option of the decoder that affects Marian's output."""
        options = _decoder_options(folder)
        return [
            f"{name} {options[name]} has no counterpart here."
            for name in _IGNORED
            if options.get(name, "0") not in _NO_EFFECT
        ]


MARIAN_FILES = MarianFiles(
    "marian-npz",
    network_options,
    Storage(_tensor, harmless=(r".*_QuantMultA",)),  # integers for activations, which --int8 computes
    MarianFilesVocabulary,
    keeps_bias=True,
    refuses=WITHOUT_LANGUAGES,
)


def marian_models(folder: Path) -> list[Path]:
    """The files of a folder that are models in Marian's own format, if it has none in another."""
    files = (path for path in folder.iterdir() if path.suffix == ".bin" or ".npz" in path.suffixes)
    return sorted(path for path in files if not path.name.startswith(_OTHERS))


def _decoder_options(folder: Path) -> Yaml:
    """The content of the file with `models:`, as Marian's decoder reads it; empty if there is none."""
    for path in sorted(folder.glob("*.yml")):
        try:
            with prefixed_errors(f"{path}, "):
                if path.stat().st_size <= MiB and "models" in (options := parse_yaml(read_text(path, MiB))):
                    return options
        except (OSError, ValueError):
            continue  # another file
    return {}


def _named(folder: Path, options: Yaml, name: str) -> list[Path]:
    """The files of an option, of which only the name counts: nothing beside the folder is read."""
    values = options.get(name, [])
    names = [values] if isinstance(values, str) else values
    return [path for value in names if os.path.isfile(path := folder / Path(value).name)]


def _model(folder: Path, options: Yaml) -> Path:
    models = _named(folder, options, "models") or marian_models(folder)
    if len(models) != 1:
        names = ", ".join(path.name for path in models)
        raise UserError(f"{folder} has several models: {names}. Import a folder with one of them")
    return models[0]


def _vocabulary_files(folder: Path, options: Yaml) -> tuple[Path, Path]:
    named = _named(folder, options, "vocabs")
    if len(named) == 2:
        return named[0], named[1]
    for patterns in _VOCABULARIES:
        source, target = ([path for path in folder.glob(pattern)] for pattern in patterns)
        if len(source) == len(target) == 1:
            return source[0], target[0]
    raise UserError(
        f"{folder} needs one vocab.spm, or srcvocab.spm and trgvocab.spm, or vocab.yml with source.spm and "
        "target.spm"
    )


def _words(vocabulary: Path, pieces: Path) -> tuple[bytes, Words]:
    """A SentencePiece model, and the piece of each id: its own or, if the vocabulary is YAML, those of it."""
    model = vocabulary if vocabulary.suffix == ".spm" else pieces
    content, words = read_sentencepiece(model)
    if model == vocabulary:
        return content, [*words]
    try:
        numbered = {
            word: int(parse_number(_one(index), WHOLE))
            for word, index in parse_yaml(read_text(vocabulary)).items()
        }
    except (OSError, ValueError, UserError) as error:
        raise UserError(f"{vocabulary} is not a list of words and their ids: {error}") from error
    return content, words_by_id(vocabulary, numbered, len(numbered))


def _special_ids(path: Path, words: Words) -> tuple[int, int]:
    """The ids of </s> and <unk>."""
    try:
        return words.index("</s>"), words.index("<unk>")
    except ValueError as error:
        raise UserError(f"{path} has no </s> or no <unk>, which Marian's vocabularies have") from error


def _tokenizer(
    path: Path, pieces: bytes, words: Words, size: int, model: TransformerConfig
) -> MarianTokenizer:
    if len(words) > size:
        raise UserError(f"{path} has {len(words):,} words, and the model {size:,}")
    return MarianTokenizer(pieces, words + [None] * (model.vocab_size - len(words)), model.special)


def _one(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else ""


# Exports a model as Marian's own files: model.npz, vocabularies, decoder.yml.


MODEL = "model.npz"
DECODER = "decoder.yml"


def export_marian_files(run_dir: Path | str, folder: Path | str, checkpoint: str | int = "best") -> Path:
    """Writes a model as Marian reads it: `marian-decoder -c FOLDER/decoder.yml`.

    Args:
      run_dir: a run directory.
      folder: a new folder.
      checkpoint: as in `Translator.load`.

    Raises:
      UserError: Marian's files cannot describe the model or its vocabulary; the folder exists.
    """
    from transformer.translator.translator import translation_of

    run = Run(run_dir)
    folder = Path(folder)
    config = run.config.model
    check_new(folder)
    if run.config.system != "transformer" or not isinstance(config, TransformerConfig):
        raise UserError(f"{run.name} holds a {run.config.system} model, which Marian does not support")
    vocabularies = [_vocabulary(tokenizer, run.name) for tokenizer in translation_of(run).tokenizers]
    sizes = (vocabularies[0][1], vocabularies[1][1])
    description = network_description(config, sizes)
    names = stored_names(MARIAN_FILES.storage, description, config)
    if lacks := _lacks(description, config):
        raise UserError(f"{run.name} cannot be exported: Marian's files have no {' and no '.join(lacks)}")
    described = with_padding(description) | {"eos_token_id": config.special.eos}
    stored = described_model(MARIAN_FILES, described, names, config.special.unk)
    params = run.variables(checkpoint)["params"]
    words = range(sizes[0]), range(sizes[1])
    arrays = exported_tensors(MARIAN_FILES.storage, params, config, description, stored, words)
    unused = [index for index in config.special.never_predicted if index < sizes[1]]
    arrays[OUTPUT_BIAS] = np.array(arrays[OUTPUT_BIAS])
    arrays[OUTPUT_BIAS][0, unused] = NEVER_GENERATED
    is_joint = vocabularies[0] == vocabularies[1]
    vocabs = ["vocab.spm"] * 2 if is_joint else ["srcvocab.spm", "trgvocab.spm"]
    decoder = {
        "relative-paths": True,
        "models": [MODEL],
        "vocabs": vocabs,
        **_marian_search(run.config.decoding),
    }
    with writing(folder), folder_whole(folder, tidy=True) as partial:
        write_npz(partial / MODEL, arrays, description)
        for name, (content, _) in zip(vocabs, vocabularies, strict=True):
            (partial / name).write_bytes(content)
        (partial / DECODER).write_text(yaml.safe_dump(decoder, sort_keys=False), encoding="utf-8")
    return folder


def has_network(config: Config) -> bool:
    """Whether Marian's files can describe the network of a run."""
    model = config.model
    if config.system != MARIAN_FILES.system or not isinstance(model, TransformerConfig):
        return False
    try:
        return not _lacks(network_description(model, (model.vocab_size, model.output_size)), model)
    except (KeyError, UserError):
        return False


def _lacks(description: Yaml, config: TransformerConfig) -> list[str]:
    """The options of a network that its description lacks."""
    names = stored_names(MARIAN_FILES.storage, description, config)
    return undescribed(network_options(description, names), config)


def _vocabulary(tokenizer: Tokenizer, run: str) -> tuple[bytes, int]:
    """A SentencePiece model whose ids are the tokenizer's, and how many there are."""
    match tokenizer:
        case MarianTokenizer():
            content = tokenizer.model
        case SentencePieceTokenizer():
            content = tokenizer.content()
        case _:
            raise UserError(f"{run}: its vocabulary is not SentencePiece's, as Marian requires")
    _, pieces = opened_pieces(content)
    if isinstance(tokenizer, MarianTokenizer) and tokenizer.words[: len(pieces)] != pieces:
        raise UserError(
            f"{run}: its vocabulary has other ids than its SentencePiece model, which only Hugging Face's "
            "format can have: leave out --to"
        )
    return content, len(pieces)


def _marian_search(decoding: DecodingConfig) -> dict[str, int | float]:
    """The decoder's options: Marian divides scores by length^normalize."""
    beam_size = decoding.beam_size if isinstance(decoding, BeamConfig) else 1
    is_kept = isinstance(decoding, BeamConfig | GreedyConfig) and decoding.penalty == "power"
    return {"beam-size": beam_size, "normalize": decoding.length_penalty if is_kept else 1.0}
