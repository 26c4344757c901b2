"""The tables and keys that `unbroken.toml` may have, each with what reads its value. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from unbroken.gateway.config import value_types as values
from unbroken.gateway.config.value_types import Reader
from unbroken.gateway.settings import OnDiverge, OnToolError
from unbroken.messages import Effort
from unbroken.wires import WIRES

TABLES: Mapping[str, Mapping[str, tuple[str, Reader]]] = {
    "server": {
        "host": ("host", values.host),
        "port": ("port", values.whole(0, 65535)),
        "workers": ("workers", values.whole(1, 256)),
        "open_to_all": ("open_to_all", values.flag),
        "max_body": ("max_body", values.size(1024)),
        "max_values": ("max_values", values.whole(1000)),
        "large_bodies": ("large_bodies", values.size(1024)),
        "max_response": ("max_response", values.size(1024)),
        "max_calls": ("max_calls", values.whole(1)),
        "max_headers": ("max_headers", values.size(1024)),
        "head_timeout": ("head_timeout", values.seconds),
        "body_timeout": ("body_timeout", values.seconds),
        "write_timeout": ("write_timeout", values.seconds),
        "stop_timeout": ("stop_timeout", values.seconds),
        "access_log": ("access_log", values.flag),
    },
    "store": {
        "url": ("store", values.store),
        "ttl": ("ttl", values.seconds),
        "max_bytes": ("store_bytes", values.size(1024)),
        "max_entry": ("entry_bytes", values.size(1024)),
    },
    "serial": {
        "hold_timeout": ("hold_timeout", values.seconds),
        "retry_window": ("retry_window", values.seconds),
        "on_tool_error": ("on_tool_error", values.one_of(get_args(OnToolError))),
    },
    "repair": {"strict": ("strict", values.flag)},
    "chain": {"on_diverge": ("on_diverge", values.one_of(get_args(OnDiverge)))},
    "keys": {
        "required": ("keys", values.flag),
        "file": ("keys_file", values.text),
        "shared_ids": ("shared_ids", values.flag),
    },
    "passing": {"paths": ("passes", values.pass_rules)},
    "record": {
        "folder": ("record", values.text),
        "share": ("record_share", values.share),
        "max_bytes": ("record_bytes", values.size(1024)),
    },
}
"""Each key with the field of `GatewaySettings` that it sets."""

ARRAYS = ("models", "clients")

MODEL: Mapping[str, Reader] = {
    "alias": values.alias,
    "model": values.text,
    "base_url": values.address,
    "api_key_env": values.variable,
    "api_key_file": values.text,
    "wire": values.one_of(list(WIRES)),
    "fallback": values.texts,
    "serial": values.flag,
    "recover": values.flag,
}
"""The keys of `[[models]]` that are fields of `UpstreamSettings`."""

CONNECT: Mapping[str, Reader] = {
    "stream": values.flag,
    "connect_timeout": values.patience,
    "first_byte": values.patience,
    "idle": values.patience,
    "total": values.patience,
    "attempts": values.whole(1, 100),
    "seconds": values.patience,
    "stream_with_tools": values.flag,
    "raw_log": values.text,
    "temperature": values.number,
    "top_p": values.number,
    "max_tokens": values.whole(1),
    "stop": values.texts,
    "seed": values.whole(-(2**53), 2**53),
    "reasoning": values.one_of(get_args(Effort)),
    "cache": values.flag,
    "headers": values.public_texts,
    "query": values.public_texts,
    "extra": values.json_object,
    "organization": values.text,
    "project": values.text,
    "location": values.text,
    "api_version": values.text,
}
"""Beside them stands what else `connect` takes."""

CLIENT: Mapping[str, Reader] = {
    "name": values.text,
    "key": values.key_name,
    "header": values.header,
    "user_agent": values.text,
    "serial": values.flag,
}

PATHS = ("api_key_file", "raw_log", "file", "folder")
OF_PROVIDERS = ("base_url", "api_key_env", "api_key_file", "wire", *CONNECT)
"""What says nothing to a model that is no provider's."""
