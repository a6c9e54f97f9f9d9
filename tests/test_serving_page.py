"""The form of a server in a real browser: what happens is said, lines stay lines, text stays text."""

import json
import threading
from concurrent.futures import Future

import httpx
import pytest
from served import translations
from test_explorer import BROWSER, DRIVER, HOSTILE, driver, webdriver  # noqa: F401
from test_serving_clients import running
from test_serving_systems import one_run, picture, recording, served

from transformer.explorer import explore
from transformer.serve.services.limits import ALLOWED, Limits
from transformer.translator.confidence import Confidence

WebDriverWait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not BROWSER or not DRIVER,
        reason="needs Chromium and its driver: apt-get install chromium chromium-driver",
    ),
]
SILENT = "The server does not answer."


class Form:
    """The form as someone uses it."""

    def __init__(self, driver, address):  # noqa: F811
        self.driver = driver
        driver.get(address)

    def at(self, name):
        return self.driver.find_element("id", name)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def run(self, script):
        return self.driver.execute_script(script)

    def until(self, condition):
        WebDriverWait(self.driver, 60).until(lambda _: condition())

    def send(self, text):
        """Sends a text as soon as the server is ready."""
        self.at("text").clear()
        self.at("text").send_keys(text)
        self.until(self.at("send").is_enabled)
        self.at("send").click()

    def translate(self, text):
        """What is shown for a text at the end, line by line."""
        self.send(text)
        self.until(lambda: self.at("status").text.startswith("Done in"))
        assert self.at("error").text == ""
        return self.lines()

    def lines(self):
        return [line.get_attribute("textContent") for line in self.all("#output p")]

    def words(self, side):
        return [word.get_attribute("textContent") for word in self.all(f"#{side} .piece")]


def test_the_whole_input_is_shown_and_printed(driver):  # noqa: F811
    with running(translations()) as address:
        form = Form(driver, address)
        form.at("text").send_keys("red\nblue\n")
        assert form.at("count").text == "2 lines, the longest 4 of 5,000 characters"
        hidden = "return text.scrollHeight - text.clientHeight"
        form.run(r"text.value = 'red\n'.repeat(8)")
        assert form.run(hidden) <= 0
        form.run(r"text.value = 'red\n'.repeat(90)")
        assert form.run(hidden) > 0
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        assert form.run(hidden) <= 0
        assert not form.at("send").is_displayed()
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_a_text_is_translated_in_the_form(driver):  # noqa: F811
    service = translations()
    with running(service) as address:
        form = Form(driver, address)
        assert not form.at("token-field").is_displayed()
        assert not form.at("swap").is_displayed()
        assert form.at("send").text == "Translate"
        for text in "red green blue", " ".join(HOSTILE[:3]):
            (expected,) = service.decoder.search([text], n_best=1)
            assert form.translate(text) == [expected[0].text]
            assert form.words("queries") == [*expected[0].tokens, "</s>"]
            assert form.words("keys") == [*service.decoder.source_tokens(text), "</s>"]
            assert not form.at("attention").is_displayed()  # until it is unfolded
            assert f"{expected[0].log_probability:.2f}" in form.at("score").get_attribute(
                "textContent"
            ).replace("−", "-")
        form.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }; typed('cat')")
        form.at("text").send_keys("\ue009", "\ue007")  # Ctrl Enter
        form.until(lambda: form.lines() == [service.decoder.translate("cat")])
        form.until(form.at("copy").is_enabled)
        form.at("copy").click()
        form.until(lambda: form.at("status").text == "Copied.")
        assert form.run("return copied") == service.decoder.translate("cat")
        for side in "queries", "keys":
            assert form.run(f"return at('{side}').querySelectorAll('[tabindex=\"0\"]').length") == 1
        assert not [each for each in driver.get_log("browser") if each["level"] == "SEVERE"]
        form.run("typed('x'.repeat(6000))")
        form.at("send").click()
        form.until(lambda: form.at("error").text.startswith("6,000 characters"))
        assert form.at("error").get_attribute("role") == "alert"
        assert form.at("count").text == "6,000 of 5,000 characters"
        form.at("clear").click()
        assert (form.at("text").get_attribute("value"), form.at("error").text) == ("", "")


def test_each_line_has_its_output_and_alternatives(driver):  # noqa: F811
    service = translations(limits=Limits(texts=2))
    text = "red green\n\nblue dog\ncat"
    expected = service.decoder.search(["red green", "blue dog", "cat"], n_best=2)
    with running(service, limits=service.limits) as address:
        form = Form(driver, address)
        form.run("at('options').open = true")
        form.at("n-best").send_keys("2")
        best = [several[0].text for several in expected]
        assert form.translate(text) == [best[0], "", *best[1:]]
        assert form.at("count").text == "4 lines, the longest 9 of 5,000 characters"
        assert [option.text for option in form.all("#line option")] == ["1", "3", "4"]
        form.at("line").send_keys("3")
        texts = [label.get_attribute("textContent") for label in form.all("#alternatives .text")]
        assert texts == [output.text or "(empty)" for output in expected[1]]
        form.all("#alternatives input")[1].click()
        assert form.lines() == [best[0], "", expected[1][1].text, best[2]]
        assert form.words("queries") == [*expected[1][1].tokens, "</s>"]


