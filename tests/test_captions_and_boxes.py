"""Captioning and detection: what they train, decode and show, and how mistakes are named."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from PIL import Image
from small_run import drawn_run, quiet
from toy_runs import pictures_config

from transformer import Captioner, Config, Context, Detector, EncoderConfig, Run, UserError, train
from transformer.commands.decode import decode_main
from transformer.data.built_in.drawings import FORMS, drawing
from transformer.runs.exhibits import read_exhibits
from transformer.systems.captioning.system import lit
from transformer.systems.detection.model import (
    DetectionTransformer,
    Predictions,
    detection_objective,
    set_losses,
)
from transformer.systems.detection.options import BoxesConfig, DetectionConfig
from transformer.tasks.task import Evaluation
from transformer.translator.decoder import Decoder


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("captions")
    return drawn_run(pictures_config("captioning", folder, "one"), folder / "run")


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("boxes")
    return drawn_run(pictures_config("detection", folder, "one"), folder / "run")


def finished(name: str, folder: Path) -> Run:
    """A run that has hardly learned."""
    return Run(train(pictures_config(name, folder, "one", samples=2), folder / "run", watch=quiet()))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three PNG files, of 16 pixels and of others, and a list of them."""
    folder = tmp_path_factory.mktemp("pictures")
    for index, size in enumerate((16, 16, 40)):
        Image.fromarray(drawing(2, index, size, 1, 1).pixels).save(folder / f"{index}.png")
    (folder / "names.txt").write_text("".join(f"{index}.png\n" for index in range(3)))
    return folder


# Captions


@pytest.mark.slow
def test_captions_of_files_and_arrays_are_the_same(captions: Run, pictures: Path) -> None:
    captioner = Captioner.load(captions.path, "last")
    files = [pictures / "0.png", str(pictures / "1.png")]
    texts = captioner.caption(files)
    arrays = [drawing(2, index, 16, 1, 1).pixels for index in range(2)]
    assert texts == captioner.caption(arrays) == [captioner.caption(file) for file in files]
    assert captioner.caption(arrays[0] / 255) == texts[0]
    (several,) = captioner.search([pictures / "2.png"], method="beam", beam_size=3, alignments=True)
    assert len(several) == 3
    assert several[0].alignment.shape == (len(several[0].ids), 4)
    np.testing.assert_allclose(several[0].alignment.sum(axis=1), 1, atol=1e-5)


def test_decode_writes_captions(captions: Run, pictures: Path, decode) -> None:
    names = str(pictures / "names.txt")
    status, out, _ = decode(str(captions.path), "--input", names)
    expected = Captioner.load(captions.path).caption([pictures / f"{index}.png" for index in range(3)])
    assert (status, out.splitlines()) == (0, expected)
    words = [str(captions.path), "--input", names, "--format", "json", "--alignments"]
    _, out, _ = decode(*words)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["picture"] for line in lines] == ["0.png", "1.png", "2.png"]
    assert [line["hypotheses"][0]["text"] for line in lines] == expected
    assert len(lines[0]["hypotheses"][0]["alignment"][0]) == 4


def test_several_captions_are_references(captions: Run) -> None:
    """In a score, a picture has all of its captions."""
    task = captions.task
    picture = task.seen(np.zeros((16, 16)))
    record = dataclasses.replace(picture, captions=("a b c d e", "f g h i j"))
    for text in record.captions:
        scores = task.scores(Evaluation([record], [text], {}))
        assert [round(score.value) for score in scores.values()] == [100, 100, 100]
    assert max(score.value for score in task.scores(Evaluation([record], ["x y"], {})).values()) < 20


@pytest.mark.thorough
def test_reports_show_what_words_attend_to(tmp_path: Path) -> None:
    run = finished("captioning", tmp_path)
    _, exhibits = read_exhibits(run.path)
    assert len(exhibits) == 2
    pictures = [picture["caption"] for picture in exhibits[0]["pictures"]]
    assert pictures[:2] == ["picture", "attention of a"]
    assert (run.path / "report.html").read_text().count("attention of a") >= 2


def test_attention_is_light() -> None:
    picture = np.ones((4, 4, 3))
    shown = lit(picture, np.array([0.0, 1.0, 0.0, 0.0]))
    assert (shown[:2, 2:] == 1).all()
    assert (shown[2:] == shown[0, 0]).all()
    assert 0 < shown[0, 0, 0] < 0.5


# Boxes


