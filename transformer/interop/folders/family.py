"""What a family of pretrained models declares: its network, where each parameter is stored, its vocabulary,
its search and its task; and the order of stored sinusoids."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

import jax.numpy as jnp
import numpy as np

from transformer.config.corpus import CorpusConfig, DataConfig
from transformer.config.decoding import DecodingConfig
from transformer.config.model import SpecialIds
from transformer.config.options import Config
from transformer.config.transformer import StackConfig, TransformerConfig
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.interop.folders.folder import (
    CONFIG,
    named_languages,
    naming,
    read_json,
    search_of,
    search_options,
    searched_file,
    tensors,
)
from transformer.interop.folders.search import not_imported, searched_ids
from transformer.interop.folders.unused import unused
from transformer.model.parameters import Params
from transformer.model.positions import sinusoids
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.systems.registry import find_system
from transformer.tasks.task import Task
from transformer.tasks.texts.text_to_text import TextToText

# Stored tables of sinusoids. Some families have all sines, then all cosines; here they are interleaved, as
# in the paper.


def interleaved_order(d_model: int) -> np.ndarray:
    """For each coordinate of interleaved sinusoids, its index where all sines come first."""
    return np.arange(d_model).reshape(2, -1).T.reshape(-1)


def interleaved(count: int, d_model: int) -> np.ndarray:
    """The sinusoids of the first `count` positions as in the paper, `[count, d_model]`."""
    return np.array(sinusoids(jnp.arange(count), d_model))


def sines_then_cosines(count: int, d_model: int) -> np.ndarray:
    """The sinusoids of the first `count` positions with all sines before all cosines, `[count, d_model]`."""
    return interleaved(count, d_model)[:, np.argsort(interleaved_order(d_model))]


def check_sinusoids(
    name: str,
    stored: np.ndarray | None,
    d_model: int,
    table: Callable[[int, int], np.ndarray] = sines_then_cosines,
    first: int = 0,
    tolerance: float = 1e-3,
) -> None:
    """Compares a stored table of positions, if there is one, with that which is computed.

    Args:
      name: of the tensor.
      stored: the tensor, `[positions, d_model]`.
      d_model: the width of the model.
      table: computes it.
      first: the first position that is compared.
      tolerance: the largest difference of two numbers.

    Raises:
      UserError: it is another table.
    """
    if stored is None:
        return
    if stored.ndim != 2 or stored.shape[1] != d_model:
        raise UserError(f"{name} has shape {list(stored.shape)}, not rows of {d_model}")
    if not np.abs(stored - table(*stored.shape))[first:].max(initial=0) <= tolerance:
        raise UserError(f"{name} is not made of sinusoids, which are the positions supported")


Read = Callable[[str], np.ndarray | None]
"""Returns the tensor of a name in float32, or None if there is none."""
Names = tuple[str, ...]
"""The path of a parameter here."""
Tokenizers = tuple[Tokenizer, Tokenizer]
"""The tokenizers of source and target."""


NEVER_GENERATED = -1e4
"""The logit of ids that are never generated: no probability after a softmax, and within float16."""
Layout = Literal["plain", "in-out", "out-in", "row", "convolution"]
"""How a parameter is stored. plain: a table as here, and anything else as a vector; in-out: a matrix
`[in, out]`, heads side by side; out-in: its transpose, as in PyTorch; row: a vector as a matrix of one row;
convolution: the kernel of a convolution in PyTorch, `[out, in, width]`."""


@dataclass(frozen=True)
class Tensor:
    """Where a parameter is stored, and how."""

    names: tuple[str, ...]
    """All names under which a folder may have the tensor. If it has several of them, their values must be
    equal. An export writes the first one."""
    layout: Layout = "plain"
    """How the parameter is stored."""
    rows_before: int = 0
    """Rows before the first one that is used here."""
    order: Sequence[int] | None = None
    """For each word of this package's vocabulary, its row in the stored tensor; -1: it has none. None: the
    order is the same."""
    filler: float = 0.0
    """What the rows of words that are not there consist of here."""
    part: tuple[int, int] = (0, 1)
    """Which of how many equal parts of the rows it is: some families store several matrices as one. Such
    tensors are not exported."""
    if_missing: float | Literal["new"] | None = None
    """What the parameter consists of if there is no such tensor; new: it is initialised as before training.
    None: there must be one."""


Model = TypeVar("Model", bound=StackConfig)
"""The options of a family's networks."""


