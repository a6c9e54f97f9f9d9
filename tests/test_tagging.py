"""Taggers: CoNLL files, labels of first pieces, scores, and the commands."""

import itertools
import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_run import interrupted, quiet, same
from toy_runs import sentences_config, tagged_config

from benchmarks.studies import baselines
from transformer import Context, Run, Tagger, Translator, UserError, train
from transformer.commands.train import train_main
from transformer.config.records import TaggedConfig
from transformer.data.built_in import treebank
from transformer.data.sources.tagged import TaggedSentence, open_tagged, read_conll
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.interop.pretrained import import_model
from transformer.systems.presets import PRESETS
from transformer.systems.tagging.api import Tags
from transformer.systems.tagging.options import TaggingConfig, TaggingDecodingConfig
from transformer.systems.tagging.system import NO_LABEL, Tagging, TaggingModel, tagging_objective
from transformer.tasks.metrics.labels import mark_spans, span_f1
from transformer.tasks.task import Evaluation

BERT = Path(__file__).parent / "data" / "bert" / "two-layers"
CONLL = "-DOCSTART- -X- O\n\nThe DT B-NP\n# # I-NP\n\u00a05 CD I-NP\n\n\nsleeps VBZ O\n"
UNIVERSAL = """# sent_id = 1
# text = vámonos a casa
1-2	vámonos	_	_	_	_	_	_	_	_
1	vamos	ir	VERB	V	_	0	root	_	_
2	nos	nosotros	PRON	P	_	1	obj	_	_
2.1	x	x	X	X	_	_	_	_	_
3	10 000	_	NUM	Z	_	1	obl	_	_

# sent_id = 2
1	#	#	SYM	#	_	0	root	_	_
"""


def file_of(folder: Path, text: str) -> Path:
    path = folder / "file"
    path.write_text(text)
    return path


# Files


def test_a_conll_file(tmp_path):
    """Words may be number signs or have a no-break space; -DOCSTART- begins a document."""
    path = file_of(tmp_path, CONLL)
    assert read_conll(path) == [
        (("The", "#", "\u00a05"), ("B-NP", "I-NP", "I-NP")),
        (("sleeps",), ("O",)),
    ]
    assert read_conll(path, label_column=2)[1] == (("sleeps",), ("VBZ",))
    assert read_conll(path, word_column=2, label_column=1)[1] == (("VBZ",), ("sleeps",))
    path.write_bytes(CONLL.replace("\n", "\r\n").replace(" ", "\t").encode("utf-8-sig"))
    assert read_conll(path)[0].labels == ("B-NP", "I-NP", "I-NP")


def test_a_conll_u_file(tmp_path):
    """Comments, ranges of words and empty nodes are left out; words may have spaces."""
    path = file_of(tmp_path, UNIVERSAL)
    assert read_conll(path) == [(("vamos", "nos", "10 000"), ("VERB", "PRON", "NUM")), (("#",), ("SYM",))]
    assert read_conll(path, label_column=5)[0].labels == ("V", "P", "Z")
    assert read_conll(path, word_column=3)[0].words == ("ir", "nosotros", "_")


GERMEVAL = """#	news	[2001-01-01]
1	Anna	B-PER	O
2	runs	O	O

#	blog	[2001-01-01]
1	Bonn	B-LOC	O
"""
PLUS = """# global.columns = ID FORM UPOS MISC
# text = Anna runs
1-2	Annaruns	_	_
1	Anna	PROPN	_
2	runs	VERB	_
"""
PLUS_WITHOUT_NUMBERS = "# global.columns = upos form\n# sent_id = 1\nPROPN\tAnna\nSYM\t#\n"
BLANKS = """# text = a b
1   a   a   DET   D   Case=Nom   0   root   0:root	_
2   b   b   NOUN   N   _   1   x   _	_
"""
ANNA, BONN = (("Anna", "runs"), ("B-PER", "O")), (("Bonn",), ("B-LOC",))


