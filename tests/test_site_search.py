"""The site in a real browser: options are found as they are written, and it looks as the system says."""

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from test_explorer import BROWSER, DRIVER, driver, webdriver  # noqa: F401

pytest.importorskip("mkdocs", reason="pip install '.[docs]'")
WebDriverWait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not BROWSER or not DRIVER,
        reason="needs Chromium and its driver: apt-get install chromium chromium-driver",
    ),
]
ROOT = Path(__file__).parent.parent
PAGES = ("options.md", "steering.md", "coming-from.md", "search.js", "site.css")
CONFIG = f"""
INHERIT: {ROOT}/mkdocs.yml
docs_dir: docs
hooks: [{ROOT}/mkdocs_hooks.py]
plugins: [search]
nav: [options.md, steering.md, coming-from.md]
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A site of a few pages."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "docs").mkdir()
    for name in PAGES:
        shutil.copy(ROOT / "docs" / name, folder / "docs" / name)
    (folder / "mkdocs.yml").write_text(CONFIG)
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", "built"]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    handler = functools.partial(Quiet, directory=folder / "built")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("typed", "anchor"),
    [
        ("--beam-size", "decoding.beam-size"),
        ("--data.max-length", "data.max-length"),
        ("--model.d-model=512", "model.d-model"),
        ("data.max-length", "data.max-length"),
    ],
)
def test_the_first_result_is_the_row_of_the_option(address, driver, typed, anchor):  # noqa: F811
    driver.get(f"{address}/steering/?q={typed}")
    wait = WebDriverWait(driver, 60)
    first = wait.until(
        lambda driver: driver.find_elements("css selector", ".md-search-result__item:first-child h2")
    )[0]
    link = first.find_element("xpath", "ancestor::a").get_attribute("href")
    assert re.search(r"/options/[^#]*#(.*)", link)[1] == anchor
    driver.get(link)
    assert driver.execute_script("return document.querySelector(':target').tagName") == "TR"


def test_options_are_not_broken_and_the_scheme_is_that_of_the_system(address, driver):  # noqa: F811
    """Also at a second visit, on a phone."""
    driver.set_window_size(390, 844)
    for scheme, name in (("dark", "slate"), ("light", "default")):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        driver.get(f"{address}/options/")
        css = f"body[data-md-color-scheme={name}]"
        WebDriverWait(driver, 60).until(lambda driver, css=css: driver.find_elements("css selector", css))
    options = "[...document.querySelectorAll('p > code > span, td > code > span')]"
    assert driver.execute_script(f"return {options}.length") > 50
    assert driver.execute_script(f"return {options}.filter(each => each.getClientRects().length > 1)") == []
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    driver.set_window_size(1280, 900)