@dataclass(frozen=True)
class Storage(Generic[Model]):
    """How a family stores the parameters of its models."""

    tensor: Callable[[Names, Json, Model], Tensor]
    """Where a parameter is stored. Raises KeyError for one that the family does not have."""
    sines_first: bool = False
    """Whether sinusoids are all sines, then all cosines, with the rates of the paper: the axis of d_model is
    permuted, as they are interleaved here."""
    check: Callable[[Json, Model, Read], None] = lambda config, model, read: None
    """Raises UserError if tensors besides those of parameters are not supported. It reads each of them."""
    harmless: tuple[str, ...] = ()
    """Patterns of the names of tensors that are not read and that no output depends on."""
    adjusted: Callable[[Names, np.ndarray, Model, Read], np.ndarray] = lambda path, x, *_: x
    """A parameter after its conversion, if it also depends on another tensor."""
    more_tensors: Callable[[Params, Model], dict[str, np.ndarray]] = lambda params, model: {}
    """Tensors of an export besides those of the parameters."""


class Source(Protocol):
    """The tensors of a folder."""

    @property
    def names(self) -> Set[str]:
        """The names of all tensors."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor, or None if there is none."""

    def __call__(self, name: str) -> np.ndarray | None:
        """A tensor in float32, or None if there is none."""


class Request(NamedTuple):
    """What an import is asked for, besides the folder."""

    origin: str
    """What the run says of where its model comes from."""
    source_language: str | None = None
    target_language: str | None = None
    task: str | None = None
    """What Whisper does: transcribe or translate."""


NO_TASK = {"task": "--task: it is for Whisper; leave it out"}
"""An option of a request that most families refuse, and what an import says."""


def without_codes(reason: str = "texts of this model have no code") -> dict[str, str]:
    """What an import says of the task and of languages, for a family that has neither."""
    refusal = f"--source-language, --target-language: {reason}"
    return NO_TASK | dict.fromkeys(("source_language", "target_language"), refusal)


@dataclass(frozen=True)
class Opened:
    """A folder, as its family opens it."""

    folder: Path
    file: Path
    """The file that describes the model, for messages."""
    described: Json
    """The content of config.json, or what it would say."""
    source: Source
    generation: Json
    """The content of generation_config.json, or what it would say."""


@dataclass(frozen=True)
class VocabularyFiles:
    """The vocabulary of an exported model."""

    files: dict[str, bytes]
    """The content of each file."""
    options: Json
    """The content of tokenizer_config.json."""
    described: Json
    """The options of config.json about the vocabulary: its size, pad_token_id, decoder_start_token_id,
    eos_token_id."""
    generation: Json
    """The ids in generation_config.json."""
    rows: tuple[Sequence[int], Sequence[int]]
    """For source and target, this package's id for each id of the export; -1: there is none."""


class Vocabulary(ABC):
    """How a family stores its tokenizers. An instance has read those of a folder.

    Raises:
      UserError: a file is missing or damaged.
    """

    unk: int
    """The id of <unk>, which config.json does not have."""
    ids: Json
    """More fields of config.json that only the vocabulary has."""

    @abstractmethod
    def __init__(self, folder: Path, family: "Family[Any]") -> None: ...

    @abstractmethod
    def tokenizers(self, opened: Opened, model: Any, request: Request) -> Tokenizers:
        """The tokenizers of source and target; twice that of both, if there is one.

        Args:
          opened: the folder, with `ids` among what describes it.
          model: what `described_model` made of it.
          request: with the languages of source and target.

        Raises:
          UserError: they do not go with the model; a language is unknown.
        """

    @staticmethod
    def exported(tokenizers: Tokenizers, config: Config) -> VocabularyFiles | None:
        """The files for these tokenizers; None if they are of another kind, or never exported."""
        return None


