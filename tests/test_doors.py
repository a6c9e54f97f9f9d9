"""Every door takes and refuses the same rows: training, decode.py, Python and the server."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from served import asked
from small_translator import small_translator, stored

from transformer import Translator, UserError, train
from transformer.cli.decode import decode_main
from transformer.config import Config, DataConfig
from transformer.data.sources.tables import read_table
from transformer.serve.limits import ALLOWED, Limits
from transformer.serve.translation import Translations
from transformer.systems.registry import options_of

NAMED = {"inputs": ("question", "text"), "target": ("answer",), "task": "answers"}
ODD = [
    ({}, "missing"),
    ({"question": "red"}, "missing"),
    ({"question": None, "text": "cat"}, "question"),
    ({"question": {}, "text": "cat"}, "text"),
    ({"question": True, "text": "cat"}, "text"),
    ({"question": ["red", None], "text": "cat"}, "text"),
    ({"question": ["red", ["cat"]], "text": "cat"}, "text"),
    ({"question": "red", "text": "cat"}, ""),
    ({"question": "red", "text": "cat", "id": 7}, ""),
    ({"question": "red", "text": "cat", "id": {"a": []}, "title": None}, ""),
    ({"question": "red", "text": 7}, ""),
    ({"question": "red", "text": 7.5}, ""),
    ({"question": "red\ncat", "text": "cat"}, ""),
    ({"question": "", "text": "cat"}, ""),
    ({"question": ["red"], "text": "cat"}, ""),
    ({"question": ["red", "cat"], "text": "cat"}, "a list, or a text with <turn>"),
    ({"question": "red <turn> cat", "text": "cat"}, "a list, or a text with <turn>"),
]
"""A row without its answer, and a part of what is said if it is refused."""


@pytest.fixture(scope="module")
def translator() -> Translator:
    plain = small_translator()
    config = replace(plain.config, data=replace(plain.config.data, **NAMED))
    return Translator(config, plain.variables, plain.tokenizers)


def in_training(translator: Translator, row: dict, folder: Path) -> None:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps({**row, "answer": "cat"}) + "\n", encoding="utf-8")
    records = list(read_table(path, translator.task.data))
    translator.task.stored_examples(records)


def in_python(translator: Translator, row: dict, folder: Path) -> None:
    translator.task.ids([translator.task.source_of(row)], translator.tokenizers[0], 64, [1])


def in_decode(translator: Translator, row: dict, folder: Path) -> None:
    from transformer.cli.request_lines import _of_object
    from transformer.tasks.requests import source_of

    data = translator.task.data
    request, named = _of_object(json.dumps(row), data.input_names, data.target, False)
    text = source_of(named or request.source, data)
    translator.task.ids([text], translator.tokenizers[0], 64, [1])


DOORS = {"training": in_training, "Python": in_python, "decode": in_decode}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("row", "message"), ODD)
def test_rows_are_taken_or_refused(translator, tmp_path, door, row, message):
    if not message:
        DOORS[door](translator, row, tmp_path)
        return
    with pytest.raises(UserError) as error:
        DOORS[door](translator, row, tmp_path)
    assert message in str(error.value) or (message == "missing" and "no column" in str(error.value))


def test_a_server_takes_and_refuses_the_same(translator, tmp_path):
    service = Translations("named", translator, ALLOWED, Limits())
    with asked(service) as client:
        for row, message in ODD:
            answer = client.post("/translate", json={"text": row})
            assert answer.status_code == (422 if message else 200), (row, answer.text)
            if message:
                with pytest.raises(UserError) as error:
                    in_python(translator, row, tmp_path)
                sentence = str(error.value).removeprefix("line 1: ").replace("--data", "data")
                assert sentence in answer.json()["error"]
        good = {"question": "red", "text": "cat"}
        answer = client.post("/translate", json={"text": [good, good], "n_best": 1}).json()
        (expected,) = translator.search([good], n_best=1)
        assert [output["hypotheses"] for output in answer["outputs"]] == [[expected[0].to_json()]] * 2
        chosen = client.post("/choose", json={"text": good, "choices": ["cat", "dog"]}).json()
        assert chosen["outputs"] == [{"choices": translator.choices([good], ["cat", "dog"])[0]}]
        wrong = client.post("/choose", json={"text": good})
        assert "say what to choose from" in wrong.json()["error"]


@pytest.mark.parametrize("option", ["choices", "reference", "rescore", "weights"])
def test_an_option_without_its_values_is_refused(call, tmp_path, option):
    run = stored(small_translator(), tmp_path / "run")
    status, _, err = call(decode_main, run, f"--{option}", stdin=b"cat\n")
    assert status == 2
    assert f"--{option}" in err


def test_a_name_that_is_nearly_right_is_refused(translator):
    with pytest.raises(UserError, match="there is no 'questoin': did you mean question"):
        translator.task.source_of({"questoin": "red", "question": "red", "text": "cat"})


@pytest.mark.parametrize("system", ["masked-lm", "language-model"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.tsv"])
def test_a_system_of_plain_text_reads_no_rows(tmp_path, system, name):
    path = tmp_path / name
    path.write_text('{"text": "a"}\n' * 30, encoding="utf-8")
    options: Any = options_of(system)
    config = options.config() if hasattr(options, "config") else None
    config = config or Config(system=system, model=options.model(), data=options.data(train=path))
    with pytest.raises(UserError, match="this system reads plain text, not rows"):
        train(replace(config, data=replace(config.data, train=path)), tmp_path / "run")


def test_a_label_with_a_comma_is_not_two(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a", "labels": ["b, c", "d"]}\n', encoding="utf-8")
    data = DataConfig(task="label-sets", inputs=("text",), target=("labels",), train=path)
    with pytest.raises(UserError, match="line 1: labels: the label 'b, c' has a comma"):
        list(read_table(path, data))


def test_messages_name_what_the_file_has(tmp_path):
    data = DataConfig(inputs=("text", "target-length"), target=("answer",))
    (tmp_path / "x.jsonl").write_text('{"answer": "a"}\n', encoding="utf-8")
    with pytest.raises(UserError) as error:
        list(read_table(tmp_path / "x.jsonl", data))
    assert "tabs" not in str(error.value)
    assert "target-length" not in str(error.value)
    (tmp_path / "x.tsv").write_text("answer text\na b\n", encoding="utf-8")
    with pytest.raises(UserError, match="columns have tabs between them"):
        list(read_table(tmp_path / "x.tsv", data))


def test_a_text_is_no_list_of_recordings(tmp_path):
    """Its sentences are not in the message."""
    from transformer.data.sources.recording_lists import listed_columns

    path = tmp_path / "text.txt"
    with pytest.raises(UserError) as error:
        listed_columns("A secret sentence of a text.", path, 3)
    assert str(error.value).startswith(f"{path}, line 3: it names no recording: each line must be the name")
    assert "secret" not in str(error.value)
    with pytest.raises(UserError, match="a b.wav"):
        listed_columns("a b.wav\tred", path, 1)
