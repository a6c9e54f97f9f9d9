"""Generation with a language model."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from small_run import drawn_run
from tiers import mostly_slow

from transformer import PRESETS, Config, Generator, UserError, train
from transformer.commands.decode import decode_main
from transformer.commands.train import train_main
from transformer.config.records import StreamConfig
from transformer.explorer import search_tree
from transformer.systems.language_model.api import texts_of
from transformer.systems.language_model.page import attention_of_text

TEXT = "".join(f"{n} and {n + 1} make {2 * n + 1}.\n" for n in range(60)) * 2


def config_of(preset: str, folder: Path, steps: int, **changes) -> Config:
    (folder / "text").write_text(TEXT)
    base = PRESETS[preset]
    sizes = {"num_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2}
    return dataclasses.replace(
        base,
        model=dataclasses.replace(base.model, **sizes, **changes),
        data=StreamConfig(train=folder / "text", max_length=32, batch_tokens=128, cache_dir=folder / "cache"),
        training=dataclasses.replace(base.training, steps=steps, evaluate_every=steps),
        decoding=dataclasses.replace(base.decoding, extra_length=12, buckets=(8, 24)),
    )


def trained(preset: str, folder: Path, steps: int, **changes) -> Generator:
    return Generator.load(train(config_of(preset, folder, steps, **changes), folder / "run"))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A model with memory and random parameters."""
    folder = tmp_path_factory.mktemp("drawn")
    return Generator.load(drawn_run(config_of("language-model", folder, 1, memory=12), folder / "run").path)


@pytest.fixture(scope="module", params=mostly_slow(["memory", "no memory"], ["memory"]))
def generator(request, tmp_path_factory):
    """A model that was trained for a few updates."""
    folder = tmp_path_factory.mktemp("generator")
    if request.param == "memory":
        return trained("language-model", folder, 150, memory=12)
    return trained("shakespeare", folder, 150)


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory):
    """A model without memory."""
    return trained("shakespeare", tmp_path_factory.mktemp("forgetful"), 10)


@pytest.mark.slow
def test_pieces_join_to_what_is_generated(generator):
    for options in (
        {"seed": 5},
        {"seed": 5, "temperature": 0.5, "top_k": 3},
        {"top_p": 0.5},
        {"method": "greedy"},
    ):
        whole = generator.generate("3 and", extra_length=14, **options)
        pieces = list(generator.pieces("3 and", length=14, **options))
        assert "".join(pieces) == whole
        assert len(pieces) > 5


@pytest.mark.slow
def test_text_does_not_depend_on_what_else_is_generated(generator):
    prompts = ["1 and 2", "", "9 and 10 make 19.\n", "make 7"]
    together = generator.generate(prompts, seed=3)
    for line, (prompt, text) in enumerate(zip(prompts, together, strict=True), 1):
        assert "".join(generator.pieces(prompt, seed=3, line=line)) == text


@pytest.mark.thorough
def test_generation_goes_on_beyond_all_rings(generator):
    text = "".join(generator.pieces("1 and", length=200, method="greedy"))
    assert len(text) > 60
    again = itertools.islice(generator.pieces("1 and", length=0, method="greedy"), 20)
    assert text.startswith("".join(again))


@pytest.mark.thorough
def test_stop_strings_end_a_text_and_are_not_shown(generator):
    text = generator.generate("1 and", seed=2)
    for stop in (text[4:6], text[5]):
        expected = text[: text.index(stop)]
        assert generator.generate("1 and", seed=2, until=[stop]) == expected
        assert "".join(generator.pieces("1 and", seed=2, until=["never", stop])) == expected


@pytest.mark.slow
def test_scores_are_those_of_the_search_and_of_the_evaluation(generator, forgetful):
    for each in (generator, forgetful):
        check_scores(each)


def check_scores(generator: Generator) -> None:
    best, *others = generator.decode(["1 and 2"], method="beam", beam_size=3, length_penalty=0.0)[0]
    assert [best.score, *(each.score for each in others)] == sorted(
        (each.score for each in [best, *others]), reverse=True
    )
    text = "1 and 2" + best.text
    (scored,) = generator.score([text])
    assert len(scored.log_probabilities) == len(text) + 1
    of_output = scored.log_probabilities[7:] if best.ids[-1] == 2 else scored.log_probabilities[7:-1]
    if generator.config.model.memory == 0:  # otherwise generation attends to a shorter past
        assert best.log_probability == pytest.approx(sum(of_output), abs=1e-3)
    bits = -scored.log_probability / math.log(2) / (len(text) + 1)
    assert scored.bits_per_character == pytest.approx(bits)
    lone = generator.score(["", "x"[:0]])
    assert lone[0].log_probability == pytest.approx(lone[1].log_probability)


