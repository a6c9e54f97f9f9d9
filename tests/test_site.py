"""The built documentation: every option and preset is in it, and nothing in angle brackets is lost."""

import dataclasses
import html
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mkdocs_hooks
import transformer
from transformer.cli.decode_arguments import DecodeArguments
from transformer.config.model import SpecialIds
from transformer.config.options import Config, HostsConfig, flatten
from transformer.config.records import (
    RecordingsConfig,
    SentencesConfig,
    StreamConfig,
    TaggedConfig,
    WindowsConfig,
)
from transformer.config.searches import METHODS, GreedyConfig, MbrConfig, SampleConfig
from transformer.systems.captioning.options import CaptionsConfig
from transformer.systems.convolutional.options import ConvolutionalConfig
from transformer.systems.copying.options import CopyingConfig
from transformer.systems.detection.options import BoxesConfig, DetectionConfig, DetectionDecodingConfig
from transformer.systems.language_model.options import LanguageModelConfig
from transformer.systems.masked_language_model.options import MaskedLanguageModelConfig
from transformer.systems.nonautoregressive.options import (
    NonAutoregressiveConfig,
    NonAutoregressiveDecodingConfig,
)
from transformer.systems.nonautoregressive_synthesis.options import (
    NonAutoregressiveSynthesisConfig,
    NonAutoregressiveSynthesisDecodingConfig,
)
from transformer.systems.presets import PRESETS, VARIANTS, every_system
from transformer.systems.recurrent.options import RecurrentConfig
from transformer.systems.registry import as_option
from transformer.systems.speech.options import SpeechConfig
from transformer.systems.synthesis.options import SynthesisConfig, SynthesisDecodingConfig
from transformer.systems.tagging.options import TaggingConfig, TaggingDecodingConfig

ROOT = Path(__file__).parent.parent
pytest.importorskip("mkdocs", reason="pip install '.[docs]'")
pytest.importorskip("mkdocstrings", reason="pip install '.[docs]'")
CONFIGS = [
    *(type(getattr(Config(), item.name)) for item in dataclasses.fields(Config) if item.name != "system"),
    *(
        Config,
        GreedyConfig,
        HostsConfig,
        MbrConfig,
        SampleConfig,
        SpecialIds,
        CopyingConfig,
        LanguageModelConfig,
        StreamConfig,
        SentencesConfig,
        CaptionsConfig,
        BoxesConfig,
        DetectionConfig,
        DetectionDecodingConfig,
        TaggedConfig,
        TaggingConfig,
        TaggingDecodingConfig,
        MaskedLanguageModelConfig,
        SpeechConfig,
        RecordingsConfig,
        SynthesisConfig,
        SynthesisDecodingConfig,
        NonAutoregressiveSynthesisConfig,
        NonAutoregressiveSynthesisDecodingConfig,
        NonAutoregressiveConfig,
        NonAutoregressiveDecodingConfig,
        RecurrentConfig,
        ConvolutionalConfig,
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def shown(page: Path) -> str:
    """The visible text of a page, without tags."""
    return html.unescape(re.sub(r"<[^>]*>", "", page.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
def test_every_field_is_described(site, config):
    page = (site / "reference/config/index.html").read_text()
    for item in dataclasses.fields(config):
        owner = next(c for c in reversed(config.__mro__) if item.name in inspect.get_annotations(c))
        assert f'id="{owner.__module__}.{owner.__name__}.{item.name}"' in page, item.name


def test_every_preset_and_option_is_in_what_pages_are_made_of():
    presets, variants = mkdocs_hooks._presets(), mkdocs_hooks._variants()
    assert all(f"| `{name}` |" in presets for name in PRESETS)
    assert all(f"| `{name}` |" in variants for name in VARIANTS)
    options = mkdocs_hooks._options()
    for config in every_system().values():
        for name in flatten(config):
            assert f"<code>{as_option(name)}</code>" in options, name
    for kind, prefix in (
        (DecodeArguments, ""),
        (HostsConfig, "hosts."),
        (WindowsConfig, "windows."),
        *((k, "decoding.") for k in METHODS.values()),
    ):
        for item in dataclasses.fields(kind):
            if item.name not in ("run_dir", "ensemble", "decoding", "windows", "hosts"):
                assert f"<code>{as_option(prefix + item.name)}</code>" in options, item.name
    anchors = re.findall(r'<tr id="([^"]+)"', options)
    assert len(anchors) == len(set(anchors)) > 400


def test_an_option_says_its_default_in_each_preset():
    rows = {row.anchor: row for _, _, rows in mkdocs_hooks._sections() for row in rows}
    for name in ("model.d_model", "training.steps", "decoding.length_penalty"):
        by_preset = {
            preset: value
            for value, presets in rows[name.replace("_", "-")].defaults.items()
            for preset in presets
        }
        assert by_preset == {
            preset: str(flatten(config)[name])
            for preset, config in PRESETS.items()
            if preset in by_preset or config.system == "transformer"
        }


def test_an_option_is_one_word():
    """It does not break at its dashes, in text and in tables."""
    page = "<p><code>decode.py --n-best 2</code></p><td><code>a --b-c</code></td>"
    made = mkdocs_hooks.on_page_content(page)
    assert made == (
        "<p><code>decode.py <span>--n-best</span> 2</code></p>"
        "<td><code><span>a</span> <span>--b-c</span></code></td>"
    )


def test_each_public_name_begins_a_page_of_reference():
    """Where the page links to it; `__version__` is a string."""
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs/reference").glob("*.md"))]
    named = [
        name
        for page in pages
        if "{{ names }}" in page
        for name in re.findall(r"^- \[`(\w+)`\]", mkdocs_hooks._names(page), re.MULTILINE)
    ]
    assert sorted([*named, "__version__"]) == sorted(transformer.__all__)


@pytest.mark.slow
def test_pages_have_it(site):
    presets, options = (shown(site / f"{name}/index.html") for name in ("reference/presets", "options"))
    for name in (*PRESETS, *VARIANTS):
        assert name in presets
    assert "--model.d-model" in options


@pytest.mark.slow
def test_titles_of_pages_differ(site):
    titles = [
        re.search(r"<title>(.*?)</title>", page.read_text())[1].lower() for page in site.rglob("index.html")
    ]
    assert len(titles) == len(set(titles)) > 70


@pytest.mark.slow
def test_pages_of_reference_are_light(site):
    """Without source. The largest had 2.1 MB and opened in four seconds."""
    for page in site.rglob("reference/*/index.html"):
        assert page.stat().st_size < 700_000, page
        assert "Source code in" not in page.read_text()


@pytest.mark.slow
def test_special_tokens_are_read_as_they_are_written(site):
    for page in site.rglob("index.html"):
        assert not re.search(r"<(/?(s|eos|bos|pad|unk|glue))>", page.read_text()), page
    decoding = shown(site / "reference/decoding/index.html")
    for token in ("<eos>", "<pad>"):
        assert token in decoding
