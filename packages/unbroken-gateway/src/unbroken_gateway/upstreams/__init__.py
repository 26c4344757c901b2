"""The models behind the aliases: providers over HTTP, Python models, agents, and the demo model.

The entry is `upstream.open_upstreams`.
"""
