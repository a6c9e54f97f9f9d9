"""Sentences are read after those before them, in training and wherever text is translated."""

import dataclasses
import itertools
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from served import asked
from small_run import WORDS, changed, small_config
from small_translator import small_translator, stored

from transformer import DataConfig, Translator, UserError, train
from transformer.cli.decode_arguments import parse_decode
from transformer.cli.request_lines import lines_in_context
from transformer.commands.decode import decode_main
from transformer.commands.decode_lines import decode_lines
from transformer.commands.translations import Translations as Lines
from transformer.config.options import text_data
from transformer.data.sources.context import SEPARATOR, context_of, in_context, sentence_of, shortened
from transformer.data.sources.corpora import check_text, open_corpus
from transformer.documents.document import DocumentTranslator
from transformer.explorer.explorer import explore
from transformer.serve.services.limits import ALLOWED, Limits
from transformer.serve.services.translation import Translations
from transformer.tasks.text import Hypothesis

SPLITS = ("train", "validation", "test")


def translator(context=1, system="transformer", **options):
    """A translator with random parameters that reads context."""
    plain = small_translator(system, [*WORDS, SEPARATOR])
    data = dataclasses.replace(plain.config.data, context=context, **options)
    return Translator(dataclasses.replace(plain.config, data=data), plain.variables, plain.tokenizers)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Its run directory."""
    return stored(translator(), tmp_path_factory.mktemp("context") / "run")


# --- From files to examples

SOURCE = "a\nb\nc\n\nd\n\n\ne\nf\n"
TARGET = "A\nB\nC\n\nD\n\n\nE\nF\n"
READ = {
    0: ["a", "b", "c", "d", "e", "f"],
    1: ["a", "a <turn> b", "b <turn> c", "d", "e", "e <turn> f"],
    2: ["a", "a <turn> b", "a <turn> b <turn> c", "d", "e", "e <turn> f"],
}


def files(folder, **options):
    """A tiny text of three documents, for training and validation."""
    (folder / "in").write_text(SOURCE)
    (folder / "out").write_text(TARGET)
    paths = {f"{split}_{side}": folder / name for split in ("train", "validation") for side, name in SIDES}
    return DataConfig(**paths, cache_dir=folder / "cache", **options)


SIDES = (("source", "in"), ("target", "out"))


@pytest.mark.parametrize("context", [1, 2])
def test_sources_are_those_before_them_and_themselves(context, tmp_path):
    splits = open_corpus(files(tmp_path, context=context)).splits
    for split in ("train", "validation"):
        assert list(splits[split]) == list(zip(READ[context], "ABCDEF", strict=True))
    lines = [line for line in in_context(SOURCE.splitlines(), context) if line]
    assert lines == READ[context]
    assert [sentence_of(line) for line in lines] == READ[0]


def test_without_context_lines_stay_as_they_are(tmp_path):
    pairs = open_corpus(files(tmp_path)).splits["train"]
    assert list(pairs) == list(zip(SOURCE.splitlines(), TARGET.splitlines(), strict=True))


def test_a_side_without_text_ends_no_document(tmp_path):
    (tmp_path / "both").write_text("a\tA\n\tB\nc\tC\n\t\nd\tD\n")
    data = DataConfig(train_tsv=tmp_path / "both", validation_tsv=tmp_path / "both", cache_dir=tmp_path / "c")
    read = list(open_corpus(dataclasses.replace(data, context=2)).splits["train"])
    assert read == [("a", "A"), ("", "B"), ("a <turn> c", "C"), ("d", "D")]


def test_directions_have_their_own_documents(tmp_path):
    rows = [("a", "A", "xx", "yy"), ("b", "B", "xx", "yy"), ("C", "c", "yy", "xx"), ("D", "d", "yy", "xx")]
    (tmp_path / "all").write_text("".join("\t".join(row) + "\n" for row in rows))
    data = DataConfig(
        train_tsv=tmp_path / "all",
        validation_tsv=tmp_path / "all",
        directions=("xx:yy", "yy:xx"),
        context=1,
        cache_dir=tmp_path / "cache",
    )
    sources = {record.source for record in open_corpus(data).splits["train"]}
    assert sources == {"a", "a <turn> b", "C", "C <turn> D"}


def test_no_sentence_is_held_out_and_trained_on(tmp_path):
    random = np.random.default_rng(0)
    lines = [" ".join(random.choice(WORDS, size=2)) for _ in range(200)]
    for name in ("in", "out"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    paths = {f"train_{side}": tmp_path / name for side, name in SIDES}
    splits = open_corpus(DataConfig(**paths, context=1, cache_dir=tmp_path / "cache")).splits
    trained, held_out = ({sentence_of(source) for source, _ in splits[split]} for split in SPLITS[:2])
    assert trained
    assert held_out
    assert not trained & held_out


@pytest.mark.parametrize(
    ("longest", "expected"),
    [(9, "a b <turn> c d <turn> e f"), (7, "c d <turn> e f"), (4, "e f"), (1, "e f")],
)
def test_the_oldest_context_is_left_out_first_and_never_the_sentence(longest, expected):
    assert shortened("a b <turn> c d <turn> e f", lambda text: len(text.split()), longest) == expected


def test_examples_are_of_whole_sentences():
    task = translator(2, max_length=6).task
    sources = ["red <turn> cat <turn> dog", "red cat <turn> dog bird", "red " * 7 + "<turn> " + "cat " * 5]
    pieces = [
        task.pieces(example["source"][:-1], ("", "")) for example in task.examples([(s, "") for s in sources])
    ]
    assert pieces == [sources[0].split(), sources[1].split(), ["cat"] * 5]
    (whole,) = task.examples([("dog <turn> " + "cat " * 9, "")])
    assert len(whole["source"]) == 10  # longer than training reads: such a pair is dropped


# --- Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": -1}, "--data.context"),
        ({"context": 101}, "--data.context"),
        ({"context": 1, "task": "trees"}, "a tree has the words of its sentence"),
        ({"context": 1, "inputs": ("turns",)}, "rows with named columns are in no order"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        DataConfig(**options)


def test_corpora_without_documents_are_refused():
    with pytest.raises(UserError, match="the sentences of built-in are in no documents"):
        check_text(DataConfig(context=1))


def test_a_vocabulary_without_the_separator_is_refused(tmp_path):
    config = small_config(tmp_path)
    vocabulary = tmp_path / "words.model"
    small_translator().tokenizers[0].save(vocabulary)
    data = dataclasses.replace(text_data(config), context=1, source_tokenizer=vocabulary)
    with pytest.raises(UserError, match="has no <turn>, which is between the texts of a list"):
        train(dataclasses.replace(config, data=data), tmp_path / "run")


# --- Training


@pytest.mark.slow
def test_a_run_keeps_its_context_and_resumes(tmp_path):
    config = changed(small_config(tmp_path), steps=2, evaluate_every=2)
    data = dataclasses.replace(text_data(config), context=2, max_length=20, buckets=(20,))
    config = dataclasses.replace(config, data=data)
    path = train(config, tmp_path / "run")
    assert Translator.load(path).task.data.context == 2
    assert train(changed(config, steps=4, evaluate_every=2), path) == path
    other = dataclasses.replace(config, data=dataclasses.replace(data, context=1))
    with pytest.raises(UserError, match="context"):
        train(other, path)


# --- Translating

LINES = ["red cat", "dog", "", "bird runs", "blue sings"]
AFTER = ["red cat", "red cat <turn> dog", "", "bird runs", "bird runs <turn> blue sings"]


def test_translate_takes_the_context():
    model = translator(2)
    expected = model.translate(["red <turn> cat <turn> dog", "dog"])
    given = [{"source": "dog", "context": ["bird", "red", "cat"]}, {"source": "dog", "context": []}]
    assert model.translate(given) == expected
    assert model.translate(given[0]) == model.submit(given[0]).result()[0].text == expected[0]
    assert model.score(given, expected) == pytest.approx(
        model.score(["red <turn> cat <turn> dog", "dog"], expected), abs=1e-5
    )
    assert model.in_context(["a", "b", "", "c"]) == ["a", "a <turn> b", "", "c"]
    for context, message in (("red", "must be a list"), (["a <turn> b"], "<turn> in it"), ([1], "sentences")):
        with pytest.raises(UserError, match=message):
            model.translate({"source": "dog", "context": context})
    for source, message in (
        ({"context": ["red"]}, "source is missing: there is only 'context'; this model reads source"),
        ({"sorce": "dog"}, "source is missing: there is only 'sorce'; this model reads source"),
        ({"source": "dog", "contxt": ["red"]}, "there is no 'contxt': did you mean context"),
    ):
        with pytest.raises(UserError, match=message):
            model.translate(source)
    assert model.translate({"source": "", "context": ["red"]}) == ""
    with pytest.raises(UserError, match="sources must be a list of sentences, not dict"):
        model.search(given[0])
    with pytest.raises(UserError, match="this model reads sentences alone"):
        small_translator().translate([{"source": "dog", "context": ["cat"]}])


def test_what_is_too_long_loses_its_oldest_context():
    """Of buckets that hold seven words."""
    model = translator(2)
    read = "cat dog <turn> bird runs sings"
    (short,), (long,) = model.search([read]), model.search([f"red green blue <turn> {read}"])
    assert [x.text for x in long] == [x.text for x in short]
    assert model.source_tokens(f"red green blue <turn> {read}") == read.split()


@pytest.mark.thorough
@pytest.mark.by_default("recurrent")
@pytest.mark.parametrize("system", ["recurrent", "nonautoregressive", "copying", "fast-autoregressive"])
def test_every_system_reads_context(system):
    model = translator(1, system)
    assert len(model.translate(model.in_context(LINES))) == len(LINES)


@pytest.mark.slow
def test_lines_are_read_after_those_before(run, tmp_path, decode):
    expected = Translator.load(run).translate(AFTER)
    lines, output = tmp_path / "in", tmp_path / "out"
    forms = {
        (): LINES,
        ("--tsv",): [f"{line}\t" for line in LINES],
        ("--jsonl",): [json.dumps({"source": line}) for line in LINES],
    }
    for options, written in forms.items():
        lines.write_text("".join(f"{line}\n" for line in written))
        assert decode(run, "--input", lines, "--output", output, *options)[0] == 0
        assert output.read_text().splitlines() == expected
        output.unlink()
    status, out, _ = decode(run, "--input", lines, "--jsonl", "--format", "json", "--alignments")
    assert status == 0
    objects = [json.loads(line) for line in out.splitlines()]
    assert [x["source"] for x in objects] == LINES
    assert [x["context"] for x in objects] == [context_of(source) for source in AFTER]
    second = objects[1]
    assert second["source_tokens"] == ["red", "cat", SEPARATOR, "dog"]
    assert len(second["hypotheses"][0]["alignment"][0]) == 5


def test_a_line_in_other_languages_begins_a_document():
    """As in training: its context would be in another language."""
    rows = [("a", "x"), ("b", "x"), ("c", "y"), ("", None), ("d", "y")]
    lines = [json.dumps({"source": source, "source_language": language}) for source, language in rows]
    arguments = SimpleNamespace(jsonl=True, tsv=False, target_length=0)
    read = lines_in_context(enumerate(lines, 1), arguments, DataConfig(context=2))
    assert [json.loads(line)["source"] for _, line in read] == ["a", "a <turn> b", "c", "", "d"]


def test_a_line_may_have_its_own_context(run, tmp_path, decode, refused):
    lines = tmp_path / "in"
    rows = [{"source": "dog"}, {"source": "cat", "context": ["bird"]}, {"source": "dog", "context": []}]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, out, _ = decode(run, "--input", lines, "--jsonl")
    expected = Translator.load(run).translate(["dog", "bird <turn> cat", "dog"])
    assert (status, out.splitlines()) == (0, expected)
    for line, options, message in (
        ('{"source": "dog", "context": "cat"}', ["--jsonl"], "line 1: context must be a list"),
        ('{"context": ["cat"]}', ["--jsonl"], "line 1: source is missing"),
        ("dog", ["--history", 2], "--history: this model reads each line after those before it"),
    ):
        lines.write_text(f"{line}\n")
        assert message in refused(decode_main, run, "--input", lines, *options)


@pytest.mark.slow
def test_terms_of_a_glossary_are_those_of_the_sentence(run, tmp_path, decode):
    (tmp_path / "glossary").write_text("cat\tbird\n")
    (tmp_path / "in").write_text("cat\ndog\n")
    options = ["--input", tmp_path / "in", "--glossary", tmp_path / "glossary", "--method", "beam"]
    status, out, _ = decode(run, *options)
    assert status == 0
    first, second = out.splitlines()
    assert "bird" in first.split()
    assert [second] == Translator.load(run).translate(["cat <turn> dog"])


def test_unfinished_lines_continue_in_their_context(run, tmp_path, monkeypatch, decode):
    """The second line, which has the first as its context, is the first to be translated again."""
    lines, output = tmp_path / "in", tmp_path / "out"
    lines.write_text("".join(f"{line}\n" for line in LINES))
    whole = Lines.of

    def of(self, numbered):
        yield from itertools.islice(whole(self, numbered), 1)
        raise KeyboardInterrupt

    options = run, "--input", lines, "--output", output
    with monkeypatch.context() as patch:
        patch.setattr(Lines, "of", of)
        with pytest.raises(KeyboardInterrupt):
            decode_lines(parse_decode(list(map(str, options))))
    status, _, errors = decode(*options, "--resume")
    assert status == 0
    assert "continuing after line 1" in errors
    assert output.read_text().splitlines() == Translator.load(run).translate(AFTER)


# --- Documents


class Recorder(DocumentTranslator):
    """Notes what is read; a translated word attends to its own word, and ten times as much to its context."""

    def __init__(self, context):
        self.real = translator(context)
        self.task, self.system = self.real.task, self.real.system
        self.sources = []

    def subwords(self, source):
        return source.split()

    def settings(self, n_best, options):
        return self.real.settings(n_best, {"buckets": (64,), **options})

    def stream(self, records, **options):
        for source in records:
            self.sources.append(source)
            words = sentence_of(source).split()
            before = len(source.split()) - len(words)
            alignment = np.eye(len(words) + 1, len(words) + 1 + before, before)
            alignment[:, :before] = 10 / max(before, 1)
            alignment /= alignment.sum(axis=1, keepdims=True)
            text = " ".join(word.upper() for word in words)
            yield [Hypothesis(text, tuple(text.split()), -1.0, -1.0, alignment)]


MARKDOWN = """# Red cat

