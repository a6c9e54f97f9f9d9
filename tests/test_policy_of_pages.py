"""The policy of every page that is written: only its own style and scripts, whatever text gets into it."""

import hashlib
from base64 import b64encode
from html.parser import HTMLParser

import pytest

from transformer.explorer import explorer
from transformer.explorer import explorer as seen
from transformer.explorer import explorer as sounds
from transformer.explorer.explorer import UNIT
from transformer.explorer.page_files import page_of
from transformer.runs.report.charts import document, icon, table
from transformer.serve.app import FORM

SOUNDS = {"unit": UNIT, "origin": "x", "stride": 0.04, "records": []}
SEEN = {"unit": UNIT, "origin": "x", "threshold": None, "records": []}
PAGES = {
    "report": document("x", [table([("name", "value")])]),
    "explorer": page_of({"unit": UNIT, "origin": "x", "sentences": []}, explorer.FILES),
    "sounds": page_of(SOUNDS, sounds.SOUND_FILES),
    "seen": page_of(SEEN, seen.PICTURE_FILES),
    "form": page_of({}, FORM),
}


class Elements(HTMLParser):
    """The policy of a page, the contents of its styles and scripts, and the names of all attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.policy, self.contents, self.attributes = "", dict[str, list[str]](), set[str]()
        self.icon: str | None = None
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.attributes |= set(found)
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""
        if found.get("rel") == "icon":
            self.icon = found["href"]
        self.inside = tag if tag in ("style", "script") and "type" not in found else ""

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.contents.setdefault(self.inside, []).append(data)


@pytest.mark.parametrize("name", PAGES)
def test_a_policy_allows_what_the_package_wrote_and_nothing_else(name: str) -> None:
    page = Elements(PAGES[name])
    rules = dict(rule.split(maxsplit=1) for rule in page.policy.split(";"))
    assert {rules.pop(rule) for rule in ("default-src", "base-uri", "form-action")} == {"'none'"}
    assert {rules.pop(rule) for rule in rules.keys() & {"img-src", "media-src"}} <= {"data:"}
    assert rules.pop("connect-src", None) == ("'self'" if name == "form" else None)
    assert {rule.removesuffix("-src") for rule in rules} == set(page.contents)
    for element, (content,) in page.contents.items():
        digest = hashlib.sha256(content.encode()).digest()
        assert rules[f"{element}-src"] == f"'sha256-{b64encode(digest).decode()}'"
    assert page.icon == icon()
    assert not [each for each in page.attributes if each == "style" or each.startswith("on")]
