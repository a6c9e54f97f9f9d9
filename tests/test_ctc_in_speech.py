"""CTC in recognition: joint training and search, alignment of recordings, and what is refused."""

import dataclasses
import functools
import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import init

from transformer import PRESETS, Run, Transcriber, UserError, train_tokenizer
from transformer.commands.given_outputs import align_main
from transformer.config.decoding import BeamConfig
from transformer.config.searches import GreedyConfig, SampleConfig, changed_search
from transformer.data.sources.recordings import Recording
from transformer.data.sources.source import InMemory
from transformer.data.store import Corpus
from transformer.decoding.forced import forced_scores
from transformer.model.variants.ctc import labels_of, log_likelihoods
from transformer.systems.registry import system_of
from transformer.systems.speech.options import ctc_weight_of
from transformer.systems.speech.system import SILENCE, speech_objective
from transformer.systems.speech.task import SpeechToText
from transformer.training.objective import Context

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")
pytest.importorskip("jiwer", reason="pip install '.[speech]'")

WORDS = ("one", "two", "four")
SPECIAL = PRESETS["speech"].model.special
LENGTHS = (33, 18, 25)


def config_with(weight: float, **decoding: object):
    base = PRESETS["speech"]
    sizes = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "channels": 8, "vocab_size": 7}
    return dataclasses.replace(
        base,
        model=dataclasses.replace(base.model, **sizes, ctc_weight=weight),
        data=dataclasses.replace(base.data, bands=6),
        decoding=dataclasses.replace(base.decoding, beam_size=3, buckets=(40, 120), rows=4, **decoding),
    )


def model_of(config):
    model = system_of(config).model(config.model)
    variables = init(model, jax.random.key(3), jnp.zeros((1, 8, 6)), jnp.zeros((1, 2), int))
    return model, jax.tree.map(lambda x: 2 * x, variables)  # far from uniform


def frames(size: int = 36) -> jax.Array:
    found = np.full((len(LENGTHS), size, 6), SILENCE, np.float32)
    for row, length in enumerate(LENGTHS):
        found[row, :length] = np.random.default_rng(row).standard_normal((length, 6))
    return jnp.asarray(found)


@functools.partial(jax.jit, static_argnums=0)
def log_p_of(model, variables, source, target) -> tuple[jax.Array, jax.Array]:
    """log P of targets by attention, if there is a decoder, and by CTC."""

    def run(bound):
        memory = bound.encode(source)
        return bound.ctc_log_probs(memory), memory.mask

    log_probs, mask = model.apply(variables, method=run)
    ctc = log_likelihoods(log_probs, mask, labels_of(target, SPECIAL), SPECIAL.pad)
    if model.config.ctc_weight == 1:
        return ctc, ctc
    return forced_scores(model, variables, {"source": source}, target).log_p.sum(axis=1), ctc


@pytest.mark.thorough
def test_both_losses_are_weighted_sums_over_rows() -> None:
    config = config_with(0.3)
    model, variables = model_of(config)
    target = jnp.array([[4, 5, 6, SPECIAL.eos], [4, 4, 4, SPECIAL.eos], [6, SPECIAL.eos, 0, 0]])
    batch = {"source": frames(), "target": target}  # 18 frames are five positions, enough for 4 4 4

    def loss(config, rows=slice(None)):
        some = {name: x[rows] for name, x in batch.items()}
        return jax.jit(lambda v: speech_objective(config)(model, v, some, Context()))(variables)

    attention, joint, alone = (loss(config_with(weight)) for weight in (0.0, 0.3, 1.0))
    ctc = np.asarray(log_p_of(model, variables, batch["source"], target)[1])
    assert float(alone.total) == pytest.approx(-ctc.sum(), rel=1e-4)
    assert float(joint.total) == pytest.approx(0.7 * float(attention.total) - 0.3 * ctc.sum(), rel=1e-4)
    assert joint.weight == attention.weight == alone.weight == 10
    rows = [loss(config, slice(row, row + 1)) for row in range(3)]
    assert sum(float(x.total) for x in rows) == pytest.approx(float(joint.total), rel=1e-4)
    assert sum(float(x.weight) for x in rows) == 10
    longer = target.at[1].set(jnp.array([4, 4, 4, 4]))  # without <eos>: seven positions, and there are five
    batch["target"] = longer
    assert float(loss(config_with(1.0)).weight) == 6
    metrics = loss(config).metrics
    assert [float(x) for x in metrics["too_short"]] == [1, 3]
    assert float(metrics["nll"][1]) == 10