@pytest.mark.parametrize(
    ("text", "columns", "sentences"),
    [
        (GERMEVAL, {"label_column": 3}, [ANNA, BONN]),
        (GERMEVAL, {"word_column": 2, "label_column": 3}, [ANNA, BONN]),
        (PLUS, {}, [(("Anna", "runs"), ("PROPN", "VERB"))]),
        (PLUS, {"word_column": 2, "label_column": 1}, [(("Anna", "runs"), ("1", "2"))]),
        (PLUS_WITHOUT_NUMBERS, {}, [(("Anna", "#"), ("PROPN", "SYM"))]),
        (BLANKS, {}, [(("a", "b"), ("DET", "NOUN"))]),
        ("# 1\nAnna B-PER\nruns O\n\n# 2\nBonn B-LOC\n", {}, [ANNA, BONN]),
        ("#\n# a line of words\nAnna B-PER\nruns O\n\nBonn B-LOC\n", {}, [ANNA, BONN]),
        ("#\t1\nAnna\tB-PER\nruns\tO\n\n#\t2\nBonn\tB-LOC\n", {}, [ANNA, BONN]),
        ("# O\nAnna B-PER\nruns O\n\n# O\nBonn B-LOC\n", {}, [ANNA, BONN]),
        ("#run B-TAG\n# O\nfun O\n", {}, [(("#run", "#", "fun"), ("B-TAG", "O", "O"))]),
        ("#run B-TAG\n\n#fun B-TAG\n", {}, [(("#run",), ("B-TAG",)), (("#fun",), ("B-TAG",))]),
        ("# B-NP\n5 I-NP\n\n5 B-NP\n", {}, [(("#", "5"), ("B-NP", "I-NP")), (("5",), ("B-NP",))]),
        ("-DOCSTART-\n\nAnna B-PER\nruns O\n-DOCSTART-\nBonn B-LOC\n", {}, [ANNA, BONN]),
        ("-DOCSTART-\t-X-\tO\n\nAnna\tB-PER\nruns\tO\n", {}, [ANNA]),
        ("#begin document (a); part 000\nAnna B-PER\nruns O\n\n#end document\n", {}, [ANNA]),
    ],
)  # fmt: skip
def test_comments_and_numbers_are_no_words(tmp_path, text, columns, sentences):
    """GermEval, CoNLL-U Plus, comments before sentences, ends of documents; and words that look like them."""
    path = file_of(tmp_path, text)
    assert read_conll(path, **columns) == sentences
    path.write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    assert read_conll(path, **columns) == sentences


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (GERMEVAL, "column 1 numbers the words, which are read from column 2"),
        (
            "# B-NP\n5 I-NP\n\n5 B-NP\n",
            "line 1: '# B-NP' could be a word or a comment; such lines (1) are read as w",
        ),
        (
            "# O\nAnna B-PER\nruns O\n",
            "line 1: '# O' could be a word or a comment; such lines (1) are read as c",
        ),
    ],
)
def test_what_a_conll_file_leaves_open_is_said(tmp_path, text, note):
    path = file_of(tmp_path, text)
    read_conll(path, notes=(notes := []))
    assert [note in said for said in notes] == [True]
    corpus = open_tagged(TaggedConfig(train=path, validation=path, cache_dir=tmp_path / "cache"))
    assert note in corpus.note


@pytest.mark.parametrize("number", ["-", " 2", "a", "1-", "1.", "_", "-1", "", "3", "1", "02"])
def test_words_of_conll_u_without_their_number_are_refused(tmp_path, number):
    """A word is missing, or the empty line between two sentences; or it is no number of a word."""
    uncounted = f"does not count the words.*: '{number}', not 2"
    said = uncounted if number.isdigit() else "is no number of a word, such as 1"
    for text in (UNIVERSAL.replace("\n2\tnos", f"\n{number}\tnos"), PLUS.replace("\n2\t", f"\n{number}\t")):
        with pytest.raises(UserError, match=rf"line \d: its ID {said}"):
            read_conll(file_of(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (PLUS + "3\t.\tPUNCT\n", {}, "line 6: 3 columns, and 4 are named"),
        (GERMEVAL + "\n1 a\n", {"label_column": 3}, "line 8: 2 columns, and 4 in the lines before"),
        ("a A\n# a comment inside\nb B\n", {}, "line 2: 4 columns, and 2 in the lines before"),
        ("", {}, "is empty: there is no sentence in it"),
        ("\n\n-DOCSTART- O\n", {}, "is empty: there is no sentence in it"),
        ("a\nb\n", {}, "a line needs a word and its label"),
        ("a A\nb B B\n", {}, "line 2: 3 columns, and 2 in the lines before"),
        ("a A\n", {"label_column": 3}, "--data.label-column 3: the lines of .* have 2 columns"),
        ("a A\n", {"word_column": 3}, "--data.word-column 3: the lines of .* have 2 columns"),
        ("a A\n", {"label_column": 1}, "column 1 cannot have both words and labels"),
        ("a\tb\tA\na\t\tA\n", {"label_column": 2}, "line 2: its label is empty"),
        ("a _\nb _\n", {}, "there are no labels in column 2; see --data.label-column"),
    ],
)
def test_mistakes_in_files_are_named(tmp_path, text, columns, message):
    with pytest.raises(UserError, match=message):
        read_conll(file_of(tmp_path, text), **columns)
    with pytest.raises(UserError, match="cannot read"):
        read_conll(tmp_path / "missing")


