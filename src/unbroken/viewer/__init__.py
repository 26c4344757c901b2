"""Recordings to look at: one picture of a run, drawn by a page in the browser and by the terminal."""
