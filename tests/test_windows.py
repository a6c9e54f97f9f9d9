"""Whisper's windows: where the next one begins, what it continues, and when it is decoded again, by a plain
loop that follows Whisper's own; and prompts, by teacher forcing."""

import itertools
import json
import zlib
from dataclasses import replace
from pathlib import Path
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from invented_sound import sound

from transformer import UserError
from transformer.config.records import WindowsConfig
from transformer.data.signals.audio import RATE
from transformer.interop.pretrained import import_model
from transformer.systems.speech.api import Transcriber
from transformer.systems.speech.transcripts import SpokenPart, Transcript
from transformer.systems.speech.windows import Heard, Sound, Window, WindowSearch, windows_of
from transformer.translator.search_outputs import NO_EXTRAS

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")
DATA = Path(__file__).parent / "data" / "whisper"
TIME = 100
"""The id of time 0 of the invented model. Ids below it are words."""
NOTHING = 99
"""A token without letters."""
FRAMES, MOST = 60, 7
"""Of a window; of a prompt."""


def invented(seek, prompt, temperature) -> tuple[list[int], float, float]:
    """An output with times by their rules, its mean log-probability, and the probability of silence."""
    random = Random(repr((seek, tuple(prompt), temperature)))
    ids, time = [], random.choice([0, 0, 3])
    for _ in range(random.randint(1, 3)):
        words = random.choices(range(90), k=random.randint(1, 4)) if random.random() < 0.9 else [NOTHING]
        words = words[:1] * 40 if random.random() < 0.2 else words
        after = min(time + random.randint(1, 12), FRAMES // 2)
        ids += [TIME + time, *words, TIME + after]
        time = min(after + random.choice([0, 0, 2]), FRAMES // 2 - 1)
    ids = ids[: len(ids) - random.choice([0, 0, 1])]
    ids += [TIME + time, 5] if random.random() < 0.3 and ids[-1] >= TIME else []
    silence = Random(repr((seek, tuple(prompt)))).choice([0.1, 0.7])
    return ids, random.choice([-0.3, -0.9, -1.2]), silence


def spell(ids) -> str:
    return " ".join(f"word{index}" for index in ids if index < NOTHING)


def expected(content: int, options: WindowsConfig):
    """As Whisper's `transcribe`, in frames: windows, segments, and the prompts that were read."""
    tokens, since, seek = [], 0, 0
    windows, segments, prompts = [], [], []
    while seek < content:
        assert len(windows) < content
        size = min(FRAMES, content - seek)
        prompt = tokens[since:][-MOST:] if options.previous_text else []
        prompts.append(prompt)
        for temperature in options.temperatures:
            ids, mean, silence = invented(seek, prompt, temperature)
            text = spell(ids).encode()
            fallback = len(text) / len(zlib.compress(text)) > options.compression_ratio
            fallback |= mean < options.log_probability
            if silence > options.no_speech and mean < options.log_probability:
                fallback = False
            if not fallback:
                break
        begin = seek
        if silence > options.no_speech and not mean > options.log_probability:
            seek += size
            windows.append((begin, seek, temperature))
            continue
        times = np.array(ids) >= TIME
        single = times[-2:].tolist() == [False, True]
        cuts = (np.flatnonzero(times[:-1] & times[1:]) + 1).tolist()
        found = []
        if cuts:
            last = 0
            for cut in cuts + [len(ids)] * single:
                part = ids[last:cut]
                found.append((part[0] - TIME, part[-1] - TIME, part))
                last = cut
            seek += size if single else 2 * (ids[last - 1] - TIME)
        else:
            stamps = [index - TIME for index in ids if index >= TIME]
            found.append((0, stamps[-1] if stamps and stamps[-1] else size / 2, ids))
            seek += size
        for start, end, part in found:
            if start != end and spell(part):
                tokens += part
                segments.append((begin + min(2 * start, size), begin + min(2 * end, size), spell(part)))
        if temperature > 0.5:
            since = len(tokens)
        windows.append((begin, min(seek, content), temperature))
    return windows, segments, prompts


@pytest.mark.parametrize("previous_text", [True, False])
def test_windows_follow_those_of_whisper(previous_text):
    options = WindowsConfig(previous_text=previous_text, temperatures=(0.0, 0.4, 1.0))
    hot = silent = unfinished = late = 0
    for content in range(100, 1_000, 60):
        prompts = []

        def begin(wave, prompt, seek, prompts=prompts):
            prompts.append(list(prompt))

            def search(temperature):
                ids, mean, _ = invented(seek, prompt, temperature)
                return Heard(Transcript(spell(ids), (), 0.0, 0.0), tuple(ids), mean)

            return Window(search, lambda: invented(seek, prompt, options.temperatures[0])[2])

        wave = np.arange(content * 160 + 80, dtype=np.float32)
        blocks = [wave[first : first + 7_000] for first in range(0, len(wave), 7_000)]
        found = list(windows_of(Sound(blocks), begin, spell, options, TIME, FRAMES, MOST))
        windows, segments, read = expected(content, options)
        assert [(round(100 * x.start), round(100 * x.end), x.temperature) for x in found] == windows
        spoken = [x for part in found for x in part.transcript.segments]
        assert [x.text for x in spoken] == [text for *_, text in segments]
        is_late = any(end == content and end - start < 10 for start, end, _ in segments)  # takes more time
        late += is_late
        for x, (start, end, _) in zip(spoken, segments, strict=True):
            if end <= content - FRAMES or not is_late:
                assert (round(100 * x.start), round(100 * x.end)) == (start, end)
        times = [0.0, *(time for x in spoken for time in (x.start, x.end)), content / 100]
        assert times == sorted(times)
        assert all(x.start < x.end for x in spoken)
        assert prompts == read
        hot += sum(x.temperature > 0.5 for x in found)
        silent += sum(not x.transcript.segments for x in found)
        unfinished += sum(x.end - x.start < FRAMES / 100 for x in found)
        middle = len(found) // 2
        rest = windows_of(Sound(blocks), begin, spell, options, TIME, FRAMES, MOST, found[middle - 1])
        assert list(rest) == found[middle:]
    assert min(hot, silent, unfinished) > 5
    assert late > 1


def test_waves_of_windows_are_those_of_the_recording():
    wave = np.arange(10_000, dtype=np.float32)
    read = Sound(iter([wave[:3], wave[3:5_000], wave[5_000:]]))
    np.testing.assert_array_equal(read.window(2, 10), wave[320:1_920])
    np.testing.assert_array_equal(read.window(40, 3), wave[6_400:6_880])
    np.testing.assert_array_equal(read.window(60, 30), wave[9_600:9_920])
    assert not len(read.window(80, 30))


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory) -> Transcriber:
    """The small random model of tests/make_whisper_golden.py."""
    run_dir = tmp_path_factory.mktemp("whisper") / "run"
    import_model(DATA, run_dir, "en")
    return Transcriber.load(run_dir)


@pytest.fixture(scope="module")
def talk() -> np.ndarray:
    return np.concatenate([np.resize(sound(number), 20 * RATE) for number in range(4)])


@pytest.mark.slow
def test_a_prompt_is_read_before_the_output(transcriber):
    """Many at once, so that slots are refilled."""
    task, limit = transcriber.task, 2 * transcriber.task.prompt_size
    first = task.codes.first_time
    prompts = [(), (5, 6, 7), tuple(range(20, 60)), (first, 40, 41, first + 9)] * 2
    start = task.start(timestamps=True)
    records = [
        replace(transcriber.heard(sound(index % 3)), start=start, prompt=prompt)
        for index, prompt in enumerate(prompts)
    ]
    search = {"beam_size": 2, "stop": "present", "rows": 2, "renormalise": False}
    futures = [transcriber.submit(record, n_best=1, **search) for record in records]
    for record, future in zip(records, futures, strict=True):
        (best,) = future.result()
        read = [index for index in task.prompt(record.prompt)["prompt"].tolist() if index != task.special.pad]
        assert read[1:] == list(record.prompt[-(limit // 2 - 1) :])
        ids = [*read, task.special.bos, *best.ids]
        assert len(ids) <= limit + 1
        frames = jnp.asarray(task.frames(record))[None]
        padded = jnp.asarray(ids + [task.special.eos] * (limit + 1 - len(ids)))[None, :-1]
        logits = transcriber.model.apply(transcriber.variables, frames, padded)
        log_p = np.asarray(jax.nn.log_softmax(logits[0]))
        at = range(len(read) + 1 + len(start), len(ids))
        assert best.log_probability == pytest.approx(
            sum(log_p[place - 1, ids[place]] for place in at), rel=1e-4
        )


@pytest.mark.slow
def test_the_probability_of_silence_and_the_mean_are_those_of_the_model(transcriber):
    task = transcriber.task
    start = task.start(timestamps=True)
    settings = transcriber.settings(1, {"beam_size": 1, "length_penalty": 0.3, "penalty": "wu"})
    search = WindowSearch(transcriber, settings, WindowsConfig(), start, NO_EXTRAS)
    window = search.begin(sound(0), (5, 6), 0)
    frames = jnp.asarray(task.frames(transcriber.heard(sound(0))))[None]
    ids = [task.codes.previous, 5, 6, task.special.bos]
    logits = transcriber.model.apply(transcriber.variables, frames, jnp.asarray([ids]))
    expected = jax.nn.softmax(logits[0, -1])[task.codes.silent]
    assert window.silence == pytest.approx(float(expected), rel=1e-4)
    heard = window.search(0.0)
    assert len(heard.ids) + len(start) + 1 == len(heard.transcript.ids)
    ranked = transcriber.settings(1, {"beam_size": 1, "length_penalty": 1.0, "penalty": "power"})
    again = (
        WindowSearch(transcriber, ranked, WindowsConfig(), start, NO_EXTRAS)
        .begin(sound(0), (5, 6), 0)
        .search(0.0)
    )
    assert heard.ids == again.ids
    assert heard.mean == pytest.approx(again.transcript.score, rel=1e-4)
    sampled = search.at(0.4)
    assert (sampled.method, sampled.num_hypotheses, sampled.renormalise) == ("sample", 5, True)


@pytest.mark.thorough
def test_a_recording_is_heard_in_windows_and_continued(transcriber, talk):
    search = {"beam_size": 1, "seed": 3, "rows": 2}
    windows = WindowsConfig(temperatures=(0.0, 0.9), samples=2, log_probability=-4.0, no_speech=None)
    parts = list(transcriber.parts(talk, windows=windows, **search))
    assert parts[0].start == 0
    assert parts[-1].end == len(talk) / RATE
    for before, after in itertools.pairwise(parts):
        assert before.end == after.start
    times = [time for part in parts for x in part.transcript.segments for time in (x.start, x.end)]
    assert times
    assert all(part.start <= x.start for part in parts for x in part.transcript.segments)
    read = [SpokenPart.of_json(part.stored()) for part in parts[:2]]
    assert list(transcriber.parts(talk, windows=windows, after=read, **search)) == parts[2:]
    asked = {"windows": windows, **search}
    text = " ".join(part.transcript.text for part in parts if part.transcript.text)
    short, long = transcriber.transcribe([talk[: 20 * RATE], talk], **asked)
    assert long == text
    assert short == transcriber.transcribe(talk[: 20 * RATE], **asked)
    segments = transcriber.transcribe(talk, timestamps=True, **asked)
    assert segments == tuple(x for part in parts for x in part.transcript.segments)
    at_pauses = transcriber.transcribe(talk, cut="pauses", **search)
    assert at_pauses == " ".join(
        part.transcript.text
        for part in transcriber.parts(talk, cut="pauses", **search)
        if part.transcript.text
    )
    with pytest.raises(UserError, match="after: these parts are no windows"):
        transcriber.parts(talk, after=list(transcriber.parts(talk, cut="pauses", **search)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperatures": ()}, "--windows.temperatures: give at least one"),
        ({"temperatures": (-1.0,)}, "--windows.temperatures must be from 0"),
        ({"no_speech": 2.0}, "--windows.no-speech must be in"),
        ({"compression_ratio": "much"}, "--windows.compression-ratio 'much': must be"),
    ],
)
def test_options_of_windows_are_checked(options, message):
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        WindowsConfig(**options)


@pytest.mark.slow
def test_what_windows_cannot_do_is_refused(transcriber, talk):
    with pytest.raises(UserError, match="method mbr: windows need the log-probability"):
        transcriber.parts(talk, method="mbr")
    with pytest.raises(UserError, match="detector silero: it finds pauses; cut at pauses"):
        transcriber.parts(talk, detector="silero")
    with pytest.raises(UserError, match="pause 0.2: windows do not end at pauses; cut at pauses"):
        transcriber.transcribe(talk, pause=0.2)
    with pytest.raises(UserError, match="windows: long recordings are cut at pauses; leave these"):
        transcriber.transcribe(talk, cut="pauses", windows=WindowsConfig(samples=1))


@pytest.mark.slow
def test_the_command_hears_in_windows(transcriber, talk, tmp_path, decode):
    run = tmp_path / "run"
    import_model(DATA, run, "en")
    wave = talk[: 45 * RATE]
    soundfile.write(tmp_path / "talk.wav", wave, RATE, "FLOAT")
    soundfile.write(tmp_path / "short.wav", wave[:RATE], RATE, "FLOAT")
    (tmp_path / "list.tsv").write_text("talk.wav\nshort.wav\n")
    search = ["--beam-size", 1, "--rows", 2, "--windows.temperatures", 0]
    windows = WindowsConfig(temperatures=(0.0,))
    parts = list(transcriber.parts(wave, windows=windows, beam_size=1, rows=2))
    talking = (run, "--input", tmp_path / "talk.wav", *search)
    status, out, err = decode(*talking, "--format", "json")
    assert status == 0, err
    assert out == "".join(json.dumps(part.to_json(), ensure_ascii=False) + "\n" for part in parts)
    whole = tmp_path / "talk.json"
    assert decode(*talking, "--format", "json", "--output", whole)[0] == 0
    assert whole.read_text() == out
    segments = [x for part in parts for x in part.transcript.segments]
    status, out, _ = decode(*talking)
    assert out.splitlines() == [" ".join(x.text.split()) for x in segments]
    listed = (run, "--input", tmp_path / "list.tsv", *search)
    status, out, err = decode(*listed, "--format", "json")
    assert status == 0, err
    first, second = map(json.loads, out.splitlines())
    assert first["hypotheses"][0]["text"] == " ".join(p.transcript.text for p in parts if p.transcript.text)
    assert len(first["hypotheses"][0]["segments"]) == len(segments)
    assert "segments" not in second["hypotheses"][0]
    assert "truncated" not in err
    for words, message in (
        ((*listed, "--n-best", 2, "--beam-size", 2), "line 1: --n-best: "),
        (
            (*talking, "--detector", "silero"),
            "--detector silero: it finds pauses; cut at pauses",
        ),
        ((*talking, "--pause", 0.2), "--pause 0.2: windows do not end at pauses; cut at pauses"),
        ((*talking, "--pause", -1), "--pause -1.0: must be a number of seconds, at least 0"),
        ((*talking, "--cut", "pauses"), "--windows: long recordings are cut at pauses"),
    ):
        status, out, err = decode(*words)
        assert (status, out) == (2, "")
        assert message in err