def test_the_last_tenth_validates(tmp_path):
    path = file_of(tmp_path, "".join(f"{n} {'odd' if n % 2 else 'even'}\n\n" for n in range(20)))
    corpus = open_tagged(TaggedConfig(train=path, cache_dir=tmp_path / "cache"))
    assert [len(corpus.splits[split]) for split in ("train", "validation")] == [18, 2]
    assert next(iter(corpus.splits["validation"])) == TaggedSentence(("18",), ("even",))
    assert "the last tenth" in corpus.note
    again = open_tagged(TaggedConfig(train=path, label_column=1, word_column=2, cache_dir=tmp_path / "cache"))
    assert again.folder != corpus.folder


def test_built_in_sentences_have_parts_of_speech(tmp_path):
    """Those of the leaves of the treebank."""
    corpus = open_tagged(TaggedConfig(built_in_size=300, cache_dir=tmp_path))
    assert [len(corpus.splits[split]) for split in ("train", "validation", "test")] == [300, 30, 30]
    trees = [tree for _, tree in itertools.islice(treebank.pairs("test"), 30)]
    for (words, labels), tree in zip(corpus.splits["test"], trees, strict=True):
        assert re.findall(r"\((\S+) ([^()\s]+) \)", tree) == list(zip(labels, words, strict=True))


# Pieces and batches


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "word"])
def test_the_first_piece_of_each_word_has_its_label(kind):
    """The pieces are those of the whole sentence."""
    text = ["the old cat sleeps", "old dogs sleep and the cats play"]
    tokenizer = train_tokenizer(text * 9, kind, 40 if kind == "word" else 276)
    task = Tagging(PRESETS["tagging"], tokenizer, ["D", "N"])
    (example,) = task.examples([TaggedSentence(("the", "cats", "\u200b"), ("D", "N", "D"))])
    pieces = [tokenizer.encode(word) or [tokenizer.special.unk] for word in ("the", "cats", "\u200b")]
    assert example["source"] == [*itertools.chain(*pieces), tokenizer.special.eos]
    expected = [[label] + [NO_LABEL] * (len(ids) - 1) for label, ids in zip((0, 1, 0), pieces, strict=True)]
    assert example["labels"] == [*itertools.chain(*expected), NO_LABEL]
    whole = " ".join(["the", "cats", "play"])
    assert task.examples([TaggedSentence(tuple(whole.split()))])[0]["source"][:-1] == tokenizer.encode(whole)


def test_long_words_are_not_cached():
    """A server would fill its memory with those of clients, which may have 5,000 characters."""
    task = Tagging(PRESETS["tagging"], train_tokenizer(["a cat"] * 9, "char", 276), ["D", "N"])
    for length in 5, 5000:
        (example,) = task.examples([TaggedSentence(("cat" * length,), ("N",))])
        assert len(example["source"]) >= length
    assert task._pieces.cache_info().currsize == 1


@pytest.mark.slow
def test_the_loss_is_the_mean_over_words():
    """Against NumPy; other pieces and padding do not count."""
    config = TaggingConfig(vocab_size=20, target_vocab_size=3, num_layers=1, d_model=16, d_ff=32, num_heads=2)
    model = TaggingModel(config)
    source = jnp.asarray([[4, 5, 6, 2, 0], [7, 8, 2, 0, 0]])
    labels = jnp.asarray([[0, -1, 2, -1, -1], [1, -1, -1, -1, -1]])
    variables = model.init(jax.random.key(0), source)
    training = replace(PRESETS["tagging"].training, label_smoothing=0.0)
    objective = tagging_objective(replace(PRESETS["tagging"], training=training))
    loss = objective(model, variables, {"source": source, "labels": labels}, Context())
    logits = np.asarray(model.apply(variables, source), np.float64)
    total = correct = 0
    for row, column in ((0, 0), (0, 2), (1, 0)):
        scores, label = logits[row, column], int(labels[row, column])
        total += np.log(np.exp(scores).sum()) - scores[label]
        correct += scores.argmax() == label
    np.testing.assert_allclose(loss.total, total, rtol=1e-5)
    assert float(loss.weight) == 3
    assert float(loss.metrics["correct"][0]) == correct