@pytest.mark.thorough
def test_int8_weights_say_nearly_the_same(generator):
    rounded = Generator.load(generator.origin.partition(",")[0], int8=True)
    texts = ["1 and 2 make 3.", "7"]
    for ours, theirs in zip(rounded.score(texts), generator.score(texts), strict=True):
        np.testing.assert_allclose(ours.log_probabilities, theirs.log_probabilities, atol=0.05)
        assert ours.log_probabilities != theirs.log_probabilities


@pytest.mark.thorough
def test_the_chain_rule_over_continuations(generator):
    """The probabilities of all single characters after a prompt, and of its end, are one distribution."""
    task = generator.task
    characters = [piece for piece in task.tokenizer.ids_by_piece]
    whole = np.array([generator.score([f"1 a{c}"])[0].log_probabilities[3] for c in characters])
    ended = generator.score(["1 a"])[0].log_probabilities[3]
    unseen = 1 - np.exp(whole).sum() - math.exp(ended)
    assert 0 <= unseen < 0.2  # <pad>, <bos> and <unk>


@pytest.mark.thorough
def test_attention_and_the_tree_are_those_of_the_search(generator):
    options = {"method": "beam", "beam_size": 3, "extra_length": 8}
    found = generator.decode(["1 and"], **options)[0]
    for output, attention in zip(found, attention_of_text(generator, "1 and", found, **options), strict=True):
        assert attention.given == ("<s>", *"1 and", *output.tokens)
        assert attention.target[:5] == tuple("1 and")
        weights = attention.weights("decoder", 1, 0)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
        reach = generator.config.model.attended or len(weights)
        assert (np.triu(weights, 1) == 0).all()
        assert (np.tril(weights, -reach - 1) == 0).all()
        assert (np.diag(weights, -min(reach, len(weights) - 1)) > 0).all()
    tree = search_tree(generator, "1 and", **options)
    expected = pytest.approx([each.score for each in found], abs=1e-4)
    assert [each.score for each in tree.hypotheses()] == expected
    spelled = ["".join(each.token for each in tree.path(last)) for last in tree.hypotheses()]
    assert spelled == [output.text + "</s>" for output in found]


COMMANDS = {
    "text": ([], 2),
    "several": (["--method", "beam", "--beam-size", "2", "--n-best", "2", "--format", "scores"], 4),
    "json": (["--format", "json"], 2),
    "stream": (["--stream", "--extra-length", "40", "--until", "never"], 2),
}


@pytest.mark.by_default("stream")
@pytest.mark.parametrize("name", COMMANDS)
def test_prompts_in_and_texts_out(drawn, tmp_path, name, decode):
    options, lines = COMMANDS[name]
    run = drawn.origin.partition(",")[0]
    (tmp_path / "in").write_text("1 and\n2 and\n")
    status, out, _ = decode(run, "--input", tmp_path / "in", *options)
    written = out.splitlines()
    assert status == 0
    assert len(written) >= lines
    if name == "text":
        expected = drawn.generate(["1 and", "2 and"])
        assert [line.replace(r"\n", "\n") for line in written] == expected
    if name == "json":
        outputs = [json.loads(line)["outputs"] for line in written]
        assert [each[0]["text"] for each in outputs] == drawn.generate(["1 and", "2 and"])


