"""The page of sounds in a real browser: what is pointed at lights up, and text stays text."""

from base64 import b64encode

import numpy as np
import pytest
from test_explorer import BROWSER, DRIVER, HOSTILE, driver, webdriver  # noqa: F401

from transformer.explorer.explorer import SOUND_FILES, UNIT
from transformer.explorer.page_files import page_of
from transformer.runs.exhibits import png_of, wav_of

pytestmark = pytest.mark.skipif(
    not BROWSER or not DRIVER,
    reason="needs Chromium and its driver: apt-get install chromium chromium-driver",
)
TOKENS = HOSTILE[:3]


def output(positions):
    """Each token has the most attention at the position of its number."""
    weights = (np.eye(3, positions) * 0.9 * UNIT).astype(int)
    png = b64encode(png_of(np.ones((4, 4 * positions)))).decode() if positions else ""
    wav = b64encode(wav_of(np.zeros(160 * 4 * positions))).decode()
    spans = [[0, 1], [1, 2], [2, positions]] if positions else []
    about = {"text": HOSTILE[0], "tokens": TOKENS, "spans": spans, "seconds": positions * 0.04}
    return {**about, "attention": weights.tolist(), "wav": wav, "png": png}


def test_a_token_lights_up_its_part_and_a_moment_its_tokens(driver, tmp_path):  # noqa: F811
    records = [{"title": title, "outputs": [output(10), output(0)]} for title in HOSTILE[:2]]
    data = {"unit": UNIT, "origin": HOSTILE[1], "stride": 0.04, "records": records}
    page = tmp_path / "page.html"
    page.write_text(page_of(data, SOUND_FILES), encoding="utf-8")
    driver.get(page.as_uri())
    assert driver.title == f"Sound explorer: {HOSTILE[1]}"
    buttons = driver.find_elements("css selector", "#tracks button")
    assert [each.text for each in buttons] == TOKENS
    driver.execute_script("arguments[0].focus()", buttons[1])
    readout = driver.find_element("id", "readout")
    assert readout.text == f"{TOKENS[1]}: 0.04 s to 0.08 s, most attention at 0.04 s"
    cover = (
        "return [...at('cover').getContext('2d').getImageData(0, 0, 40, 1).data].filter((_, i) => i % 4 == 3)"
    )
    dimmed = driver.execute_script(cover)
    assert [place for place, alpha in enumerate(dimmed) if not alpha] == [4, 5, 6, 7]
    driver.execute_script("showMoment(2)")
    assert readout.text == f"0.08 s: {TOKENS[2]} (0.90)"
    driver.find_elements("css selector", "#outputs input")[1].click()  # it has no sound
    driver.execute_script("show(0)")
    assert readout.text == f"{TOKENS[0]}: no sound"
    assert not [each for each in driver.get_log("browser") if each["level"] == "SEVERE"]
