"""One browser and one server for all tests of the page that a worker runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.page.browser import CHROMIUM, WAIT_MS, serving


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("page")) as url:
        yield url


@pytest.fixture(scope="package")
def profile(browser: Any) -> Iterator[Any]:
    """A browser's profile, as large as a phone. Its cache of files stays from test to test, which saves their time."""
    context = browser.new_context(viewport={"width": 360, "height": 640}, accept_downloads=True)
    context.set_default_timeout(WAIT_MS)
    context.problems, context.hosts = [], set()
    context.on("weberror", lambda error: context.problems.append(str(error.error)))
    context.on("request", lambda request: context.hosts.add(request.url.split("/")[2]))
    context.on("console", lambda message: context.problems.append(message.text) if _is_policy(message.text) else None)
    yield context
    context.close()


@pytest.fixture
def context(profile: Any) -> Iterator[Any]:
    """The profile, with nothing stored. At the end no request has left the server, no script has failed, and the policy
    has nothing to report.
    """
    profile.problems.clear()
    profile.hosts.clear()
    yield profile
    _forget(profile)
    assert not profile.problems
    assert len({host for host in profile.hosts if host}) <= 1, "a page sends requests to its own server only"


def _forget(profile: Any) -> None:
    """Closes all pages, and deletes what they have stored."""
    session = profile.new_cdp_session(profile.new_page())
    for page in profile.pages[:-1]:
        page.close()
    for host in profile.hosts:
        origin = {
            "origin": f"http://{host}",
            "storageTypes": "cookies,indexeddb,local_storage,cache_storage,service_workers",
        }
        session.send("Storage.clearDataForOrigin", origin)
    profile.pages[-1].close()


@pytest.fixture
def page(context: Any) -> Any:
    return context.new_page()


def _is_policy(text: str) -> bool:
    return "Content Security Policy" in text or "Content-Security-Policy" in text or "TrustedHTML" in text
