"""Pictures as corpora: built-in drawings, and PNG files that manifests list."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from transformer import UserError
from transformer.config.records import PicturesConfig
from transformer.data.built_in.drawings import COLOURS, FORMS, SIZES, Shape, captions, drawing
from transformer.data.signals import pixels as reader
from transformer.data.signals.pixels import pixels_of, read_picture, scaled
from transformer.data.sources.pictures import PICTURES, open_pictures, read_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three pictures of different sizes."""
    random = np.random.default_rng(0)
    for index, shape in enumerate([(10, 20, 3), (16, 16, 3), (40, 8, 3)]):
        Image.fromarray(random.integers(0, 256, shape, np.uint8)).save(tmp_path / f"{index}.png")
    return tmp_path


def test_drawings_depend_on_split_and_index_alone() -> None:
    first, again, other = drawing(0, 7, 32, 1, 3), drawing(0, 7, 32, 1, 3), drawing(1, 7, 32, 1, 3)
    assert (first.pixels == again.pixels).all()
    assert first.shapes == again.shapes
    assert (first.pixels != other.pixels).any()


def test_boxes_have_the_pixels_of_the_shapes() -> None:
    """Where a picture is not grey, there is a box, and each side of a box touches such a pixel."""
    seen = set()
    for index in range(40):
        drawn = drawing(2, index, 48, 1, 4)
        colours = [COLOURS[shape.colour] for shape in drawn.shapes]
        is_near = [(np.abs(drawn.pixels.astype(int) - colour) < 60).all(axis=-1) for colour in colours]
        for mask, (left, top, width, height) in zip(is_near, drawn.boxes.astype(int), strict=True):
            inside = mask[top : top + height, left : left + width]
            assert inside.any(axis=0)[[0, -1]].all()
            assert inside.any(axis=1)[[0, -1]].all()
        outside = np.any(is_near, axis=0)
        for left, top, width, height in drawn.boxes.astype(int):
            outside[top : top + height, left : left + width] = False
        assert not outside.any()
        seen |= {(shape.size, shape.colour, shape.form) for shape in drawn.shapes}
    assert {size for size, _, _ in seen} == {*SIZES}
    assert {colour for _, colour, _ in seen} == {*COLOURS}
    assert {form for _, _, form in seen} == {*FORMS}


def test_captions_are_those_of_the_grammar() -> None:
    circle = Shape("small", "red", "circle", 5, 5, 2)
    square = Shape("large", "blue", "square", 20, 7, 5)
    cross = Shape("small", "green", "cross", 18, 25, 2)
    assert captions((circle,)) == ("a small red circle",)
    assert captions((circle, square)) == (
        "a small red circle left of a large blue square",
        "a large blue square right of a small red circle",
    )
    assert captions((cross, square)) == (
        "a small green cross below a large blue square",
        "a large blue square above a small green cross",
    )
    assert captions((square, circle, cross)) == (
        "a small red circle, a small green cross and a large blue square",
    )
    assert captions(()) == ("nothing",)


def test_built_in_pictures_are_stored(tmp_path: Path) -> None:
    data = PicturesConfig(built_in_size=20, picture_size=16, fewest_shapes=0, cache_dir=tmp_path)
    for corpus in (open_pictures(data, "boxes"), open_pictures(data, "captions")):
        sizes = {name: len(records) for name, records in corpus.splits.items()}
        assert sizes == {"train": 20, "validation": 10, "test": 10}
        for index, record in enumerate(corpus.splits["validation"]):
            drawn = drawing(1, index, 16, 0, 2)
            assert (record.pixels == drawn.pixels).all()
            assert (record.boxes == drawn.boxes).all()
            assert record.classes == tuple(shape.form for shape in drawn.shapes)
            assert record.captions == captions(drawn.shapes)
        assert all(len(record.captions) == 1 for record in corpus.splits["train"])


def test_a_manifest_of_captions(folder: Path, tmp_path: Path) -> None:
    """Lines with the same picture are several captions of it; in training each is an example."""
    manifest = folder / "list.tsv"
    manifest.write_text("0.png\tA dog.\n1.png\tA  cat.\n0.png\tAn animal.\n2.png\tNothing\n")
    listed = read_manifest(manifest, "captions")
    assert [item.captions for item in listed] == [("A dog.", "An animal."), ("A cat.",), ("Nothing",)]
    as_json = folder / "list.jsonl"
    several = {"0.png": ["A dog.", "An animal."], "1.png": "A cat.", "2.png": "Nothing"}
    as_json.write_text(
        "".join(json.dumps({"picture": name, "caption": text}) + "\n" for name, text in several.items())
    )
    assert [item.captions for item in read_manifest(as_json, "captions")] == [
        item.captions for item in listed
    ]
    data = PicturesConfig(picture_size=16, train=manifest, validation=as_json, cache_dir=tmp_path / "cache")
    splits = open_pictures(data, "captions").splits
    assert [record.captions for record in splits["train"]] == [
        ("A dog.",),
        ("An animal.",),
        ("A cat.",),
        ("Nothing",),
    ]
    assert [record.captions for record in splits["validation"]] == [item.captions for item in listed]
    assert [(record.width, record.height) for record in splits["validation"]] == [(20, 10), (16, 16), (8, 40)]


