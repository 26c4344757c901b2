"""Shows recordings: one picture of a run, drawn by a page in the browser and by the terminal."""

from unbroken.viewer.listing import Shelf
from unbroken.viewer.page import whole_page
from unbroken.viewer.picture import Picture, draw

__all__ = ["Picture", "Shelf", "draw", "whole_page"]
