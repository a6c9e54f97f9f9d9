"""What scores count follows the language: words where there are spaces, otherwise characters."""

import dataclasses
import json
import sys

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU as Reference
from small_translator import small_translator

from transformer import UserError
from transformer.config.corpus import DataConfig
from transformer.config.decoding import BeamConfig
from transformer.config.options import Config, as_decided
from transformer.config.records import RecordingsConfig
from transformer.config.transformer import TransformerConfig
from transformer.data.sources.recordings import Recording
from transformer.data.sources.source import in_memory
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.runs.config_json import from_json, to_json
from transformer.systems.presets import PRESETS
from transformer.systems.speech.task import SpeechToText
from transformer.tasks.metrics import scores
from transformer.tasks.metrics.scores import (
    BY_LANGUAGE,
    LIBRARIES,
    bleu,
    bleu_metric,
    bleu_tokenizer,
    has_few_spaces,
    is_unspaced,
    warning_of,
)
from transformer.tasks.texts.translation import Translation
from transformer.training.methods.reward import reward_of

CHINESE = ["我喜欢苹果和梨、也喜欢茶。", "他昨天去了北京的图书馆。"]
THAI = ["ฉันชอบกินข้าวผัดกับไข่ดาวทุกวัน", "เขาไปห้องสมุดเมื่อวานนี้"]
WORDS = ["the red cat runs home", "Donaudampfschifffahrtsgesellschaft und Kapitaensmuetze"]


def test_the_map_of_languages_is_that_of_sacrebleu():
    assert BY_LANGUAGE.items() >= Reference._TOKENIZER_MAP.items()
    assert LIBRARIES.keys() == {name for name in Reference._TOKENIZER_MAP.values() if "-" in name}


@pytest.mark.parametrize(
    ("language", "references", "expected"),
    [
        *((code, CHINESE, "zh") for code in ("zh", "zh-TW", "zho_Hans", "yue", "cmn")),
        *((code, THAI, "char") for code in ("th", "tha_Thai", "km", "lo", "my", "bo")),
        *((code, WORDS, "13a") for code in ("de", "pt-br", "deu_Latn", None, "letters")),
        (None, CHINESE, "char"),
        (None, THAI, "char"),
        (None, ["abcdefghijklm", "nopqrstuvwxyzabcdef"], "char"),
        ("de", CHINESE, "char"),  # the language must be wrong
        (None, [], "13a"),
        (None, ["", " "], "13a"),
    ],
)
def test_bleu_is_of_what_the_language_has(language, references, expected):
    tokenize, note = bleu_tokenizer(language, references)
    assert tokenize == expected
    surprising = expected == "char" and language in (None, "de")
    assert ("--training.bleu-tokenize" in note) == surprising
    assert "tok:" + expected in bleu(["a b"], ["a b"], tokenize).signature


@pytest.mark.parametrize("language", ["ja", "jpn_Jpan", "ko"])
def test_a_tokenizer_that_is_not_installed_is_replaced_and_named(language, monkeypatch):
    wanted = {"j": "ja", "k": "ko"}[language[0]]
    monkeypatch.setattr(scores.importlib.util, "find_spec", lambda name: None)
    tokenize, note = bleu_tokenizer(language, CHINESE)
    assert tokenize == "char"
    assert f"pip install 'sacrebleu[{wanted}]'" in note
    monkeypatch.setattr(scores.importlib.util, "find_spec", lambda name: name)
    assert bleu_tokenizer(language, CHINESE) == (f"{wanted}-mecab", "")


@pytest.mark.parametrize("tokenize", ["ja-mecab", "ko-mecab"])
def test_a_chosen_tokenizer_that_is_not_installed_is_refused_at_once(tokenize, monkeypatch):
    for name in LIBRARIES[tokenize]:
        monkeypatch.setitem(sys.modules, name, None)
    config = Config()
    config = dataclasses.replace(
        config, training=dataclasses.replace(config.training, bleu_tokenize=tokenize)
    )
    with pytest.raises(UserError, match=rf"tokenizer {tokenize} cannot be used: .*pip install sacrebleu"):
        Translation.check(config)