def test_a_manifest_of_boxes(folder: Path, tmp_path: Path) -> None:
    lines = [
        {"picture": "0.png", "boxes": [{"class": "dog", "box": [1, 2.5, 10, 7]}]},
        {"picture": "1.png", "boxes": []},
        {
            "picture": "2.png",
            "boxes": [{"class": "a cat", "box": [0, 0, 8, 40]}, {"class": "dog", "box": [0, 0, 1, 1]}],
        },
    ]
    manifest = folder / "list.jsonl"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = PicturesConfig(picture_size=8, train=manifest, validation=manifest, cache_dir=tmp_path / "cache")
    records = [*open_pictures(data, "boxes").splits["validation"]]
    assert [record.classes for record in records] == [("dog",), (), ("a cat", "dog")]
    assert records[0].boxes.tolist() == [[1, 2.5, 10, 7]]
    assert records[1].boxes.shape == (0, 4)
    assert (records[1].pixels == read_picture(folder / "1.png", 8)[0]).all()


def test_without_a_manifest_of_validation_pictures_are_held_out(folder: Path, tmp_path: Path) -> None:
    manifest = folder / "list.tsv"
    manifest.write_text("".join(f"{index}.png\tpicture {index}\n" for index in range(3)))
    corpus = open_pictures(PicturesConfig(train=manifest, cache_dir=tmp_path / "cache"), "captions")
    assert {name: len(records) for name, records in corpus.splits.items()} == {"train": 2, "validation": 1}
    assert "held out" in corpus.note


def test_what_is_transparent_is_white_and_grey_has_three_channels(tmp_path: Path) -> None:
    clear = np.zeros((8, 8, 4), np.uint8)
    clear[:4, :, 3] = 255
    Image.fromarray(clear, "RGBA").save(tmp_path / "clear.png")
    pixels, size = read_picture(tmp_path / "clear.png", 8)
    assert size == (8, 8)
    assert (pixels[:4] == 0).all()
    assert (pixels[4:] == 255).all()
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    Image.fromarray(grey, "L").save(tmp_path / "grey.png")
    assert (read_picture(tmp_path / "grey.png", 8)[0] == grey[..., None]).all()


def test_arrays_are_pictures() -> None:
    whole = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    for array in (whole, whole.astype(int), whole / 255, (whole / 255).astype(np.float32)):
        pixels, size = pixels_of(array, 8)
        assert (pixels == whole).all()
        assert size == (8, 8)
    assert pixels_of(np.zeros((4, 6)), 8)[1] == (6, 4)
    for wrong in (np.zeros((8, 8, 4)), np.zeros(3), np.full((8, 8), 300), np.full((8, 8), -1.0)):
        with pytest.raises(UserError, match="pixels of a picture must|a picture must be"):
            pixels_of(wrong, 8)


def test_what_models_read_is_exact_in_half_precision() -> None:
    every = np.arange(256, dtype=np.uint8)
    values = scaled(np.stack([every] * 3, axis=-1)[None])
    assert (values.astype(np.float16).astype(np.float32) == values).all()
    assert np.unique(values).size == 256


LINE = '{"picture": "0.png", "boxes": [{"class": "dog", "box": %s}]}'


@pytest.mark.parametrize(
    ("annotation", "name", "text", "message"),
    [
        ("captions", "list.tsv", "", "list.tsv is empty: it lists no pictures"),
        (
            "captions",
            "list.tsv",
            "0.png A dog",
            "line 1: must be a file name, a tab and a caption: there must",
        ),
        ("captions", "list.tsv", "0.png\tA\tdog", "line 1: must be a file name, a tab and a caption: there"),
        ("captions", "list.tsv", "0.png\t ", "line 1: .*: a caption must have text"),
        ("captions", "list.tsv", "0.png\tdog\nno.png\tdog", "line 2: .*no.png: no such file"),
        ("captions", "list.tsv", "\tdog", "line 1: must begin with the name of a picture"),
        ("captions", "list.jsonl", '{"picture": "0.png"}', "line 1: .*: a caption must have text"),
        ("captions", "list.jsonl", '{"caption": "dog"}', 'line 1: .*: "picture" must be a file name'),
        ("captions", "list.jsonl", "[]", "line 1: .*: not a JSON object"),
        ("captions", "0.png", None, "0.png must list pictures with their captions"),
        ("boxes", "list.tsv", "0.png\tdog", "list.tsv: boxes are read from JSON lines"),
        ("boxes", "list.jsonl", '{"picture": "0.png"}', 'line 1: .*: "boxes" must be a list'),
        ("boxes", "list.jsonl", LINE % "[1, 2, 3]", '"box" must be four numbers'),
        ("boxes", "list.jsonl", LINE % "[1, 2, 3, true]", '"box" must be four numbers'),
        ("boxes", "list.jsonl", LINE % "[1, 2, 0, 3]", "a positive width and height, not 0 and 3"),
        ("boxes", "list.jsonl", LINE % "[1, 2, 25, 3]", "line 1: the box .* leaves the picture, 20 x 10"),
        (
            "boxes",
            "list.jsonl",
            f"{LINE % '[1, 2, 3, 4]'}\n{LINE % '[1, 2, 3, 4]'}",
            "line 2: .*listed twice",
        ),
    ],
)
def test_mistakes_in_manifests_are_named(
    folder: Path, tmp_path: Path, annotation: str, name: str, text: str | None, message: str
) -> None:
    manifest = folder / name
    if text is not None:
        manifest.write_text(text)
    data = PicturesConfig(train=manifest, validation=manifest, cache_dir=tmp_path / "cache")
    with pytest.raises(UserError, match=message):
        open_pictures(data, annotation)