Dog *runs* now. Bird sings.

```
code
```

- 12.5
- Green dog
"""


def test_sentences_of_a_document_are_read_after_those_before():
    """Headings are sentences; code and numbers are none."""
    recorder = Recorder(2)
    document = recorder.translate_document(MARKDOWN, "markdown")
    assert [source for source in recorder.sources if source] == [
        "Red cat",
        "Red cat <turn> Dog runs now.",
        "Red cat <turn> Dog runs now. <turn> Bird sings.",
        "Dog runs now. <turn> Bird sings. <turn> Green dog",
    ]
    assert document.text == (
        MARKDOWN.replace("Red cat", "RED CAT")
        .replace("Dog *runs* now. Bird sings.", "DOG *RUNS* NOW. BIRD SINGS.")
        .replace("Green dog", "GREEN DOG")
    )
    assert [sentence.source for sentence in document.sentences][1:3] == ["Dog runs now.", "Bird sings."]


def test_only_the_sentence_is_judged():
    """Its context is long, is not translated and gets most of the attention."""
    recorder = Recorder(2)
    text = "Red cat runs over the green field and sings.\n\nDog sings loud now.\n\nBird runs home."
    assert not recorder.translate_document(text).flagged
    recorder.sources.clear()
    sources = recorder.in_context(text.split("\n\n"))
    limits = recorder.usual_limits(sources)
    alone = Recorder(0).usual_limits(text.split("\n\n"))
    assert limits == alone


# --- Pages and servers


@pytest.mark.thorough
def test_the_page_shows_the_context():
    page = explore(translator(1), ["red <turn> cat"], beam_size=2)
    assert re.search(r'"source": ?\["red", ?"[^"]*turn[^"]*", ?"cat"', page.html)


@pytest.mark.slow
def test_a_server_takes_the_context():
    service = Translations("small", translator(1), ALLOWED, Limits(), ("xx", "yy"), {})
    plain = Translations("plain", small_translator(), ALLOWED, Limits(), ("xx", "yy"), {})
    expected = service.decoder.translate(["red <turn> cat", "dog"])
    with asked(service, plain) as client:

        def translations(**body):
            answer = client.post("/translate", json=body)
            assert answer.status_code == 200, answer.text
            return [output["hypotheses"][0]["text"] for output in answer.json()["outputs"]]

        assert translations(text="cat", context=["red"]) == expected[:1]
        assert translations(text=["cat", "dog"], context=[["red"], []]) == expected
        for body in (
            {"text": ["cat", "dog"], "context": ["red", "green"]},
            {"text": "cat", "context": ["red"], "model": "plain"},
            {"text": "cat", "context": [["red"]]},
        ):
            answer = client.post("/translate", json=body)
            assert answer.status_code == 422
            assert "context" in answer.text
