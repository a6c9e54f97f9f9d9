"""One run of a model of many languages translates between any two of them; the code of the target is free."""

import dataclasses
import json
import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.cli.decode_arguments import DecodeArguments, parse_decode
from transformer.cli.writer import writer_class
from transformer.commands.models import import_command
from transformer.commands.translations import Translations
from transformer.config.model import SpecialIds
from transformer.config.searches import GreedyConfig
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.explorer.attention import attention_of
from transformer.explorer.tree import search_tree
from transformer.interop.pretrained import import_model
from transformer.runtime.errors import UserError
from transformer.systems.registry import REGISTRY, find_system
from transformer.tasks.outputs import Lines
from transformer.tasks.texts.translation import Translation
from transformer.translator import translator as translator_module
from transformer.translator.translator import Translator

DATA = Path(__file__).parent / "data" / "pretrained"
PAIRS = [("eng_Latn", "deu_Latn"), ("deu_Latn", "eng_Latn"), ("eng_Latn", "eng_Latn")]
SMALL = {"beam_size": 3, "rows": 8, "buckets": (32,)}
SENTENCES = ["a dog", "the small house is old", ""]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run without languages, and one for each pair."""
    folder = tmp_path_factory.mktemp("runs")
    import_model(DATA / "nllb", folder / "any")
    for source, target in PAIRS:
        import_model(DATA / "nllb", folder / f"{source}-{target}", source, target)
    return folder


@pytest.fixture(scope="module")
def translator(runs):
    return Translator.load(runs / "any")


def named(pair):
    return dict(zip(("source_language", "target_language"), pair, strict=True))


def assert_equal(results, expected):
    """The same n-best lists, up to rounding."""
    for hypotheses, others in zip(results, expected, strict=True):
        assert [x.tokens for x in hypotheses] == [x.tokens for x in others]
        scores = [x.score for x in others]
        np.testing.assert_allclose([x.score for x in hypotheses], scores, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.by_default("mbart")
@pytest.mark.parametrize("name", ["nllb", "mbart"])
def test_every_direction_is_that_of_the_reference(tmp_path, name):
    """n-best lists of transformers for all pairs of languages (tests/make_languages_golden.py)."""
    import_model(DATA / name, tmp_path / "run")
    sources = json.loads((DATA / name / "golden.json").read_text())["sources"]
    translator = Translator.load(tmp_path / "run")
    options = {"beam_size": 4, "length_penalty": 0.5, "penalty": "power", "stop": "exact", "min_length": 5}
    limits = {"max_length": 19, "extra_length": 50, "rows": 8, "buckets": (32,)}
    compared = 0
    for direction in json.loads((DATA / name / "directions.json").read_text()):
        results = translator.search(sources, **options, **limits, **named(direction["languages"]))
        for hypotheses, expected in zip(results, direction["n_best"], strict=True):
            if expected is None:  # one was cut at the limit
                continue
            assert [h.text.strip(" ") for h in hypotheses] == [text for text, _ in expected]
            np.testing.assert_allclose([h.score for h in hypotheses], [x for _, x in expected], atol=2e-4)
            compared += 1
    assert compared >= 12


@pytest.mark.by_default("True")
@pytest.mark.parametrize("int8", [False, True])
def test_requests_of_all_directions_join_one_search(runs, int8):
    """Requests of other languages that are searched at the same time change nothing."""
    translator = Translator.load(runs / "any", int8=int8)
    expected = {pair: translator.search(SENTENCES[:2], **SMALL, **named(pair)) for pair in PAIRS}
    futures = [
        (translator.submit(sentence, line=line, **SMALL, **named(pair)), expected[pair][line - 1])
        for _ in range(4)
        for line, sentence in enumerate(SENTENCES[:2], start=1)
        for pair in PAIRS
    ]
    assert_equal([future.result() for future, _ in futures], [hypotheses for _, hypotheses in futures])
    assert len(translator._services) == 1


def test_the_import_says_how_languages_are_chosen(tmp_path, capsys):
    import_command([str(DATA / "nllb"), str(tmp_path / "run")])
    assert "decode.py" in (said := capsys.readouterr().out)
    assert said.rstrip().endswith("--source-language eng_Latn --target-language deu_Latn")


@pytest.mark.thorough
@pytest.mark.by_default("pair1")
@pytest.mark.parametrize("pair", PAIRS)
def test_a_request_is_translated_as_by_a_run_for_its_languages(runs, translator, pair):
    own = Translator.load(runs / "-".join(pair))
    expected = own.search(SENTENCES, **SMALL)
    assert_equal(translator.search(SENTENCES, **SMALL, **named(pair)), expected)
    assert expected[0][0].tokens[0] == pair[1]
    assert_equal([translator.submit("a dog", **SMALL, **named(pair)).result()], expected[:1])
    assert_equal(list(translator.stream(SENTENCES, **SMALL, **named(pair))), expected)
    assert translator.translate("a dog", **SMALL, **named(pair)) == expected[0][0].text
    texts = [hypotheses[0].text for hypotheses in expected]
    scores = translator.score(SENTENCES[:2], texts[:2], **named(pair))
    np.testing.assert_array_equal(scores, own.score(SENTENCES[:2], texts[:2]))


@pytest.mark.thorough
def test_languages_share_their_programs(translator, caplog):
    """They are data of a request: the search compiled for one pair serves all others."""
    translator.warm_up(**SMALL)
    services = len(translator._services)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for pair in PAIRS:
            translator.translate(["a dog"], **SMALL, **named(pair))
    assert not [message for message in caplog.messages if "ompiling" in message]
    assert len(translator._services) == services
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        jax.jit(lambda x: x * 3)(1)
    assert [message for message in caplog.messages if "ompiling" in message]  # it would have been seen


@pytest.mark.thorough
def test_scores_agree_with_those_of_the_search(translator):
    """Neither has the probability of the code, which is no choice of the model."""
    for pair in PAIRS:
        for hypothesis in translator.search(["a dog"], token_scores=True, **SMALL, **named(pair))[0]:
            (score,) = translator.score(["a dog"], [hypothesis.ids], **named(pair))
            assert score == pytest.approx(hypothesis.log_probability, abs=1e-4)
            assert hypothesis.token_log_probabilities[0] == hypothesis.entropies[0] == 0
            of_tokens = sum(hypothesis.token_log_probabilities)
            assert of_tokens == pytest.approx(hypothesis.log_probability, abs=1e-4)


@pytest.mark.slow
def test_another_first_token_than_the_code_is_scored(translator):
    """Only the code is free: what begins with another token has the probability of that."""
    english, german = (translator.tokenizers[0].codes[code] for code in PAIRS[0])
    special = translator.task.special
    targets = [[german, 9, special.eos], [english, 9, special.eos]]
    scores = translator.score(["a dog"] * 2, targets, **named(PAIRS[0]))
    source = jnp.asarray(translator.between(*PAIRS[0]).source_row("a dog", **SMALL))
    model, variables = translator.model, translator.variables
    for target, score, first in zip(targets, scores, (1, 0), strict=True):
        logits = model.apply(variables, source, jnp.array([[special.bos, *target[:-1]]]))
        log_p = np.asarray(jax.nn.log_softmax(logits))[0]
        expected = sum(log_p[position, target[position]] for position in range(first, len(target)))
        assert score == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_what_steers_a_search_comes_after_the_code_of_the_request(translator):
    for pair in PAIRS[:2]:
        ((best, *_),) = translator.search(["a dog"], prefixes=["ein hu"], **SMALL, **named(pair))
        assert best.tokens[0] == pair[1]
        assert best.text.startswith("ein hu")
        ((best, *_),) = translator.search(["a dog"], terms=[["hund"]], **SMALL, **named(pair))
        assert best.tokens[0] == pair[1]
        assert "hund" in best.text


@pytest.mark.slow
def test_alignments_and_pictures_have_the_codes_as_positions(translator):
    pair = PAIRS[0]
    in_pair = translator.between(*pair)
    ((best, *_),) = translator.search(["a dog"], alignments=True, **SMALL, **named(pair))[:1]
    assert best.alignment.shape == (len(best.ids), len(in_pair.subwords("a dog")) + 1)
    assert in_pair.subwords("a dog")[0] == pair[0]
    (attention,) = attention_of(in_pair, "a dog", [best], **SMALL)
    assert (attention.source[0], attention.target[0]) == pair
    tree = search_tree(in_pair, "a dog", prefix="ein", **SMALL)
    assert tree.candidates[0].token == pair[1]


@pytest.mark.slow
def test_an_ensemble_has_the_languages_of_a_request(runs, translator):
    both = Translator.load([runs / "any", runs / "any"])
    expected = translator.search(SENTENCES, **SMALL, **named(PAIRS[0]))
    outputs = both.search(SENTENCES, **SMALL, **named(PAIRS[0]))
    assert [[h.ids for h in row] for row in outputs] == [[h.ids for h in row] for row in expected]


def test_a_run_for_a_pair_has_it_as_default(runs):
    own = Translator.load(runs / "-".join(PAIRS[0]))
    assert own.search(["a dog"], **SMALL)[0][0].tokens[0] == "deu_Latn"
    assert own.search(["a dog"], **SMALL, target_language="eng_Latn")[0][0].tokens[0] == "eng_Latn"
    assert own.between(None, "eng_Latn").subwords("a dog")[0] == "eng_Latn"


@pytest.mark.thorough
def test_the_command_takes_languages(runs):
    arguments = [str(runs / "any"), "--format", "json", "--source-language", "eng_Latn", "--target-language"]
    writer = Translations(parse_decode([*arguments, "deu_Latn"]))
    ((text, _),) = [line for line in writer.of([(1, "a dog")]) if line]
    written = json.loads(text)
    assert written["source_tokens"][0] == "eng_Latn"
    assert written["hypotheses"][0]["tokens"][0] == "deu_Latn"
    other = Translations(parse_decode([*arguments, "eng_Latn"]))
    assert other.job != writer.job  # --resume does not continue another one


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ({}, "begin with the code of their language: give --source-language, such as eng_Latn, deu_Latn"),
        ({"source_language": "eng_Latn"}, "give --target-language, such as eng_Latn, deu_Latn"),
        (named(("eng_Latn", "deu_Latm")), "--target-language deu_Latm: .* did you mean deu_Latn"),
        ({"target_language": ""}, "target-language must be a code such as en"),
        (named(("xx", "deu_Latn")), "--source-language xx: this model has no such language; there are"),
    ],
)
def test_missing_and_unknown_languages_are_named(translator, languages, message):
    with pytest.raises(UserError, match=message):
        translator.translate(["a dog"], **languages)
    with pytest.raises(UserError, match=message):
        translator.score(["a dog"], ["ein hund"], **languages)


def test_models_without_codes_refuse_languages(tmp_path):
    import_model(DATA / "t5", tmp_path / "t5")
    translator = Translator.load(tmp_path / "t5")
    with pytest.raises(UserError, match="--target-language: the texts of this model begin with no code"):
        translator.translate("a dog", target_language="de")


@pytest.mark.parametrize("system", REGISTRY)
def test_systems_without_codes_refuse_the_options(system):
    """By a sentence of their writer, if they do not translate; otherwise by that of the task above."""
    task = find_system(system).task
    if not issubclass(task, Lines):
        assert system == "masked-lm"  # the only one
        pytest.skip("not for the command line")
    writer = writer_class(task.writer)
    arguments = DecodeArguments(Path("RUN"), (), GreedyConfig(), target_language="de")
    if issubclass(task, Translation):
        writer.checked_way(arguments)
        arguments = dataclasses.replace(arguments, language="de")
        with pytest.raises(UserError, match="--language: languages of texts are --source-language and"):
            writer.checked_way(arguments)
        return
    with pytest.raises(UserError, match="--target-language: .*leave it out"):
        writer.checked_way(arguments)


def test_another_pair_can_be_trained(runs, translator):
    """What --init-from does with the options --data.source-language and --data.target-language."""
    config = translator.config
    task = find_system("transformer").task
    with pytest.raises(UserError, match="give --data.source-language and --data.target-language, such as"):
        task.load(config, runs / "any").decide(None)
    one = dataclasses.replace(config.data, source_language="eng_Latn")
    with pytest.raises(UserError, match="give --data.target-language, such as"):
        task.load(dataclasses.replace(config, data=one), runs / "any").decide(None)
    with pytest.raises(UserError, match="give --data.target-language, such as"):
        task.load(dataclasses.replace(config, data=one), runs / "any").examples([("a dog", "ein hund")])
    unknown = dataclasses.replace(config.data, **named(("eng_Latn", "deu_Latm")))
    with pytest.raises(UserError, match="--data.target-language deu_Latm: this model has no such language"):
        task.load(dataclasses.replace(config, data=unknown), runs / "any")
    data = dataclasses.replace(config.data, **named(PAIRS[1]))
    loaded = task.load(dataclasses.replace(config, data=data), runs / "any")
    assert isinstance(loaded, Translation)
    (example,) = loaded.examples([("ein hund", "a dog")])
    assert loaded.pieces(example["source"][:1], ("", "")) == ["deu_Latn"]
    assert loaded.pieces(example["target"][:1], ("", "")) == ["eng_Latn"]


def test_a_message_has_others_only_if_there_are_more():
    for count in (2, 9):
        names = [f"{chr(97 + index) * 3}_Latn" for index in range(count)]
        tokenizer = train_tokenizer(["a b"] * 9, "character", 99, SpecialIds(), names)
        with pytest.raises(UserError, match="there are aaa_Latn, bbb_Latn") as caught:
            tokenizer.in_language("xx", "--target-language")
        assert str(caught.value).endswith(" and others") == (count > 5)


def test_few_pairs_of_languages_are_ready(translator, monkeypatch):
    """A client that names all pairs does not fill the memory."""
    monkeypatch.setattr(translator_module, "PAIRS", 2)
    monkeypatch.setattr(translator, "_pairs", {})
    for source, target in [*PAIRS, *PAIRS]:
        between = translator.between(source, target)
        assert between is translator.between(source, target)
        assert between.task.data.target_language == target
        assert len(translator._pairs) <= 2
