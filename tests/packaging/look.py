"""``python -m tests.packaging.look ADDRESS PICTURE``: opens the page in a real Chromium and prints what it shows as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.view.web.browser import Browser, browser


async def look(page: Browser, address: str, picture: Path) -> dict[str, Any]:
    page.driver.get(address)
    await page.until(lambda: page.count(".chip"), "a container on the page")
    page.picture(picture)
    chips = page.run("return [...document.querySelectorAll('.chip')].map(chip => chip.textContent)")
    # Its own pages, as that of a new tab, are not ours.
    log = [line for line in page.log().splitlines() if not line.startswith("chrome://")]
    return {"link": page.text("#link-text"), "chips": chips, "log": log}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="cri-look-") as folder, browser(Path(folder)) as opened:
        print(json.dumps(asyncio.run(look(opened, sys.argv[1], Path(sys.argv[2])))))