def test_a_download_that_fails_is_one_sentence(monkeypatch):
    import sacrebleu.metrics.bleu as of_sacrebleu

    def offline(name):
        raise OSError("no network")

    monkeypatch.setattr(of_sacrebleu, "_get_tokenizer", offline)
    with pytest.raises(UserError, match="tokenizer flores200 cannot be used: no network"):
        bleu_metric("flores200")


def test_a_chosen_tokenizer_that_finds_no_words_gets_a_warning():
    for tokenize in ("13a", "intl", "none"):
        said = f"--training.bleu-tokenize {tokenize} divides text at spaces"
        assert said in warning_of(tokenize, CHINESE)
        assert not warning_of(tokenize, WORDS)
    for tokenize in ("zh", "char", "ja-mecab", "flores200"):
        assert not warning_of(tokenize, CHINESE)


def test_single_words_have_no_spaces_but_are_words():
    assert has_few_spaces(["yes", "no", "stop"])
    assert not is_unspaced(["yes", "no", "stop"])
    assert is_unspaced(CHINESE)
    assert is_unspaced(THAI)
    assert not is_unspaced([" ".join(text) for text in CHINESE])
    assert not is_unspaced(WORDS)


# Translation


def task_of(source: list[str], target: list[str], **data) -> tuple[Translation, Config]:
    config = Config(
        model=TransformerConfig(num_layers=1, d_model=16, d_ff=32, num_heads=2, vocab_size=40),
        data=DataConfig(**data),
        decoding=BeamConfig(),
    )
    tokenizer = train_tokenizer([*source, *target], "character", 90)
    return Translation(config, (tokenizer, tokenizer)), config


def test_a_new_run_decides_once_and_says_what_is_surprising(tmp_path):
    corpus = in_memory("pairs", {"train": [], "validation": [("a b", text) for text in CHINESE]}, tmp_path)
    for files, expected, says in (
        ({"train_source": "a.en", "train_target": "a.zh"}, "zh", ["by the names of the files: en to zh"]),
        ({"train_source": "a.txt", "train_target": "b.txt"}, "char", ["hardly contain spaces"]),
        ({"train_tsv": "a.tsv", "target_language": "zh"}, "zh", []),
    ):
        paths = {name: tmp_path / value if "train" in name else value for name, value in files.items()}
        task, config = task_of(["a b"], CHINESE, **paths)
        notes = task.decide(corpus)
        assert task.config.training.bleu_tokenize == expected
        assert len(notes) == len(says)
        assert all(words in note for words, note in zip(says, notes, strict=True))
        assert task.config == dataclasses.replace(config, training=task.config.training)
        assert from_json(to_json(task.config)) == task.config
        assert as_decided(config, task.config) == task.config  # the same command resumes


def test_partly_right_translations_without_spaces_have_a_score():
    task, _ = task_of(["a"], CHINESE)
    (measure, score), *_ = task.measures().items()
    outputs = [text[:-4] + "xyz。" for text in CHINESE]
    from transformer.tasks.task import Evaluation

    found = score(Evaluation([("a", text) for text in CHINESE], outputs, {}))
    assert measure.name == "bleu"
    assert "tok:char" in found.signature
    assert found.value > 50
    assert found.value == Reference(tokenize="char").corpus_score(outputs, [CHINESE]).score
    assert bleu(outputs, CHINESE, "13a").value == 0


def test_rewards_of_text_divide_it_as_evaluations_do():
    special = TransformerConfig().special
    letters = "我喜欢苹果和梨茶"
    ids = {letter: 10 + place for place, letter in enumerate(letters)}
    spelled = {index: letter for letter, index in ids.items()}
    reference = np.array([[ids[x] for x in "我喜欢苹果和梨"] + [special.eos]])
    candidate = np.array([[[ids[x] for x in "我喜欢苹果和茶"] + [special.eos]]])

    def spell(row):
        return "".join(spelled[index] for index in row)

    found = [
        float(reward_of("text-bleu", special, spell, tokenize)(candidate, reference)[0, 0])
        for tokenize in ("13a", "char")
    ]
    assert found[0] == 0
    assert 0.5 < found[1] < 1


