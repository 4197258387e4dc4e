"""Fixtures of browser tests; where no browser is, those that need one are not run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.selection import leave_out
from tests.web.support import found
from tests.web.support.browser import Browser
from tests.web.support.page import Page
from tests.web.support.server import WebServer
from tests.web.support.site import new_server, urls
from tests.web.support.software_gpu import SoftwareGpu


def need(reason: str) -> None:
    """Skips the test for this reason, or fails it where a browser is required; an empty reason does neither."""
    if reason and os.environ.get("EMBEDLLM_REQUIRE_BROWSER") == "1":
        pytest.fail(f"{reason} (EMBEDLLM_REQUIRE_BROWSER is 1)", pytrace=False)
    if reason:
        pytest.skip(reason)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("EMBEDLLM_REQUIRE_BROWSER") != "1" and found.missing():
        leave_out(config, items, lambda item: item.get_closest_marker("browser") is not None)


@pytest.fixture(scope="session")
def node() -> str:
    """Node.js, for tests that run JavaScript without a browser."""
    path = found.node()
    need("" if path else "Node.js is not here; install Node.js 20 or newer")
    return str(path)


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The folder of the npm packages."""
    path = found.node_modules()
    need("" if path else "the npm packages are not here; install them with: cd bindings_web && npm ci")
    assert path is not None
    return path


@pytest.fixture(scope="session")
def whole_chromium() -> str:
    """The path of a Chromium that has windows and extensions, which its headless shell has not."""
    path = found.chromium()
    need("" if path else "Chromium is not here; install it with: .ci/browser.sh")
    return str(path)


@pytest.fixture(scope="session")
def started_browser(shared_folder: Path) -> Iterator[Browser]:
    """One Chromium for all tests of a process; take `browser`."""
    need(found.missing())
    with Browser(shared_folder) as browser:
        yield browser


@pytest.fixture
def browser(started_browser: Browser) -> Iterator[Browser]:
    """A Chromium. The test fails for requests that leave the machine, uncaught errors of pages and crashes.

    Its contexts are closed after the test: pages that stay open keep their models, and their share of the cores.
    """
    started_browser.check()  # of what came after the test before: not this one's fault, but nobody else would say it
    yield started_browser
    try:
        started_browser.check()
    finally:
        started_browser.close_contexts()


@pytest.fixture(scope="session")
def kept_server() -> Iterator[WebServer]:
    """Of the page that stays for all tests on the software GPU."""
    with new_server() as server:
        yield server


@pytest.fixture(scope="session")
def kept_gpus() -> list[SoftwareGpu]:
    """At most one; take `software_gpu`."""
    return []


@pytest.fixture
def software_gpu(
    browser: Browser, kept_gpus: list[SoftwareGpu], kept_server: WebServer, tiny_package: Callable[..., Path]
) -> Iterator[SoftwareGpu]:
    """The page that keeps the software GPU's shaders; a test marked software_gpu gets it as `page`."""
    from tests.web.test_engine import LOAD

    if not kept_gpus:
        kept_gpus.append(SoftwareGpu(browser, kept_server, tiny_package("llama"), load=LOAD, urls=urls(kept_server)))
    [kept] = kept_gpus
    yield kept
    try:
        kept.clear()
    except Exception:
        kept_gpus.clear()  # the next test gets another
        kept.close()
        raise


@pytest.fixture
def web_server(request: pytest.FixtureRequest) -> Iterator[WebServer]:
    """A server of this test alone, whose origin no other test has stored anything for; models are added by serve().

    Of a test marked software_gpu the one of its page.
    """
    if request.node.get_closest_marker("software_gpu"):
        yield request.getfixturevalue("kept_server")
        return
    with new_server() as server:
        yield server


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Browser, web_server: WebServer) -> Page:
    """At /tests/blank.html: of this test alone, unless it is marked software_gpu."""
    if request.node.get_closest_marker("software_gpu"):
        return request.getfixturevalue("software_gpu").page
    return browser.context().page(f"{web_server.url}/tests/blank.html")


@pytest.fixture(scope="session")
def web_wheel(shared_folder: Path) -> Path:
    """The wheel for browsers, built once a run."""
    from tools import make_web_wheel

    folder = shared_folder / "web wheel"
    with FileLock(f"{folder}.lock"):
        found = list(folder.glob("*.whl"))
        return found[0] if found else make_web_wheel.main(folder)


@pytest.fixture(scope="session")
def python_folder(web_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels that the engine "python" loads."""
    from tests.web.test_python import template_engine  # not before its asserts are rewritten

    folder = tmp_path_factory.mktemp("python")
    shutil.copy(web_wheel, folder / "embedllm.whl")
    template_engine(folder / "jinja.whl")
    return folder


@pytest.fixture
def places(web_server: WebServer, python_folder: Path, node_modules: Path) -> dict[str, str]:
    """The addresses of all libraries, on this machine."""
    if not (node_modules / "pyodide").is_dir():
        pytest.skip("Pyodide is not here; install it with: cd bindings_web && npm ci")
    modules, python = f"{web_server.url}/node_modules", web_server.serve("/python", python_folder)
    return {
        **urls(web_server),
        "pyodide": f"{modules}/pyodide/pyodide.mjs",
        "wheel": f"{python}/embedllm.whl",
        "jinja2": f"{python}/jinja.whl",
        "markupsafe": f"{python}/jinja.whl",
    }
