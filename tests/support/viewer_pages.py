"""What a page of the viewer holds."""

from __future__ import annotations

import json
import re
from typing import Any


def data_of(page: bytes) -> Any:
    """The data inside a page that is one file."""
    found = re.search(rb'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])
