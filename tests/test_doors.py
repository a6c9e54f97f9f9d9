"""Every door takes and refuses the same rows with the same sentence: training, validation, decode.py, Python
and the server."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from served import asked
from small_run import WORDS
from small_translator import small_translator, stored

from transformer import PRESETS, Translator, UserError, train
from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.request_lines import request_of
from transformer.commands.decode import decode_main
from transformer.config.corpus import DataConfig
from transformer.data.sources.corpora import check_text, open_corpus
from transformer.data.sources.tables import read_table
from transformer.data.sources.text_files import reading
from transformer.serve.services.limits import ALLOWED, Limits
from transformer.serve.services.translation import Translations

NAMED = {"inputs": ("question", "text"), "target": ("answer",), "task": "answers"}
GOOD = {"question": "red", "text": "cat"}
LISTS = "a list, or a text with <turn>: the vocabulary of this model has no <turn>"
READS = "this model reads question and text"
OF_NAMED: list[tuple[dict[str, Any], str]] = [
    ({}, f"question is missing: there is only 'answer'; {READS}"),
    ({"id": 7}, f"question is missing: there is only 'id, answer'; {READS}"),
    ({"question": "red"}, f"text is missing: there is only 'question, answer'; {READS}"),
    ({"text": "red"}, f"question is missing: there is only 'text, answer'; {READS}"),
    ({"Question": "red", "text": "cat"}, "question is missing: there is only 'Question, text, answer'"),
    ({"questoin": "red", "text": "cat"}, "question is missing: there is only 'questoin, text, answer'"),
    ({" question": "red", "text": "cat"}, "question is missing: there is only ' question, text, answer'"),
    ({"question": None, "text": "cat"}, "question must be text, not null"),
    ({"question": "red", "text": None}, "text must be text, not null"),
    ({"question": {}, "text": "cat"}, "question must be text, not {}"),
    ({"question": {"text": "red"}, "text": "cat"}, 'question must be text, not {"text": "red"}'),
    ({"question": True, "text": "cat"}, "question must be text, not true"),
    ({"question": "red", "text": False}, "text must be text, not false"),
    ({"question": ["red", None], "text": "cat"}, "question must be text, not null"),
    ({"question": ["red", True], "text": "cat"}, "question must be text, not true"),
    ({"question": ["red", ["cat"]], "text": "cat"}, 'question must be text, not ["cat"]'),
    ({"question": [{}], "text": "cat"}, "question must be text, not {}"),
    ({"question": ["red", "cat"], "text": "cat"}, LISTS),
    ({"question": ["red", "cat", "dog"], "text": "cat"}, LISTS),
    ({"question": "red <turn> cat", "text": "cat"}, LISTS),
    ({"question": "red", "text": ["cat", ""]}, LISTS),
    (GOOD, ""),
    ({"text": "cat", "question": "red"}, ""),
    ({**GOOD, "id": 7}, ""),
    ({**GOOD, "id": {"a": []}, "title": None}, ""),
    ({**GOOD, "questoin": "blue"}, ""),
    ({**GOOD, "texts": ["blue"]}, ""),
    ({**GOOD, "context": ["blue"]}, ""),
    ({**GOOD, "context": 7}, ""),
    ({**GOOD, "sources": "blue"}, ""),
    ({**GOOD, "": "blue"}, ""),
    ({"question": "red", "text": 7}, ""),
    ({"question": "red", "text": -7.5}, ""),
    ({"question": 0, "text": 0}, ""),
    ({"question": "red\ncat", "text": "cat\r\n"}, ""),
    ({"question": "", "text": "cat"}, ""),
    ({"question": "red", "text": ""}, ""),
    ({"question": "red", "text": "\u200b"}, ""),
    ({"question": " red ", "text": "cat\tdog"}, ""),
    ({"question": ["red"], "text": "cat"}, ""),
    ({"question": [], "text": "cat"}, ""),
    ({"question": "\u0915\u093e \U0001f600", "text": "answer: cat"}, ""),
]
"""A row without its answer, and what is said if it is refused."""
OF_SENTENCES: list[tuple[dict[str, Any], str]] = [
    ({}, "source is missing: there is only 'target'; this model reads source"),
    ({"text": "red"}, "source is missing: there is only 'text, target'; this model reads source"),
    ({"sorce": "red"}, "source is missing: there is only 'sorce, target'; this model reads source"),
    ({"source": None}, "source must be text, not null"),
    ({"source": {}}, "source must be text, not {}"),
    ({"source": True}, "source must be text, not true"),
    ({"source": ["red", "cat"]}, LISTS),
    ({"source": "red"}, ""),
    ({"source": 7}, ""),
    ({"source": 0}, ""),
    ({"source": ["red"]}, ""),
    ({"source": ""}, ""),
    ({"source": "red", "id": 7}, ""),
]
"""The same of a model of sentences."""
TABLES = {
    "named": (NAMED, "answer", OF_NAMED),
    "sentences": ({}, "target", OF_SENTENCES),
}


def translator_of(**data: Any) -> Translator:
    plain = small_translator()
    config = replace(plain.config, data=replace(plain.config.data, **data))
    return Translator(config, plain.variables, plain.tokenizers)


@pytest.fixture(scope="module")
def translators() -> dict[str, Translator]:
    return {name: translator_of(**data) for name, (data, _, _) in TABLES.items()}


def split(name: str) -> Callable[[Translator, dict, Path], None]:
    """Reads a row as the command of training does, in a file of a split beside good rows."""

    def read(translator: Translator, row: dict, folder: Path) -> None:
        data = translator.task.data
        good = {**dict.fromkeys(data.inputs, "red"), **dict.fromkeys(data.target, "cat")}
        files = {file: folder / f"{file}.jsonl" for file in ("train", "validation")}
        for file, path in files.items():
            path.write_text(f"{json.dumps(row if file == name else good)}\n", encoding="utf-8")
        data = replace(data, **files, cache_dir=folder / "cache")
        with reading(drops=False):
            check_text(data)
            records = open_corpus(data).splits[name]
        translator.task.stored_examples([*records])

    return read


def in_decode(translator: Translator, row: dict, folder: Path) -> None:
    arguments = DecodeArguments(folder, (), translator.config.decoding, jsonl=True)
    request = request_of(1, json.dumps(row), arguments, translator.task.data)
    translator.task.ids([request.source], translator.tokenizers[0], 64, [1])


def in_python(translator: Translator, row: dict, folder: Path) -> None:
    translator.task.ids([translator.task.source_of(row)], translator.tokenizers[0], 64, [1])


DOORS = {
    "training": split("train"),
    "validation": split("validation"),
    "decode.py": in_decode,
    "Python": in_python,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("table", TABLES)
def test_every_door_says_the_same_of_a_row(translators, tmp_path, table, door):
    _, target, rows = TABLES[table]
    for number, (row, message) in enumerate(rows):
        said, folder = "", tmp_path / str(number)
        folder.mkdir()
        try:
            DOORS[door](translators[table], {**row, target: "cat"}, folder)
        except UserError as error:
            said = re.sub(rf"^({folder}/\w+\.jsonl, )?line 1: ", "", str(error))
        assert said.startswith(message) if message else not said, (row, said)


@pytest.mark.parametrize("table", TABLES)
def test_a_server_says_the_same_of_a_row(table):
    data, target, rows = TABLES[table]
    translator = translator_of(**data)
    with asked(Translations("served", translator, ALLOWED, Limits())) as client:
        for row, message in rows:
            if message:
                answer = client.post("/translate", json={"text": {**row, target: "cat"}})
                assert answer.status_code == 422, (row, answer.text)
                assert message.replace("--data", "data") in answer.json()["error"]
        taken = [{**row, target: "cat"} for row, message in rows if not message]
        texts = [translator.task.source_of(row) for row in taken]
        answer = client.post("/translate", json={"text": taken, "n_best": 1})
        assert answer.json() == client.post("/translate", json={"text": texts, "n_best": 1}).json()


def test_a_server_reads_named_inputs_and_choices():
    translator = translator_of(**NAMED)
    with asked(Translations("named", translator, ALLOWED, Limits())) as client:
        answer = client.post("/translate", json={"text": [GOOD, GOOD], "n_best": 1}).json()
        (expected,) = translator.search([GOOD], n_best=1)
        assert [output["hypotheses"] for output in answer["outputs"]] == [[expected[0].to_json()]] * 2
        chosen = client.post("/choose", json={"text": GOOD, "choices": ["cat", "dog"]}).json()
        assert chosen["outputs"] == [{"choices": translator.choices([GOOD], ["cat", "dog"])[0]}]
        for row, message in OF_NAMED[:20]:
            wrong = client.post("/choose", json={"text": {**row, "answer": "cat"}, "choices": ["cat", "dog"]})
            assert message.replace("--data", "data") in wrong.json()["error"]
        wrong = client.post("/choose", json={"text": GOOD})
        assert "say what to choose from" in wrong.json()["error"]


def test_turns_are_not_divided_into_sentences():
    """A list is one text, though its turns are sentences."""
    plain = small_translator(words=[*WORDS[:-1], "<turn>"])
    config = replace(plain.config, data=replace(plain.config.data, inputs=("turns",)))
    translator = Translator(config, plain.variables, plain.tokenizers)
    turns = {"turns": ["red cat. Green dog.", "Bird runs."]}
    (expected,) = translator.search([turns], n_best=1)
    assert translator.submit(turns, n_best=1).result() == expected
    assert translator.sentences_of(turns) == ["red cat. Green dog. <turn> Bird runs."]


@pytest.mark.parametrize("option", ["choices", "reference", "rescore", "weights"])
def test_an_option_without_its_values_is_refused(tmp_path, option, refused):
    run = stored(small_translator(), tmp_path / "run")
    assert f"--{option}" in refused(decode_main, run, f"--{option}", stdin=b"cat\n")


def test_a_command_names_the_line(call, tmp_path, translators):
    run = stored(translators["named"], tmp_path / "run")
    for row, message in OF_NAMED[:4]:
        lines = f"{json.dumps({**row, 'answer': 'cat'})}\n".encode()
        status, out, err = call(decode_main, run, "--jsonl", stdin=lines)
        assert (status, out) == (2, "")
        assert f"line 1: {message}" in " ".join(err.split())


READ = [
    *((system, name) for system in ("masked-lm", "language-model") for name in ("x.jsonl", "x.tsv")),
    *((system, "x.jsonl") for system in ("tagging", "speech", "synthesis")),
]
"""Systems that read no named columns, and names of tables; some read columns that have tabs between them."""


@pytest.mark.parametrize(("system", "name"), READ)
def test_a_system_without_named_columns_reads_no_rows(tmp_path, system, name):
    path = tmp_path / name
    path.write_text('{"text": "a"}\n' * 30, encoding="utf-8")
    config = next(preset for preset in PRESETS.values() if preset.system == system)
    config = replace(config, data=replace(config.data, train=path))
    with pytest.raises(UserError, match=f"--data.train {path}: this system reads .*, not rows"):
        train(config, tmp_path / "run")


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
    from transformer.data.sources.recordings import listed_columns

    path = tmp_path / "text.txt"
    with pytest.raises(UserError) as error:
        listed_columns("A secret sentence of a text.", path, 3)
    assert str(error.value).startswith(f"{path}, line 3: it names no recording: each line must be the name")
    assert "secret" not in str(error.value)
    with pytest.raises(UserError, match="a b.wav"):
        listed_columns("a b.wav\tred", path, 1)


@pytest.mark.parametrize("value", ["[]", "{}", "1"])
def test_a_row_has_no_millions_of_values(tmp_path, value):
    """Each of a few bytes would take 60."""
    line = f'{{"source": "red", "target": "rot", "x": [{",".join([value] * 2**22)}]}}'
    (tmp_path / "x.jsonl").write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"line 1: each line must be a JSON object \(more than 4,194,304 val"):
        list(read_table(tmp_path / "x.jsonl", DataConfig()))
    arguments = SimpleNamespace(jsonl=True, tsv=False, target_length=0)
    with pytest.raises(UserError, match=r"JSON object on each line \(more than 4,194,304 values"):
        request_of(7, line, arguments, DataConfig())


def test_a_name_is_given_once_in_a_row(tmp_path):
    """JSON keeps the last value: one of both would be lost without a word."""
    line = '{"source": "red", "target": "rot", "source": "blue"}'
    (tmp_path / "x.jsonl").write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"x.jsonl, line 1: each line must be a JSON object \(source: it is given twice"
    ):
        list(read_table(tmp_path / "x.jsonl", DataConfig()))
    arguments = SimpleNamespace(jsonl=True, tsv=False, target_length=0)
    with pytest.raises(
        UserError, match=r"--jsonl reads a JSON object on each line \(source: it is given twice\)"
    ):
        request_of(7, line, arguments, DataConfig())