def test_mistakes_in_pictures_are_named(folder: Path) -> None:
    (folder / "text.png").write_text("no picture")
    whole = (folder / "1.png").read_bytes()
    (folder / "short.png").write_bytes(whole[: len(whole) // 2])
    for name, kind, content in ("exif", b"eXIf", b"II+\0\x08\0\0\0"), ("colours", b"iCCP", b""):
        chunk = len(content).to_bytes(4) + kind + content + zlib.crc32(kind + content).to_bytes(4)
        (folder / f"{name}.png").write_bytes(whole[:-12] + chunk + whole[-12:])
    Image.new("I;16", (4, 4)).save(folder / "deep.png")
    Image.new("RGB", (4, 4)).save(folder / "jpeg.png", format="JPEG")
    for name, message in {
        "text.png": "is no PNG file: convert it",
        "jpeg.png": "is no PNG file: convert it",
        "short.png": "cannot be read as PNG",
        "exif.png": "cannot be read as PNG: unpack requires",
        "colours.png": "cannot be read as PNG: index out of range",
        "deep.png": "it has more than 8 bits a channel",
        "none.png": "no such file",
        ".": "is a folder|not a regular file",
    }.items():
        with pytest.raises(UserError, match=message):
            read_picture(folder / name, 8)


def test_a_picture_of_too_many_pixels_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer.data.signals.pixels.MOST", 100)
    with pytest.raises(UserError, match="20 x 10 pixels are too many: make it smaller"):
        read_picture(folder / "0.png", 8)
    monkeypatch.undo()
    head, rest = (folder / "0.png").read_bytes()[:33], (folder / "0.png").read_bytes()[33:]
    empty = b"\0\0\0\0abCd" + zlib.crc32(b"abCd").to_bytes(4)
    (folder / "chunks.png").write_bytes(head + empty * 100_000 + rest)
    with pytest.raises(UserError, match="it has more than 100,000 chunks: save it anew"):
        read_picture(folder / "chunks.png", 8)


@pytest.mark.parametrize(("mode", "copies"), [("RGB", []), ("RGBA", [2] * 6)])
def test_a_large_picture_is_copied_in_strips(mode, copies, tmp_path, monkeypatch):
    """And one is read at a time: 1 MB may have 50 million pixels, and a server reads four files at once."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, len(mode)), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.png")
    whole, made, locked = read_picture(tmp_path / "large.png", 8), [], []
    composite = Image.Image.alpha_composite

    def counted(image, other):
        made.append(image.height)
        locked.append(reader._LARGE.locked())
        composite(image, other)

    monkeypatch.setattr(Image.Image, "alpha_composite", counted)
    monkeypatch.setattr(reader, "MANY", 8 * 8 * 2)
    again = read_picture(tmp_path / "large.png", 8)
    assert (again[0] == whole[0]).all()
    assert (made, locked) == (copies, [False] * len(copies))
    monkeypatch.setattr(reader, "MANY", 8 * 12 - 1)
    read_picture(tmp_path / "large.png", 8)
    assert all(locked[len(copies) :])


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    """TFDS's names of what is stored."""
    data = PicturesConfig(built_in_size=20, picture_size=8, cache_dir=tmp_path)
    (record, *_) = open_pictures(data, "boxes").splits["test"]
    assert PICTURES.encoded(record).keys() == {
        *("name", "size", "captions", "classes"),
        *("pixels/shape", "pixels/value", "boxes/shape", "boxes/value"),
    }


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_stands_as_its_tag_says(orientation, tmp_path):
    """EXIF 2.32, tag 0x0112: where the first row and the first column of the file are shown."""
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    shown = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.transpose(1, 0, 2),
        6: pixels.transpose(1, 0, 2)[:, ::-1],
        7: pixels.transpose(1, 0, 2)[::-1, ::-1],
        8: pixels.transpose(1, 0, 2)[::-1],
    }[orientation]
    tags = Image.Exif()
    tags[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "tagged.png", exif=tags)
    Image.fromarray(np.ascontiguousarray(shown)).save(tmp_path / "plain.png")
    read, size = read_picture(tmp_path / "tagged.png", 4)
    expected, expected_size = read_picture(tmp_path / "plain.png", 4)
    assert size == expected_size == (shown.shape[1], shown.shape[0])
    np.testing.assert_array_equal(read, expected)
