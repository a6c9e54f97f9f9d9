"""Examples as flat arrays, in memory and in files: batches are those made element by element."""

import dataclasses

import numpy as np
import pytest

from transformer.config.records import RecordingsConfig
from transformer.data.sequences import Field, arrays_of, gathered, stacked, stored
from transformer.data.sources.recordings import Recording
from transformer.data.sources.source import InMemory
from transformer.data.store import Corpus
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.runtime.errors import UserError
from transformer.systems.presets import PRESETS
from transformer.systems.registry import find_system
from transformer.tasks.preparation import examples_of


def gathered_slowly(examples, rows, fields, lengths, size):
    """Element by element."""
    batch, length = {}, iter(lengths)
    for name, field in fields.items():
        if not field.padded:
            batch[name] = np.full((size, *field.shape), field.fill, field.dtype)
            for number, row in enumerate(rows):
                for index in row:
                    batch[name][number] = examples[index][name]
            continue
        longest = next(length)
        batch[name] = np.full((size, longest, *field.shape), field.fill, field.dtype)
        batch[f"{name}_segments"] = np.zeros((size, longest), np.int32)
        for number, row in enumerate(rows):
            column = 0
            for segment, index in enumerate(row, start=1):
                for element in examples[index][name]:
                    batch[name][number, column] = element
                    batch[f"{name}_segments"][number, column] = segment
                    column += 1
    return batch


FIELDS = {
    "frames": Field("float32", fill=-1.0, shape=(3,)),
    "words": Field("int32", fill=7),
    "speaker": Field(padded=False, shape=(2,)),
}


def some_examples(count, seed):
    random = np.random.default_rng(seed)
    return [
        {
            "frames": random.normal(size=(random.integers(0, 6), 3)),
            "words": random.integers(8, 90, random.integers(0, 4)).tolist(),
            "speaker": random.integers(9, size=2),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_batches_are_gathered_element_by_element(seed, tmp_path):
    """In any number of rows, some of them empty; from memory and from files."""
    random = np.random.default_rng(seed)
    examples = some_examples(30, seed)
    rows = [random.integers(0, 30, random.integers(0, 4)).tolist() for _ in range(random.integers(0, 6))]
    chosen, counts = np.array([i for row in rows for i in row], int), np.array([*map(len, rows)], int)
    given = (FIELDS, (15, 9), 7)
    expected = gathered_slowly(examples, rows, *given)
    kept = {**FIELDS, "words": Field("uint16")}
    for arrays in (
        arrays_of(examples, FIELDS),
        stored(tmp_path / "kept", kept, iter([examples[:11], [], examples[11:]])),
        stored(tmp_path / "kept", kept, iter(())),  # as it was written
    ):
        batch = gathered(arrays, chosen, counts, *given, segments=True)
        assert batch.keys() == expected.keys()
        for name, array in expected.items():
            assert batch[name].dtype == array.dtype
            np.testing.assert_array_equal(batch[name], array)


def test_fields_have_types_padding_and_shapes():
    fields = {
        "frames": Field("float32", fill=-1.0, shape=(80,)),
        "words": Field(),
        "speaker": Field(padded=False),
    }
    examples = [
        {"frames": np.full((3, 80), 0.5, np.float32), "words": [7, 8], "speaker": 4},
        {"frames": np.zeros((1, 80), np.float32), "words": [9], "speaker": 5},
    ]
    batch = stacked(examples, fields, (5, 2), size=3)
    assert {name: array.shape for name, array in batch.items()} == {
        "frames": (3, 5, 80),
        "words": (3, 2),
        "speaker": (3,),
    }
    assert (batch["frames"][0, 3:] == -1).all()
    assert (batch["frames"][0, :3] == 0.5).all()
    assert batch["words"].tolist() == [[7, 8], [9, 0], [0, 0]]
    assert batch["speaker"].tolist() == [4, 5, 0]


def test_a_row_that_is_too_long_is_no_batch():
    examples = arrays_of([{"words": [1, 2, 3]}, {"words": [4, 5]}], {"words": Field()})
    with pytest.raises(ValueError, match="the words of a row is longer than 4"):
        gathered(examples, np.array([0, 1]), np.array([2]), {"words": Field()}, (4,), 1)


def test_kept_examples_are_whole_or_not_there(tmp_path):
    def broken():
        yield some_examples(5, 0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stored(tmp_path / "kept", FIELDS, broken())
    assert not list(tmp_path.iterdir())
    stored(tmp_path / "kept", FIELDS, [some_examples(5, 0)])
    for name in ("frames.float32", "words.ends", "speaker.int32"):
        path = tmp_path / "kept" / name
        content = path.read_bytes()
        flipped = content[:9] + bytes([content[9] ^ 1]) + content[10:]
        for damaged in (content[:-1], content[:-8], content + bytes(8), flipped, bytes(len(content))):
            path.write_bytes(damaged)
            with pytest.raises(UserError, match="is damaged .*; remove it"):
                stored(tmp_path / "kept", FIELDS, iter(()))
        path.write_bytes(content)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--data.cache-dir"):
        stored(tmp_path / "file" / "kept", FIELDS, [[]])


def test_tasks_that_share_a_corpus_do_not_share_examples(tmp_path):
    """Recognition and synthesis of the same recordings, each normalised by itself, with one vocabulary."""
    rng, tokenizer = np.random.default_rng(0), train_tokenizer(["one two"], "word", 20)
    records = InMemory(Recording("", rng.normal(size=(9, 5)).astype(np.float32), "one two") for _ in range(3))
    corpus = Corpus("recordings", {"train": records}, tmp_path)
    data = RecordingsConfig(bands=5, buckets=(40,), max_length=40, normalisation="recording")
    for preset, sound in (("speech", "source"), ("synthesis", "target"), ("speech", "source")):
        config = dataclasses.replace(PRESETS[preset], data=data)
        task = find_system(config.system).task(config, tokenizer)
        arrays = examples_of(task, corpus)
        assert arrays[sound].values.shape == (27, 5)
        assert arrays[task.text].values.tolist() == task.examples(records)[0][task.text] * 3
    assert len(list(tmp_path.iterdir())) == 2
