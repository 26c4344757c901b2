"""Recordings of runs, and what is built on them and on events: replay, resume, metrics, traces."""
