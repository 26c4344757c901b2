"""Shows recordings: one picture of a run, drawn by a page in the browser and by the terminal."""

from unbroken_viewer.listing import Shelf
from unbroken_viewer.page import whole_page
from unbroken_viewer.picture import Picture, draw

__all__ = ["Picture", "Shelf", "draw", "whole_page"]
