"""A recording becomes a page."""

from pathlib import Path

from unbroken import Agent, ScriptedModel
from unbroken_viewer import Shelf, whole_page

Agent(ScriptedModel("The answer."), record="runs").run_sync("A question?")
page, left_out = whole_page(Shelf(Path("runs")))
assert b"The answer." in page
assert left_out == []