@pytest.mark.slow
def test_boxes_of_files_and_arrays_are_the_same(boxes: Run, pictures: Path) -> None:
    detector = Detector.load(boxes.path, "last")
    (small, large) = detector.detect([pictures / "0.png", pictures / "2.png"], threshold=0.0)
    assert detector.detect(drawing(2, 0, 16, 1, 1).pixels, threshold=0.0) == small
    queries = boxes.config.model.num_queries
    assert len(small) == len(large) == queries
    assert {item.label for item in small} <= {*FORMS}
    assert [item.score for item in small] == sorted((item.score for item in small), reverse=True)
    bound = [np.array([item.box for item in items]) for items in (small, large)]
    for sides, size in zip(bound, (16, 40), strict=True):  # in pixels of each file
        assert (np.abs(sides[:, :2] + sides[:, 2:] / 2 - size / 2) <= size / 2).all()
    assert detector.detect(pictures / "0.png", threshold=1.0) == []


def test_decode_writes_boxes(boxes: Run, pictures: Path, decode) -> None:
    words = [str(boxes.path), "--input", str(pictures / "names.txt"), "--threshold", "0.2"]
    status, out, _ = decode(*words, "--format", "json")
    assert status == 0
    lines = [json.loads(line) for line in out.splitlines()]
    files = [pictures / f"{index}.png" for index in range(3)]
    expected = Detector.load(boxes.path).detect(files, threshold=0.2)
    assert [line["picture"] for line in lines] == ["0.png", "1.png", "2.png"]
    assert [line["objects"] for line in lines] == [[item.to_dict() for item in items] for items in expected]
    _, out, _ = decode(*words)
    assert [len(list(filter(None, line.split("; ")))) for line in out.split("\n")[:3]] == [
        len(items) for items in expected
    ]


@pytest.mark.thorough
def test_reports_show_boxes(tmp_path: Path) -> None:
    _, exhibits = read_exhibits(finished("detection", tmp_path).path)
    assert [picture["caption"] for picture in exhibits[0]["pictures"]] == [
        "with its boxes",
        "with the boxes found",
    ]


def test_outlines_are_where_boxes_are(boxes: Run) -> None:
    record = dataclasses.replace(boxes.task.seen(np.full((40, 40), 255)), pixels=np.full((16, 16, 3), 255))
    shown = boxes.task.outlined(record, [(FORMS[0], (10.0, 20.0, 20.0, 10.0))])  # of 40 pixels, shown in 160
    coloured = (shown != 1).any(axis=-1)
    rows, columns = np.flatnonzero(coloured.any(axis=1)), np.flatnonzero(coloured.any(axis=0))
    assert (rows[0], columns[0]) == (80, 40)
    assert abs(rows[-1] - 120) <= 1
    assert abs(columns[-1] - 120) <= 1
    assert not coloured[90:110, 50:110].any()


def perfect(classes: np.ndarray, boxes: np.ndarray, queries: int, labels: int) -> Predictions:
    """Predictions of every object by its own query, in another order, and of nothing by the others."""
    rows, count = classes.shape
    logits = np.full((rows, queries, labels + 1), -20.0)
    logits[..., -1] = 20
    predicted = np.full((rows, queries, 4), 0.5)
    for row in range(rows):
        for index in range(count):
            if classes[row, index] >= 0:
                query = queries - 1 - index
                logits[row, query] = -20
                logits[row, query, classes[row, index]] = 20
                predicted[row, query] = boxes[row, index]
    return Predictions(jnp.asarray(logits), jnp.asarray(predicted))


OPTIONS = DetectionConfig(
    vocab_size=3, num_layers=1, d_model=16, d_ff=32, num_heads=2, num_queries=5, dropout=0
)


@pytest.mark.thorough
def test_the_loss_of_the_right_set_is_zero_in_any_order() -> None:
    random = np.random.default_rng(0)
    classes = np.array([[0, 2, -1], [1, -1, -1], [-1, -1, -1], [2, 2, 2]])
    boxes = random.uniform(0.2, 0.4, (4, 3, 4)).astype(np.float32)
    predictions = perfect(classes, boxes, 5, 3)
    arguments = jnp.asarray(classes), jnp.asarray(boxes), jnp.ones(4, bool)
    losses = set_losses(predictions, *arguments, OPTIONS)
    assert {name: float(weight) for name, (_, weight) in losses.items()} == {
        "weighted_nll": 6,
        "class_nll": 20,
        "l1": 6,
        "giou_loss": 6,
    }
    np.testing.assert_allclose([total for total, _ in losses.values()], 0, atol=1e-4)
    duplicate = predictions.classes.at[0, 0].set(predictions.classes[0, 4])
    twice = set_losses(Predictions(duplicate, predictions.boxes), *arguments, OPTIONS)
    assert float(twice["class_nll"][0]) == pytest.approx(40, abs=0.1)  # one object, two queries
    assert float(twice["weighted_nll"][0]) == pytest.approx(4, abs=0.1)


