"""The pictures of docs/operating.md, from a real run of the demo.

python -m tests.screenshots
"""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from playwright.async_api import Page

from tests.serving import ROOT
from tests.test_dashboard import browser

FOLDER = ROOT / "docs" / "images"
SECONDS = 40  # the first act; the second takes six tenths of it, and half of that is overload


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    demo = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aiolimit", "demo"),
        *("--seconds", str(SECONDS), "--port", "0", "--stay"),
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert demo.stdout is not None
    try:
        line = (await demo.stdout.readline()).decode()
        address = re.search(r"http://\S+", line)
        assert address, line
        async with browser() as started:
            page = await started.new_page(
                viewport={"width": 1280, "height": 790}, color_scheme="dark"
            )
            await page.goto(address.group())
            await asyncio.sleep(SECONDS * 0.85)
            await shown(page, "quota", "rejections.png")
            await page.emulate_media(color_scheme="light")
            await shown(page, "trial", "shadow.png")
            await page.emulate_media(color_scheme="dark")
            await select(page, "busy")
            await page.get_by_label("1 min").check(force=True)
            await until(demo, "slow: ")
            await asyncio.sleep(SECONDS * 0.3 - 3)
            await page.screenshot(path=FOLDER / "overload.png")
            await page.locator("#chart-load").scroll_into_view_if_needed()
            await page.evaluate("document.getElementById('chart-load').scrollIntoView()")
            await asyncio.sleep(1)
            await page.screenshot(path=FOLDER / "load.png")
            await until(demo, "All is over")
            await asyncio.sleep(1)
            await page.screenshot(path=FOLDER / "recovered.png")
    finally:
        demo.terminate()
        await demo.communicate()


async def until(demo: asyncio.subprocess.Process, awaited: str) -> None:
    """Read what the demo prints until it says that."""
    assert demo.stdout is not None
    while line := (await demo.stdout.readline()).decode():
        print(line, end="", flush=True)
        if awaited in line:
            return


async def select(page: Page, limiter: str) -> None:
    await page.get_by_role("tab", name=limiter).last.click()


async def shown(page: Page, limiter: str, name: str) -> None:
    await select(page, limiter)
    await asyncio.sleep(1.2)
    await page.screenshot(path=Path(FOLDER, name))


if __name__ == "__main__":
    asyncio.run(main())