def test_it_says_when_there_is_nothing_to_send_or_no_answer(driver):  # noqa: F811
    with running(translations()) as address:
        form = Form(driver, address)
        form.run(
            "window.addresses = []; window.real = fetch; fetch = (...a) => (addresses.push(a[0]), real(...a))"
        )
        form.send("  ")
        assert form.at("status").text == "Write a text first."
        assert "/translate" not in form.run("return addresses")
        form.run("fetch = async () => new Response('<h1>Bad Gateway</h1>', { status: 502 })")
        form.send("red")
        form.until(lambda: "no JSON (status 502)" in form.at("error").text)
        form.run("fetch = async () => new Response('<h1>Welcome</h1>')")
        form.send("red")
        form.until(lambda: "no JSON (status 200)" in form.at("error").text)
        form.run(
            'fetch = async () => new Response(\'event: partial\\ndata: {"index": 0, "text": "a"}\\n\\n\')'
        )
        form.send("red")
        form.until(lambda: form.at("error").text.startswith("The answer ended early"))
        form.run("fetch = real")
    form.send("red")
    form.until(lambda: form.at("error").text == SILENT)
    form.until(lambda: not form.at("send").is_enabled())


def test_a_request_that_runs_can_be_stopped(driver, monkeypatch):  # noqa: F811
    service = translations()
    never = Future()
    monkeypatch.setattr(service, "submit", lambda *arguments: never)
    with running(service) as address:
        form = Form(driver, address)
        assert not form.at("stop").is_displayed()
        form.send("red green")
        form.until(form.at("stop").is_displayed)
        assert form.at("status").text == "Working ..."
        form.run(
            "window.real = fetch; fetch = (a, { signal }) => new Promise((_, no) => signal.onabort = no)"
        )
        form.until(lambda: form.at("error").text == SILENT)  # as of a process that was stopped
        form.run("fetch = real")
        form.until(lambda: form.at("error").text == "")
        form.at("stop").click()
        assert form.at("status").text == "Stopped."
        assert not form.at("stop").is_displayed()
        form.until(never.cancelled)
        later = Future()
        monkeypatch.setattr(service, "submit", lambda *arguments: later)
        form.send("red green")
        form.run("fail(SILENT)")
        later.set_result(service.decoder.search(["red green"], n_best=1)[0])
        form.until(lambda: form.at("status").text.startswith("Done in"))
        assert form.at("error").text == ""  # it answers again


def test_what_the_server_prepares_is_said(driver):  # noqa: F811
    prepared = threading.Event()
    with running(translations(), translations("other"), prepare=lambda: prepared.wait(60)) as address:
        form = Form(driver, address)
        form.until(lambda: form.at("status").text)
        assert form.at("status").text == "The models are being prepared: 0 of 2 programs."
        assert not form.at("send").is_enabled()
        prepared.set()
        form.until(form.at("send").is_enabled)
        assert form.at("status").text == "Ready."


def test_models_are_chosen_by_their_languages(driver):  # noqa: F811
    forth, back, other = (translations(name) for name in ("forth", "back", "other"))
    forth.languages, back.languages, other.languages = ("en", "ar"), ("ar", "en"), ("en", "de")
    with running(forth, back, other) as address:
        form = Form(driver, address)
        names = [option.text for option in form.all("#model option")]
        assert names == ["English → Arabic (forth)", "Arabic → English (back)", "English → German (other)"]
        (output,) = form.translate("red green")
        assert (form.at("input-title").text, form.at("output-title").text) == ("English", "Arabic")
        form.at("swap").click()
        assert form.at("model").get_attribute("value") == names[1]
        assert (form.at("text").get_attribute("value"), form.lines()) == (output, [])
        assert form.at("input-title").text == "Arabic"
        assert form.at("text").get_attribute("lang") == "ar"
        form.translate("red")
        form.at("model").send_keys("English → G")
        assert form.lines() == []
        assert not form.at("more").is_displayed()
        assert not form.at("swap").is_displayed()


def test_a_model_of_many_languages_has_a_choice_of_both(driver):  # noqa: F811
    with running(translations()) as address:
        form = Form(driver, address)
        form.run("models[0].languages = ['deu_Latn', 'fra_Latn', 'eng_Latn', 'x_y']; showModel()")
        names = [option.text for option in form.all("#from option")]
        assert [name.partition(" ")[0] for name in names] == ["English", "French", "German", "x_y"]
        form.at("to").send_keys("German")
        form.run("typed('red')")
        form.at("swap").click()
        body = json.loads(form.run("return sent(['red'], { numbers: [0], terms: [] })[1].body"))
        assert (body["source_language"], body["target_language"]) == ("deu_Latn", "eng_Latn")
        assert body["text"] == ["red"]