@pytest.mark.by_default("True")
@pytest.mark.parametrize("is_of_the_run", [False, True])
def test_decode_refuses_a_tokenizer_that_is_missing_first(is_of_the_run, tmp_path, monkeypatch, refused):
    from small_translator import stored

    from transformer.commands.decode import decode_main

    def missing(tokenize):
        raise UserError(f"sacreBLEU's tokenizer {tokenize} cannot be used: install it")

    run = stored(small_translator(), tmp_path / "run")
    if is_of_the_run:
        config = json.loads((run / "config.json").read_text())
        config["training"]["bleu_tokenize"] = "ko-mecab"
        (run / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("transformer.tasks.metrics.scores.bleu_metric", missing)
    (tmp_path / "in").write_text("red cat\n")
    words = [run, "--input", tmp_path / "in", "--reference", tmp_path / "in", "--output", tmp_path / "out"]
    words += [] if is_of_the_run else ["--bleu-tokenize", "ko-mecab"]
    assert "ko-mecab cannot be used" in refused(decode_main, *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.by_default("given1-tok:zh")
@pytest.mark.parametrize(("given", "expected"), [([], "tok:char"), (["--bleu-tokenize", "zh"], "tok:zh")])
def test_decode_divides_references_the_same_way(given, expected, tmp_path, decode, caplog):
    from small_translator import stored

    translator = small_translator()
    assert translator.config.training.bleu_tokenize is None
    run = stored(translator, tmp_path / "run")
    stored_config = json.loads((run / "config.json").read_text())
    stored_config["data"] |= {"dataset": "imported"}
    (run / "config.json").write_text(json.dumps(stored_config))
    (tmp_path / "in").write_text("red cat\nblue dog\n")
    (tmp_path / "reference").write_text("".join(f"{text}\n" for text in CHINESE))
    arguments = [run, "--input", tmp_path / "in", "--reference", tmp_path / "reference"]
    status, _, errors = decode(*arguments, *given)
    assert status == 0
    assert expected in errors
    said = caplog.text
    assert ("--bleu-tokenize char" in said) == (not given)
    assert "--training" not in said


# Speech


@pytest.mark.parametrize(
    ("texts", "error_rate", "first"),
    [
        (CHINESE, None, "character_error_rate"),
        (CHINESE, "words", "word_error_rate"),
        (WORDS, None, "word_error_rate"),
        (["yes", "no"], None, "word_error_rate"),
        (WORDS, "characters", "character_error_rate"),
    ],
)
def test_recordings_are_judged_by_characters_where_there_are_no_spaces(texts, error_rate, first, tmp_path):
    pytest.importorskip("jiwer", reason="pip install '.[speech]'")
    from transformer.tasks.task import Evaluation

    config = PRESETS["speech"]
    training = dataclasses.replace(config.training, error_rate=error_rate)
    config = dataclasses.replace(config, training=training, data=RecordingsConfig(bands=5))
    records = [Recording("a.wav", np.zeros((2, 5), np.float32), text) for text in texts]
    task = SpeechToText(config, train_tokenizer(texts, "character", 90))
    notes = task.decide(in_memory("recordings", {"train": [], "validation": records}, tmp_path))
    assert bool(notes) == (error_rate is None and first == "character_error_rate")
    assert task.config.training.error_rate == first.partition("_")[0] + "s"
    assert task.criterion.name == first == next(iter(task.measures())).name
    names = ["word_error_rate", "character_error_rate", "sentence_error_rate"]
    assert sorted(names) == sorted(measure.name for measure in task.measures())
    given = Evaluation(records, [text[:-1] + "x" for text in texts], {})
    found = {measure.name: score(given) for measure, score in task.measures().items()}
    letters = sum(map(len, texts))
    assert found["character_error_rate"].value == pytest.approx(100 * len(texts) / letters)
    assert found["character_error_rate"].signature.endswith(f"|characters:{letters}")


def test_an_earlier_run_of_speech_keeps_its_criterion():
    stored = json.loads(to_json(PRESETS["speech"]))
    del stored["training"]["error_rate"]
    config = from_json(json.dumps(stored))
    assert SpeechToText(config, None).criterion.name == "word_error_rate"
