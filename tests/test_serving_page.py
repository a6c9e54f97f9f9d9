"""The form of a server in a real browser: the output and what its tokens attend to; text stays text."""

import pytest
from served import translations
from test_explorer import BROWSER, DRIVER, HOSTILE, driver  # noqa: F401
from test_serving_clients import running

WebDriverWait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
pytestmark = pytest.mark.skipif(
    not BROWSER or not DRIVER,
    reason="needs Chromium and its driver: apt-get install chromium chromium-driver",
)


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
