"""Running text: documents, and the batches that continue each other."""

import dataclasses
import re
import subprocess
import sys

import numpy as np
import pytest

from transformer import UserError
from transformer.config.records import StreamConfig
from transformer.data import streams
from transformer.data.sequences import arrays_of
from transformer.data.sources.texts import open_texts
from transformer.data.streams import Stream, StreamPlan, whole_stream
from transformer.data.tokenizers.trained import load_tokenizer, train_tokenizer
from transformer.systems.language_model.task import LanguageModelling
from transformer.systems.presets import PRESETS
from transformer.tasks.preparation import examples_of

BOS, EOS = 1, 2
TEXTS = ["to be or not", "x", "", "that is the question, a long one", "so"]
ENDS = [len(text) + 1 if text else 0 for text in TEXTS]


def ids_of(index):
    return [100 * (index + 1) + place for place in range(len(TEXTS[index]))] + [EOS] if TEXTS[index] else []


DOCUMENTS = arrays_of(
    [
        {"ids": ids_of(index), "characters": len(text) + 1, "words": len(text.split()) + 1}
        for index, text in enumerate(TEXTS)
    ],
    streams.DOCUMENTS,
)


def laid_out(order):
    """Inputs and outputs of the whole stream, one token after the other."""
    pairs = []
    for index in order:
        before = BOS
        for token in ids_of(index):
            pairs.append((before, token))
            before = token
    return pairs


@pytest.mark.parametrize(("rows", "segment"), [(1, 4), (2, 5), (3, 16), (4, 100)])
def test_an_evaluation_reads_every_token_once(rows, segment):
    stream = Stream(DOCUMENTS, BOS)
    steps, expected = list(whole_stream(stream, rows, segment)), laid_out(range(len(TEXTS)))
    parts = [[{name: each[row] for name, each in step.items()} for step in steps] for row in range(rows)]
    targets = [int(x) for part in parts for piece in part for x in piece["target"]]
    assert targets == [token for _, token in expected]
    sources = [int(x) for part in parts for piece in part for x in piece["source"]]
    part = -(-len(stream) // rows)
    begins = {row * part for row in range(rows)}
    assert sources == [BOS if place in begins else before for place, (before, _) in enumerate(expected)]
    assert all(len(piece["target"]) <= segment for part in parts for piece in part)
    total = sum(float(np.sum(piece["characters"])) for part in parts for piece in part)
    assert total == pytest.approx(sum(ENDS))
    words = sum(float(np.sum(piece["words"])) for part in parts for piece in part)
    assert words == pytest.approx(sum(len(text.split()) + 1 for text in TEXTS if text))


@pytest.mark.parametrize(("rows", "segment"), [(1, 5), (2, 5), (3, 4), (2, 25)])
def test_batches_continue_each_other_within_an_epoch(rows, segment):
    plan = StreamPlan(DOCUMENTS, BOS, rows, segment, seed=3)
    assert plan.dropped == 1
    seen = set()
    for epoch in range(8):
        steps = [plan(epoch * plan.steps_per_epoch + index) for index in range(plan.steps_per_epoch)]
        orders = []
        for row in range(rows):
            targets = np.concatenate([step.examples[0]["target"][row] for step in steps])
            sources = np.concatenate([step.examples[0]["source"][row] for step in steps])
            assert len(targets) == plan.steps_per_epoch * segment
            assert sources[0] == BOS
            for place in range(1, len(targets)):
                ended = targets[place - 1] == EOS
                assert sources[place] == (BOS if ended else targets[place - 1])
            orders.append(tuple(targets))
        assert len(set(orders)) == rows  # each reads another part
        seen.add(tuple(orders))
    assert len(seen) > 1  # epochs differ
    again = StreamPlan(DOCUMENTS, BOS, rows, segment, seed=3)
    last = 8 * plan.steps_per_epoch - 1
    for once, twice in zip(again(last).examples[0].values(), plan(last).examples[0].values(), strict=True):
        np.testing.assert_array_equal(once.values, twice.values)


def write(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.fixture
def options(tmp_path):
    return {"cache_dir": tmp_path / "cache"}


def test_a_file_is_one_document_of_which_the_end_is_held_out(tmp_path, options):
    text = "\ufeffOne line.\r\nAnother line.\n" + "And more text. " * 20
    corpus = open_texts(StreamConfig(train=write(tmp_path / "text", text), **options))
    ((train,), (held,)) = (list(corpus.splits[split]) for split in ("train", "validation"))
    assert train + held == text[1:].replace("\r\n", "\n")
    assert len(held) == round(0.1 * len(train + held))
    assert "held out" in corpus.note


def test_separators_divide_documents(tmp_path, options):
    text = "one\ntwo\n<|end|>\nthree\n<|end|>\n\n<|end|>\n"
    files = {"train": write(tmp_path / "a", text), "validation": write(tmp_path / "b", "four")}
    corpus = open_texts(StreamConfig(**files, separator="<|end|>", **options))
    assert list(corpus.splits["train"]) == ["one\ntwo\n", "three\n"]
    assert list(corpus.splits["validation"]) == ["four"]
    assert not corpus.note


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train": b""}, "is empty"),
        ({"train": b"  \n\n"}, "is empty"),
        ({"train": b"fine\nnot \xff fine"}, "line 2: not UTF-8"),
        ({"train": b"x"}, "so short a text"),
        ({"validation": b"text"}, "give --data.train"),
    ],
)
def test_text_that_cannot_be_read(tmp_path, options, files, message):
    paths = {name: write(tmp_path / name, content) for name, content in files.items()}
    with pytest.raises(UserError, match=message):
        open_texts(StreamConfig(**paths, **options))
    with pytest.raises(UserError, match="cannot read"):
        open_texts(StreamConfig(train=tmp_path / "none", **options))