# Scores


def test_scores_are_those_of_loops():
    random = np.random.default_rng(0)
    names = ["O", "B-X", "I-X", "B-Y", "I-Y"]
    expected, predicted = ([random.choice(names, 9).tolist() for _ in range(40)] for _ in range(2))
    config = replace(PRESETS["tagging"], data=TaggedConfig(spans="conlleval"))
    records = [TaggedSentence(("x",) * 9, tuple(labels)) for labels in expected]
    scores = Tagging(config, None, names).scores(Evaluation(records, predicted, {}))
    right = 0
    for output, reference in zip(predicted, expected, strict=True):
        for label, other in zip(output, reference, strict=True):
            right += label == other
    assert [metric.name for metric in scores] == ["accuracy", "macro_f1", "span_f1"]
    accuracy, _, spans = (score.value for score in scores.values())
    assert accuracy == 100 * right / 360
    assert spans == pytest.approx(100 * f1_of_spans(predicted, expected))
    assert span_f1([["O"]], [["O"]]).value == 0
    assert span_f1([["B-X", "I-X", "O"]], [["B-X", "I-X", "O"]]).value == 100


def f1_of_spans(predicted, expected) -> float:
    """By sets of spans: one begins at B-, and at I- that does not continue the type before it."""

    def spans(labels):
        begun, several = None, set()
        for index, label in enumerate([*labels, "O"]):
            continues = begun is not None and label == f"I-{begun[1]}"
            if begun is not None and not continues:
                several.add((*begun, index))
                begun = None
            if label != "O" and not continues:
                begun = index, label[2:]
        return several

    pairs = [(spans(output), spans(reference)) for output, reference in zip(predicted, expected, strict=True)]
    right = sum(len(output & reference) for output, reference in pairs)
    return 2 * right / sum(len(output) + len(reference) for output, reference in pairs)


def test_labels_that_mark_spans():
    assert mark_spans(["O", "B-NP", "I-NP"])
    assert mark_spans(["S-X", "B-X", "E-X", "I-X"])
    for labels in (["O"], ["NN", "DT"], ["O", "B-NP", "X"], ["B-"], []):
        assert not mark_spans(labels)


# Runs


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    config = tagged_config(tmp_path_factory.mktemp("tagging"), "one")
    training = replace(config.training, steps=150, evaluate_every=75, log_every=50)
    return replace(config, training=training, optimizer=replace(config.optimizer, peak=1e-2, warmup_steps=40))


@pytest.fixture(scope="module")
def trained(config, tmp_path_factory):
    return train(config, tmp_path_factory.mktemp("run") / "run", watch=quiet())


def test_it_learns(trained):
    """Spans are scored since the labels mark them; the run stores that."""
    results = json.loads((trained / "results.json").read_text())
    assert set(results) >= {"accuracy", "macro_f1", "span_f1"}
    assert results["accuracy"]["value"] > 95
    run = Run(trained)
    assert run.config.data.spans == "conlleval"
    assert run.task.labels == ("B-even", "I-even", "O")
    assert run.config.model.target_vocab_size == 3
    assert (trained / "report.html").exists()


@pytest.mark.slow
def test_it_stops_and_is_resumed(config, trained, tmp_path):
    train(config, interrupted(trained, tmp_path / "parts"), watch=quiet())
    assert same(trained, tmp_path / "parts")


