"""Guardrails of the gateway: the agent's middleware and functions of a hook file, around the requests to an alias.

The entry is `opening.open_guardrails`. Loaded only if an alias has guardrails or hooks.
"""