@pytest.mark.slow
def test_a_page_of_what_follows(generator, decode, tmp_path):
    run, page = generator.origin.partition(",")[0], tmp_path / "page.html"
    (tmp_path / "in").write_text("1 and\n\n")
    arguments = ["--method", "beam", "--beam-size", "2", "--extra-length", "6"]
    status, out, _ = decode(run, "--input", tmp_path / "in", "--explore", page, *arguments)
    assert status == 0
    assert "4 texts after all 2 lines" in out
    content = page.read_text().split('id="data">')[1].split("</script>")[0]
    first, second = json.loads(content)["sentences"]
    assert first["hypotheses"][0]["given"][:3] == ["<s>", "1", " "]
    assert second["hypotheses"][0]["given"][0] == "<s>"
    assert first["tree"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--alignments"], "continues text and does not translate"),
        (["--stream", "--method", "beam"], "use sample or greedy"),
        (["--stream", "--n-best", "2"], "shows one output"),
        (
            ["--stream", "--method", "greedy", "--max-length", "5"],
            "--max-length: for outputs that are shown while",
        ),
        (["--n-best", "5", "--method", "greedy"], "--n-best 5"),
        (["--until", ""], "--until '': every text contains it"),
        (["--extra-length", "0"], "--extra-length 0 writes nothing; only decode.py --stream"),
        (["--token-scores"], "scores of tokens"),
        (["--method", "mbr"], "--method mbr: what follows a prompt has no consensus"),
    ],
)
def test_options_that_do_not_go_together(drawn, tmp_path, options, message, refused):
    run = drawn.origin.partition(",")[0]
    (tmp_path / "in").write_text("1 and\n")
    said = refused(decode_main, run, "--input", tmp_path / "in", *options)
    assert message in said.replace("\n", " ")


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("1 and \u2603", {}, "has the character '\u2603', which is not in the training text"),
        ("1", {"method": "beam"}, "use sample or greedy"),
        ("1", {"no_repeat_ngram": 2}, "leave it out"),
        ("1", {"temprature": 2}, "temperature"),
    ],
)
def test_refused_prompts_and_options(drawn, given, options, message):
    with pytest.raises(UserError, match=message):
        list(drawn.pieces(given, **options))


@pytest.mark.parametrize("given", [5, None, ["1", 2]])
def test_prompts_that_are_no_text(given):
    with pytest.raises(UserError, match="prompts must be a string or a list of strings"):
        texts_of(given, "prompts")  # the tests check types, so no method can be called with others


def test_where_a_text_ends_is_checked(drawn):
    for until in ([""], "no list"):
        with pytest.raises(UserError, match="none of them empty"):
            drawn.generate("1", until=until)
    with pytest.raises(UserError, match="length -1"):
        list(drawn.pieces("1", length=-1))


def test_an_unknown_character_is_named_with_its_line(drawn):
    with pytest.raises(UserError, match="line 2: the text 'é' has the character 'é'"):
        drawn.decode(["1", "é"])


@pytest.mark.slow
def test_forbidden_phrases_are_not_written(generator):
    free = generator.generate(["1 and", "2 and"], method="greedy")
    assert any("and" in text for text in free)
    found = generator.generate(["1 and", "2 and"], method="greedy", forbidden=("and",))
    assert not any("and" in text for text in found)


@pytest.mark.thorough
def test_a_run_resumes_with_its_own_options(generator, tmp_path, refused, call):
    run = generator.origin.partition(",")[0]
    moved = tmp_path / "moved"
    moved.write_text(TEXT)  # the same text elsewhere
    for path in (generator.config.data.train, moved):
        assert "Resuming" in call(train_main, "--run-dir", run, "--data.train", path)[1]
    moved.write_text(TEXT + "more")
    assert "the training data has changed" in refused(train_main, "--run-dir", run, "--data.train", moved)


@pytest.mark.slow
def test_fine_tuning_takes_the_network_of_the_run(generator, tmp_path, refused, call):
    run, text = generator.origin.partition(",")[0], tmp_path / "text"
    text.write_text(TEXT.replace("make", "and"))
    assert "needs training data: give --data.train\n" in refused(train_main, "--init-from", run)
    few = "--training.steps", 2, "--run-dir", tmp_path / "run"
    status, out, _ = call(train_main, "--init-from", run, "--data.train", text, *few)
    assert status == 0
    found = Generator.load(tmp_path / "run")
    assert found.config.model == generator.config.model
    assert "language-model, 2 layers, d_model 16" in out


@pytest.mark.slow
def test_only_a_model_with_memory_writes_more_than_its_segment(generator, forgetful):
    if generator.config.model.memory:
        assert generator.generate("1", extra_length=60) is not None
    with pytest.raises(UserError, match="has no memory and reads 32 tokens, so it writes at most 16"):
        forgetful.generate("1", extra_length=60)