@pytest.mark.parametrize("memory", [0, 128])
@pytest.mark.parametrize("size", [5, 40, 150, 700])
def test_a_text_shorter_than_a_batch_is_refused_with_values_that_would_do(tmp_path, options, size, memory):
    """With them a batch is as large as the text allows."""
    text = write(tmp_path / "text", ("a short text. " * 50)[:size])
    base = PRESETS["language-model"]
    data = StreamConfig(train=text, validation=text, **options)
    model = dataclasses.replace(base.model, memory=memory)
    decoding = dataclasses.replace(base.decoding, extra_length=32)
    config = dataclasses.replace(base, data=data, model=model, decoding=decoding)
    corpus = LanguageModelling.open_corpus(config)
    task = LanguageModelling.create(config, corpus)
    records = corpus.splits["train"]
    with pytest.raises(
        UserError, match=f"{size + 1} tokens, fewer than a batch of 16 rows of 128"
    ) as refused:
        task.plan(records, examples_of(task, corpus))
    fitting = dict(re.findall(r"--(\S+) (\d+)", str(refused.value)))
    for option, value in fitting.items():
        group, _, name = option.replace("-", "_").partition(".")
        part = dataclasses.replace(getattr(config, group), **{name: int(value)})
        config = dataclasses.replace(config, **{group: part})
    task = LanguageModelling.create(config, corpus)
    task.check_search(config.decoding)
    plan = task.plan(records, examples_of(task, corpus))
    assert plan.steps_per_epoch == 1
    assert size + 1 - config.data.max_length < config.data.rows * config.data.max_length <= size + 1


@pytest.mark.parametrize("kind", ["character", "byte", "bpe", "unigram"])
def test_vocabularies_restore_running_text(tmp_path, kind):
    lines = ["First Citizen:\n", "\n", "  Speak, speak.\t\u00e9 \u4e2d\n"] * 40
    trained = train_tokenizer(lines, kind, 280)
    trained.save(tmp_path / "model")
    tokenizer = load_tokenizer(tmp_path / "model")
    text = "".join(lines)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    if kind == "byte":
        assert tokenizer.vocab_size == 260
        assert tokenizer.decode(tokenizer.encode("\U0001f600 any text")) == "\U0001f600 any text"
    if kind == "character":
        assert tokenizer.vocab_size == 4 + len(set(text))
        assert tokenizer.special.unk in tokenizer.encode("\U0001f600")


def test_options_that_segments_do_not_have():
    with pytest.raises(UserError, match=r"--data.batching.*leave it out"):
        StreamConfig(batching="packed")
    with pytest.raises(UserError, match="cannot hold one row"):
        StreamConfig(max_length=64, batch_tokens=32)
    with pytest.raises(UserError, match="separator"):
        StreamConfig(separator="")


def test_a_separator_that_never_occurs_is_a_mistake(tmp_path):
    text = tmp_path / "text"
    text.write_text("one <|end|> two\n" * 50)
    with pytest.raises(UserError, match=r"--data.separator '<\|end\|>': no line of .*text is that"):
        open_texts(StreamConfig(train=text, separator="<|end|>", cache_dir=tmp_path / "cache"))


PREPARE = r"""
import sys, numpy, tensorflow_datasets as tfds
more = {"year": numpy.int32} if sys.argv[2] == "more" else {}
class ToyTexts(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    def _info(self):
        features = {"text": tfds.features.Text(), "title": tfds.features.Text(), **more}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))
    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(20)}
    def _generate_examples(self, count):
        for i in range(count):
            yield i, {"text": f"text {i}\nends", "title": f"title {i}", **dict.fromkeys(more, i)}
ToyTexts(data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
"""


def prepared(folder, kind):
    """A TFDS dataset on disk, prepared by another program."""
    command = [sys.executable, "-c", PREPARE, str(folder / "tfds"), kind]
    subprocess.run(command, check=True, capture_output=True)
    return {"dataset": "toy_texts", "cache_dir": folder}


def test_any_tfds_set_of_texts(tmp_path):
    options = prepared(tmp_path, "texts")
    corpus = open_texts(StreamConfig(**options))
    kept, held = (list(corpus.splits[split]) for split in ("train", "validation"))
    assert (len(kept), len(held)) == (18, 2)
    assert sorted(kept + held) == sorted(f"text {i}\nends" for i in range(20))
    assert "held out" in corpus.note
    titles = open_texts(StreamConfig(**options, text_feature="title"))
    assert all(text.startswith("title ") for text in titles.splits["train"])
    assert titles.folder != corpus.folder
    with pytest.raises(UserError, match="no text named 'body'.*it has text, title"):
        open_texts(StreamConfig(**options, text_feature="body"))


def test_a_dataset_that_names_other_classes_is_not_opened(tmp_path):
    options = prepared(tmp_path, "more")
    with pytest.raises(UserError, match="is not that of a text dataset"):
        open_texts(StreamConfig(**options))