@dataclass(frozen=True)
class Family(Generic[Model]):
    """A family of pretrained models: what it declares, and how its folders are read and written. Its methods
    are those of models that translate, in a folder as Hugging Face has it."""

    model_type: str
    """The name of the family in config.json."""
    options: Callable[[Json, Collection[str]], dict[str, Any]]
    """The options of the network that a config.json describes, without special ids. It also gets the names of
    all tensors."""
    storage: Storage[Model]
    """How its parameters are stored."""
    vocabulary: type[Vocabulary]
    """How its tokenizers are stored."""
    defaults: Json = field(default_factory=dict)
    """What fields of config.json are that it lacks, where `transformers` has its own value for the family."""
    older: Callable[[Path], Any] = lambda folder: None
    """Reads the pieces of files that are older than tokenizer.json; returns None if a folder has none."""
    begins_with: str | None = None
    """The piece that begins texts where no file says what does, as in the family's own tokenizer. None: texts
    begin with their first word, or the code of their language."""
    tables: tuple[str, ...] = ()
    """Names of matrices of words; `options` does not get the name of one that repeats another."""
    has_codes: bool = False
    """Whether texts begin with the code of their language."""
    model_class: str = ""
    """Its class in `transformers`, which loads an export and generates the first token itself. Empty: it has
    none, and <bos> is never generated."""
    describe: Callable[[Model], Json] | None = None
    """The reverse of `options`. None: models are not exported as this family."""
    system: str = "transformer"
    """The system of its runs."""
    network: type[StackConfig] = TransformerConfig
    """The type of the options of its network."""
    keeps_bias: bool = False
    """Whether a bias of the logits is imported although it is zero, and `renormalize_logits` is no part of
    it."""
    refuses: Mapping[str, str] = field(default_factory=without_codes)
    """The options of a request that do not go with it, and what an import says of each."""

    no_vocabulary: ClassVar[str] = (
        ": its vocabulary is neither SentencePiece's nor a tokenizer.json, in a family's order"
    )
    """What an export says of a run whose vocabulary no family has."""

    def opened(self, folder: Path) -> Opened:
        """Opens a folder."""
        described = self.defaults | read_json(folder / CONFIG)
        source, generation = tensors(folder), search_options(folder)
        described |= searched_ids(described, generation)
        return Opened(folder, folder / CONFIG, described, source, generation)

    def data(self, opened: Opened, model: Any, request: Request, tokenizers: Tokenizers) -> CorpusConfig:
        """The options of a corpus that such a model can be trained on. Raises UserError if it has none."""
        pair = request.source_language, request.target_language
        languages = pair if tokenizers[0].has_codes else named_languages(opened.folder)
        return DataConfig(
            dataset=request.origin,
            joint_vocabulary=model.shares_inputs,
            max_length=min(DataConfig.max_length, model.longest or DataConfig.max_length),
            source_language=languages[0],
            target_language=languages[1],
        )

    def decoding(self, opened: Opened, model: Any) -> DecodingConfig:
        """The model's own search."""
        generation = opened.generation | {"pad_token_id": model.special.pad}
        return search_of(opened.folder, generation, model.output_size)

    def task(self, config: Config, tokenizers: Tokenizers, folder: Path) -> Task:
        """The task of a run."""
        task: Any = find_system(self.system).task
        return task(config, tokenizers if issubclass(task, TextToText) else tokenizers[0])

    def kept(self, folder: Path) -> dict[str, Json]:
        """What JSON files say and the import has not used."""
        return unused(folder)

    def ignored(self, folder: Path) -> list[str]:
        """A sentence for each search option that affects the output there, but is not imported."""
        with naming(searched_file(folder)):
            described, generation = read_json(folder / CONFIG), search_options(folder)
            ignored, forced = not_imported(generation, described), generation.get("forced_bos_token_id")
        if forced is not None and self.has_codes:
            ignored.append(
                f"forced_bos_token_id {forced}: outputs begin with the code of the language that "
                "--target-language or a request names."
            )
        return ignored

    def stored(self, described: Json, names: Collection[str], model: Model) -> Model:
        """The model that the config.json of an export describes."""
        return described_model(self, described, names, model.special.unk)

    def more_files(self, run: Run) -> dict[str, Json]:
        """JSON files of an export that no other family has."""
        return {}


