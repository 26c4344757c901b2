"""docs/events.md names every event with every field."""

from __future__ import annotations

from dataclasses import fields

import pytest
from checkout import DOCS

from unbroken import Event
from unbroken.events import KINDS

PAGE = (DOCS / "events.md").read_text("utf-8")
TABLE = PAGE.split("## Every event")[1].split("\n## ")[0]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_page_has_a_row_for_an_event_with_all_its_fields(kind: type[Event]) -> None:
    (row,) = [line for line in TABLE.splitlines() if line.startswith(f"| `{kind.__name__}` |")]
    shared = {field.name for field in fields(Event)}
    assert [field.name for field in fields(kind) if field.name not in shared and f"`{field.name}`" not in row] == []


def test_the_page_names_what_all_events_have() -> None:
    assert [field.name for field in fields(Event) if f"`{field.name}` (" not in PAGE] == []
