"""The form of a server in a real browser: the output and what its tokens attend to; text stays text."""

import pytest
from served import translations
from test_explorer import BROWSER, DRIVER, HOSTILE, driver  # noqa: F401
from test_serving_clients import running

from transformer.explorer import explore
from transformer.translator.confidence import Confidence

WebDriverWait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
pytestmark = pytest.mark.skipif(
    not BROWSER or not DRIVER,
    reason="needs Chromium and its driver: apt-get install chromium chromium-driver",
)


@pytest.mark.slow
def test_a_text_is_translated_in_the_form(driver):  # noqa: F811
    service = translations()
    with running(service) as address:
        driver.get(address)
        for text in "red green blue", " ".join(HOSTILE[:3]):
            area = driver.find_element("id", "text")
            area.clear()
            area.send_keys(text)
            driver.find_element("id", "send").click()
            (expected,) = service.decoder.search([text], n_best=1)
            wait = WebDriverWait(driver, 60)
            wait.until(lambda driver: driver.find_element("id", "note").text)
            wait.until(lambda driver: driver.find_elements("css selector", "#sources .word"))
            assert driver.find_element("id", "output").text == expected[0].text
            shown = [each.text for each in driver.find_elements("css selector", "#targets .piece")]
            assert shown == [*expected[0].tokens, "</s>"]
            sources = driver.find_elements("css selector", "#sources .piece")
            assert [each.text for each in sources] == [*service.decoder.source_tokens(text), "</s>"]
        assert not [each for each in driver.get_log("browser") if each["level"] == "SEVERE"]
        driver.find_element("id", "text").clear()
        driver.find_element("id", "text").send_keys("x" * 6_000)
        driver.find_element("id", "send").click()
        wait.until(lambda driver: "6,000 characters" in driver.find_element("id", "note").text)


@pytest.mark.slow
def test_words_that_are_probably_wrong_are_marked(driver):  # noqa: F811
    service = translations()
    service.decoder.confidence = Confidence((0.0,) * 6, (1.0,) * 6, (4.0, 0.0, 0.0, 0.0, 0.0, 0.0), -1.0)
    text = "red green blue"
    (expected,) = service.decoder.search([text], n_best=1, word_confidences=True)
    words = expected[0].word_confidences
    with running(service) as address:
        driver.get(address)
        driver.find_element("id", "text").send_keys(text)
        driver.find_element("id", "send").click()
        wait = WebDriverWait(driver, 60)
        wait.until(lambda driver: driver.find_elements("css selector", "#output span"))
        spans = driver.find_elements("css selector", "#output span")
        assert driver.find_element("id", "output").text == expected[0].text
        assert [span.text for span in spans] == [word.word for word in words]
        for span, word in zip(spans, words, strict=True):
            mark = "unlikely" if word.confidence < 0.4 else "doubtful" if word.confidence < 0.7 else ""
            assert span.get_attribute("class") == mark
            assert span.get_attribute("title") == f"right with probability {word.confidence:.2f}"
            wavy = driver.execute_script("return getComputedStyle(arguments[0]).textDecorationStyle", span)
            assert (wavy == "wavy") == bool(mark)


@pytest.mark.slow
def test_the_explorer_marks_the_same_words(driver, tmp_path):  # noqa: F811
    translator = translations().decoder
    translator.confidence = Confidence((0.0,) * 6, (1.0,) * 6, (0.0,) * 6, -1.0)
    (tmp_path / "page.html").write_text(explore(translator, ["red green"], n_best=1).html, encoding="utf-8")
    driver.get((tmp_path / "page.html").as_uri())
    spans = driver.find_elements("css selector", "#hypotheses .text span")
    (expected,) = translator.search(["red green"], n_best=1, word_confidences=True)
    assert [span.text for span in spans] == [word.word for word in expected[0].word_confidences]
    assert {span.get_attribute("class") for span in spans} == {"unlikely"}
    assert driver.find_element("id", "confidence-note").is_displayed()
    assert driver.find_element("css selector", "#hypotheses .text").text == expected[0].text
