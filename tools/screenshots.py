"""Writes screenshots of the page, taken in Chromium of a server with a real model: `make screenshots`.

build/screenshots/   chat and engine view, light, dark and as on a phone, for people to look at
docs/                with --docs, the two that the README shows
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
MODEL = "smollm2"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1000, "height": 640}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1000, "height": 640}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 780}, "color_scheme": "light", "device_scale_factor": 2},
}
WAIT_MS = 120_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Takes screenshots of the page.")
    parser.add_argument("--docs", action="store_true", help="write those of the README into docs/ too")
    args = parser.parse_args()
    out = ROOT / "build" / "screenshots"
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "stoker", "serve", MODEL, "--port", "0", "--ctx-size", "2048"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            take(ready_url(server), out)
        finally:
            server.terminate()
            server.wait(30)
    if args.docs:
        for name, look in (("chat", "light"), ("engine", "dark")):
            shutil.copy(out / f"{name}-{look}.png", ROOT / "docs" / f"page-{name}.png")


def ready_url(server: subprocess.Popen[str]) -> str:
    """The address on the line `ready:`; what the server says later is dropped."""
    assert server.stderr is not None
    url = next(line.split()[-1] for line in server.stderr if "ready:" in line)
    threading.Thread(target=server.stderr.read, daemon=True).start()
    return url


def take(url: str, out: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, look in LOOKS.items():
            context = browser.new_context(**look)
            page = context.new_page()
            page.set_default_timeout(WAIT_MS)
            page.goto(url)
            ask(page, "What is the capital of Italy?")
            ask(page, "Name three things to see there, as a list.")
            page.screenshot(path=out / f"chat-{name}.png")
            page.goto(f"{url}#engine")
            page.get_by_role("button", name="Send 8 prompts").click()
            page.locator(".sequences tbody tr").nth(2).wait_for()
            page.get_by_role("button", name="Pause").scroll_into_view_if_needed()
            page.get_by_role("button", name="Pause").click()
            page.screenshot(path=out / f"engine-{name}.png")
            context.close()
        browser.close()
    print(f"{len(LOOKS) * 2} screenshots are in {out}")


def ask(page: Any, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("textbox", name="Message").press("Enter")
    page.get_by_label("You").get_by_text(text).wait_for()
    page.get_by_role("button", name="Regenerate").wait_for()


if __name__ == "__main__":
    main()