@pytest.mark.thorough
@pytest.mark.parametrize("method", [BeamConfig, GreedyConfig])
def test_the_sum_holds_where_the_limit_ends_an_output(method) -> None:
    """Also for <eos>: with a weight of CTC alone, the score would otherwise have no end."""
    config = config_with(0.3)
    model, variables = model_of(config)
    options = method(buckets=(40, 120), max_length=2, length_penalty=0.0, ctc_weight=0.6)
    search = system_of(config).search_with(config.model, options)
    found = search(model, variables, {"source": frames()}, jnp.arange(3), options)
    n = found.tokens.shape[1]
    tokens = found.tokens.reshape(3 * n, -1)
    repeated = jnp.repeat(frames(), n, axis=0)
    attention, ctc = (x.reshape(3, n) for x in log_p_of(model, variables, repeated, tokens))
    is_limited = (found.tokens != SPECIAL.pad).sum(axis=-1) == 2
    assert is_limited.any()
    expected = 0.4 * attention + 0.6 * ctc
    is_text = np.isfinite(found.scores) & (found.scores > -1e6)
    np.testing.assert_allclose(found.scores[is_text], expected[is_text], atol=1e-3)


def test_a_joint_search_adds_both_and_does_not_depend_on_the_batch() -> None:
    config = config_with(0.3, length_penalty=0.0)
    model, variables = model_of(config)
    system = system_of(config)

    def found(source, options):
        search = system.search_with(config.model, options)
        return search(model, variables, {"source": source}, jnp.arange(len(source)), options)

    joint = found(frames(), config.decoding)
    repeated = jnp.repeat(frames(), 3, axis=0)
    tokens = joint.tokens.reshape(9, -1)
    attention, ctc = (x.reshape(3, 3) for x in log_p_of(model, variables, repeated, tokens))
    np.testing.assert_allclose(joint.log_probabilities, attention, atol=1e-3)
    np.testing.assert_allclose(joint.scores, 0.7 * attention + 0.3 * ctc, atol=1e-3)
    assert (np.diff(joint.scores, axis=1) <= 0).all()
    alone = found(frames(40)[1:2], config.decoding)
    size = min(alone.tokens.shape[-1], joint.tokens.shape[-1])
    np.testing.assert_array_equal(alone.tokens[0, :, :size], joint.tokens[1, :, :size])
    np.testing.assert_allclose(alone.scores[0], joint.scores[1], atol=1e-4)

    by_ctc = found(frames(), dataclasses.replace(config.decoding, ctc_weight=1.0))
    tokens = jnp.pad(by_ctc.tokens, ((0, 0), (0, 0), (0, tokens.shape[1] - by_ctc.tokens.shape[2])))
    _, likelihoods = log_p_of(model, variables, repeated, tokens.reshape(9, -1))
    np.testing.assert_allclose(by_ctc.scores, likelihoods.reshape(3, 3), atol=1e-3)
    assert (by_ctc.scores[:, 0] >= ctc.max(axis=1) - 1e-3).all()
    greedy = found(frames(), GreedyConfig(buckets=(40,), ctc_weight=1.0, length_penalty=0.0))
    assert greedy.tokens.shape[1] == 1
    assert (greedy.scores[:, 0] <= by_ctc.scores[:, 0] + 1e-3).all()


def run_with(folder, weight: float) -> Run:
    config = config_with(weight)
    tokenizer = train_tokenizer(WORDS * 3, "word", 7)
    task = SpeechToText(config, tokenizer)
    _, variables = model_of(config)
    if weight:
        bias = variables["params"]["ctc_head"]["bias"]
        variables["params"]["ctc_head"]["bias"] = bias.at[SPECIAL.unk].set(-50)
    return Run.create(folder / f"run-{weight}", config, task, variables=variables)


def write_recordings(folder) -> None:
    for name, seconds in (("long", 0.9), ("short", 0.05), ("longer", 2.0)):
        wave = 0.1 * np.random.default_rng(1).standard_normal(int(16_000 * seconds))
        soundfile.write(folder / f"{name}.wav", wave, 16_000)


