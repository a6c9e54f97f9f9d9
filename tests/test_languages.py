"""Languages are those that somebody named: options, the built-in corpus, suffixes of files."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from configs import CONFIGS

from transformer import UserError
from transformer.commands.models import export_command
from transformer.config.corpus import DataConfig, language_of
from transformer.config.options import text_data
from transformer.interop.pretrained import import_model
from transformer.runs.report.logged import Logged
from transformer.runs.run import Run
from transformer.trainer.resolved import resolve
from transformer.translator.distill import suffixes

MARIAN = Path(__file__).parent / "data" / "marian"


@pytest.mark.parametrize(
    ("name", "language"),
    [
        *((f"train.{code}", code) for code in ("de", "zh-CN", "pt_BR", "zh-Hant", "zho_Hans", "sw")),
        *(
            (f"train.{suffix}", None)
            for suffix in ("txt", "src", "tgt", "in", "out", "x", "gz", "DE", "en.txt")
        ),
        ("corpus.bpe.de", "de"),
        ("de", None),
    ],
)
def test_a_suffix_is_a_language_only_if_it_is_one(name, language):
    assert language_of(Path("folder.fr") / name) == language


@pytest.mark.parametrize(
    ("options", "languages", "direction"),
    [
        ({}, ("en", "de"), "en to de"),
        ({"dataset": "dialogue-zh"}, ("zh", "zh"), "zh to zh"),
        ({"dataset": "sorting"}, (None, None), ""),
        ({"dataset": "wmt14_translate/de-en"}, (None, None), ""),
        ({"train_source": "a.x", "train_target": "a.y"}, (None, None), ""),
        ({"train_tsv": "a.en"}, (None, None), ""),
        ({"train_source": "a.fi", "train_target": "a.et"}, ("fi", "et"), "fi to et"),
        ({"train_source": "a.fi", "train_target": "a.txt"}, ("fi", None), "fi to unknown"),
        (
            {"train_source": "a.fi", "train_target": "a.et", "target_language": "vro"},
            ("fi", "vro"),
            "fi to vro",
        ),
        ({"source_language": "fr"}, ("fr", "de"), "fr to de"),
    ],
)
def test_languages_are_unknown_unless_somebody_named_them(options, languages, direction):
    given = {name: Path(value) if "train" in name else value for name, value in options.items()}
    data = DataConfig(**given)
    assert data.languages == languages
    assert data.direction == direction
    both = all(languages) and languages[0] != languages[1]
    assert suffixes(data) == (languages if both else ("source", "target"))


def test_presets_of_the_paper_name_their_languages():
    assert all(
        text_data(config).languages == ("en", "de")
        for config in CONFIGS.values()
        if isinstance(config.data, DataConfig) and config.data.dataset.startswith("wmt14")
    )


@pytest.mark.by_default("options1-expected1")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"train_source": Path("a.x"), "train_target": Path("a.y")}, {}),
        ({"train_source": Path("a.fi"), "train_target": Path("a.y")}, {"source_lang": "fi"}),
        ({}, {"source_lang": "en", "target_lang": "de"}),
    ],
)
def test_exports_have_the_languages_that_are_known(options, expected, tmp_path, capsys):
    import_model(MARIAN, tmp_path / "imported")
    path = tmp_path / "imported" / "config.json"
    values = json.loads(path.read_text())
    assert values["data"]["source_language"] is None  # the folder names none
    values["data"] |= {"dataset": "built-in"} | {name: str(value) for name, value in options.items()}
    path.write_text(json.dumps(values))
    export_command([str(tmp_path / "imported"), str(tmp_path / "out")])
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert {name: value for name, value in written.items() if name.endswith("_lang")} == expected
    missing = [name for name in ("source_lang", "target_lang") if name not in expected]
    said = capsys.readouterr().out
    assert (f"add {' and '.join(missing)} to tokenizer_config.json" in said) == bool(missing)
    import_model(tmp_path / "out", tmp_path / "back")
    data = text_data(Run(tmp_path / "back").config)
    assert (data.source_language, data.target_language) == tuple(
        expected.get(name) for name in ("source_lang", "target_lang")
    )


def test_a_run_of_an_earlier_version_resumes_with_its_command(config, finished, tmp_path):
    """It stored en, de and 13a where nobody had given them."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    values = json.loads((run / "config.json").read_text())
    assert values["training"]["bleu_tokenize"] == "13a"  # decided when it began
    assert values["data"]["source_language"] is None
    values["data"] |= {"source_language": "en", "target_language": "de"}
    del values["training"]["error_rate"]
    (run / "config.json").write_text(json.dumps(values))
    assert config.training.bleu_tokenize is None
    found = resolve(config, run).run
    assert found
    assert text_data(found.config).direction == "en to de"
    assert "en to de" in Logged(run).summary()["training pairs"]
    assert not {name for name, *_ in Logged(run).changed()[1]} & {
        "data.source_language",
        "data.target_language",
    }
    for change in (
        {"data": dataclasses.replace(config.data, target_language="fr")},
        {"training": dataclasses.replace(config.training, bleu_tokenize="zh")},
    ):
        with pytest.raises(UserError, match="was made with other options: .*(-> fr|-> zh)"):
            resolve(dataclasses.replace(config, **change), run)
