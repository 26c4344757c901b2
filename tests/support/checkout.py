"""Where things lie in a checkout, for tests that read them."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
DOCS = ROOT / "docs"
PACKAGES = ROOT / "packages"
