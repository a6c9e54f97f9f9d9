"""Models are found by their name on a hub, from what the library has downloaded before: no test uses a
network."""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from transformer.interop.folders import folder as hub
from transformer.interop.pretrained import import_model
from transformer.runs.run import Run
from transformer.runtime.errors import UserError

DATA = Path(__file__).parent / "data" / "pretrained"
COMMIT = "5f0c9f1e2d3c4b5a69788796a5b4c3d2e1f00f1e"


@pytest.fixture(autouse=True)
def _forgotten():
    hub.located.cache_clear()


def fake(monkeypatch, download):
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=download))


@pytest.mark.slow
def test_a_name_is_read_from_the_cache_without_a_network(tmp_path):
    """The library itself, offline. The commit of the branch is written into the run."""
    pytest.importorskip("huggingface_hub")
    stored = tmp_path / "hub" / "models--tiny--t5"
    shutil.copytree(DATA / "t5", stored / "snapshots" / COMMIT)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text(COMMIT)
    words = [sys.executable, "-m", "transformer", "import", "tiny/t5", str(tmp_path / "run")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    ended = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert f"Written to {tmp_path / 'run'} from tiny/t5, revision {COMMIT}" in ended.stdout
    assert Run(tmp_path / "run").config.data.dataset == f"imported from tiny/t5, revision {COMMIT}"

    words[-2:] = ["tiny/other", str(tmp_path / "other")]
    ended = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert ended.returncode == 2
    assert "tiny/other: no such folder, and it cannot be had from the hub" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "other").exists()


def test_a_folder_wins_and_needs_no_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DATA / "t5", tmp_path / "tiny" / "t5")
    assert import_model("tiny/t5", "run").config.data.dataset == "imported"
    with pytest.raises(UserError, match=r"--revision: tiny/t5 is a folder"):
        import_model("tiny/t5", "other", revision="main")
    with pytest.raises(UserError, match=re.escape("tiny/none: no such folder. If it is a name")):
        import_model("tiny/none", "other")
    with pytest.raises(UserError, match=r"a/b/c: no such folder$"):
        import_model("a/b/c", "other")


def test_what_is_fetched_is_neither_pickled_nor_a_program(monkeypatch, tmp_path):
    asked = {}

    def download(name, revision, allow_patterns):
        asked.update(name=name, revision=revision, patterns=allow_patterns)
        return str(DATA / "t5")

    fake(monkeypatch, download)
    import_model("tiny/t5", tmp_path / "run", revision="v1")
    assert (asked["name"], asked["revision"]) == ("tiny/t5", "v1")

    def is_fetched(name):
        return any(fnmatch.fnmatch(name, pattern) for pattern in asked["patterns"])

    for name in ("pytorch_model.bin", "model.bin", "modeling.py", "rust_model.ot", "flax_model.msgpack"):
        assert not is_fetched(name)
    for folder in DATA.iterdir():
        needed = [path.name for path in folder.iterdir() if path.stem not in ("golden", "directions")]
        assert all(map(is_fetched, needed)), needed
    assert is_fetched("model-00001-of-00002.safetensors")
    assert not is_fetched("model.fp32-00001-of-00002.safetensors")


def test_what_the_library_raises_is_one_sentence(monkeypatch, tmp_path):
    def refuses(name, revision, allow_patterns):
        raise RuntimeError("401 Client Error.\nRepository Not Found for url: ...")

    fake(monkeypatch, refuses)
    with pytest.raises(UserError, match=r"cannot be had from the hub: 401 Client Error$"):
        import_model("tiny/t5", tmp_path / "run")

    def without_weights(name, revision, allow_patterns):
        (tmp_path / "model").mkdir()
        return str(tmp_path / "model")

    fake(monkeypatch, without_weights)
    with pytest.raises(UserError, match="the hub has no safetensors of it"):
        import_model("tiny/t5", tmp_path / "run")
    assert not (tmp_path / "run").exists()


TITLE, ROBOT = "Adding `safetensors` variant of this model", "SFconvertbot"


@pytest.mark.parametrize(
    ("title", "author", "status", "of", "is_read"),
    [
        (TITLE, ROBOT, "open", "newest", True),
        (TITLE, ROBOT, "open", "older", False),
        (TITLE, ROBOT, "closed", "newest", False),
        (TITLE, "somebody", "open", "newest", False),
        ("Fix the config", ROBOT, "open", "newest", False),
    ],
)
def test_the_conversion_of_the_hub_is_read_where_a_model_has_only_pickles(
    monkeypatch, tmp_path, caplog, title, author, status, of, is_read
):
    """If it is that of the hub's own robot, and of the newest files."""
    (tmp_path / "pickled").mkdir()

    class HfApi:
        def list_repo_commits(self, name, revision=None):
            commits = ["newest", "older"] if revision is None else ["converted", of]
            return [SimpleNamespace(commit_id=commit) for commit in commits]

    proposal = SimpleNamespace(
        title=title, author=author, status=status, is_pull_request=True, git_reference="refs/pr/5"
    )
    library = SimpleNamespace(
        snapshot_download=lambda name, revision, allow_patterns: str(
            DATA / "t5" if revision == "refs/pr/5" else tmp_path / "pickled"
        ),
        HfApi=HfApi,
        get_repo_discussions=lambda name: iter([proposal]),
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    if is_read:
        run = import_model("tiny/t5", tmp_path / "run")
        assert run.config.data.dataset.startswith("imported from tiny/t5, revision ")
        assert "the hub's conversion of its pickles is read, refs/pr/5" in caplog.text
    for revision in (
        (None, "v1") if not is_read else ("v1",)
    ):  # another revision than the main one is read itself
        with pytest.raises(UserError, match="the hub has no safetensors of it"):
            import_model("tiny/t5", tmp_path / "other", revision=revision)