@pytest.mark.slow
def test_a_picture_is_learned_without_duplicates() -> None:
    """Two equal objects side by side, and a picture without any."""
    model = DetectionTransformer(OPTIONS)
    pictures = jax.random.uniform(jax.random.key(0), (2, 8, 8, 3), minval=-1)
    batch = {
        "source": pictures,
        "classes": jnp.array([[1, 1], [-1, -1]]),
        "boxes": jnp.array([[[0.3, 0.3, 0.2, 0.2], [0.7, 0.3, 0.2, 0.2]], [[0.0] * 4] * 2]),
    }
    objective = detection_objective(Config("detection", OPTIONS, BoxesConfig()))
    variables = model.init(jax.random.key(1), pictures)
    optimizer = optax.adam(3e-3)

    @jax.jit
    def step(variables, state):
        def loss_of(variables):
            loss = objective(model, variables, batch, Context())
            return loss.total / loss.weight

        gradients = jax.grad(loss_of)(variables)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(variables, updates), state

    state = optimizer.init(variables)
    for _ in range(150):
        variables, state = step(variables, state)
    predictions = jax.tree.map(lambda x: x[:, -1], model.apply(variables, pictures))
    labels = np.asarray(predictions.classes.argmax(axis=-1))
    assert sorted(labels[0].tolist()) == [1, 1, 3, 3, 3]
    assert (labels[1] == 3).all()
    found = np.asarray(predictions.boxes)[0, labels[0] == 1]
    np.testing.assert_allclose(found[found[:, 0].argsort()], batch["boxes"][0], atol=0.05)


@pytest.mark.slow
def test_the_loss_is_that_of_all_layers_or_of_the_last_one() -> None:
    random = np.random.default_rng(0)
    batch = {
        "source": jnp.asarray(random.standard_normal((2, 16, 16, 3)), jnp.float32),
        "classes": jnp.array([[0, 1], [1, -1]]),
        "boxes": jnp.asarray(random.uniform(0.2, 0.4, (2, 2, 4)), jnp.float32),
    }
    options = dataclasses.replace(OPTIONS, num_layers=3)
    model = DetectionTransformer(options)
    variables = jax.jit(model.init)(jax.random.key(1), batch["source"])
    every = jax.jit(model.apply)(variables, batch["source"])
    by_layer = []
    for layer in range(options.num_layers):
        of_layer = jax.tree.map(lambda x, layer=layer: x[:, layer], every)
        parts = set_losses(of_layer, batch["classes"], batch["boxes"], jnp.array([True, True]), options)
        nll, l1, giou = (parts[name][0] for name in ("weighted_nll", "l1", "giou_loss"))
        by_layer.append(float(nll + 5 * l1 + 2 * giou))
    for auxiliary, expected in ((True, sum(by_layer)), (False, by_layer[-1])):
        model = DetectionTransformer(dataclasses.replace(options, auxiliary_loss=auxiliary))
        objective = detection_objective(Config("detection", model.config, BoxesConfig()))
        loss = jax.jit(lambda v, o=objective, m=model: o(m, v, batch, Context()).total)(variables)
        assert float(loss) == pytest.approx(expected, rel=1e-5)


# Mistakes

SHORT = EncoderConfig(positions="learned", max_positions=3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threshold", "2"], "--threshold must be in [0, 1]"),
        (["--min-length", "2"], "--min-length is for tokens, and this model finds boxes"),
        (["--n-best", "2"], "--n-best 2: must be at least 1 and at most 1"),
        (["--format", "scores"], "--format scores: "),
        (["--alignments", "--format", "json"], "--alignments: "),
        (["--beam-size", "2"], "beam"),
    ],
)
def test_options_of_text_are_refused_for_boxes(
    boxes: Run, pictures: Path, decode, words: list[str], message: str
) -> None:
    arguments = [str(boxes.path), "--input", str(pictures / "names.txt"), *words]
    status, out, said = decode(*arguments)
    assert (status, out) == (2, "")
    assert message in said


