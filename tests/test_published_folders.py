"""Every model that the documentation names is imported from a folder as its publisher lays it out, and
computes what `transformers` does."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published_folders import GOLDEN, PUBLISHED, features, write_published
from tiers import mostly_slow

from transformer.interop.pretrained import import_model

ROOT = Path(__file__).parent.parent
FAMILIES = {  # what the table of the page calls a model, and the one that is tried
    "Marian": "Helsinki-NLP/opus-mt-en-de",
    "OPUS-MT": "Helsinki-NLP/opus-mt-en-de",
    "M2M-100": "facebook/m2m100_418M",
    "mBART-50": "facebook/mbart-large-50-many-to-many-mmt",
    "NLLB": "facebook/nllb-200-distilled-600M",
    "BART": "facebook/bart-large-cnn",
    "Pegasus": "google/pegasus-xsum",
    "T5 1.0": "google-t5/t5-small",
    "1.1": "google/t5-v1_1-small",
    "mT5": "google/mt5-small",
    "Flan-T5": "google/flan-t5-small",
    "ByT5": "google/byt5-small",
    "MADLAD-400": "google/madlad400-3b-mt",
    "Whisper": "openai/whisper-base",
    "BERT": "google-bert/bert-base-uncased",
}
IN_SMALL = json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("name", mostly_slow(list(PUBLISHED), ["google/mt5-small"]))
def test_a_model_is_imported_as_it_is_published(tmp_path, caplog, name):
    golden, published = IN_SMALL[name], PUBLISHED[name]
    write_published(name, tmp_path / "folder", golden["shapes"], golden["vocab_size"])
    run = import_model(tmp_path / "folder", tmp_path / "run", *published.languages)
    assert not caplog.records
    model, variables = run.system.model(run.config.model), run.variables("last")
    source = features() if golden["source"] is None else np.asarray([golden["source"]])
    inputs = [source] if golden["target"] is None else [source, np.asarray([golden["target"]])]
    log_p = jax.nn.log_softmax(model.apply(variables, *map(jnp.asarray, inputs))[0])
    assert log_p.argmax(-1).tolist() == golden["best"]
    np.testing.assert_allclose(log_p.max(-1), golden["log_p"], atol=1e-4)


@pytest.mark.parametrize("name", ["facebook/m2m100_418M", "facebook/bart-large-cnn", "google/pegasus-xsum"])
def test_fields_that_are_missing_are_what_transformers_takes(tmp_path, name):
    golden, published = IN_SMALL[name], PUBLISHED[name]
    write_published(name, tmp_path / "folder", golden["shapes"], golden["vocab_size"])
    path, models = tmp_path / "folder" / "config.json", []
    for missing in ((), ("decoder_start_token_id", *("scale_embedding",) * (name == "facebook/m2m100_418M"))):
        described = json.loads(path.read_text())
        path.write_text(json.dumps({key: x for key, x in described.items() if key not in missing}))
        models.append(import_model(path.parent, tmp_path / "-".join(("run", *missing)), *published.languages))
    assert models[0].config.model == models[1].config.model


def test_every_family_of_the_page_is_tried():
    page = (ROOT / "docs" / "pretrained" / "use.md").read_text()
    table = page.partition("| family |")[2].partition("\n\n")[0]
    families = [row.split("|")[1] for row in table.splitlines()[2:]]
    own = ("Marian's own files", "CTranslate2", "torch.nn.Transformer")
    names = {
        name.strip()
        for family in families
        if not any(program in family for program in own)
        for name in re.sub(r"\(.*?\)", "", family).split(",")
    }
    assert names == set(FAMILIES)
    assert set(FAMILIES.values()) <= set(PUBLISHED)


def test_every_name_of_the_hub_in_the_documentation_is_tried():
    texts = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", *ROOT.glob("transformer/**/*.py")]
    owners = "|".join({name.partition("/")[0] for name in PUBLISHED})
    known = {*PUBLISHED, *(name.partition("/")[2] for name in PUBLISHED)}
    named = {name for text in texts for name in re.findall(rf"\b(?:{owners})/[\w.-]+\w", text.read_text())}
    for text in texts:
        if text.suffix == ".md" and text.name != "formats.md":  # which is about files that are not on the hub
            named |= set(re.findall(r"-m transformer import (\S+)", text.read_text()))
    assert len(named) > 4
    assert named <= known
