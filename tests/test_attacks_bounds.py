"""Numbers, JSON, vocabularies and metrics beyond all bounds."""

import itertools
import json
import shutil
import struct
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from small_run import WORDS, changed, quiet
from tiers import combinations

from transformer import BeamConfig, Config, Run, Translator, UserError
from transformer.config.corpus import DataConfig
from transformer.data.tokenizers.trained import load_tokenizer
from transformer.runs import log
from transformer.runs.config_json import from_json
from transformer.runs.exhibits import png_of, read_exhibits, write_exhibits
from transformer.runs.report import write_comparison, write_report
from transformer.runs.report.logged import Logged
from transformer.runs.sealed import MANIFEST
from transformer.runtime.files import parse_json
from transformer.trainer.train import train


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buckets": (10**11,)}, "--decoding.buckets must be"),
        ({"rows": 10_000, "buckets": (8, 100_000)}, "times the longest of --decoding.buckets"),
        ({"max_length": 10**10}, "--decoding.max-length must be"),
        ({"min_length": 2**31}, "--decoding.min-length must be"),
    ],
)
def test_decoding_beyond_all_bounds(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        BeamConfig(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_length": 10**7},
        {"batch_tokens": 10**10},
        {"vocab_size": 10**9},
        {"built_in_size": 10**10},
        {"buckets": (10**11,)},
    ],
)
def test_data_beyond_all_bounds(changes: dict) -> None:
    (name,) = changes
    with pytest.raises(UserError, match=f"--data.{name.replace('_', '-')} must be from"):
        DataConfig(**changes)


@pytest.mark.parametrize(
    "text",
    [
        '{"model": {"window": 100000000000}}',
        '{"model": {"num_layers": 10000000}}',
        '{"model": {"special": {"pad": 100000000000}}}',
        '{"model": {"special": {"pad": -5}}}',
        '{"training": {"steps": 1' + 30 * "0" + "}}",
        '{"optimizer": {"scale": 1' + 400 * "0" + "}}",
        '{"optimizer": {"warmup_steps": Infinity}}',
        '{"optimizer": {"peak": 1e999}}',
        '{"data": ' + '{"a":' * 100_000,
        "[" * 100_000,
        "null",
        '{"system": ["transformer"]}',
    ],
)
def test_configs_beyond_all_bounds(text: str) -> None:
    with pytest.raises(UserError):
        from_json(text)


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "1e400", "1" * 5000, "9" * 19, "[" * 10**5, "", "'", '"\\ud800"']
)
def test_json_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"number|nested|Expecting|lone surrogate"):
        parse_json(text)


def test_json_that_is() -> None:
    assert parse_json('[1, -2.5e3, 5e-324, 9223372036854775807, "x"]') == [1, -2500.0, 5e-324, 2**63 - 1, "x"]


ODD_JSON = [
    "[]",
    "null",
    "3",
    "{}{",
    "[" * 100_000,
    '{"a":' * 100_000,
    "",
    "\x00",
    '{"bleu": 1, "bleu": 1}',
    '{"bleu": 1' + "0" * 400 + "}",
]


IN_A_CHECKPOINT = [MANIFEST, "model/_METADATA", "model/_sharding", "model/array_metadatas/process_0"]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "name"), combinations(ODD_JSON, IN_A_CHECKPOINT), ids=itertools.count())
def test_odd_json_anywhere_in_a_run(run_dir: Path, text: str, name: str) -> None:
    checkpoint = run_dir / "checkpoints" / "12"
    (checkpoint / "metrics" / "metrics").write_text(text)
    assert Run(run_dir).checkpoints.best() != 12
    if name != MANIFEST:  # whose hashes would detect it
        (checkpoint / MANIFEST).unlink()
    (checkpoint / name).write_text(text)
    with pytest.raises(UserError, match="12/.* is damaged"):
        Translator.load(run_dir, 12)
    (run_dir / "results.json").write_text(text)
    write_report(run_dir)
    (run_dir / "metrics.jsonl").write_text(text + "\n")
    with pytest.raises(UserError, match="no metrics: "):
        write_report(run_dir)


ODD_RECORDS = [
    {"kind": "start", "step": 0, "data": {"lengths": [1, 2]}},
    {"kind": "start", "step": 0, "data": {"lengths": {"source": 3, "target": {"8": "x"}, "both": {"8": -1}}}},
    {"kind": "start", "step": 0, "data": {"lengths": {"source": {}}}},
    {"kind": "start", "step": 0, "data": 7},
    {"kind": "training", "step": 10**18, "nll": 1.0},
    {"kind": "training", "step": 1, "nll": 5e-324},
    {"kind": "training", "step": 1, "nll": 1.7e308, "tokens_per_second": -1e308},
    {"kind": "training", "step": 0, "nll": 0},
    {"kind": "training", "step": True, "nll": 1},
    {"kind": "training", "step": 1.5},
    {"kind": "evaluation", "step": 1, "bleu": "x"},
    {"kind": "evaluation", "step": 1, "bleu": 1, "samples": [[1, 2, 3]]},
    {"kind": "evaluation", "step": 1, "bleu": 1e308, "nll": None, "samples": {"a": 1}},
    {"kind": ["start"], "step": 1},
    {"kind": "start", "step": 2**31 - 1, "date": {"a": []}},
]


