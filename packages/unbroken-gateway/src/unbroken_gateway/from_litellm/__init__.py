"""Reads a configuration of LiteLLM's proxy (`config.yaml`) and translates it to an `unbroken.toml`: the entry is
`read_litellm`. It is loaded only for `unbroken serve --from-litellm`.
"""

from unbroken_gateway.from_litellm.translation import Translation, read_litellm

__all__ = ["Translation", "read_litellm"]
