"""The explorer's page in a real browser: what is pointed at lights up with the model's own numbers."""

import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from small_translator import small_translator
from test_policy_of_pages import PAGES

from transformer import Translator
from transformer.explorer import Attention, SearchTree, attention_of, explore, search_tree
from transformer.explorer.attention import KINDS, Kind

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install '.[test]'")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not BROWSER or not DRIVER,
    reason="needs Chromium and its driver: apt-get install chromium chromium-driver",
)

QUIET = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)
BREAK = "document.title='broken'"
HOSTILE = [
    f"</script><script>{BREAK}</script>",
    f"<img/src=x/onerror={BREAK}>",
    "<!--<script>",
    "&lt;b&gt;",
    '"DATA"',
    "\u2028${1}",
    "größe",
    "שלום",
    "日本語",
]
LONG = "größer rotes schnell weit rot blau wachsen erlaubt rest"
SOURCES = [" ".join(HOSTILE[:5]), " ".join(HOSTILE[5:])]


@pytest.fixture(scope="module")
def translator() -> Translator:
    return small_translator(words=HOSTILE, seed=2)


@pytest.fixture(scope="module")
def attentions(translator: Translator) -> list[Attention]:
    """Of the first sentence's hypotheses."""
    return attention_of(translator, SOURCES[0], translator.search(SOURCES)[0])


@pytest.fixture(scope="module")
def tree(translator: Translator) -> SearchTree:
    return search_tree(translator, SOURCES[0])


