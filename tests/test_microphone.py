"""The page of a server in a real browser, whose microphone hears a file."""

import pytest
from test_explorer import BROWSER, DRIVER, QUIET
from test_listening import run, service  # noqa: F401
from test_live import WORDS, sound_of
from test_serving_clients import running

webdriver = pytest.importorskip("selenium.webdriver")
WebDriverWait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
soundfile = pytest.importorskip("soundfile", reason="needs soundfile: pip install '.[speech]'")
pytestmark = pytest.mark.skipif(
    not BROWSER or not DRIVER,
    reason="needs Chromium and its driver: apt-get install chromium chromium-driver",
)


@pytest.fixture
def hearing(tmp_path):
    """A browser whose microphone plays words again and again, at 44,100 samples a second."""
    soundfile.write(tmp_path / "words.wav", sound_of(WORDS), 16_000, "PCM_16")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in (
        *QUIET.split(),
        f"--user-data-dir={tmp_path / 'profile'}",
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={tmp_path / 'words.wav'}",
    ):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.mark.thorough
def test_words_appear_while_the_microphone_hears_them(hearing, service):  # noqa: F811
    wait = WebDriverWait(hearing, 60)
    with running(service) as address:
        hearing.get(address)
        button = hearing.find_element("id", "listen")
        button.click()
        wait.until(lambda driver: len(driver.find_element("id", "output").text.split()) >= 4)
        assert button.get_attribute("aria-pressed") == "true"
        button.click()
        wait.until(lambda driver: button.text == "Listen to the microphone")
        words = hearing.find_element("id", "output").text.split()
        assert set(words) <= {"short", "middle", "long"}
        assert not [each for each in hearing.get_log("browser") if each["level"] == "SEVERE"]