@pytest.mark.by_default("boxes")
@pytest.mark.parametrize("name", ["captions", "boxes"])
def test_pictures_that_cannot_be_read_are_named(
    name: str,
    request: pytest.FixtureRequest,
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    decode,
    refused,
) -> None:
    run = request.getfixturevalue(name)
    names = tmp_path / "names.txt"
    for text, message in {
        "no.png\n": "line 1: ",
        f"{pictures / '0.png'}\tan ape\n": "line 1: must be the name of a picture, without a tab",
        "names.txt\n": "line 1: ",
    }.items():
        names.write_text(text)
        assert message in refused(decode_main, str(run.path), "--input", str(names))
    names.write_text(f"{pictures / '0.png'}\nno.png\n")
    with monkeypatch.context() as patch:  # before the model is loaded
        patch.setattr(Decoder, "load", None)
        assert "line 2: " in decode(run.path, "--input", names)[2]
    photo = tmp_path / "photo.jpg"
    Image.new("RGB", (16, 16)).save(photo)
    names.write_text("photo.jpg\n")
    for words in ([], ["--explore", tmp_path / "page.html"]):
        said = refused(decode_main, run.path, "--input", names, *words)
        assert f"names.txt, line 1: {photo}: is no PNG file: convert it" in said
    assert not (tmp_path / "page.html").exists()
    for path in (pictures / "0.png", photo):
        said = refused(decode_main, run.path, "--input", path)
        assert "is a picture: give a file that names pictures, one on each line" in said
    with pytest.raises(UserError, match="cannot read int: give PNG files or arrays"):
        run.task.seen(3)


@pytest.mark.parametrize(
    ("name", "part", "options", "message"),
    [
        ("captioning", "data", {"picture_size": 18}, "must be a multiple of --model.patch-size 8"),
        ("captioning", "data", {"batching": "packed"}, "--data.batching packed"),
        ("captioning", "data", {"fewest_shapes": 2}, "--data.fewest-shapes 2 is more than"),
        ("captioning", "model", {"source_end": False}, "--model.source-end"),
        ("captioning", "model", {"encoder_stack": SHORT}, "a picture has 4 patches"),
        ("detection", "data", {"most_boxes": 11}, "is more than --model.num-queries 10"),
        ("detection", "data", {"most_boxes": 1, "most_shapes": 2}, "is more than --data.most-boxes 1"),
        ("detection", "model", {"vocab_size": 7}, "--model.vocab-size 7 but the pictures have 4 classes"),
        ("detection", "model", {"cross_mechanism": "monotonic"}, "the queries have no order"),
        ("detection", "model", {"decoder_recurrence": "ssru"}, "--model.decoder-recurrence ssru"),
    ],
)
def test_options_that_do_not_go_together(
    tmp_path: Path, name: str, part: str, options: dict, message: str
) -> None:
    config = pictures_config(name, tmp_path, "one")

    def trained() -> None:
        changed = dataclasses.replace(getattr(config, part), **options)
        train(dataclasses.replace(config, **{part: changed}), tmp_path / "run", watch=quiet())

    with pytest.raises(UserError, match=message):
        trained()
    assert not (tmp_path / "run").exists()


def test_too_many_boxes_and_unknown_classes_are_named(boxes: Run) -> None:
    task = boxes.task
    record = task.seen(np.zeros((16, 16)))
    many = dataclasses.replace(record, classes=("circle",) * 9, boxes=np.ones((9, 4)))
    with pytest.raises(UserError, match="it has 9 boxes: raise --data.most-boxes, now 8"):
        task.examples([many])
    other = dataclasses.replace(record, classes=("cat",), boxes=np.ones((1, 4)))
    with pytest.raises(UserError, match="no training picture has the class 'cat'"):
        task.examples([other])


def test_damaged_classes_are_named(boxes: Run, tmp_path: Path) -> None:
    for text, message in {
        "[": "the classes cannot be read",
        '["a", 3, "b", "c"]': "must be a list of names of classes",
        '["a"]': "has 1 classes but config.json expects 4",
    }.items():
        (tmp_path / "classes.json").write_text(text)
        with pytest.raises(UserError, match=message):
            type(boxes.task).load(boxes.config, tmp_path)


@pytest.mark.parametrize(("name", "kind"), [("captions", Captioner), ("boxes", Detector)])
def test_a_run_whose_pictures_have_no_whole_patches_is_refused(
    name: str, kind: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = shutil.copytree(request.getfixturevalue(name).path, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["data"]["picture_size"] = 18
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="--data.picture-size 18 must be a multiple of --model.patch-size 8"):
        kind.load(folder).decode([])
