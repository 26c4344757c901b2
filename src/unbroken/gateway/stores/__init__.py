"""Stores that keep a model's answer until the client has received all of it: in memory, in a file, on a server."""

from unbroken.gateway.stores.opening import open_store
from unbroken.gateway.stores.store import EntryTooLarge, Store, StoreStats, StoreUnavailable

__all__ = ["EntryTooLarge", "Store", "StoreStats", "StoreUnavailable", "open_store"]