def test_terms_of_the_glossary_go_with_the_lines_that_have_them(driver):  # noqa: F811
    service = translations(allowed=(*ALLOWED, "terms"))
    with running(service) as address:
        form = Form(driver, address)
        form.run("at('options').open = true")
        form.at("glossary").send_keys("red = blue\nbig red=cat\n\n")
        terms = form.run("return ['Big red red', 'redder', 'a red.'].map(termsOf)")
        assert terms == [["cat", "blue"], [], ["blue"]]
        requests = form.run(
            "return requestsOf(['red', 'Red', 'dog', '', 'red']).map(({ numbers }) => numbers)"
        )
        assert requests == [[0, 1], [2], [4]]
        assert "blue" in form.translate("red green")[0].split()


def test_other_systems_have_a_form_too(driver, tmp_path):  # noqa: F811
    """What is shown is what their endpoints answer."""
    runs = {
        name: one_run(name, tmp_path)
        for name in ("speech", "language-model", "tagging", "captioning", "detection")
    }
    files = {"speech": recording(), "captioning": picture(), "detection": picture()}
    for name, content in files.items():
        (tmp_path / f"{name}.file").write_bytes(content)
    with running(*(served(path, name) for name, path in runs.items())) as address:
        form = Form(driver, address)
        verbs = []
        for name in runs:
            form.at("model").send_keys(name)
            verbs.append(form.at("send").text)
            assert form.at("listen").is_displayed() == (name == "speech")
            if name in files:
                assert not form.at("text").is_displayed()
                form.at("recording").send_keys(str(tmp_path / f"{name}.file"))
                form.at("send").click()
                form.until(lambda: form.at("status").text.startswith("Done in"))
                shown = "\n".join(form.lines())
            else:
                text = "7 and 49, \n7 and " if name == "language-model" else "A dog\nThe old cat runs ."
                shown = "\n".join(form.translate(text))
            path = form.run("return endpoint()")
            if name in files:
                answer = httpx.post(f"{address}{path}?model={name}", content=files[name], timeout=60)
            else:
                texts = [text] if name == "language-model" else text.split("\n")
                answer = httpx.post(f"{address}{path}", json={"model": name, "text": texts}, timeout=60)
            outputs = answer.json()["outputs"]
            if name == "detection":
                assert shown.count("\n") + (shown != "nothing") == len(outputs[0]["objects"])
            elif name == "tagging":
                pairs = [zip(one["words"], one["labels"], strict=True) for one in outputs]
                assert shown == "\n".join(" ".join(map("/".join, pair)) for pair in pairs)
            else:
                assert shown == outputs[0]["hypotheses"][0]["text"]
        assert verbs == ["Transcribe", "Continue", "Label", "Describe", "Detect"]


def test_tokens_run_from_right_to_left_where_the_text_does(driver):  # noqa: F811
    with running(translations()) as address:
        form = Form(driver, address)
        form.run(
            """
            clearOutputs(1);
            const alignment = [[0.2, 0.3, 0.4, 0.1, 0, 0], [0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0]];
            const tokens = ['▁שלום', 'אב'], sources = ['▁a', '<0xE6>', '<0x97>', '<0xA5>', '<0xE6>'];
            const best = { text: 'שלוםאב', tokens, alignment, score: -1, log_probability: -2 };
            finish(0, { hypotheses: [best], source_tokens: sources });
            at('details').open = true;
            """
        )
        assert (form.words("queries"), form.words("keys")) == (
            ["שלום", "·אב", "</s>"],
            ["a", "·日", "·<0xE6>", "</s>"],
        )
        assert [form.at(side).get_attribute("dir") for side in ("queries", "keys")] == ["rtl", "ltr"]
        numbers = [number.text for number in form.all("#keys .number")]
        assert numbers == ["0.20", "0.80", "0.00", "0.00"]
        form.run("buttons.queries[0].focus()")
        webdriver.ActionChains(driver).send_keys("\ue012").perform()  # left, where the next one is
        assert driver.switch_to.active_element.get_attribute("data-index") == "1"


def test_words_that_are_probably_wrong_are_marked(driver):  # noqa: F811
    service = translations()
    service.decoder.confidence = Confidence((0.0,) * 6, (1.0,) * 6, (4.0, 0.0, 0.0, 0.0, 0.0, 0.0), -1.0)
    text = "red green blue"
    (expected,) = service.decoder.search([text], n_best=1, word_confidences=True)
    words = expected[0].word_confidences
    with running(service) as address:
        form = Form(driver, address)
        assert form.translate(text) == [expected[0].text]
        spans = form.all("#output span")
        assert [span.text for span in spans] == [word.word for word in words]
        for span, word in zip(spans, words, strict=True):
            mark = "unlikely" if word.confidence < 0.4 else "doubtful" if word.confidence < 0.7 else ""
            assert span.get_attribute("class") == mark
            assert span.get_attribute("title") == f"right with probability {word.confidence:.2f}"
            wavy = driver.execute_script("return getComputedStyle(arguments[0]).textDecorationStyle", span)
            assert (wavy == "wavy") == bool(mark)


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
