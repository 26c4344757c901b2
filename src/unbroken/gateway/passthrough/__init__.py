"""Requests that are forwarded to a provider unchanged, such as embeddings and files, and the provider's ids that a key
may use.

The entry is `forwarding.pass_through`; `pass_rules` lists what may pass.
"""
