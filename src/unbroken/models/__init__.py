"""Where a request becomes deltas: HTTP to any provider, or a script. Nothing outside this package awaits a provider.

Import from the modules: `connect`, `http`, `retrying`, `model`, `sessions`. Only `http` and what it needs load aiohttp.
"""
