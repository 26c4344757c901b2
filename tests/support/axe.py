"""axe-core, which finds what stops people with a screen reader, a keyboard or weak eyes. It is downloaded from the npm
registry when a browser check needs it, and checked by its hash; nothing of it is in this repository."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
import urllib.request
from functools import cache
from pathlib import Path

import chromium

ADDRESS = "https://registry.npmjs.org/axe-core/-/axe-core-4.10.3.tgz"
SHA256 = "0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292"
_RUN = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.flatMap((rule) =>
  rule.nodes.map((node) => `${rule.id}: ${node.target.join(" ")}: ${node.failureSummary.replaceAll("\\n", " ")}`)))"""


@cache
def source() -> str:
    kept = Path(tempfile.gettempdir()) / f"axe-core-{SHA256[:16]}.tgz"
    data = kept.read_bytes() if kept.exists() else b""
    if hashlib.sha256(data).hexdigest() != SHA256:
        with urllib.request.urlopen(ADDRESS, timeout=60) as answer:
            data = answer.read()
        assert hashlib.sha256(data).hexdigest() == SHA256, f"{ADDRESS} is not what it was"
        kept.write_bytes(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode("utf-8")


_FADED_IN = (
    "document.getAnimations().every((one) => one.playState !== 'running' || "
    "one.effect.getTiming().iterations === Infinity)"
)


async def violations(tab: chromium.Tab) -> list[str]:
    """One line for each violation on the page as it is now; contrast is part of it, so texts have to be faded in."""
    await tab.settle()
    await tab.until(_FADED_IN)
    await tab.run(f"void (window.axe ?? (() => {{ {source()} }})())")
    return await tab.run(_RUN)