@pytest.mark.parametrize("record", ODD_RECORDS, ids=range(len(ODD_RECORDS)))
def test_a_report_of_odd_metrics(run_dir: Path, record: dict) -> None:
    lines = ['{"kind": "start", "step": 0}', json.dumps(record)]
    (run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert write_report(run_dir).read_text().endswith("</html>\n")


AXIS = {"title": "", "labels": [], "extent": 0}
PIXEL = b64encode(png_of(np.zeros((1, 1)))).decode()
BOMB = b64encode(png_of(np.zeros((1, 1))).replace(struct.pack(">I", 1), struct.pack(">I", 2**20))).decode()
ODD_VALUES = [
    *(None, True, -1, 300_000_000, 2**63 - 1, 1.5, 1e308, -1e308),
    *("", "x", "2", "}", "{0}", "%s", "inf", "\x1b[31m", "x" * 10_000, [], [1], [[]] * 100, {}, {"a": [1]}),
]
MEASURE = {"name": "bleu", "title": "BLEU", "higher_is_better": True, "digits": 2}


def test_losses_are_numbers(tmp_path: Path) -> None:
    """Whoever resumes or reports a run compares them."""
    stranger = log.Log(tmp_path / "metrics.jsonl")
    stranger.path.write_text(
        '{"kind": "training", "step": 1, "loss": "", "nll": 1}\n'
        '{"kind": "evaluation", "step": 2, "bleu": 1, "nll": "x", "loss": 2}\n'
    )
    assert [set(log.LOSSES) & record.keys() for record in stranger.records()] == [{"nll"}, {"loss"}]


def odd_evaluations() -> Iterator[dict]:
    """Evaluations that have an odd value somewhere."""
    plain = {"kind": "evaluation", "step": 1, "bleu": 1.0, "merit": 1.0, "nll": 1.0, "best": True}
    for value in ODD_VALUES:
        for name in MEASURE:
            yield plain | {"measure": MEASURE | {name: value}}
        for name in ("bleu", "merit", "nll", "loss", "measure", "elapsed", "samples", "best"):
            yield plain | {"measure": MEASURE} | {name: value}
        yield plain | {"measure": MEASURE, str(value): value}


def test_a_report_of_odd_scores(run_dir: Path) -> None:
    lines = "".join(json.dumps(record) + "\n" for record in odd_evaluations())
    (run_dir / "metrics.jsonl").write_text('{"kind": "start", "step": 0}\n' + lines)
    ordinary = json.loads((run_dir / "results.json").read_text())
    fields = [(name, odd) for name in ordinary["bleu"] for odd in ODD_VALUES]
    odd = {f"odd {index}": ordinary["bleu"] | {name: value} for index, (name, value) in enumerate(fields)}
    (run_dir / "results.json").write_text(json.dumps(ordinary | odd | {"x" * 101: ordinary["bleu"]}))
    page = write_report(run_dir).read_text()
    assert f"{ordinary['bleu']['value']:.2f}" in page
    assert len(page) < 10**6
    for name in ("split", "unit", "sentences", "checkpoint"):
        for value in ODD_VALUES:
            (run_dir / "results.json").write_text(json.dumps(ordinary | odd | {name: value}))
            scores = Logged(run_dir).scores
            assert not scores or {*ordinary} & {*scores}
            assert all(type(each["value"]) is float and each["digits"] < 13 for each in scores.values())
    write_comparison([run_dir, run_dir], run_dir / "page.html")


@pytest.mark.slow
def test_a_report_is_no_larger_than_its_limits(run_dir: Path) -> None:
    """Records as short as they can be, so that little text would become much memory, or a long page."""
    quotes = '"' * 3_000
    lengths = {str(side): {str(length): 1 for length in range(3_000)} for side in range(30)}
    records = [
        {"kind": "start", "step": 0, "date": quotes, "data": {"lengths": lengths, "x": [{}] * 10_000}},
        *({"kind": "training", "step": step, "nll": 1e300} for step in range(20_000)),
        *({"kind": "training", "step": step, "nll": -1e300} for step in range(20_000, 40_000)),
        *({"kind": "start", "step": step, "x": [{}] * 100, "devices": quotes} for step in range(1_500)),
        *(
            {"kind": "evaluation", "step": step, "bleu": 1, "samples": [[quotes, quotes, f"{step}{quotes}"]]}
            for step in range(500)
        ),
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log, "MOST", 10_000)
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        written = Run(run_dir).log
        assert 1_000 < len(written.records("training")) < 3_400
        assert len(written.records("training")) < len(written.records()) < 10_000
        assert written.records()[-1]["step"] == 499
        assert written.records("training")[-1] == records[40_000]
        assert len(write_report(run_dir).read_text()) < 20 * 10**6


ODD_PICTURES = [
    {"png": BOMB},
    {"png": ""},
    {"x": AXIS | {"extent": 1e308}},
    {"x": AXIS | {"extent": True}},
    {"y": AXIS | {"labels": [""] * 100_000}},
    {"caption": "x" * 2_000_000},
]


@pytest.mark.parametrize("change", ODD_PICTURES, ids=range(len(ODD_PICTURES)))
def test_pictures_beyond_all_bounds(tmp_path: Path, change: dict) -> None:
    picture = {"caption": "", "png": PIXEL, "x": AXIS, "y": AXIS}
    exhibit = {"title": "", "texts": {}, "sounds": [], "pictures": [picture]}
    write_exhibits(tmp_path, 1, [exhibit])
    assert read_exhibits(tmp_path) == (1, [exhibit])
    write_exhibits(tmp_path, 1, [exhibit | {"pictures": [picture | change]}])
    assert read_exhibits(tmp_path) == (0, [])


def test_what_is_read_of_a_log_is_what_was_written(run_dir: Path) -> None:
    written = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert Run(run_dir).log.records() == written


@pytest.mark.slow
def test_training_continues_beside_odd_metrics(config: Config, run_dir: Path) -> None:
    with open(run_dir / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(record) + "\n" for record in (*ODD_RECORDS, *odd_evaluations()))
        file.write("[" * 10**5 + "\n" + ODD_JSON[-1] + "\n")
    train(changed(config, steps=14), run_dir, watch=quiet())
    assert Run(run_dir).checkpoints.steps()[-1] == 14


ODD_SCORES = [
    *(json.dumps({name: odd}) for name in ("merit", "bleu") for odd in ("nan", "inf", "1e9", [], {}, True)),
    *('{"merit": NaN}', '{"merit": Infinity}', '{"merit": 1e999}', '["merit", "nll"]', '"merit nll"', "7"),
    '{"merit": "1000", "bleu": {"a": 1}, "nll": "x", "loss": []}',
]


def test_checkpoints_beside_odd_scores(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They count as not measured, with a warning; the next ones are saved, and the best one kept."""
    best, *others = (steps := Run(run_dir).checkpoints.steps())
    ordinary = (run_dir / "checkpoints" / str(best) / "metrics" / "metrics").read_text()
    for text in (*ODD_JSON, *ODD_SCORES):
        for step in steps:
            odd = ordinary if step == best else text
            (run_dir / "checkpoints" / str(step) / "metrics" / "metrics").write_text(odd)
        caplog.clear()
        assert Run(run_dir).checkpoints.best() == best, text
        for step, record in zip(others, caplog.records, strict=True):
            assert f"the scores of checkpoint {step} are damaged" in record.message, text
        checkpoints = Run(run_dir).checkpoints
        checkpoints.finish_saving()  # opens what saves them
        assert checkpoints.best() == best, text
    with open(run_dir / "checkpoints" / str(others[-1]) / "metrics" / "metrics", "wb") as file:
        file.truncate(2**40)
    checkpoints = Run(run_dir).checkpoints
    checkpoints.finish_saving()
    assert checkpoints.best() == best


@pytest.mark.slow
def test_a_tokenizer_of_another_size(decoder: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    for words in (WORDS[:-1], [*WORDS, "more"]):
        saved = json.loads((decoder / "source.model").read_text()) | {"words": words}
        (run_dir / "source.model").write_text(json.dumps(saved))
        with pytest.raises(UserError, match=r"ids but config.json expects 13: they do not belong"):
            Translator.load(run_dir)


def test_words_that_are_no_text(tmp_path: Path) -> None:
    for kind in ("word", "open-word", "whitespace"):
        saved = {"kind": kind, "special": {"pad": 0, "bos": 1, "eos": 2, "unk": 3}, "words": ["a", "\ud800"]}
        (tmp_path / "v").write_text(json.dumps(saved))
        with pytest.raises(UserError, match="neither a SentencePiece model nor a saved vocabulary"):
            load_tokenizer(tmp_path / "v")


@pytest.mark.parametrize("odd", [3.0, True, "3", None, [3]])
def test_special_ids_that_are_no_whole_numbers(tmp_path: Path, odd: object) -> None:
    special = {"pad": 0, "bos": 1, "eos": 2, "unk": 3} | {"bos" if odd is True else "unk": odd}
    for kind in ("word", "open-word", "whitespace", "character", "byte"):
        (tmp_path / "v").write_text(json.dumps({"kind": kind, "special": special, "words": ["a"]}))
        with pytest.raises(UserError, match="neither a SentencePiece model nor a saved vocabulary"):
            load_tokenizer(tmp_path / "v")
