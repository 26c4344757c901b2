"""The page: `page.html` with its style and its scripts inside, so that it loads nothing more. Its content security
policy names its one script and its one style by their hashes, so that no text of a model or a course can become a
script."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
PAGE = re.sub(
    r"\{\{([a-z]+\.(?:css|js))\}\}",
    lambda part: (HERE / part[1]).read_text("utf-8"),
    (HERE / "page.html").read_text("utf-8"),
)


def _hash(tag: str) -> str:
    """The hash of the one inline element of this kind, as a browser computes it."""
    inner = PAGE.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{b64encode(sha256(inner.encode()).digest()).decode()}'"


HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        f"default-src 'none'; script-src {_hash('script')}; style-src {_hash('style')}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