@pytest.mark.slow
def test_texts_are_aligned_with_recordings(tmp_path, monkeypatch, capsys) -> None:
    write_recordings(tmp_path)
    run = run_with(tmp_path, 0.3)
    transcriber = Transcriber.load(run.path)
    found = transcriber.align(tmp_path / "long.wav", "one four four")
    assert [word.text for word in found.words] == ["one", "four", "four"]
    assert [token.text for token in found.tokens] == ["one", "four", "four"]
    times = [time for word in found.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] <= 0.92
    assert math.isfinite(found.log_probability)

    def command(*words: object) -> int:
        monkeypatch.setattr("sys.argv", ["align", *map(str, words)])
        return align_main()

    def listed(*lines: str):
        path = tmp_path / "list.tsv"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    out = tmp_path / "out.jsonl"
    assert command(run.path, "--input", listed("long.wav\tone four four"), "--output", out) == 0
    (line,) = map(json.loads, out.read_text().splitlines())
    assert line["recording"] == "long.wav"
    assert line["words"] == [{"word": x.text, "start": x.start, "end": x.end} for x in found.words]
    assert [token["token"] for token in line["tokens"]] == ["one", "four", "four"]
    spaced = listed("long.wav\t one  four\xa0four ", "long.wav\t")
    assert command(run.path, "--input", spaced, "--output", out) == 0
    same, silent = map(json.loads, out.read_text().splitlines())
    assert same == line
    assert (silent["text"], silent["words"], silent["tokens"]) == ("", [], [])
    assert math.isfinite(silent["log_probability"])
    err = capsys.readouterr().err
    assert "recordings: 2 in" in err
    assert "2 recordings aligned, written to" in err
    refused = {
        "long.wav": "line 1: must be a file name, a tab and the text",
        "gone.wav\tone": "line 1: .*gone.wav",
        "long.wav\tone seven": "'seven' is not in the vocabulary of this run",
        "short.wav\tone two one two": "line 1: the recording, of 0.0. s, is too short for the 4 tokens",
        "long.wav\tone\nlong.wav\t" + "seven" * 99: "line 2: 'seven.{55}[.]{3}' is not in the vocabulary",
    }
    heard = list[object]()
    align = Transcriber.align
    monkeypatch.setattr(
        Transcriber, "align", lambda self, *given: (heard.append(given), align(self, *given))[1]
    )
    for text, message in refused.items():
        assert command(run.path, "--input", listed(text)) == 2
        assert not heard  # before any is heard
        error = capsys.readouterr().err
        assert re.search(message, " ".join(error.split())), error
    named = listed("long.wav\tone")
    assert command(run.path, "--input", named, "--output", named) == 2
    assert "is the file of --input" in " ".join(capsys.readouterr().err.split())
    assert named.read_text() == "long.wav\tone\n"
    plain = run_with(tmp_path, 0.0)
    assert command(plain.path, "--input", listed("long.wav\tone")) == 2
    assert "this run has no CTC" in capsys.readouterr().err
    assert command(run.path) == 2
    assert "--input is missing" in capsys.readouterr().err


@pytest.mark.thorough
def test_aligning_goes_on_after_the_recordings_that_are_done(tmp_path, monkeypatch, call, refused) -> None:
    write_recordings(tmp_path)
    run, out = run_with(tmp_path, 0.3), tmp_path / "out.jsonl"
    (tmp_path / "clips").mkdir()
    (tmp_path / "long.wav").rename(tmp_path / "clips" / "long.wav")
    texts, align = ("one", "four", "one four"), Transcriber.align
    (tmp_path / "list.tsv").write_text("".join(f"clips/long.wav\t{text}\n" for text in texts))
    words = [run.path, "--input", tmp_path / "list.tsv", "--output", out]
    heard, interruptions = list[str](), ["one four"]

    def interrupted(transcriber: Transcriber, path: object, text: str) -> object:
        if text in interruptions:
            interruptions.remove(text)
            raise KeyboardInterrupt
        heard.append(text)
        return align(transcriber, path, text)

    monkeypatch.setattr(Transcriber, "align", interrupted)
    for options, status in ([], 130), (["--resume"], 0):
        ended, _, errors = call(align_main, *words, *options)
        assert (ended, out.exists()) == (status, not status)
        shown = " ".join(errors.split())
        assert ("add --resume to the same command" if status else "continuing after recording 2") in shown
    assert tuple(heard) == texts
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(each["line"], each["text"]) for each in found] == [*enumerate(texts, 1)]
    assert {each["recording"] for each in found} == {"clips/long.wav"}  # as listed
    assert "--resume needs --output" in refused(align_main, *words[:3], "--resume")


