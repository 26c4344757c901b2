"""Shows recordings: one picture of a run, drawn by a page in the browser and by the terminal."""

from unbroken.viewer.listing import Shelf
from unbroken.viewer.picture import Picture, draw
from unbroken.viewer.server import whole_page

__all__ = ["Picture", "Shelf", "draw", "whole_page"]
