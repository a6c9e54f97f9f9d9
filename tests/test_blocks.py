"""Training text in blocks of lines: what they read, and which files and lines are refused."""

import itertools
import shutil
from collections import Counter
from pathlib import Path

import pytest

from transformer import UserError
from transformer.data.sources import blocks, text_files
from transformer.data.sources.blocks import pair_blocks


def files_of(folder: Path, *contents: bytes) -> list[Path]:
    paths = []
    for number, content in enumerate(contents):
        path = folder / f"text{number}"
        path.write_bytes(content)
        paths.append(path)
    return paths


@pytest.mark.parametrize("read", [1, 7, 10**6])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_blocks_have_the_lines_of_the_files(tmp_path, monkeypatch, read, end):
    monkeypatch.setattr(blocks, "_READ", read)
    lines = ["\ufeffone", "", "zwei\r", "d\u2028rei", " ", "\u200b", "last"]
    paths = files_of(tmp_path, *["\n".join(lines).encode() + end, "\n".join(lines[::-1]).encode() + end])
    for shard in (1, 128, 192, 1000):
        pairs = pair_blocks([paths], shard)
        expected = list(map(text_files.visible, text_files.read_pairs(*paths)))
        assert list(pairs) == expected
        assert len(pairs) == 7
        assert pairs.__getitems__([5, 0, 6, 6]) == [expected[index] for index in (5, 0, 6, 6)]
        parts = pairs.dealt(shard)
        assert sum(map(len, parts)) == 7
        assert Counter(itertools.chain(*parts)) == Counter(expected)


def test_text_at_an_address_is_read_from_its_copy(tmp_path, monkeypatch):
    """Which other processes read, rather than copy it too."""
    monkeypatch.setenv("TRANSFORMER_CACHE", str(tmp_path / "copies"))
    (path,) = files_of(tmp_path, b"a\tb\nc\td\n")
    pairs = pair_blocks([[Path(f"file://{path}")]], 1)
    path.unlink()
    assert list(pairs) == [("a", "b"), ("c", "d")]
    shutil.rmtree(tmp_path / "copies")
    with pytest.raises(UserError, match="cannot read .*copies.*text0: No such file"):
        list(pairs)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([b"a\nb\n", b"a\n"], "text0 has 2 lines and .*text1 has 1: .*line 2 has no partner"),
        ([b"a\tb\nc\n"], "text0, line 2: 1 column; each line must be source, tab, target"),
        ([b"a\tb\tc\td\n"], "text0, line 1: 4 columns"),
        ([b"a\tb\nc\td\n\xff\tb\n"], "text0, line 3: not UTF-8"),
        ([b"a\n\xff\n", b"a\nb\n"], "text0, line 2: not UTF-8"),
        ([b"", b""], "text0 is empty"),
        ([b"(\xb5/\xfd\x08", b"a\n"], "text0: the compressed file is damaged"),
    ],
)
def test_lines_that_cannot_be_read_are_refused(tmp_path, contents, message):
    with pytest.raises(UserError, match=message), text_files.reading(drops=False):
        pair_blocks([files_of(tmp_path, *contents)], 1000)


def test_lines_that_cannot_be_read_are_left_out_if_asked(tmp_path):
    with text_files.reading(drops=True) as bad:
        pairs = pair_blocks([files_of(tmp_path, b"a\tb\nc\n\xff\td\ne\tf\n")], 1000)
    assert list(pairs) == [("a", "b"), ("", ""), ("", ""), ("e", "f")]
    assert len(bad) == 2


def test_a_file_that_becomes_shorter_is_told(tmp_path):
    (path,) = files_of(tmp_path, b"a\tb\n" * 100)
    pairs = pair_blocks([[path]], 1000)
    path.write_bytes(b"a\tb\n")
    with pytest.raises(UserError, match="changed while it was read"):
        list(pairs)


def test_a_second_part_of_the_text_follows_the_first(tmp_path):
    paths = files_of(tmp_path, b"a\nb\nc\n", b"1\n2\n3", b"d\ne", b"4\n5\n", b"f\n", b"6")
    parts = [paths[:2], paths[2:4], paths[4:]]
    for shard in (1, 1024, 2048):
        pairs = pair_blocks(parts, shard)
        assert list(pairs) == list(zip("abcdef", "123456", strict=True))
        assert pairs.numbers.tolist() == list(range(6))
        assert pairs.__getitems__([5, 3, 2]) == [("f", "6"), ("d", "4"), ("c", "3")]
        for part in pairs.dealt(2):
            assert list(part) == pairs.__getitems__(part.numbers.tolist())