def described_model(family: Family[Model], config: Json, names: Collection[str], unk: int) -> Model:
    """The model that a config.json describes.

    Args:
      family: of its `model_type`.
      config: the content of config.json.
      names: of all tensors.
      unk: the id of <unk>, which only the vocabulary has.

    Raises:
      UserError: it has options that are not supported here.
      KeyError: an option is missing.
    """
    size = config["vocab_size"]
    if type(size) is not int:
        raise UserError(f"vocab_size is {size!r}, not a whole number")

    def index(name: str) -> int:
        value = config.get(name)
        if type(value) is not int or not 0 <= value < size:
            raise UserError(f"{name} is {value!r}, not an id below {size}")
        return value

    pad, start, eos = map(index, ("pad_token_id", "decoder_start_token_id", "eos_token_id"))
    if pad in (eos, unk):
        name = "eos_token_id" if pad == eos else "the id of <unk>"
        raise UserError(
            f"pad_token_id {pad} is also {name}: padding must be an id of its own here; name "
            "one in config.json that no text has"
        )
    special = SpecialIds(pad, start, eos, unk)
    generates_bos = bool(family.model_class) and start not in (pad, eos)
    options: dict[str, Any] = {"vocab_size": size, "special": special, "generates_bos": generates_bos}
    return family.network(**options | network_options(family, config, names))  # type: ignore[return-value]


def network_options(family: Family[Any], config: Json, names: Collection[str]) -> dict[str, Any]:
    """The options of a network, without special ids; with `source_end` as the vocabulary says it.

    Args:
      family: of the `model_type`.
      config: the content of config.json, and the `ids` of the vocabulary.
      names: of all tensors.
    """
    end = {"source_end": config["source_end"]} if "source_end" in config else {}
    return {**end, **family.options(config, names)}


_NEUTRAL = {
    "vocab_size",
    "target_vocab_size",
    "special",
    "encoder_stack",
    "norm_epsilon",
    "scale_scores",
}
"""Options that do not count when models are compared, besides those without parameters: those of the
vocabulary, the epsilon, which some families do not store, and the factor of scores, which queries take."""
_ONLY_WITH = {"max_positions": "learned", "position_buckets": "buckets", "bucket_distance": "buckets"}
"""Options that count only with one scheme of positions."""


def undescribed(options: dict[str, Any], model: TransformerConfig) -> list[str]:
    """The options in which a model differs from one that can be stored, as the command line names them.

    A bias that the model lacks is no difference, since zeros can be stored; neither is the epsilon of norms.

    Args:
      options: of the network that would be stored.
      model: the model.
    """
    sizes = {"vocab_size": model.vocab_size, "target_vocab_size": model.target_vocab_size}
    stored = type(model)(**options | sizes | {"special": model.special})
    different = [*_differences(model, stored, "--model.")]
    in_encoder = _differences(model.of_encoder, stored.of_encoder, "--model.encoder-stack.")
    reported = {name.replace("--model.", "--model.encoder-stack.") for name in different}
    return different + [name for name in in_encoder if name not in reported]


def _differences(model: TransformerConfig, stored: TransformerConfig, prefix: str) -> Iterator[str]:
    free = {*model.PARAMETER_FREE} - {"wait_k"}  # which changes what is read
    for name in (option.name for option in fields(model)):
        two = [getattr(_resolved(config), name) for config in (model, stored)]
        is_zero_bias = name in ("attention_bias", "output_bias") and not two[0]
        if two[0] == two[1] or name in _NEUTRAL or name in free or is_zero_bias:
            continue
        if _ONLY_WITH.get(name, model.positions) == model.positions:
            yield f"{prefix}{name.replace('_', '-')} {two[0]}"


def _resolved(model: TransformerConfig) -> TransformerConfig:
    return replace(
        model,
        decoder_layers=model.decoder_depth,
        d_k=model.key_width,
        d_v=model.value_width,
        final_norm=model.final_norm and model.norm == "post",
    )
