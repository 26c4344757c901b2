"""Gateway keys: who may use the gateway, which models, how often. The file holds the SHA-256 of each key, never the key
itself. Keys are 32 random bytes, which cannot be guessed or looked up in a table, so a plain hash is enough.

`create_key`, `rotate_key` and `revoke_key` change the file, `KeyRing` reads it in a running gateway and reloads it when
it changes. `stored_keys` does the same with keys in the gateway's store.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

from unbroken.clock import Clock, RealClock
from unbroken.errors import UserError
from unbroken_gateway.relay.references import PassRule, read_rule
from unbroken_gateway.spending.allowance import Allowance, read_allowance

LOG = logging.getLogger("unbroken.gateway")

T = TypeVar("T")

PREFIX = "ub-"
VERSION = 6
"""1 had neither `pass` nor `operator`, 2 had no `tenant`, 3 had neither `expires` nor `id`, 4 had no `team`, `budgets`
and `tokens_per_minute`, 5 had no `admin`."""
PATIENCE = 5.0
"""Seconds to wait for another process that changes the file."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_LATEST = 253_400_000_000.0
"""In seconds since 1970. Later times cannot be written as dates."""
_LONGEST = 512
"""Our keys are never longer; anything longer is not hashed."""


@dataclass(frozen=True, slots=True)
class GatewayKey:
    """Everything about a key except the key itself."""

    name: str
    aliases: tuple[str, ...] = ()
    """The models that it may use; empty: all."""
    requests_per_minute: int | None = None
    in_flight: int | None = None
    """Maximum number of requests at the same time."""
    created: float = 0.0
    passes: tuple[PassRule, ...] | None = None
    """The requests that it may pass through to a provider; None: those in the gateway's configuration."""
    operator: bool = False
    """May see the status and the metrics of all keys, and the durable runs of all tenants. Other keys see their
    own."""
    tenant: str = ""
    """Whose durable runs it sees; empty: those of the tenant with its name."""
    id: str = ""
    """Unique, even among keys of the same name that were revoked; a key that replaces another has the same. Derived
    from the first hash, so all gateways that share the file agree on it."""
    expires: float | None = None
    """When it stops being valid, in seconds since 1970; None: never."""
    team: str = ""
    """The team whose budgets and limits it shares; empty: none."""
    budgets: tuple[Allowance, ...] = ()
    """What may be spent with it."""
    tokens_per_minute: int | None = None
    admin: bool = False
    """May change the gateway through the admin API; an operator may only read."""

    def is_valid(self, now: float) -> bool:
        """Whether it has not expired."""
        return self.expires is None or now < self.expires

    def allows(self, alias: str) -> bool:
        """May this key use the model with this alias?"""
        return not self.aliases or alias in self.aliases


class NameTaken(UserError):
    """There is something of this name already."""


class NameUnknown(UserError):
    """There is nothing of this name."""


