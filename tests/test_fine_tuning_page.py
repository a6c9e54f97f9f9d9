"""The commands of docs/fine-tuning.md run as printed, on a small random model, with few updates."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_run import write_text

from transformer import Run
from transformer.commands.decode import decode_main
from transformer.commands.main import main
from transformer.commands.train import train_main
from transformer.data.built_in.spoken import DIGITS, RATE, Speaker, spoken
from transformer.interop.pretrained import import_model

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")
pytest.importorskip("jiwer", reason="pip install '.[speech]'")

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "fine-tuning.md").read_text(encoding="utf-8")
FEW = {
    "training.steps": 2,
    "training.evaluate-every": 2,
    "training.evaluate-sentences": 4,
    "data.batch-tokens": 512,
    "data.max-length": 40,
    "decoding.rows": 4,
    "decoding.buckets": 40,
}


def commands():
    lines = "".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def write_recordings(folder):
    """A small Whisper, and lists of two recordings."""
    model = Path(shutil.copytree(ROOT / "tests" / "data" / "whisper", folder / "whisper-base"))
    (model / "golden.json").unlink()
    random = np.random.default_rng(0)
    for split in ("train", "validation", "test"):
        lines = []
        for digit in ("one", "two"):
            path = folder / f"{split}-{digit}.wav"
            soundfile.write(path, spoken(DIGITS[digit], Speaker.drawn(random), random), RATE)
            lines.append(f"{path.name}\t{digit}\n")
        (folder / f"{split}.tsv").write_text("".join(lines))


@pytest.mark.slow
def test_every_command_of_the_page(tmp_path, monkeypatch, capfd):
    shutil.copytree(ROOT / "tests" / "data" / "marian", tmp_path / "opus-mt-en-de")
    for split, count in (("train", 40), ("test", 4)):
        for path, language in zip(write_text(tmp_path, split, count).values(), ("en", "de"), strict=True):
            path.rename(tmp_path / f"{split}.{language}")
    write_recordings(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("Blorb\ncaféx\n", encoding="utf-8")
    few = [word for option, value in FEW.items() for word in (f"--{option}", str(value))]
    mains = {
        "train.py": (train_main, few),
        "decode.py": (decode_main, ["--rows", "4", "--buckets", "40"]),
        "transformer": (main, []),
    }
    for _, *words in commands():
        program, *options = words[1:] if words[0] == "-m" else words
        command, more = mains[program]
        if any("whisper" in word or word == "runs/own" for word in words):
            more = ["--rows", "2"] if program == "decode.py" else []
        monkeypatch.setattr(sys, "argv", [program, *options, *more])
        assert command() == 0, (words, capfd.readouterr().err)
    assert all((tmp_path / name).is_dir() for name in ("exported", "exported-adapter"))
    again = import_model(tmp_path / "exported-adapter", tmp_path / "again")
    assert again.shapes.keys() == Run("runs/adapter").shapes.keys()

    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "docs/fine-tuning.md", "exec"), {})


def test_every_option_of_the_page_is_one():
    """Those of the tables too."""
    asked = (["train.py", "quickstart", "--help-all"], ["decode.py", "--help-all"])
    known = "".join(subprocess.check_output([sys.executable, *words], cwd=ROOT, text=True) for words in asked)
    page = re.sub(r"`python -m benchmarks[^`]*`", "", PAGE)  # which have their own
    options = set(re.findall(r"--[a-z][a-z.-]+", page)) - {"--init-from", "--help-all"}
    assert [option for option in sorted(options) if option not in known] == []