def test_the_api_gives_words_labels_and_probabilities(trained):
    tagger = Tagger.load(trained)
    first, second, empty = tagger.tag(["12 13  14", ["7"], ""])
    assert first.words == ("12", "13", "14")
    assert len(first.labels) == len(first.probabilities) == 3
    assert str(second) == f"7/{second.labels[0]}"
    assert empty.to_dict() == {"words": [], "labels": [], "probabilities": []}
    assert first == tagger.tag([["12", "13", "14"]])[0]
    model, task = tagger.model, tagger.task
    (example,) = task.examples([TaggedSentence(first.words, ("O", "O", "O"))])
    logits = np.asarray(model.apply(tagger.variables, jnp.asarray([example["source"]])))[0]
    logits = logits[np.asarray(example["labels"]) != NO_LABEL]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    assert first.labels == tuple(task.labels[index] for index in logits.argmax(axis=-1))
    np.testing.assert_allclose(first.probabilities, probabilities.max(axis=-1), rtol=1e-4)
    approximate = Tagger.load(trained, int8=True).tag(["12 13 14"])[0]
    np.testing.assert_allclose(approximate.probabilities, first.probabilities, atol=0.05)


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ("12 13", "tag takes a list of sentences"),
        ([["a", ""]], "a sentence is a string or a list of words, not"),
        (["1 " * 40], "line 1: the sentence has 81 pieces, and --decoding.buckets hold 32"),
    ],
)
def test_mistakes_of_the_api_are_named(trained, sentences, message):
    with pytest.raises(UserError, match=message):
        Tagger.load(trained).tag(sentences)


@pytest.fixture
def decoded(trained, decode):
    return partial(decode, trained, stdin=b"12 13\n\n7\n")


def test_the_command_writes_text_and_json(trained, decoded):
    first, _, last = Tagger.load(trained).tag(["12 13", "", "7"])
    assert decoded()[:2] == (0, f"{first}\n\n{last}\n")
    status, out, _ = decoded("--format", "json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (status, [line["line"] for line in lines]) == (0, [1, 2, 3])
    assert lines[0]["words"] == ["12", "13"]
    assert lines[0]["labels"] == list(first.labels)
    np.testing.assert_allclose(lines[0]["probabilities"], first.probabilities, atol=1e-4)
    assert lines[1]["words"] == []


def test_unfinished_json_is_continued(decoded, tmp_path, monkeypatch):
    (tmp_path / "in").write_text("12 13\n7\n")
    options = ("--input", f"{tmp_path}/in", "--output", f"{tmp_path}/out", "--format", "json")
    whole = Tags.of

    def of(self, lines):
        yield from itertools.islice(whole(self, lines), 1)
        raise UserError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(Tags, "of", of)
        assert decoded(*options)[0] == 2
    status, _, errors = decoded(*options, "--resume")
    assert status == 0
    assert "continuing after line 1" in errors
    assert [json.loads(line)["line"] for line in (tmp_path / "out").read_text().splitlines()] == [1, 2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--reference", __file__], "--reference: .*labels words and does not translate; leave it out"),
        (["--jsonl"], "--jsonl: a line is a sentence, its words separated by spaces; leave it out"),
        (["--tsv"], "--tsv: a line is a sentence, its words separated by spaces; leave it out"),
        (["--n-best", "2"], "--n-best 2: must be at least 1 and at most 1"),
        (["--format", "scores"], "--format scores: .*labels words"),
        (["--explore", "page.html"], "--explore: .*labels words"),
        (["--method", "beam"], "method"),
        (["--min-length", "3"], "--min-length is for tokens, and labels have none"),
    ],
)
def test_what_it_cannot_do_is_refused(decoded, words, message):
    status, _, error = decoded(*words)
    assert status == 2
    assert "Traceback" not in error
    assert re.search(message, error)


def test_a_run_is_no_translator(trained):
    with pytest.raises(UserError, match="holds a system that does not translate: tagging"):
        Translator.load(trained)


@pytest.mark.parametrize(
    ("validation", "options", "message"),
    [
        ("5 odd\n", {}, "validation: the label 'odd' of 1 word is none of those that the model learns"),
        ("1" * 40 + " O\n", {}, "sentence 1 of the validation split has 42 pieces, and --decoding.buckets"),
        ("5 O\n", {"label_column": 3}, "--data.label-column 3: the lines of"),
        ("5 O\n", {"source_tokenizer": Path("missing")}, "missing"),
    ],
)
def test_mistakes_of_a_corpus_are_named_before_training(config, tmp_path, validation, options, message):
    data = replace(config.data, validation=file_of(tmp_path, validation), **options)
    with pytest.raises(UserError, match=message):
        train(replace(config, data=data), tmp_path / "run", watch=quiet())
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_labels_of_the_test_that_training_lacks_are_errors(config, tmp_path):
    data = replace(config.data, test=file_of(tmp_path, "5 odd\n6 B-even\n"))
    corpus = Tagging.open_corpus(replace(config, data=data))
    task = Tagging.create(replace(config, data=data), corpus)
    notes = task.decide(corpus)
    of_test = "test: the label 'odd' of 1 word is none of those that the model learns, and counts as an error"
    assert of_test in notes


