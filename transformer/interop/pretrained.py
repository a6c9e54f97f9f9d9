"""Imports pretrained models from folders as Hugging Face has them."""

from pathlib import Path

from transformer.config import Config, DataConfig
from transformer.data.features.hub import HubTokenizer
from transformer.interop.architectures import ARCHITECTURES
from transformer.interop.architectures.architecture import described_model, imported_params
from transformer.interop.folders import import_marian
from transformer.interop.reading import (
    CONFIG,
    naming,
    read_json,
    search_of,
    search_options,
    tensors,
    tokenizer_options,
)
from transformer.runs.run import Run
from transformer.runtime.errors import UserError, nearest
from transformer.runtime.files import read_text
from transformer.tasks.translation import Translation

PIECES = "tokenizer.json"
SIDES = ("source", "target")


def import_model(
    folder: Path | str,
    run_dir: Path | str,
    source_language: str | None = None,
    target_language: str | None = None,
) -> Run:
    """Writes a run directory from a pretrained model: Marian, BART, mBART-50, Pegasus, NLLB or T5.

    Nothing in the folder is executed: pickles (pytorch_model.bin) are not read.

    Args:
      folder: with config.json, model.safetensors (or its parts and their index) and tokenizer.json; see
        `import_marian` for Marian's.
      run_dir: a new directory, for `Translator.load`, `decode.py` and `train.py --init-from`.
      source_language: the code of the source, such as eng_Latn, for a model whose texts begin with codes.
      target_language: the code of the target.

    Raises:
      UserError: a file is missing, damaged or of another kind of model; a language is missing or unknown;
        run_dir exists.
    """
    folder = Path(folder)
    Run.check_free(run_dir)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    described = read_json(folder / CONFIG)
    kind = described.get("model_type")
    languages = source_language, target_language
    if kind == "marian":
        if any(languages):
            raise UserError("--source-language, --target-language: the texts of Marian models need none")
        return import_marian(folder, run_dir)
    if kind not in ARCHITECTURES:
        known = ", ".join(("marian", *ARCHITECTURES))
        raise UserError(f"{folder / CONFIG}: model_type is {kind!r}; known are {known}")
    architecture = ARCHITECTURES[kind]
    pieces = _pieces(folder)
    with tensors(folder) as read:
        with naming(folder / CONFIG):
            unknown = _unknown(folder, pieces)
            model = described_model(architecture, described, read.names, unknown)
            tokenizer = HubTokenizer(pieces, model.vocab_size, model.special)
            starts = [architecture.start(described)] * 2
            if architecture.has_codes:
                if described["decoder_start_token_id"] != model.special.eos:
                    raise UserError(
                        "decoder_start_token_id is no </s>: models whose texts end with the code of their "
                        "language, such as mBART-25, are not supported"
                    )
                sides = zip(languages, SIDES, strict=True)
                starts = [_code(tokenizer, language, side) for language, side in sides]
            elif any(languages):
                raise UserError("--source-language, --target-language: texts of this model have no code")
        with naming(folder):
            params = imported_params(architecture, described, model, read)
    source, target = (HubTokenizer(pieces, model.vocab_size, model.special, start) for start in starts)
    data = DataConfig(
        dataset="imported",
        joint_vocabulary=model.shares_inputs,
        max_length=min(DataConfig.max_length, model.longest or DataConfig.max_length),
        source_language=source_language,
        target_language=target_language,
    )
    decoding = search_of(folder, search_options(folder), model.output_size)
    config = Config(model=model, data=data, decoding=decoding)
    return Run.create(run_dir, config, Translation(config, (source, target)), variables={"params": params})


def _pieces(folder: Path) -> str:
    path = folder / PIECES
    try:
        return read_text(path)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file. Load the tokenizer with AutoTokenizer.from_pretrained of transformers, "
            "and save it with save_pretrained: that writes one"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _unknown(folder: Path, pieces: str) -> int:
    """The id of <unk>."""
    named = tokenizer_options(folder).get("unk_token", "<unk>")
    piece = named.get("content") if isinstance(named, dict) else named
    index = HubTokenizer.id_in(pieces, str(piece))
    if index is None:
        raise UserError(f"{folder / PIECES} has no {piece}")
    return index


def _code(tokenizer: HubTokenizer, language: str | None, side: str) -> tuple[int, ...]:
    """The id of a language's code."""
    codes = tokenizer.codes
    if language is None:
        some = ", ".join(list(codes)[:5])
        raise UserError(
            f"texts of this model begin with their language: give --{side}-language, such as {some}"
        )
    if language not in codes:
        hint = nearest(language, codes) or f"; there are {', '.join(list(codes)[:5])} and others"
        raise UserError(f"--{side}-language {language}: this model has no such language{hint}")
    return (codes[language],)
