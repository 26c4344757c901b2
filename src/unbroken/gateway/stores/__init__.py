"""Where the gateway keeps what a model said until the client has taken all of it: in memory, in a file, on a server."""

from unbroken.gateway.stores.opening import open_store
from unbroken.gateway.stores.store import EntryTooLarge, Store, StoreStats, StoreUnavailable

__all__ = ["EntryTooLarge", "Store", "StoreStats", "StoreUnavailable", "open_store"]