def test_one_label_is_nothing_to_learn(config, tmp_path):
    data = replace(config.data, train=file_of(tmp_path, "a O\n\nb O\n"))
    with pytest.raises(UserError, match="all words have the label O"):
        train(replace(config, data=data), tmp_path / "run", watch=quiet())


@pytest.mark.slow
def test_labels_of_another_run(config, trained, tmp_path):
    """A corpus with fewer labels trains the model of another one further, and one with others is refused."""
    text = "".join(f"{n} {'B-even' if n % 2 == 0 else 'O'}\n\n" for n in range(40))
    training = replace(config.training, init_from=trained, steps=1, evaluate_every=1)
    further = replace(config, data=replace(config.data, train=file_of(tmp_path, text)), training=training)
    run = Run(train(further, tmp_path / "fewer", watch=quiet()))
    assert run.task.labels == Run(trained).task.labels
    file_of(tmp_path, text.replace("O", "odd"))
    with pytest.raises(UserError, match="train: the label 'odd' of 18 words is none of those that the mod"):
        train(further, tmp_path / "other", watch=quiet())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["masked-lm", "bert"])
def test_it_starts_from_a_pretrained_encoder(config, tmp_path, kind):
    if kind == "bert":
        parent = import_model(BERT, tmp_path / "bert")
    else:
        (tmp_path / "corpus").mkdir()
        parent = Run(train(sentences_config(tmp_path / "corpus", "one"), tmp_path / "masked", watch=quiet()))
    begun = replace(config.training, init_encoder_from=parent.path, steps=2, evaluate_every=1)
    started = replace(config, training=begun, optimizer=replace(config.optimizer, peak=0.0))
    run = Run(train(started, tmp_path / "run", watch=quiet()))
    after, before = (x.variables("best")["params"] for x in (run, parent))
    for name in (name for name in after if name != "target_embedding" and name != "output_bias"):
        jax.tree.map(np.testing.assert_array_equal, after[name], before[name])
    assert run.task.tokenizer.content() == parent.task.tokenizer.content()
    assert len(Tagger.load(run.path).tag(["12 13"])[0].labels) == 2
    train(started, interrupted(run.path, tmp_path / "parts"), watch=quiet())
    assert same(run.path, tmp_path / "parts")


def test_options_that_labels_do_not_have():
    for options, message in (
        ({"text_feature": "words"}, "--data.text-feature: labels come from CoNLL files"),
        ({"tokenizer": "jieba"}, "--data.tokenizer jieba: words are divided already"),
        ({"dataset": "conll2003"}, "--data.dataset conll2003: sentences with labels are built-in"),
    ):
        with pytest.raises(UserError, match=message):
            TaggedConfig(**options)
    with pytest.raises(UserError, match="--decoding.noise is for tokens"):
        TaggingDecodingConfig(noise=0.1)


def test_a_missing_library_is_named_before_training(config, tmp_path, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "seqeval", None)
    words = ["--data.train", config.data.train, "--data.cache-dir", tmp_path / "cache"]
    words += ["--data.tokenizer", "char", "--run-dir", tmp_path / "run"]
    error = refused(train_main, "tagging", *words)
    assert "needs seqeval: pip install '.[tasks]'" in error
    assert "--data.spans none" in error


# The baseline


def test_the_most_frequent_label_of_each_word():
    train = [TaggedSentence(("a", "b", "a"), ("X", "Y", "Z")), TaggedSentence(("a", "c"), ("Z", "X"))]
    train += [TaggedSentence(("c", "d"), ("Y", "Y"))]
    assert baselines.MostFrequent.of(train).tag(["a", "b", "c", "e"]) == ["Z", "Y", "X", "Y"]


def test_a_row_of_the_baseline(config, tmp_path):
    tested = replace(config, data=replace(config.data, test=config.data.train))
    scores = r"accuracy [\d.]+, macro F1 [\d.]+, span F1 [\d.]+"
    row = baselines.row("toys", tested)
    assert re.fullmatch(rf"\| toys \| the most frequent label of each word \| {scores} \|", row)
    with pytest.raises(UserError, match="no such run|config.json"):
        baselines.main([str(tmp_path)])
