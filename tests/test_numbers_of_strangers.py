"""Numbers of files and requests that no program can count to: each meets a range before it is used."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
from small_translator import small_translator, stored

from transformer import BeamConfig, SampleConfig, TransformerConfig, Translator, UserError
from transformer.commands.decode import decode_main
from transformer.commands.train import train_main
from transformer.config.arguments import seconds, whole_number
from transformer.config.options import HostsConfig
from transformer.decoding.beside.arpa import read_arpa
from transformer.interop.folders.pieces import byte_level, pegasus_words, t5_words
from transformer.runtime.files import parse_json
from transformer.translator.beside import checked_weight
from transformer.translator.choices import probabilities

DATA = Path(__file__).parent / "data"
HUGE = [10**309, -(10**309), 10**5000, -(10**5000)]
"""Beyond what a float holds, and beyond the digits that Python reads and writes."""


@pytest.fixture(autouse=True)
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tests check the types of arrays and of what stands beside them."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize("number", HUGE, ids=["309", "-309", "5000", "-5000"])
def test_options_and_arguments(number: int) -> None:
    for kind, name in (
        (BeamConfig, "beam_size"),
        (BeamConfig, "length_penalty"),
        (BeamConfig, "max_length"),
        (SampleConfig, "temperature"),
        (TransformerConfig, "d_model"),
        (TransformerConfig, "dropout"),
        (TransformerConfig, "monotonic_offset"),
    ):
        with pytest.raises(UserError, match=name.replace("_", "-")):
            kind(**{name: number})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="must be a list of whole numbers|buckets must be from"):
        BeamConfig(buckets=(8, number))
    for call in (
        lambda: seconds("pause", number),
        lambda: whole_number("n_best", number),
        lambda: checked_weight(number),
        lambda: probabilities(np.zeros((1, 2)), number),
    ):
        with pytest.raises(UserError, match="must be"):
            call()
    translator = small_translator()
    for option in ("n_best", "beam_size", "length_penalty", "seed"):
        with pytest.raises(UserError, match=option.replace("_", "-") + "|" + option):
            translator.search(["red"], **{option: number})


@pytest.mark.parametrize("digits", [309, 5000])
def test_command_lines(digits: int, tmp_path: Path, refused: Callable[..., str]) -> None:
    run = stored(small_translator(), tmp_path / "run")
    with pytest.raises(UserError, match="has no checkpoint"):
        Translator.load(run, 10**digits)
    for main, words in (
        (train_main, ["tiny", "--model.d-model"]),
        (train_main, ["tiny", "--optimizer.peak"]),
        (decode_main, [run, "--beam-size"]),
        (decode_main, [run, "--length-penalty"]),
        (decode_main, [run, "--n-best"]),
    ):
        error = refused(main, *words, "1" + digits * "0").replace("_", "-")
        assert "Traceback" not in error
        assert words[-1].removeprefix("--").rpartition(".")[2] in error


def test_the_port_of_a_coordinator() -> None:
    with pytest.raises(UserError, match="the port from 1 to 65535"):
        HostsConfig("host:" + 5000 * "1", 2, 0)


@pytest.mark.parametrize("size", [str(10**9), "1" + 309 * "0", "1" + 5000 * "0", "٣" * 5000])
def test_the_head_of_an_arpa_file(size: str, tmp_path: Path) -> None:
    (tmp_path / "lm.arpa").write_text(f"\\data\\\nngram 1={size}\n\n\\1-grams:\n-1\ta\n\\end\\\n")
    with pytest.raises(UserError, match="line 2|prune it"):
        read_arpa(tmp_path / "lm.arpa")


@pytest.mark.parametrize(("layout", "name"), [(t5_words, "extra_ids"), (pegasus_words, "offset")])
@pytest.mark.parametrize("value", [10**9, 2**62, -1, True, 1.5, "7", [3], {}])
def test_words_that_a_number_adds(layout: Any, name: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({name: value}))
    with pytest.raises(UserError, match=f"{name} is .*, not a whole number from 0 to 100,000"):
        layout(tmp_path, ["<pad>", "</s>", "<unk>"])


@pytest.mark.parametrize("index", [10**9, -1, True, "7"])
def test_the_id_of_a_word(index: Any, tmp_path: Path) -> None:
    """The library would write all ids below it."""
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "vocab.json").write_text(json.dumps({"a": index}))
    with pytest.raises(UserError, match=r"vocab\.json: the id of 'a' is .*, not one below 1"):
        byte_level(tmp_path, {})


def test_a_name_that_is_given_twice_is_found_at_once() -> None:
    """However many names are before it."""
    names = ",".join(f'"{number}": 0' for number in range(100_000))
    with pytest.raises(ValueError, match="^99999: it is given twice"):
        parse_json(f'{{{names},"99999":0}}')


def test_numbers_beyond_what_json_readers_take(tmp_path: Path) -> None:
    """What stands for "no limit" in a tokenizer's options is as if it was not there."""
    (tmp_path / "tokenizer_config.json").write_text('{"extra_ids": ' + 40 * "9" + "}")
    with pytest.raises(UserError, match="extra_ids is null"):
        t5_words(tmp_path, ["<pad>"])
    shutil.rmtree(tmp_path)
