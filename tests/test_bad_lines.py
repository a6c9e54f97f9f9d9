"""Lines of corpora that cannot be read are counted, refused together or left out; unusual ones are told."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from transformer import UserError
from transformer.commands.train import train_main
from transformer.config.corpus import DataConfig
from transformer.config.records import (
    PicturesConfig,
    RecordingsConfig,
    SentencesConfig,
    StreamConfig,
    TaggedConfig,
)
from transformer.data.sources.corpora import open_corpus
from transformer.data.sources.pictures import open_pictures
from transformer.data.sources.recordings import open_recordings, read_recording_list, recording_lists
from transformer.data.sources.source import InMemory
from transformer.data.sources.tagged import open_tagged
from transformer.data.sources.text_files import reading
from transformer.data.sources.texts import open_texts
from transformer.data.sources.unusual import distributions, unusual_pairs
from transformer.data.store import Corpus

GOOD = [b"a b\tc d", b"e f\tg h", b"i j\tk l", b"m n\to p"]
ROWS = [json.dumps({"source": f"{n} a", "target": f"{n} b"}).encode() for n in range(4)]
TREES = [b"(S (N a) (V b))", b"(S (N c) (V d))", b"(S (N e))", b"(S (N f))"]
DIRECTED = [line + b"\ten\tde" for line in GOOD]
LISTS = [b"{", b"[1]", b'{"source": "a"}', b'{"source": 5, "target": []}', b"\xff"]
FORMATS = {
    "pairs.tsv": ("train_tsv", GOOD, [b"one column", b"three\tof\tthem", b"\xff\tb"], {}),
    "rows.jsonl": ("train", ROWS, LISTS, {}),
    "table.tsv": ("train", [b"source\ttarget", *GOOD], [b"one column", b"a\tb\tc", b"\xff\tb"], {}),
    "trees.mrg": (
        "train",
        TREES,
        [b"S a)", b"\xff"],
        {"task": "trees", "inputs": ("sentence",), "target": ("tree",)},
    ),
    "directed": (
        "train_tsv",
        DIRECTED,
        [b"a\tb\tc", b"a\tb\ten\tfr", b"\xff\tb\ten\tde"],
        {"directions": ("en:de",)},
    ),
}


def lines_of(path: Path, good: list[bytes], bad: list[bytes]) -> list[int]:
    """Writes each bad line twice after the first good ones, and returns the numbers of the bad ones."""
    lines = [*good[:2], *bad, good[2], *bad, *good[3:]]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return [number for number, line in enumerate(lines, start=1) if line in bad]


@pytest.mark.parametrize("name", FORMATS)
def test_all_bad_lines_are_named_at_once_or_left_out(name, tmp_path):
    option, good, bad, options = FORMATS[name]
    path = tmp_path / name
    numbers = lines_of(path, good, bad)
    files = {option: path, option.replace("train", "validation"): path}
    data = DataConfig(**files, **options, cache_dir=tmp_path / "cache")
    with pytest.raises(UserError) as refused, reading(drops=False):
        open_corpus(data)
    said = str(refused.value).splitlines()
    assert said[-1] == f"{len(numbers)} lines cannot be read: --data.drop-bad leaves them out"
    ranges = [part.split("-") for line in said[:-1] for part in line.split("(")[1].split(")")[0].split(", ")]
    assert (
        sorted(n for first, *last in ranges for n in range(int(first), int(*last or [first]) + 1)) == numbers
    )
    with reading(drops=True) as left_out:
        corpus = open_corpus(data)
    assert len(left_out) == len(numbers)
    path.write_bytes(b"\n".join(good) + b"\n")
    assert open_corpus(data).folder == corpus.folder  # the same text
    assert list(open_corpus(data).splits["train"]) == list(corpus.splits["train"])


def test_a_pair_is_left_out_if_one_of_its_files_has_a_bad_line(tmp_path):
    (tmp_path / "a").write_bytes(b"1\n\xff\n3\n4\n")
    (tmp_path / "b").write_bytes(b"eins\nzwei\n\xffdrei\nvier\n")
    sides = {"source": tmp_path / "a", "target": tmp_path / "b"}
    files = {f"{split}_{side}": path for split in ("train", "validation") for side, path in sides.items()}
    data = DataConfig(**files, cache_dir=tmp_path / "cache")
    with reading(drops=True) as bad:
        assert [tuple(pair) for pair in open_corpus(data).splits["train"]] == [("1", "eins"), ("4", "vier")]
    assert len(bad) == 2
    with (
        pytest.raises(UserError, match=r"a, line 2: not UTF-8 (?s:.*)b, line 3: not UTF-8"),
        reading(drops=False),
    ):
        open_corpus(data)


def test_a_sentence_is_left_out_if_one_of_its_words_cannot_be_read(tmp_path):
    path = tmp_path / "conll"
    path.write_bytes(b"a A\nb B\n\nc\nd D\n\ne A\n\xff B\n\nf A\n")
    data = TaggedConfig(train=path, validation=path, cache_dir=tmp_path / "cache")
    with reading(drops=True) as bad:
        assert [record.words for record in open_tagged(data).splits["train"]] == [("a", "b"), ("f",)]
    assert len(bad) == 2
    with pytest.raises(UserError, match=r"2 lines cannot be read"), reading(drops=False):
        open_tagged(data)


@pytest.mark.parametrize("kind", [StreamConfig, SentencesConfig])
def test_running_text(tmp_path, kind):
    path = tmp_path / "text"
    path.write_bytes(b"one\n\xff\ntwo\n\xffx\nthree\n")
    data = kind(train=path, validation=path, cache_dir=tmp_path / "cache")
    with reading(drops=True) as bad:
        text = "".join(open_texts(data).splits["train"])
    assert text.split() == ["one", "two", "three"] or text == "onetwothree"
    assert len(bad) == 2
    with pytest.raises(UserError, match=r"2 lines \(2, 4\): not UTF-8"), reading(drops=False):
        open_texts(data)


def test_lists_of_files(tmp_path):
    """Of recordings, and of pictures with captions or boxes."""
    (tmp_path / "a.wav").write_bytes(b"")
    path = tmp_path / "list.tsv"
    path.write_bytes(b"a.wav\tyes\nb.wav\tno\na.wav\nc.wav\tno\n\xff\n")
    with reading(drops=True) as bad:
        assert [line.name for line in read_recording_list(path)] == ["a.wav"]
    assert len(bad) == 4
    with pytest.raises(UserError, match=r"2 lines \(2, 4\): no such file"), reading(drops=False):
        recording_lists(RecordingsConfig(train=path))
    from transformer.data.sources import pictures

    path.write_text("a.wav\ta caption\nno tab\na.wav\t\nb.png\tx\n")
    with reading(drops=True) as bad:
        assert [picture.captions for picture in pictures.read_manifest(path, "captions")] == [("a caption",)]
    assert len(bad) == 3
    with pytest.raises(UserError, match="3 lines cannot be read"), reading(drops=False):
        pictures.picture_lists(PicturesConfig(train=path), "captions")


def recordings(folder: Path) -> tuple[Path, Callable[[Path], Corpus]]:
    """A list of recordings, of which the second, fourth and sixth are damaged, and what opens it."""
    soundfile = pytest.importorskip("soundfile", reason="needs soundfile: pip install '.[speech]'")
    for index in range(8):
        soundfile.write(folder / f"{index}.wav", np.random.default_rng(index).normal(0, 0.1, 4000), 8000)
    (folder / "1.wav").write_bytes(b"")
    (folder / "3.wav").write_bytes(b"no audio")
    whole = (folder / "5.wav").read_bytes()
    (folder / "5.wav").write_bytes(whole[: len(whole) // 2])
    path = folder / "list.tsv"
    path.write_text("".join(f"{index}.wav\tsaid {index}\n" for index in range(8)))
    return path, lambda cache: open_recordings(RecordingsConfig(train=path, validation=path, cache_dir=cache))


def pictures_of(folder: Path) -> tuple[Path, Callable[[Path], Corpus]]:
    """The same of pictures."""
    for index in range(8):
        Image.fromarray(np.full((9, 9, 3), 20 * index, np.uint8)).save(folder / f"{index}.png")
    (folder / "1.png").write_bytes(b"")
    (folder / "3.png").write_bytes(b"GIF89a")
    (folder / "5.png").write_bytes((folder / "5.png").read_bytes()[:40])
    path = folder / "list.tsv"
    path.write_text("".join(f"{index}.png\ta caption {index}\n" for index in range(8)))
    return path, lambda cache: open_pictures(
        PicturesConfig(train=path, validation=path, cache_dir=cache), "captions"
    )


@pytest.mark.parametrize("made", [recordings, pictures_of])
def test_damaged_files_are_counted_or_left_out(tmp_path, made):
    """Also when the corpus that was prepared without them is opened again."""
    path, opened = made(tmp_path)
    message = f"{path}, (?s:.*)[23] lines cannot be read: --data.drop-bad"  # headers first
    with pytest.raises(UserError, match=message), reading(drops=False):
        opened(tmp_path / "cache")
    for _ in range(2):
        with reading(drops=True) as bad:
            corpus = opened(tmp_path / "cache")
        assert len(bad) == 3
        assert len(corpus.splits["train"]) == len(corpus.splits["validation"]) == 5
        with pytest.raises(UserError, match="3 lines cannot be read: --data.drop-bad"), reading(drops=False):
            opened(tmp_path / "cache")


def test_data_check_counts_everything_and_trains_nothing(tmp_path, call):
    path = tmp_path / "text.tsv"
    path.write_bytes(b"".join(b"a %d\tb %d\n" % (n, n) + b"no tab\n" * (n % 2) for n in range(100)))
    options = ["quickstart", "--data.train-tsv", path, "--data.cache-dir", tmp_path / "cache"]
    options += ["--run-dir", tmp_path / "run"]
    status, out, err = call(train_main, *options, "--data.check")
    assert status == 2
    assert "50 lines (3, 6, 9, " in err
    assert "149, 150)" in err or "150): 1 column; each line must be source, tab, target" in err
    assert "unusual among" not in out
    path.write_text("source\ttarget\n" + "".join(f"word {n}\twort {n}\n" for n in range(40)) * 2)
    status, out, err = call(train_main, *options, "--data.check")
    assert status == 0, err
    assert "All lines can be read." in out
    assert "repeat another, the first looks like a header" in out
    assert "target : source, up to" in out
    assert not (tmp_path / "run").exists()


ENGLISH = ["the cat sees the old dog", "a dog sleeps in the house", "the house is old", "a man sees a cat"]
GERMAN = [
    "die katze sieht den alten hund",
    "ein hund schläft im haus",
    "das haus ist alt",
    "ein mann sieht eine katze",
]


def test_what_is_unusual_is_counted():
    """Against counts that are known since they are made here."""
    pairs = [(f"{a} {n}", f"{b} {n}") for n in range(50) for a, b in zip(ENGLISH, GERMAN, strict=True)]
    assert unusual_pairs(InMemory(pairs), True) == ""
    assert unusual_pairs(InMemory([]), True) == ""
    odd = [*pairs]
    odd[7], odd[90] = odd[7][::-1], odd[90][::-1]
    odd[3] = odd[4] = odd[5]
    odd[20] = odd[20][0], f"{odd[20][1]} &amp; &#228;"
    odd[21] = odd[21][0], f"{odd[21][1]} AT&T; &nothing;"
    odd[30] = odd[30][0], odd[30][1] * 5
    odd.insert(0, ("en", "de"))
    said = unusual_pairs(InMemory(odd), True, ("en", "de"))
    assert said == (
        "unusual among the 201 training pairs, and kept: 2 repeat another, "
        "1 with HTML entities such as &amp;, 2 with source and target swapped, by their words, "
        "1 whose lengths differ 3 times more than usual, "
        "the first looks like a header"
    )
    scripts = [(f"{a} {n}", "猫看见狗" + chr(0x4E00 + n)) for n in range(50) for a in ENGLISH]
    scripts[9] = scripts[9][::-1]
    assert "1 with source and target swapped" in unusual_pairs(InMemory(scripts), True)
    same = [(text, text) for text, _ in pairs]  # nothing to tell sides by
    assert unusual_pairs(InMemory(same), True) == ""
    assert "swapped" not in unusual_pairs(InMemory(odd), False)
    same[2] = same[3] = same[4] = "\N{ZERO WIDTH SPACE}", "a b"
    same[9] = "a", ""
    same[11] = "", ""
    left_out = "an empty side, so training leaves it out: 5 pairs, such as '\\u200b' with 'a b'"
    assert unusual_pairs(InMemory(same), False) == (
        f"unusual among the 200 training pairs, and kept: 2 repeat another; {left_out}"
    )
    assert unusual_pairs(InMemory([*pairs, (" ", "a")]), False) == (
        f"{left_out.split(':')[0]}: 1 pair, such as ' ' with 'a'"
    )


def test_lengths_and_ratios_are_drawn():
    pairs = [("a" * 7, "b" * 14)] * 3 + [("a" * 900, "b" * 900)] + [("", "b")] * 96
    assert distributions(InMemory(pairs)) == (
        "characters, up to         5    10    20    40    80   160   320   640  more\n"
        "    source                96%█   3%▁                                       1%▁\n"
        "    target                96%█         3%▁                                 1%▁\n"
        "  target : source, up to 0.25   0.5   0.7   0.9   1.1   1.4     2     4  more\n"
        "                                                  25%▃        75%█"
    )
    assert distributions(InMemory([])).count("\n") == 4


def test_texts_that_are_too_long_may_be_swapped(tmp_path, call):
    """Where labels are read and documents written, a longer limit is not the whole advice."""
    rows = [{"text": f"{n} " + "word " * 60, "label": "good" if n % 2 else "bad"} for n in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["sentiment", "--data.train", tmp_path / "rows.jsonl", "--data.cache-dir", tmp_path / "cache"]
    options += ["--data.inputs", "label", "--data.target", "text", "--run-dir", tmp_path / "run"]
    status, _, err = call(train_main, *options, "--data.max-length", "40", "--data.buckets", "40")
    assert status == 2
    assert "longer than --data.max-length 40: raise it (targets have " in err
    assert "times the tokens of sources: are --data.inputs and --data.target swapped?)" in err