@pytest.mark.slow
def test_times_of_words_come_from_ctc_also_without_a_decoder(tmp_path) -> None:
    write_recordings(tmp_path)
    transcriber = Transcriber.load(run_with(tmp_path, 1.0).path)
    assert "decoder_0" not in transcriber.variables["params"]
    ((best,),) = transcriber.search([tmp_path / "long.wav"], n_best=1, times=True)
    assert [word.text for word in best.words] == best.text.split()
    assert best.words
    aligned = transcriber.align(tmp_path / "long.wav", best.text)
    assert aligned.words == best.words
    assert aligned.log_probability == pytest.approx(best.log_probability, abs=1e-3)
    with pytest.raises(UserError, match="has no alignments"):
        transcriber.search([tmp_path / "long.wav"], alignments=True)


@pytest.mark.parametrize(
    ("trained", "options", "message"),
    [
        (0.0, {"ctc_weight": 0.3}, "this one has no CTC; leave it out"),
        (1.0, {"ctc_weight": 0.3}, "trained with CTC alone, and has no decoder"),
        (0.3, {"method": "sample", "ctc_weight": 0.3}, "--decoding.method sample: with CTC, the search is"),
        (0.3, {"beam_size": 2, "groups": 2, "ctc_weight": 0.3}, "--decoding.groups: with CTC"),
        (
            1.0,
            {"method": "mbr"},
            "--decoding.method mbr: with CTC, the search is beam or greedy; leave it out",
        ),
        (0.3, {"ctc_weight": 1.0, "no_repeat_ngram": 2}, "--decoding.no-repeat-ngram: it needs a decoder"),
        (1.0, {"noise": 0.5}, "--decoding.noise: it needs a decoder"),
        (0.3, {"ctc_weight": 1.5}, "--decoding.ctc-weight must"),
    ],
)
def test_searches_that_cannot_be_are_refused(trained, options, message) -> None:
    config = config_with(trained)
    task = SpeechToText(config, train_tokenizer(WORDS * 3, "word", 7))
    with pytest.raises(UserError, match=message):
        system_of(config).check_search(task, changed_search(config.decoding, options))


def test_the_weight_of_a_search_is_that_of_the_training_unless_given() -> None:
    model = config_with(0.3).model
    assert ctc_weight_of(model, BeamConfig()) == ctc_weight_of(model, GreedyConfig()) == 0.3
    assert ctc_weight_of(model, SampleConfig()) == 0
    assert ctc_weight_of(model, BeamConfig(ctc_weight=0.0)) == 0
    assert ctc_weight_of(config_with(1.0).model, BeamConfig()) == 1
    assert ctc_weight_of(config_with(0.0).model, BeamConfig()) == 0


def test_other_systems_refuse_the_weight() -> None:
    config = PRESETS["tiny"]
    system = system_of(config)
    task = system.task.without_corpus(config)
    with pytest.raises(UserError, match="it is for runs of system speech"):
        system.check_search(task, changed_search(task.config.decoding, {"ctc_weight": 0.3}))


def test_texts_that_are_too_long_for_their_recordings_are_counted() -> None:
    def corpus(*texts: str) -> Corpus:
        records = [Recording("a", np.zeros((9, 6), np.float32), text) for text in texts]  # three positions
        return Corpus("some", dict.fromkeys(("train", "validation"), InMemory(records)), None)

    def notes(weight: float, *texts: str) -> list[str]:
        config = config_with(weight)
        config = dataclasses.replace(
            config, training=dataclasses.replace(config.training, error_rate="words")
        )
        return SpeechToText(config, train_tokenizer(WORDS * 3, "word", 7)).decide(corpus(*texts))

    assert notes(0.3, "one two four", "one one") == []
    assert notes(0.0, "one one four") == []
    (note,) = notes(0.3, "one two", "one one four")
    assert note.startswith("1 of 2 training recordings are too short for their texts, and learned from by")
    assert "one token in every 0.04 s (--model.convolutions 2)" in note
    assert "left out" in notes(1.0, "one two", "one one four")[0]
    with pytest.raises(UserError, match="all recordings are too short for their texts"):
        notes(0.3, "one two one two")