@pytest.fixture(scope="module")
def page_file(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(explore(translator, SOURCES, lines=(7, 120)).html, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in (*QUIET.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    # Otherwise newer versions send no focus events to a page without a window of its own.
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    yield driver
    driver.quit()


class Page:
    """The page as someone sees it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements("css selector", selector)
        return found

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def point_at(self, element: Any) -> None:
        self.run("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", element)
        webdriver.ActionChains(self.driver, duration=0).move_to_element(element).perform()

    def press(self, *keys: str) -> None:
        webdriver.ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def choose(self, group: str, value: object) -> None:
        (choice,) = self.all(f"#{group} input[value='{value}']")
        self.run("arguments[0].scrollIntoView({block: 'center'})", choice)
        choice.click()

    def words(self, side: str) -> list[str]:
        return [word.get_attribute("textContent") for word in self.all(f"#{side} .piece")]

    def weights(self, side: str = "keys") -> list[float]:
        """The displayed weights of the words in a row."""
        found = self.run(
            "return [...document.querySelectorAll(arguments[0])].map((word) => word.dataset.weight)",
            f"#{side} .word",
        )
        return [] if None in found else [float(weight) for weight in found]

    def show(self, width: int, scheme: str) -> None:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@pytest.fixture
def page(driver: Any, page_file: Path) -> Iterator[Page]:
    driver.get(page_file.as_uri())
    page = Page(driver)
    page.show(1000, "light")
    yield page
    assert driver.title == "Attention explorer: en to de"  # no text was run as a script
    assert driver.get_log("browser") == []  # nor was anything refused, missing or wrong
    assert page.run("return performance.getEntriesByType('resource').length") == 0


def close_to(found: list[float], expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, atol=2e-4)


def brightness(colour: str) -> float:
    """Of a colour as browsers write it: rgb(1, 2, 3) up to 255, color(srgb 0.1 0.2 0.3) up to 1."""
    numbers = colour.rpartition("(")[2].rstrip(")").replace("srgb", "").replace(",", " ").split()
    return sum(map(float, numbers[:3])) / (3 if "srgb" in colour else 3 * 255)


def test_pointing_at_a_word_shows_what_it_attends_to(page: Page, attentions: list[Attention]) -> None:
    expected = attentions[0].weights("cross")
    assert page.words("queries") == list(attentions[0].target)
    assert page.words("keys") == list(attentions[0].source)
    close_to(page.weights(), expected[0])  # before anything is pointed at
    shades = []
    for index, word in enumerate(page.all("#queries .word")):
        page.point_at(word)
        close_to(page.weights(), expected[index])
        assert page.weights("queries") == []
        numbers = [float(number.text) for number in page.all("#keys .number")]
        np.testing.assert_allclose(numbers, expected[index], atol=0.0052)
        backgrounds = [word.value_of_css_property("background-color") for word in page.all("#keys .word")]
        shades.append([brightness(background) for background in backgrounds])
        best = expected[index].argmax()
        assert np.argmin(shades[-1]) == best  # the greatest weight is the darkest
        first = page.all("#readout")[0].text.partition(" · ")[0]
        said, _, number = first.rpartition(" ")
        assert said == f"{attentions[0].target[index]} attends to {attentions[0].source[best]}"
        assert float(number) == pytest.approx(expected[index, best], abs=1e-3)
    assert len({tuple(shade) for shade in shades}) > 1
    page.point_at(page.all("h1")[0])
    close_to(page.weights(), expected[0])
    page.point_at(page.all("#keys .word")[1])
    close_to(page.weights("queries"), expected[:, 1])


def test_every_kind_layer_and_head_can_be_chosen(page: Page, attentions: list[Attention]) -> None:
    kinds: list[Kind] = list(KINDS)
    for kind in kinds:
        page.choose("kind", kind)
        queries, keys = attentions[0].words(kind)
        assert (page.words("queries"), page.words("keys")) == (list(queries), list(keys))
        last = len(getattr(attentions[0], kind)) - 1
        for layer, head in ((None, None), (0, 1), (last, None), (None, 0), (last, 1)):
            page.choose("layer", -1 if layer is None else layer)
            page.choose("head", -1 if head is None else head)
            page.point_at(page.all("#queries .word")[2])
            close_to(page.weights(), attentions[0].weights(kind, layer, head)[2])


def test_it_works_by_keyboard(page: Page, attentions: list[Attention]) -> None:
    expected = attentions[0].weights("cross")
    page.all("#head input")[0].send_keys("\ue004")  # Tab
    focused = page.driver.switch_to.active_element
    assert (focused.get_attribute("data-side"), focused.get_attribute("data-index")) == ("queries", "0")
    is_reversed = page.all("#queries")[0].get_attribute("dir") == "rtl"
    forth, back = ("\ue012", "\ue014") if is_reversed else ("\ue014", "\ue012")  # left and right
    page.press(forth, forth)
    focused = page.driver.switch_to.active_element
    assert focused.get_attribute("data-index") == "2"
    assert page.run("return arguments[0].matches(':focus-visible')", focused)
    assert focused.value_of_css_property("outline-style") == "solid"
    close_to(page.weights(), expected[2])
    page.press(back)
    close_to(page.weights(), expected[1])
    page.press("\ue004", "\ue010")  # Tab, End
    close_to(page.weights("queries"), expected[:, -1])
    page.all("#kind input")[0].send_keys("\ue014")  # right
    assert page.words("queries") == list(attentions[0].source)
    assert page.driver.switch_to.active_element.get_attribute("value") == "encoder"


def test_hypotheses_and_sentences_can_be_chosen(
    page: Page, attentions: list[Attention], translator: Translator
) -> None:
    found = translator.search(SOURCES)
    texts = [label.get_attribute("textContent") for label in page.all("#hypotheses .text")]
    assert texts == [hypothesis.text for hypothesis in found[0]]
    page.choose("hypotheses", 1)
    assert page.words("queries") == list(attentions[1].target)
    close_to(page.weights(), attentions[1].weights("cross")[0])
    page.all("#sentence option")[1].click()
    assert page.all("#source-text")[0].get_attribute("textContent") == SOURCES[1]
    assert page.words("queries") == [*found[1][0].tokens, "</s>"]


def test_the_beam_tree_can_be_walked(page: Page, tree: SearchTree, attentions: list[Attention]) -> None:
    nodes = page.all("#tree .node[data-index]")
    assert len(nodes) == len(tree.candidates)
    for node, candidate in zip(nodes, tree.candidates, strict=True):
        assert candidate.fate in node.get_attribute("class").split()
    ends = tree.hypotheses()
    second = tree.candidates.index(ends[1])
    page.point_at(nodes[second])
    lit = [node.get_attribute("data-index") for node in page.all("#tree .node.on")]
    assert [tree.candidates[int(index)] for index in lit] == tree.path(ends[1])
    readout = page.all("#tree-readout")[0].text.replace("−", "-")
    log_p, gained, score = map(float, re.findall(r"(?:log P|token P|score) (-?[0-9.]+)", readout))
    assert (log_p, score) == (pytest.approx(ends[1].log_p, abs=1e-3), pytest.approx(ends[1].score, abs=1e-3))
    assert gained == pytest.approx(math.exp(ends[1].gained), abs=1e-3)
    assert readout.endswith("hypothesis 2")

    page.run("arguments[0].focus()", nodes[second])
    page.press("\ue012")  # left, to what it continues
    focused = page.driver.switch_to.active_element
    assert int(focused.get_attribute("data-index")) == ends[1].parent
    page.run("arguments[0].focus()", nodes[second])
    page.press("\ue007")  # Enter
    assert page.words("queries") == list(attentions[1].target)

    fates = [candidate.fate for candidate in tree.candidates]
    assert len(page.all("#tree .node.pruned")) == fates.count("pruned") > 0
    tall = page.all("#tree svg")[0].size["height"]
    page.all("#pruned")[0].click()
    assert page.all("#tree .node.pruned, #tree .edge.pruned") == []
    assert len(page.all("#tree .node.live")) == fates.count("live")
    assert page.all("#tree svg")[0].size["height"] < tall


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1000])
def test_it_fits_the_screen_and_the_light(page: Page, width: int, scheme: str) -> None:
    page.show(width, scheme)
    assert page.run("return document.documentElement.scrollWidth") <= width
    style = page.run(
        "const style = getComputedStyle(document.body); return [style.backgroundColor, style.color]"
    )
    paper, ink = map(brightness, style)
    assert (paper > 0.8 > 0.3 > ink) if scheme == "light" else (paper < 0.2 < 0.7 < ink)
    for button in page.all(".word, .segments label"):
        assert button.size["height"] >= 24  # WCAG 2.2, target size


@pytest.fixture(scope="module")
def subwords(tmp_path_factory: pytest.TempPathFactory) -> tuple[Translator, Path]:
    """A translator that cuts words into pieces, and the page of a sentence of 28 tokens."""
    words = ("größer", "schneller", "weiter", "rotes", "blaues")
    translator = small_translator(words=words, seed=3, tokenizer=("bpe", 300))
    translator.origin = "runs/<b>mine</b>, checkpoint best"
    path = tmp_path_factory.mktemp("subwords") / "page.html"
    path.write_text(explore(translator, [LONG], buckets=(64,)).html, encoding="utf-8")
    return translator, path


@pytest.mark.thorough
def test_subwords_are_joined_into_words(driver: Any, subwords: tuple[Translator, Path]) -> None:
    translator, path = subwords
    driver.get(path.as_uri())
    page = Page(driver)
    page.show(1000, "light")
    assert driver.title == "Attention explorer: runs/<b>mine</b>, checkpoint best, en to de"
    found = translator.search([LONG], buckets=(64,))[0]
    attention = attention_of(translator, LONG, found, buckets=(64,))[0]
    page.choose("kind", "encoder")
    page.choose("layer", 1)
    page.choose("head", 0)
    groups: list[list[int]] = []
    for index, piece in enumerate(attention.source):
        if piece.startswith("▁") or piece == "</s>":
            groups.append([])
        groups[-1].append(index)
    marks = {index: "·" for group in groups for index in group[1:]}
    labels = [marks.get(i, "") + (p.removeprefix("▁") or "␣") for i, p in enumerate(attention.source)]
    assert page.words("keys") == labels
    assert "·" in "".join(labels)
    page.all("#words")[0].click()
    assert page.words("queries") == [*LONG.split(), "</s>"]
    pieces = attention.weights("encoder", 1, 0)
    expected = [[pieces[rows][:, columns].sum(axis=1).mean() for columns in groups] for rows in groups]
    for index in range(len(groups)):
        page.point_at(page.all("#queries .word")[index])
        np.testing.assert_allclose(page.weights(), expected[index], atol=1e-3)


@pytest.mark.thorough
def test_bytes_are_joined_into_characters_and_cut_sources_are_named(
    driver: Any, subwords: tuple[Translator, Path], tmp_path: Path
) -> None:
    translator, _ = subwords
    (tmp_path / "page.html").write_text(explore(translator, ["😀 rot שלום", LONG]).html, encoding="utf-8")
    driver.get((tmp_path / "page.html").as_uri())
    page = Page(driver)
    page.choose("kind", "encoder")
    assert page.words("keys")[:2] == ["␣", "·😀"]  # four bytes in one box
    assert len(page.weights()) == len(page.words("keys"))
    page.all("#sentence option")[1].click()
    whole = len(translator.tokenizers[0].encode(LONG))
    assert page.all("#cut")[0].text.endswith(f"the last {whole - 7} tokens were left out.")
    assert page.all("#source-text")[0].get_attribute("textContent") == LONG
    rest = page.all("#source-text .rest")[0]
    read = translator.tokenizers[0].decode(translator.tokenizers[0].encode(LONG)[:7])
    assert read + rest.get_attribute("textContent") == LONG
    assert rest.value_of_css_property("color") != page.all("#source-text")[0].value_of_css_property("color")
    (tmp_path / "whole.html").write_text(
        explore(translator, ["😀 rot שלום"], buckets=(64,)).html, encoding="utf-8"
    )
    driver.get((tmp_path / "whole.html").as_uri())
    page.choose("kind", "encoder")
    page.all("#words")[0].click()
    assert page.words("keys") == ["😀", "rot", "שלום", "</s>"]
    assert not page.all("#cut")[0].is_displayed()


def test_every_head_has_a_small_map_that_chooses_it(page: Page, attentions: list[Attention]) -> None:
    page.choose("kind", "encoder")
    small = page.all("#grid button")
    layers, heads = attentions[0].encoder.shape[:2]
    assert len(small) == layers * heads
    page.run("arguments[0].scrollIntoView({block: 'center'})", small[-1])
    small[-1].click()
    assert small[-1].get_attribute("aria-pressed") == "true"
    page.point_at(page.all("#queries .word")[2])
    close_to(page.weights(), attentions[0].weights("encoder", layers - 1, heads - 1)[2])
    shades = page.run(
        "const c = arguments[0].querySelector('canvas');"
        "const image = c.getContext('2d').getImageData(0, 0, c.width, c.height);"
        "return [...image.data].filter((_, i) => i % 4 === 3)",  # the opacity of each pixel
        small[-1],
    )
    weights = attentions[0].weights("encoder", layers - 1, heads - 1)
    np.testing.assert_allclose(np.square(np.array(shades) / 255), weights.reshape(-1), atol=0.01)


@pytest.mark.parametrize("width", [390, 1280])
def test_a_map_of_28_tokens_and_the_end_of_the_tree_are_in_sight(
    driver: Any, subwords: tuple[Translator, Path], width: int
) -> None:
    _, path = subwords
    page = Page(driver)
    page.show(width, "light")
    driver.get(path.as_uri())
    page.choose("kind", "encoder")
    assert 28 <= len(page.words("keys")) < 36
    frame, drawn = page.all("#map")[0].rect, page.all("#map svg")[0].rect
    assert drawn["x"] + drawn["width"] <= frame["x"] + frame["width"]
    assert page.run("return document.querySelector('#map').scrollHeight") <= frame["height"] + 1
    boxes = (
        "return [...document.querySelectorAll('#map text')].map((t) => t.getBoundingClientRect().toJSON())"
    )
    for box in page.run(boxes):
        assert frame["x"] <= box["left"]
        assert box["right"] <= frame["x"] + frame["width"]
    (last,) = [node.rect for node in page.all("#tree .node.finished") if node.text.endswith("\n1")]
    frame = page.all("#tree")[0].rect
    assert frame["x"] <= last["x"]
    assert last["x"] + last["width"] <= frame["x"] + frame["width"]


def test_what_is_chosen_is_in_the_address(page: Page, attentions: list[Attention], page_file: Path) -> None:
    options = [option.get_attribute("textContent") for option in page.all("#sentence option")]
    assert [option.partition(".")[0] for option in options] == ["7", "120"]  # the lines of the input
    page.choose("hypotheses", 1)
    page.choose("layer", 0)
    page.choose("head", 1)
    page.all("#queries .word")[2].click()
    expected = attentions[1].weights("cross", 0, 1)[2]
    close_to(page.weights(), expected)
    address = page.run("return new Promise((done) => setTimeout(() => done(location.href)))")
    assert address.endswith("#line=7&output=2&kind=cross&layer=1&head=2&side=queries&token=3&words=0")
    page.driver.get("about:blank")
    page.driver.get(address)
    close_to(page.weights(), expected)
    page.run("location.hash = 'line=120&kind=encoder'")
    assert page.run("return new Promise((done) => setTimeout(() => done(state.kind)))") == "encoder"
    assert page.all("#source-text")[0].get_attribute("textContent") == SOURCES[1]
    strange = "line=x&output=-1&kind=__proto__&layer=1e9&head=NaN&side=toString&token=99999&words=<b>"
    page.driver.get("about:blank")
    page.driver.get(f"{page_file.as_uri()}#{strange}")
    assert page.words("queries") == list(attentions[0].target)


def test_maps_and_trees_are_saved_as_pictures(page: Page, tree: SearchTree, tmp_path: Path) -> None:
    """With the colours that they have on the page, as programs without its styles read them."""
    folder = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", folder)
    for name in ("attention", "search"):
        page.run("arguments[0].click()", page.all(f"button[data-name={name}]")[0])
        path = tmp_path / f"{name}.svg"
        for _ in range(200):
            if path.exists():
                break
            page.run("return new Promise((done) => setTimeout(done, 50))")
        drawn = ElementTree.parse(path).getroot()
        assert drawn.attrib["viewBox"].split()[2:] == [drawn.attrib["width"], drawn.attrib["height"]]
        elements = list(drawn.iter())
        assert not any({"class", "style"} & set(element.attrib) for element in elements)
        fills = {element.get("fill", "") for element in elements}
        assert len(fills) > 3
        assert not any("color" in fill for fill in fills)
    assert len([element for element in elements if element.tag.endswith("text")]) > len(tree.candidates)


def test_it_can_be_printed(page: Page) -> None:
    """Dark text on white, also of a dark page, with its shades and the whole tree."""
    page.show(700, "dark")
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    try:
        style = "const style = getComputedStyle(arguments[0]); return [style.color, style.backgroundColor]"
        ink, paper = map(brightness, page.run(style, page.all("body")[0]))
        assert ink < 0.3
        assert paper == 1
        assert page.all(".word")[0].value_of_css_property("print-color-adjust") == "exact"
        frame, drawn = page.all("#tree")[0], page.all("#tree svg")[0]
        assert frame.value_of_css_property("overflow") == "visible"
        assert drawn.size["width"] <= 700
        assert not page.all(".save")[0].is_displayed()
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})


def contrast(one: list[float], other: list[float]) -> float:
    """Of two colours, with parts up to 255 (WCAG 2.2)."""

    def luminance(colour: list[float]) -> float:
        shares = [part / 255 for part in colour]
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_can_be_read_on_every_shade(page: Page, scheme: str) -> None:
    page.show(1000, scheme)
    colours = page.run(
        "const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });"
        "const parts = (colour) => { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);"
        "  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3); };"
        "const word = document.querySelector('#keys .word');"
        "return Array.from({ length: 101 }, (_, amount) => { shade(word, (amount / 100) ** 2);"
        "  const style = getComputedStyle(word); return [style.color, style.backgroundColor].map(parts); })"
    )
    assert min(contrast(*pair) for pair in colours) >= 4.5
    assert len({tuple(ink) for ink, _ in colours}) > 1


def test_a_notebook_shows_it_in_a_frame(
    driver: Any, translator: Translator, attentions: list[Attention], tmp_path: Path
) -> None:
    (tmp_path / "notebook.html").write_text(
        f"<!doctype html><meta charset='utf-8'>{explore(translator, SOURCES)._repr_html_()}", encoding="utf-8"
    )
    driver.get((tmp_path / "notebook.html").as_uri())
    driver.switch_to.frame(0)
    page = Page(driver)
    assert page.words("queries") == list(attentions[0].target)
    close_to(page.weights(), attentions[0].weights("cross")[0])


@pytest.mark.parametrize("name", PAGES)
def test_what_a_page_does_not_contain_by_itself_is_not_run(driver: Any, tmp_path: Path, name: str) -> None:
    """Were escaping to fail, the policy would still refuse."""
    injected = f"<script>{BREAK}</script><img src=x onerror={BREAK}>"
    painted = "<p style='color:rgb(1, 2, 3)' id=painted>x</p>"
    path = tmp_path / "page.html"
    path.write_text(PAGES[name].replace("<main>", f"<main>{injected}{painted}"), encoding="utf-8")
    driver.get(path.as_uri())
    assert driver.title != "broken"
    assert "1, 2, 3" not in driver.find_element("id", "painted").value_of_css_property("color")
    refused = [each["message"] for each in driver.get_log("browser")]
    assert sum("Content Security Policy" in message for message in refused) >= 3
