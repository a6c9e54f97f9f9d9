"""The page of pictures in a real browser: what is pointed at lights up, and text stays text."""

from base64 import b64encode

import numpy as np
import pytest
from test_explorer import BROWSER, DRIVER, HOSTILE, driver, webdriver  # noqa: F401

from transformer.explorer.explorer import PICTURE_FILES, UNIT
from transformer.explorer.page_files import page_of
from transformer.runs.exhibits import png_of

pytestmark = pytest.mark.skipif(
    not BROWSER or not DRIVER,
    reason="needs Chromium and its driver: apt-get install chromium chromium-driver",
)
PNG = b64encode(png_of(np.ones((8, 8, 3)))).decode()


def record(title, parts, reference=""):
    outputs = [{"text": HOSTILE[0], "parts": parts}] * 2
    return {
        "title": title,
        "png": PNG,
        "width": 80,
        "height": 40,
        "reference": reference,
        "outputs": outputs,
    }


def opened(driver, tmp_path, threshold, *records):  # noqa: F811
    data = {"unit": UNIT, "origin": HOSTILE[1], "threshold": threshold, "records": records}
    page = tmp_path / "page.html"
    page.write_text(page_of(data, PICTURE_FILES), encoding="utf-8")
    driver.get(page.as_uri())
    assert driver.title == f"Picture explorer: {HOSTILE[1]}"


def alphas(driver):  # noqa: F811
    return driver.execute_script(
        "return [...at('cover').getContext('2d').getImageData(0, 0, 2, 2).data].filter((_, i) => i % 4 == 3)"
    )


def test_a_word_lights_its_patches_and_a_patch_its_words(driver, tmp_path):  # noqa: F811
    weights = ((0.9, 0.1, 0, 0), (0, 0, 1, 0), (0.25, 0.25, 0.25, 0.25))
    parts = [
        {"text": text, "patches": [round(UNIT * weight) for weight in row]}
        for text, row in zip(HOSTILE, weights, strict=False)
    ]
    opened(driver, tmp_path, None, record(HOSTILE[0], parts, HOSTILE[2]), record(HOSTILE[3], parts[:1]))
    buttons = driver.find_elements("css selector", "#parts button")
    assert [each.text for each in buttons] == HOSTILE[:3]
    assert driver.find_element("id", "reference").text == f"Reference: {HOSTILE[2]}"
    assert not driver.find_element("id", "threshold-field").is_displayed()
    driver.execute_script("show(1)")
    assert alphas(driver) == [200, 200, 0, 200]
    driver.execute_script("showPatch(0)")
    readout = driver.find_element("id", "readout")
    assert readout.text == f"{HOSTILE[0]} (0.90)"
    shades = driver.execute_script("return buttons.map((each) => each.style.getPropertyValue('--shade'))")
    np.testing.assert_allclose([float(shade) for shade in shades], [0.6 * 0.9**0.5, 0, 0.3])
    driver.execute_script("arguments[0].focus()", buttons[0])
    assert readout.text == HOSTILE[0]
    driver.execute_script("clear()")
    assert readout.text == ""
    assert not [each for each in driver.get_log("browser") if each["level"] == "SEVERE"]


def test_a_box_lies_where_its_object_is(driver, tmp_path):  # noqa: F811
    parts = [
        {"text": text, "patches": [], "box": box, "probability": probability}
        for text, box, probability in (
            (HOSTILE[0], [0.25, 0.5, 0.5, 0.25], 0.9),
            ("low", [0, 0, 1, 1], 0.2),
        )
    ]
    opened(driver, tmp_path, 0.5, record("one", parts), record("none", []))
    (button,) = driver.find_elements("css selector", "#parts button")
    assert button.text.split() == [*HOSTILE[0].split(), "0.90"]
    frame = driver.find_element("id", "picture").rect
    assert frame["width"] / frame["height"] == pytest.approx(2, abs=0.02)
    (box,) = driver.find_elements("css selector", ".box")
    expected = [0.25 * frame["width"], 0.5 * frame["height"], 0.5 * frame["width"], 0.25 * frame["height"]]
    found = [box.rect["x"] - frame["x"], box.rect["y"] - frame["y"], box.rect["width"], box.rect["height"]]
    np.testing.assert_allclose(found, expected, atol=1.5)
    driver.execute_script("show(0)")
    place = "left 20.0, top 20.0, width 40.0, height 10.0 pixels"
    assert driver.find_element("id", "readout").text == f"{HOSTILE[0]}: probability 0.90, {place}"
    script = "const it = at('threshold'); it.value = 0.1; it.dispatchEvent(new Event('input'))"
    driver.execute_script(script)
    assert len(driver.find_elements("css selector", ".box")) == 2
    assert driver.find_element("id", "threshold-value").text == "0.10"
    driver.execute_script("at('record').value = 1; at('record').dispatchEvent(new Event('change'))")
    assert driver.find_element("id", "parts").text == "Nothing was found."
    assert not [each for each in driver.get_log("browser") if each["level"] == "SEVERE"]
