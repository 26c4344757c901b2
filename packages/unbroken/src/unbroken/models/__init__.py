"""Models turn a request into deltas: over HTTP from any provider, or from a script. Nothing outside this package awaits
a provider.

Import from the modules: `connect`, `http`, `retrying`, `model`, `sessions`. Only `http` and what it needs load aiohttp.
"""
