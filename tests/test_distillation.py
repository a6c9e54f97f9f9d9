"""A student's training text: what its teacher makes of the sources (`transformer distill`)."""

import dataclasses
import errno
import os
import shlex

import pytest

from transformer import Run, Translator, UserError
from transformer.commands.main import main
from transformer.config.options import as_options, locations
from transformer.translator import distill as distillation
from transformer.translator.distill import ABOUT, _claimed, _write_side, distill


def test_line_breaks_inside_a_sentence_shift_no_lines(tmp_path):
    _write_side(tmp_path / "train.en", iter(["one\ntwo", "three\r\n\nfour\n", "five"]))
    assert (tmp_path / "train.en").read_bytes() == b"one two\nthree four\nfive\n"


def test_distillation_is_the_teachers_translation_of_all_of_the_training_text(config, finished, tmp_path):
    folder, decoding = tmp_path / "new", Run(finished).config.decoding
    distill(finished, folder, "best", decoding)
    sources = (folder / "train.source").read_text().splitlines()
    assert sources == config.data.train_source.read_text().splitlines()
    assert (folder / "train.target").read_text().splitlines() == Translator.load(finished).translate(sources)
    for split in ("validation", "test"):
        original = getattr(config.data, f"{split}_target").read_text()
        assert (folder / f"{split}.target").read_text() == original


def test_a_source_that_is_not_read_whole_has_no_translation(finished, tmp_path, monkeypatch, capsys):
    sources = list(map(str, Run(finished).config.data.train_source.read_text().splitlines()))
    search = Translator.stream

    def stream(*arguments, **options):
        for index, (best,) in enumerate(search(*arguments, **options)):
            yield [dataclasses.replace(best, truncated=index == 3)]

    monkeypatch.setattr(Translator, "stream", stream)
    monkeypatch.setattr(Translator, "truncates", lambda self, source, target="": source == sources[3])
    distill(finished, tmp_path / "new", "best", Run(finished).config.decoding)
    lines = (tmp_path / "new" / "train.target").read_text().splitlines()
    count = sources.count(sources[3])
    assert [line for line, source in zip(lines, sources, strict=True) if source == sources[3]] == [""] * count
    output = " ".join("".join(capsys.readouterr()).split())
    assert f"{count} of {len(sources)} sources are longer than the teacher reads" in output


def test_a_distillation_is_resumed_after_its_last_whole_line(finished, tmp_path):
    folder, decoding = tmp_path / "new", Run(finished).config.decoding
    folder.mkdir()
    left = folder / f".{ABOUT}.0123456789ab"  # of a process that was killed while it wrote
    left.write_text("{")
    distill(finished, folder, "best", decoding)
    assert not left.exists()
    whole = (folder / "train.target").read_text()
    (folder / "train.target").unlink()
    cut = "".join(line + "\n" for line in whole.splitlines()[:20]) + whole.splitlines()[20][:2]
    (folder / "train.target.partial").write_text(cut)
    distill(finished, folder, "best", decoding)
    assert (folder / "train.target").read_text() == whole
    assert not (folder / "train.target.partial").exists()
    for lines in cut, whole + "more\n":
        (folder / "train.target").write_text(lines)
        with pytest.raises(UserError, match=r"train.target has \d+ lines, and the teacher's text 200"):
            distill(finished, folder, "best", decoding)


@pytest.mark.parametrize(("function", "file"), [("atomic_open", ""), ("append_flags", ".partial")])
def test_a_full_disk_is_told_with_the_file(finished, tmp_path, monkeypatch, function, file):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(distillation, function, full)
    with pytest.raises(UserError, match=f"cannot write .*/train\\.\\w+{file}: No space left on device"):
        distill(finished, tmp_path / "new", "best", Run(finished).config.decoding)


def test_a_distillation_that_is_refused_leaves_nothing(finished, tmp_path):
    folder, decoding = tmp_path / "new", Run(finished).config.decoding
    with pytest.raises(UserError, match="more than half the vocabulary"):
        distill(finished, folder, "best", dataclasses.replace(decoding, beam_size=1000))
    other = tmp_path / "other.txt"
    other.write_text("another text\n" * 40)
    names = {
        f"{split}_{side}": other for split in ("train", "validation", "test") for side in ("source", "target")
    }
    data = dataclasses.replace(Run(finished).config.data, **names)
    with pytest.raises(UserError, match="training data has changed"):
        distill(finished, folder, "best", decoding, data)
    assert not folder.exists()


def test_empty_translations_are_counted(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Translator, "as_trained", lambda self, hypothesis: "")
    distill(finished, tmp_path / "new", "best", Run(finished).config.decoding)
    count = len((tmp_path / "new" / "train.target").read_text().splitlines())
    assert f"{count:,} of {count:,} translations are empty" in " ".join(capsys.readouterr().out.split())


def test_a_distillation_never_writes_into_another(finished, tmp_path, monkeypatch):
    decoding = Run(finished).config.decoding
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    with pytest.raises(UserError, match="is not empty"):
        distill(finished, tmp_path / "mine", "best", decoding)
    distill(finished, tmp_path / "other", "best", decoding)
    monkeypatch.setattr(Translator, "fingerprint", lambda self: "of a teacher that was trained anew")
    with pytest.raises(UserError, match="another distillation"):
        distill(finished, tmp_path / "other", "best", decoding)
    third = tmp_path / "third"
    with _claimed(third, {}), pytest.raises(UserError, match="another process"), _claimed(third, {}):
        pass


@pytest.mark.slow
def test_distilling_as_a_command(finished, tmp_path, call, refused):
    bare = ["distill", finished, tmp_path / "new"]
    assert "give --data.test-source, --data.test-target" in refused(main, *bare)
    text = shlex.split(as_options(locations(Run(finished).config.data, "data.")))
    status, output, errors = call(main, *bare, *text, "--beam-size", "1")
    assert status == 0, errors
    assert "200 pairs written to" in output