class KeyRing:
    """The keys of a file, by their hash. A damaged file is an error at the start; later it is logged and the previous
    keys stay valid. A missing file means no keys. `look_every`: seconds after which it is checked for changes."""

    def __init__(self, path: str | Path, clock: Clock | None = None, *, look_every: float = 1.0) -> None:
        self._path = Path(path)
        self._every = look_every
        self._clock = clock or RealClock()
        self._looked = self._clock.elapsed()
        self._state = self._stat()
        self._keys = _read(self._path)

    def __len__(self) -> int:
        return len(self._keys)

    def has(self, name: str) -> bool:
        return any(key.name == name for key in self._keys.values())

    def all(self) -> tuple[GatewayKey, ...]:
        """In the order in which they were created."""
        return tuple(self._keys.values())

    def find(self, secret: str) -> GatewayKey | None:
        now = self._clock.elapsed()
        if now - self._looked >= self._every:
            self._looked = now
            self._look_again()
        return self._find(secret)

    def _find(self, secret: str) -> GatewayKey | None:
        key = self._keys.get(_hash(secret)) if len(secret) <= _LONGEST else None
        return key if key is None or key.is_valid(self._clock.now()) else None

    def find_expired(self, secret: str) -> GatewayKey | None:
        """The key of a secret that is not valid any more."""
        key = self._keys.get(_hash(secret)) if len(secret) <= _LONGEST else None
        return None if key is None or key.is_valid(self._clock.now()) else key

    def refresh(self) -> None:
        """Reads the file now if it has changed."""
        self._look_again()

    def _look_again(self) -> None:
        state = self._stat()
        if state == self._state:
            return
        self._state = state
        try:
            self._keys = _read(self._path)
        except UserError as error:
            LOG.error("reading the gateway keys failed, the old ones stay valid: %s", error)
        else:
            LOG.info("gateway keys read again: %d in %s", len(self._keys), self._path)

    def _stat(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return 0, 0, 0
        return found.st_mtime_ns, found.st_size, found.st_ino


def create_key(
    path: str | Path, key: GatewayKey, *, now: Callable[[], float] = time.time, patience: float = PATIENCE
) -> str:
    """Adds a key with this name and these limits to the file and returns the key itself, which cannot be recovered
    later."""
    check_key(key, now())
    with _changing(Path(path), patience) as keys:
        return add_key(keys, key, now(), str(path))


def add_key(keys: dict[str, GatewayKey], key: GatewayKey, now: float, where: str) -> str:
    """Adds a key to those of a file or store (`where`), and returns the key itself."""
    check_key(key, now)
    if any(other.name == key.name for other in keys.values()):
        raise NameTaken(f"there is a key `{key.name}` in {where} already: revoke it first, or choose another name")
    secret = PREFIX + secrets.token_urlsafe(32)
    digest = _hash(secret)
    keys[digest] = replace(key, created=now, id=_id(digest))
    return secret


def check_key(key: GatewayKey, now: float) -> None:
    """Raises `UserError` if its fields are not valid."""
    if not _NAME.fullmatch(key.name):
        raise UserError(
            "a key's name has letters, digits and . _ @ - only, at most 64, and begins with a letter or digit"
        )
    limits = (
        ("requests per minute", key.requests_per_minute),
        ("requests in flight", key.in_flight),
        ("tokens per minute", key.tokens_per_minute),
    )
    for what, limit in limits:
        if limit is not None and limit < 1:
            raise UserError(f"key `{key.name}` cannot be limited to {limit} {what}: give a number from 1, or none")
    if not key.is_valid(now):
        raise UserError(f"key `{key.name}` would have expired already: give a time in the future")
    if key.expires is not None and not key.expires < _LATEST:
        raise UserError(f"key `{key.name}` would expire after the year 9999: leave the time out if it never should")
    if len(key.tenant) > 200 or not key.tenant.isprintable():
        raise UserError(f"key `{key.name}`: a tenant's name has at most 200 characters, all of them printable")
    if key.team and not _NAME.fullmatch(key.team):
        raise UserError(f"key `{key.name}`: a team's name has letters, digits and . _ @ - only, at most 64")
    if len({(each.unit, each.period) for each in key.budgets}) < len(key.budgets):
        raise UserError(f"key `{key.name}` has two budgets for the same time: give one for each of day, month, total")
    if not all(key.aliases):
        raise UserError(f"key `{key.name}` cannot be limited to a model without a name: leave it out for all models")


def change_key(
    path: str | Path,
    name: str,
    change: Callable[[GatewayKey], GatewayKey],
    *,
    now: Callable[[], float] = time.time,
    patience: float = PATIENCE,
) -> GatewayKey:
    """Changes the key with this name, and those that it replaces: `change` gets it and returns what it becomes, such as
    `replace(key, budgets=(read_allowance("20usd/day"),))`. Its secret, its id and its name stay. Returns the changed
    key."""
    with _changing(Path(path), patience) as keys:
        return alter_key(keys, name, change, now(), str(path))


def alter_key(
    keys: dict[str, GatewayKey], name: str, change: Callable[[GatewayKey], GatewayKey], now: float, where: str
) -> GatewayKey:
    digests = _named(keys, name, where)
    newest = max(digests, key=lambda digest: keys[digest].created)
    check_key(change(keys[newest]), now)
    for digest in digests:
        old, new = keys[digest], change(keys[digest])
        expires = new.expires if digest == newest else old.expires
        keys[digest] = replace(new, name=old.name, id=old.id, created=old.created, expires=expires)
    return keys[newest]


def rotate_key(
    path: str | Path, name: str, keep: float, *, now: Callable[[], float] = time.time, patience: float = PATIENCE
) -> str:
    """Makes a new key in place of the one with this name, with the same limits and the same access to what is stored.
    The old one stays valid for `keep` more seconds. Returns the new key itself."""
    with _changing(Path(path), patience) as keys:
        return replace_secret(keys, name, keep, now(), str(path))


def replace_secret(keys: dict[str, GatewayKey], name: str, keep: float, now: float, where: str) -> str:
    secret = PREFIX + secrets.token_urlsafe(32)
    old = _named(keys, name, where)
    newest = max(old, key=lambda digest: keys[digest].created)
    current = keys[newest]
    for digest in old:
        ends = keys[digest].expires
        keys[digest] = replace(keys[digest], expires=now + keep if ends is None else min(now + keep, ends))
        if not keys[digest].is_valid(now):
            del keys[digest]
    keys[_hash(secret)] = replace(current, created=now)
    return secret


def _named(keys: Mapping[str, GatewayKey], name: str, where: str) -> list[str]:
    """The hashes of the key with this name and of those that it replaces."""
    found = [digest for digest, key in keys.items() if key.name == name]
    if not found:
        names = ", ".join(sorted({key.name for key in keys.values()})) or "none"
        raise NameUnknown(f"there is no key `{name}` in {where}; there are: {names}")
    return found


def revoke_key(path: str | Path, name: str, *, patience: float = PATIENCE) -> None:
    with _changing(Path(path), patience) as keys:
        remove_key(keys, name, str(path))


def remove_key(keys: dict[str, GatewayKey], name: str, where: str) -> None:
    for digest in _named(keys, name, where):
        del keys[digest]


def change_keys(path: str | Path, work: Callable[[dict[str, GatewayKey]], T], patience: float = PATIENCE) -> T:
    """`work` changes the keys of the file, which it gets by their hashes."""
    with _changing(Path(path), patience) as keys:
        return work(keys)


def list_keys(path: str | Path) -> tuple[GatewayKey, ...]:
    """In the order in which they were created."""
    return tuple(_read(Path(path)).values())


def _hash(secret: str) -> str:
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _id(digest: str) -> str:
    """A hash of the digest, since only the file should hold the digest itself."""
    return sha256(f"unbroken gateway key {digest}".encode()).hexdigest()[:32]


@contextmanager
def _changing(path: Path, patience: float) -> Generator[dict[str, GatewayKey]]:
    """Yields the keys and writes them back when the block ends. The new file is also the lock: only one process can
    create it, and renaming it over the old file releases it."""
    path = path.resolve()  # behind a symlink, the target is replaced
    fresh = path.with_name(f"{path.name}.new")
    file = _open_alone(fresh, path, patience)
    try:
        with os.fdopen(file, "w", encoding="utf-8") as body:
            keys = _read(path)
            yield keys
            body.write(write_keys(keys))
            body.flush()
            os.fsync(body.fileno())
            _keep_owner(path, fresh)
        os.replace(fresh, path)
    except BaseException as error:
        # Only on failure: after the rename, a file of this name belongs to the next process.
        with suppress(OSError):
            fresh.unlink()
        if isinstance(error, OSError):
            raise UserError(f"the keys in {path} cannot be changed: {error.strerror or error}") from None
        raise


def _open_alone(fresh: Path, path: Path, patience: float) -> int:
    until = time.monotonic() + patience
    while True:
        try:
            return os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            if time.monotonic() > until:
                raise UserError(
                    f"the keys in {path} are being changed by another command, or one was killed while it did: "
                    f"remove {fresh.name} if there is none"
                ) from None
            time.sleep(0.01)
        except OSError as error:
            raise UserError(f"the keys in {path} cannot be changed: {error.strerror or error}") from None


def _keep_owner(path: Path, fresh: Path) -> None:
    """Keeps the owner: root may create a key for a gateway that runs as another user."""
    with suppress(OSError, AttributeError):  # AttributeError: Windows has no owners of this kind
        owner = path.stat()
        os.chown(fresh, owner.st_uid, owner.st_gid)


def write_keys(keys: Mapping[str, GatewayKey]) -> str:
    """The content of a file, or of the record in a store."""
    return json.dumps({"version": VERSION, "keys": [_as_json(*item) for item in keys.items()]}, indent=1) + "\n"


def _as_json(digest: str, key: GatewayKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "sha256": digest,
        "aliases": list(key.aliases),
        "requests_per_minute": key.requests_per_minute,
        "in_flight": key.in_flight,
        "created": key.created,
        "pass": None if key.passes is None else list(map(str, key.passes)),
        "operator": key.operator,
        "tenant": key.tenant,
        "expires": key.expires,
        "id": key.id,
        "team": key.team,
        "budgets": list(map(str, key.budgets)),
        "tokens_per_minute": key.tokens_per_minute,
        "admin": key.admin,
    }


def _read(path: Path) -> dict[str, GatewayKey]:
    try:
        return read_keys(path.read_bytes(), str(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"the gateway keys in {path} cannot be read: {error.strerror or error}") from None


def read_keys(data: bytes, path: str) -> dict[str, GatewayKey]:
    """By their hashes. `path`: where the data is, for errors. Raises `UserError`."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise _damaged(path, "it is not JSON") from None
    if not isinstance(value, dict):
        raise _damaged(path, "it is not a JSON object")
    file = cast("dict[str, Any]", value)
    version = file.get("version")
    if isinstance(version, int) and version > VERSION:
        raise UserError(
            f"the gateway keys in {path} were written by a newer Unbroken (version {version}): update this one"
        )
    if version not in range(1, VERSION + 1) or not isinstance(file.get("keys"), list):
        raise _damaged(path, "`version` or `keys` is missing")
    return dict(_read_keys(path, cast("list[Any]", file["keys"])))


def _read_keys(path: str, items: Iterable[Any]) -> Generator[tuple[str, GatewayKey]]:
    for at, item in enumerate(items):
        match item:
            case {
                "name": str(name),
                "sha256": str(digest),
                "aliases": [*aliases],
                "requests_per_minute": None | int() as per_minute,
                "in_flight": None | int() as in_flight,
                "created": int() | float() as created,
            } if (
                re.fullmatch(r"[0-9a-f]{64}", digest)
                and all(isinstance(alias, str) and alias for alias in aliases)
                and all(limit is None or (limit is not True and limit >= 1) for limit in (per_minute, in_flight))
            ):
                passes, operator = _read_rules(path, at, item.get("pass")), item.get("operator", False)
                admin = item.get("admin", False)
                tenant, expires, id = item.get("tenant", ""), item.get("expires"), item.get("id", _id(digest))
                if (
                    not isinstance(operator, bool)
                    or not isinstance(admin, bool)
                    or not isinstance(tenant, str)
                    or not (expires is None or (isinstance(expires, int | float) and expires is not True))
                    or not (isinstance(id, str) and re.fullmatch(r"[0-9a-f]{32}", id))
                ):
                    raise _damaged(path, f"key {at + 1} in it is not complete")
                limits = (tuple(aliases), per_minute, in_flight, created)
                spending = _read_spending(path, at, item)
                yield digest, GatewayKey(name, *limits, passes, operator, tenant, id, expires, *spending, admin)
            case _:
                raise _damaged(path, f"key {at + 1} in it is not complete")


def _read_spending(path: str, at: int, item: Mapping[str, Any]) -> tuple[str, tuple[Allowance, ...], int | None]:
    """The team of a key, its budgets, and its tokens per minute."""
    match item.get("team", ""), item.get("budgets", []), item.get("tokens_per_minute"):
        case str(team), [*written], None | int() as limit if limit is None or (limit is not True and limit >= 1):
            try:
                return team, tuple(read_allowance(str(each)) for each in written), limit
            except UserError:
                raise _damaged(path, f"`budgets` of key {at + 1} in it cannot be read") from None
        case _:
            raise _damaged(path, f"key {at + 1} in it is not complete")


def _read_rules(path: str, at: int, value: Any) -> tuple[PassRule, ...] | None:
    if value is None:
        return None
    try:
        return tuple(map(read_rule, value))
    except (UserError, TypeError):
        raise _damaged(path, f"`pass` of key {at + 1} in it cannot be read") from None


def _damaged(path: str, what: str) -> UserError:
    return UserError(
        f"the gateway keys in {path} are damaged: {what}; restore the file, or remove it and make new keys"
    )
