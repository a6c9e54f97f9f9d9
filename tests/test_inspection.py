"""Inspection: the attention weights are those of the model, the tree is that of the search."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_run import WORDS
from small_translator import small_translator

from transformer import Run, UserError
from transformer.commands.decode import decode_main
from transformer.explorer import attention_of, explore, search_tree
from transformer.explorer.attention import KINDS, Kind
from transformer.model.positions import sinusoids
from transformer.training.step import TrainState
from transformer.translator.translator import Hypothesis, Translator

SOURCES = ["red cat runs", "blue dog sings green bird sleeps"]


@pytest.fixture(scope="module")
def translator() -> Translator:
    return small_translator()


@pytest.mark.slow
def test_the_mean_of_cross_attention_is_the_alignment(translator: Translator) -> None:
    for source in SOURCES:
        (found,) = translator.search([source], alignments=True)
        attentions = attention_of(translator, source, found)
        assert len(found) == len(attentions) == 3
        for hypothesis, attention in zip(found, attentions, strict=True):
            assert attention.source == (*translator.subwords(source), "</s>")
            assert attention.target == (*hypothesis.tokens, "</s>")
            assert attention.given == ("<s>", *hypothesis.tokens)
            np.testing.assert_allclose(attention.weights("cross"), hypothesis.alignment, atol=1e-5)
            s, t = len(attention.source), len(attention.target)
            assert attention.encoder.shape == (2, 2, s, s)
            assert attention.decoder.shape == (1, 2, t, t)
            assert attention.cross.shape == (1, 2, t, s)
            for kind in KINDS:
                np.testing.assert_allclose(attention.weights(kind, 0, 1).sum(axis=-1), 1, rtol=1e-5)
            assert (np.triu(attention.decoder, 1) == 0).all()  # no position attends to later ones


def test_each_layer_and_head_is_in_its_place(translator: Translator) -> None:
    """The first layers of both stacks, computed anew from their parameters."""
    found = translator.search(SOURCES[:1])[0]
    attention = attention_of(translator, SOURCES[0], found)[0]
    special, params = translator.config.model.special, translator.variables["params"]
    sides = {
        "encoder": [*translator.tokenizers[0].encode(SOURCES[0]), special.eos],
        "decoder": [special.bos, *found[0].ids[:-1]],
    }
    for kind, ids in sides.items():
        time = len(ids)
        embedded = 4 * params["source_embedding"]["table"][np.array(ids)]  # shared, times sqrt(16)
        x = embedded + np.asarray(sinusoids(jnp.arange(time), 16))
        layer = params[f"{kind}_0"]["self_attention"]
        query, key = (np.einsum("tm,mhd->htd", x, layer[name]) for name in ("query", "key"))
        raised = np.exp(np.einsum("hqd,hkd->hqk", query, key) / np.sqrt(8))
        raised *= np.tril(np.ones((time, time))) if kind == "decoder" else 1
        expected = raised / raised.sum(axis=-1, keepdims=True)
        for head in range(2):
            found_weights = attention.weights(kind, 0, head)  # type: ignore[arg-type]
            np.testing.assert_allclose(found_weights, expected[head], atol=1e-4)


def test_a_mean_is_over_what_was_not_chosen(translator: Translator) -> None:
    attention = attention_of(translator, SOURCES[0], translator.search(SOURCES[:1])[0])[0]
    every = attention.encoder
    np.testing.assert_allclose(attention.weights("encoder"), every.mean(axis=(0, 1)), atol=1e-6)
    np.testing.assert_allclose(attention.weights("encoder", 1), every[1].mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(attention.weights("encoder", head=1), every[:, 1].mean(axis=0), atol=1e-6)
    for kind, layer, head in (("encoder", 2, 0), ("decoder", 1, 0), ("cross", 0, 2), ("cross", -1, 0)):
        with pytest.raises(UserError, match="counted from 0"):
            attention.weights(kind, layer, head)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="choose one of cross, encoder, decoder"):
        attention.weights("self")  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.by_default("options0")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 5, "stop": "full", "length_penalty": 1.3},
        {"stop": "present", "penalty": "power", "length_penalty": -0.5, "max_length": 5},
    ],
)
def test_the_tree_ends_in_what_beam_search_finds(translator: Translator, options: dict[str, Any]) -> None:
    for source, found in zip(SOURCES, translator.search(SOURCES, **options), strict=True):
        tree = search_tree(translator, source, **options)
        ends = tree.hypotheses()
        paths = [tuple(candidate.token for candidate in tree.path(end)) for end in ends]
        assert paths == [(*hypothesis.tokens, "</s>") for hypothesis in found]
        np.testing.assert_allclose([end.score for end in ends], [h.score for h in found], atol=1e-5)


def test_the_tree_keeps_what_was_pruned_and_why(translator: Translator) -> None:
    tree = search_tree(translator, SOURCES[1])
    fates = {candidate.fate for candidate in tree.candidates}
    assert fates == {"live", "finished", "pruned"}
    for candidate in tree.candidates:
        path = tree.path(candidate)
        assert [each.step for each in path] == list(range(1, candidate.step + 1))
        assert candidate.log_p == pytest.approx(sum(each.gained for each in path), abs=1e-4)
        assert all(each.fate == "live" for each in path[:-1])  # nothing grows from a pruned branch
    for step in range(1, max(candidate.step for candidate in tree.candidates) + 1):
        weighed = [candidate for candidate in tree.candidates if candidate.step == step]
        assert len(weighed) <= 2 * tree.beam_size
        assert [candidate.rank for candidate in weighed] == list(range(len(weighed)))
        log_ps = [candidate.log_p for candidate in weighed]
        assert log_ps == sorted(log_ps, reverse=True)
        assert sum(candidate.fate == "live" for candidate in weighed) <= tree.beam_size


@pytest.mark.slow
def test_the_tree_says_what_terms_did(translator: Translator) -> None:
    options: dict[str, Any] = {"prefix": "gr", "terms": ["cat dog", "red"], "extra_length": 9}
    tree = search_tree(translator, SOURCES[1], **options)
    (found,) = translator.search(
        SOURCES[1:2], prefixes=[options["prefix"]], terms=[options["terms"]], extra_length=9
    )
    ends = tree.hypotheses()
    paths = [[candidate.token for candidate in tree.path(end)] for end in ends]
    assert paths == [[*hypothesis.tokens, "</s>"] for hypothesis in found]
    for path in map(tree.path, ends):
        assert {term for each in path for term in each.completes} == {"cat dog", "red"}
    total = sum(len(term.split()) for term in options["terms"])
    for candidate in tree.candidates:
        said = [each.token for each in tree.path(candidate)]
        assert candidate.completes == tuple(
            term for term in options["terms"] if said[-len(term.split()) :] == term.split()
        )
        assert candidate.fate != "finished" or f"tokens of terms: {total}" in candidate.why
    whys = {each.why.partition(";")[0] for each in tree.candidates}
    assert whys >= {
        "one of the first 3 that continue",
        "ends as one of the first 3",
        "3 others continue before it",
    }
    kept = [each for each in tree.candidates if each.why.startswith("kept for its")]
    for candidate in kept:  # less likely than one that was dropped for its part of the beam
        assert any(
            other.step == candidate.step and other.log_p > candidate.log_p and other.fate == "pruned"
            for other in tree.candidates
        )
    assert kept
    page = explore(translator, SOURCES[1:2], prefixes=["gr"], terms=[["red"]], extra_length=9)
    assert '"completes":["red"]' in page.html
    assert '"tree":null' in explore(translator, SOURCES[1:2], beam_size=4, groups=2).html


@pytest.mark.slow
def test_a_model_that_copies_has_a_tree_and_attention_too() -> None:
    copying = small_translator("copying")
    gate = copying.variables["params"]["gate"]
    gate["bias"] = jnp.full_like(gate["bias"], -9)  # it copies whenever it can
    source = "zebra okapi"  # out-of-vocabulary words
    found = copying.search([source])[0]
    assert any("zebra" in hypothesis.tokens for hypothesis in found)
    assert [each.target for each in attention_of(copying, source, found)] == [
        (*hypothesis.tokens, "</s>") for hypothesis in found
    ]
    tree = search_tree(copying, source)
    paths = [tuple(candidate.token for candidate in tree.path(end)) for end in tree.hypotheses()]
    assert paths == [(*hypothesis.tokens, "</s>") for hypothesis in found]


def test_nonsense_is_refused(translator: Translator) -> None:
    found = translator.search(SOURCES[:1])[0]
    with pytest.raises(UserError, match="empty sentence"):
        attention_of(translator, " ", found)
    with pytest.raises(UserError, match="has no ids"):
        attention_of(translator, SOURCES[0], [Hypothesis("red", ("red",), 0.0, 0.0)])
    assert attention_of(translator, SOURCES[0], []) == []
    with pytest.raises(UserError, match="only a beam search without groups has a tree"):
        search_tree(translator, SOURCES[0], method="greedy")
    for sources in ([], "red cat"):
        with pytest.raises(UserError, match="nothing to explore"):
            explore(translator, sources)
    for system in ("recurrent", "nonautoregressive"):
        with pytest.raises(UserError, match=f"system {system} has no attention to explore"):
            explore(small_translator(system), SOURCES)


# The page, as a file


def data_of(html: str) -> Any:
    before, _, rest = html.partition('<script type="application/json" id="data">')
    assert before
    return json.loads(rest.partition("</script>")[0])


@pytest.mark.thorough
def test_the_page_has_the_models_numbers(translator: Translator) -> None:
    page = explore(translator, SOURCES, n_best=2)
    data = data_of(page.html)
    assert (page.sentences, page.hypotheses) == (2, 4)
    for source, sentence in zip(SOURCES, data["sentences"], strict=True):
        found = translator.search([source], n_best=2)[0]
        kinds: tuple[Kind, ...] = ("decoder", "cross")
        for hypothesis, shown, attention in zip(
            found, sentence["hypotheses"], attention_of(translator, source, found), strict=True
        ):
            assert shown["text"] == hypothesis.text
            assert shown["score"] == pytest.approx(hypothesis.score, abs=1.5e-4)  # it has four decimals
            for kind in kinds:
                weights = np.array(shown[kind]) / data["unit"]
                np.testing.assert_allclose(weights, getattr(attention, kind), atol=1e-4)
            np.testing.assert_allclose(
                np.array(sentence["encoder"]) / data["unit"], attention.encoder, atol=1e-4
            )
    assert data_of(explore(translator, SOURCES, method="greedy").html)["sentences"][0]["tree"] is None


def test_the_page_asks_nothing_of_the_network_and_fits_in_a_notebook(translator: Translator) -> None:
    page = explore(translator, SOURCES[:1])
    for address in ("http://", "https://", "src=", "@import", "url("):
        assert address not in page.html.replace("http://www.w3.org/", "")
    assert "default-src 'none'" in page.html
    frame = page._repr_html_()
    assert frame.startswith("<iframe srcdoc=")
    assert frame.count("<") == 2  # the page's own are escaped


# decode.py --explore


@pytest.fixture(scope="module")
def run_dir(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "run"
    run = Run.create(place, translator.config, translator.task, "corpus")
    params = jax.tree.map(jnp.asarray, translator.variables["params"])
    run.checkpoints.save(TrainState(jnp.asarray(1), params, {}, {}, None), {"bleu": 1.0})
    run.checkpoints.finish_saving()
    return run.path


@pytest.mark.thorough
def test_the_command_writes_a_page(run_dir: Path, tmp_path: Path, decode: Callable[..., Any]) -> None:
    (tmp_path / "in").write_text("\n".join(["", "red cat", " ", *(f"{word} bird" for word in WORDS)]))
    page = tmp_path / "page.html"
    status, out, _ = decode(run_dir, "--input", tmp_path / "in", "--explore", page)
    assert status == 0
    last = out.splitlines()[-1]
    assert last.startswith("15 translations of the first 5 lines with text of 12, ")
    assert f"written to {page}" in last
    texts = [sentence["text"] for sentence in data_of(page.read_text())["sentences"]]
    assert texts == ["red cat", "red bird", "green bird", "blue bird", "cat bird"]
    assert sorted(tmp_path.iterdir()) == [tmp_path / "in", page]
    status, out, _ = decode(run_dir, "--explore", page, "--n-best", 2, stdin=b"blue dog\n")
    assert status == 0
    assert "2 translations of the first 1 line with text, " in out
    assert len(data_of(page.read_text())["sentences"][0]["hypotheses"]) == 2


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["--output", "out"], b"red", "--output is for lines"),
        (["--format", "json"], b"red", "--format json is for lines"),
        (["--n-best", "9"], b"red", "--n-best 9: must be at least 1 and at most 3"),
        ([], b" \n", "nothing to explore"),
        (["--input", "missing"], b"", "cannot read missing"),
        (["--explore", "."], b"red", "--explore . is a folder"),
        (["--explore", "missing/page.html"], b"red", "cannot write --explore missing/page.html"),
    ],
)
def test_the_command_refuses_in_one_sentence(
    run_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
    arguments: list[str],
    stdin: bytes,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    errors = refused(decode_main, run_dir, "--explore", "page.html", *arguments, stdin=stdin)
    assert message in errors
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_input_is_not_overwritten(run_dir: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "in").write_text("red cat\n")
    arguments = [run_dir, "--input", tmp_path / "in", "--explore", tmp_path / "in"]
    assert "is the file of --input, which would be lost" in refused(decode_main, *arguments)
    assert (tmp_path / "in").read_text() == "red cat\n"


@pytest.mark.slow
def test_json_lines_are_what_they_were(run_dir: Path, decode: Callable[..., Any]) -> None:
    status, out, _ = decode(run_dir, "--format", "json", stdin=b"red cat\n")
    assert status == 0
    (found,) = json.loads(out)["hypotheses"]
    assert set(found) == {"text", "tokens", "score", "log_probability"}
    field = next(item for item in dataclasses.fields(Hypothesis) if item.name == "ids")
    assert field.default == ()
