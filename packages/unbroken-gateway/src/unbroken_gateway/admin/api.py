"""The admin API under `/admin/v1/`: keys, models, teams, budgets, held turns, recent requests, the configuration.

An operator's key may read, an admin key may change. Without keys it is off, unless `key_env` in `[admin]` names a
variable with a key for it. `OPERATIONS` lists what there is; `api_description` makes the OpenAPI document of it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import BaseModel

from unbroken import __version__
from unbroken.asgi import Receive, Refused, Response, Scope, read_headers
from unbroken.asgi import read_body as receive_body
from unbroken.errors import UserError
from unbroken_gateway.admin.api_bodies import (
    MAX_BODY,
    Body,
    KeyChange,
    NewKey,
    NewTable,
    Rotation,
    StoreDecision,
    changed_key,
    key_as_json,
    new_key,
    read_body,
    read_seconds,
    table_of,
)
from unbroken_gateway.admin.stats import Stats
from unbroken_gateway.config.added import NAME_OF, ONE_OF
from unbroken_gateway.config.changes import ADDED, describe
from unbroken_gateway.config.opening import admin_key, refuse_name_of_admin_key
from unbroken_gateway.config.reading import TABLES
from unbroken_gateway.http.admission import Admission, sent_key
from unbroken_gateway.keys import (
    GatewayKey,
    NameTaken,
    NameUnknown,
    add_key,
    alter_key,
    remove_key,
    replace_secret,
)
from unbroken_gateway.reloading import Reload, Reloader
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.stored_keys import FileKeys, KeyPlace, StoredKeyRing, StoredKeys
from unbroken_gateway.stores.marked import MarkedStore
from unbroken_gateway.turns.turn_store import TurnStore
from unbroken_gateway.upstreams.catalog import Catalog
from unbroken_wires.wires.jsontext import dumps

if TYPE_CHECKING:
    from collections.abc import Generator

    from unbroken_gateway.additions import Added, Additions

log = logging.getLogger("unbroken.gateway")

BASE = "/admin/v1"
DESCRIPTION = "/admin/openapi.json"
_NO_STORE = {"cache-control": "no-store"}


@dataclass(frozen=True, slots=True)
class Administered:
    """The parts of a gateway that the API reads and changes."""

    settings: GatewaySettings
    admission: Admission
    catalog: Catalog
    turn_store: TurnStore
    store: MarkedStore
    stats: Stats
    reloader: Reloader | None
    additions: Additions | None
    now: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Caller:
    name: str
    admin: bool


Answer: TypeAlias = tuple[int, object]


class AdminApi:
    """Made for one request."""

    def __init__(self, gateway: Administered) -> None:
        self._gateway = gateway

    async def answer(self, scope: Scope, receive: Receive, response: Response) -> None:
        """Raises `Refused`, and errors of the store."""
        headers = read_headers(scope)
        caller = self._admit(headers)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        path: str = scope["path"]
        if path == DESCRIPTION:
            if method != "GET":
                raise Refused(405, f"{path} needs GET", {"allow": "GET, HEAD"})
            from unbroken_gateway.admin.api_description import described_api  # noqa: PLC0415 - rarely needed

            await response.complete(200, dumps(described_api()), _NO_STORE)
            return
        operation, name = _find(method, path)
        if operation.changes and not caller.admin:
            raise Refused(403, f"{method} {path[:200]} needs an admin key (`unbroken keys create NAME --admin`)")
        body = await self._receive(operation, headers, receive)
        with _refusing():
            status, value = await operation.work(self, name, body)
        if operation.changes:
            log.info("admin_change key=%s %s %s", caller.name, method, path)
        await response.complete(status, dumps(value), _NO_STORE)

    def _admit(self, headers: Mapping[str, str]) -> Caller:
        """The key has to be in a header: addresses end up in logs."""
        settings, admission = self._gateway.settings, self._gateway.admission
        sent = sent_key(headers, {})
        if (own := admin_key(settings)) and sent and compare_digest(sent.encode(), own.encode()):
            return Caller(settings.admin_key_env, admin=True)
        if admission.keys is None:
            if own:
                raise Refused(401, "the admin API needs its key: send it as `Authorization: Bearer …`")
            words = "require keys (`required = true` in [keys]), or name a variable with `key_env` in [admin]"
            raise Refused(404, f"the admin API is off, because this gateway has no keys: {words}")
        key = admission.admit(headers, {})
        assert key is not None
        if not (key.operator or key.admin):
            raise Refused(
                403,
                "the admin API needs an admin key (`unbroken keys create NAME --admin`), or an operator's key to read",
            )
        return Caller(key.name, key.admin)

    async def _receive(self, operation: Operation, headers: Mapping[str, str], receive: Receive) -> Any:
        if not operation.changes:
            return None
        try:
            data = await receive_body(
                headers, receive, MAX_BODY, self._gateway.settings.body_timeout, lambda size: None
            )
        except Refused as error:  # it names a setting, which is not about this
            raise Refused(413, f"the body has more than the {MAX_BODY:,} bytes that are allowed here") from error
        if operation.body is None:
            return None
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if data and kind != "application/json":
            raise Refused(415, "the body has to be JSON: send `Content-Type: application/json`")
        return read_body(operation.body, data)

    # Keys

    @property
    def _keys(self) -> KeyPlace:
        settings = self._gateway.settings
        return StoredKeys(self._gateway.store) if settings.keys_in_store else FileKeys(settings.keys_file)

    async def _read_keys_again(self) -> None:
        """So that the next request to this process knows them."""
        ring = self._gateway.admission.keys
        if isinstance(ring, StoredKeyRing):
            await ring.read(self._gateway.store)
        elif ring is not None:
            ring.refresh()

    def _check_aliases(self, key: GatewayKey) -> None:
        catalog = self._gateway.catalog
        for alias in key.aliases:
            if not catalog.has(alias):
                served = ", ".join(catalog.upstreams)
                raise UserError(f"`aliases`: there is no model `{alias[:100]}`; there are: {served}")

    async def list_keys(self, name: str, body: None) -> Answer:
        return 200, {"keys": [key_as_json(key) for key in await self._keys.list()], "where": self._keys.where}

    async def create_key(self, name: str, body: NewKey) -> Answer:
        key, place = new_key(body), self._keys
        refuse_name_of_admin_key(self._gateway.settings, key.name)
        self._check_aliases(key)
        secret = await place.change(lambda keys: add_key(keys, key, self._gateway.now(), place.where))
        await self._read_keys_again()
        return 201, {"key": key_as_json(await self._key(key.name)), "secret": secret}

    async def change_key(self, name: str, body: KeyChange) -> Answer:
        place = self._keys

        def change(keys: dict[str, GatewayKey]) -> GatewayKey:
            return alter_key(keys, name, lambda key: changed_key(key, body), self._gateway.now(), place.where)

        if body.aliases:
            self._check_aliases(GatewayKey(name, tuple(body.aliases)))
        changed = await place.change(change)
        await self._read_keys_again()
        return 200, {"key": key_as_json(changed)}

    async def rotate_key(self, name: str, body: Rotation) -> Answer:
        keep, place = read_seconds(body.keep, "`keep`"), self._keys
        secret = await place.change(lambda keys: replace_secret(keys, name, keep, self._gateway.now(), place.where))
        await self._read_keys_again()
        return 200, {"key": key_as_json(await self._key(name)), "secret": secret}

    async def revoke_key(self, name: str, body: None) -> Answer:
        place = self._keys
        await place.change(lambda keys: remove_key(keys, name, place.where))
        await self._read_keys_again()
        return 200, {"revoked": name}

    async def _key(self, name: str) -> GatewayKey:
        return max((key for key in await self._keys.list() if key.name == name), key=lambda key: key.created)

    # The configuration

    async def show_version(self, name: str, body: None) -> Answer:
        gateway = self._gateway
        return 200, {
            "version": __version__,
            "started": gateway.stats.started,
            "workers": gateway.settings.workers,
            "store_problem": gateway.store.problem,
            "configuration": gateway.reloader.file if gateway.reloader is not None else "",
            "last_reload": None
            if gateway.reloader is None or gateway.reloader.last is None
            else asdict(gateway.reloader.last),
        }

    async def show_config(self, name: str, body: None) -> Answer:
        added = {} if self._gateway.additions is None else self._gateway.additions.tables
        names = {array: [*tables] for array, tables in added.items()}
        return 200, {**describe(self._gateway.settings), ADDED: names}

    async def reload(self, name: str, body: None) -> Answer:
        if self._gateway.reloader is None:
            raise Refused(409, "this gateway cannot reload: its settings were made by a program, not read from a file")
        done = await self._gateway.reloader.reload()
        if done.problem:
            raise Refused(422, f"the old configuration stays in force: {_one_line(done.problem)}")
        self._reload_other_workers()
        return 200, _reload_as_json(done)

    def _reload_other_workers(self) -> None:
        parent = multiprocessing.parent_process()
        several = self._gateway.settings.workers > 1 and hasattr(signal, "SIGHUP")
        if several and parent is not None and parent.pid is not None:
            os.kill(parent.pid, signal.SIGHUP)

    # Models, teams, budgets: tables of the file, and those that were added here

    async def list_tables(self, array: str) -> Answer:
        added = self._added(array)
        in_file = set[str]() if self._gateway.reloader is None else self._gateway.reloader.names_in_file(array)
        tables: dict[str, dict[str, Any]] = describe(self._gateway.settings).get(array, {})
        return 200, {
            array: [
                {**table, "from": "the admin API" if name in added and name not in in_file else "the file"}
                for name, table in tables.items()
            ]
        }

    async def add_table(self, array: str, body: NewTable) -> Answer:
        table, by = table_of(body), NAME_OF[array]
        name = table.pop(by, None)
        if not isinstance(name, str) or not name:
            raise Refused(422, f"`{by}` is missing: it is the name of the {ONE_OF[array]}")
        return await self._change_tables(array, name, table, new=True)

    async def put_table(self, array: str, name: str, body: NewTable) -> Answer:
        table = table_of(body)
        if table.pop(NAME_OF[array], name) != name:
            raise Refused(422, f"`{NAME_OF[array]}` in the body is not the name in the path")
        return await self._change_tables(array, name, table, new=False)

    async def remove_table(self, array: str, name: str) -> Answer:
        return await self._change_tables(array, name, None, new=False)

    async def _change_tables(self, array: str, name: str, table: dict[str, Any] | None, *, new: bool) -> Answer:
        gateway, one = self._gateway, ONE_OF[array]
        if gateway.additions is None or gateway.reloader is None:
            words = "write `shared = true` below [admin] in the configuration (LiteLLM's: `store_model_in_db: true`)"
            raise Refused(409, f"no {one} can be added here: {words}")
        if name in gateway.reloader.names_in_file(array):
            raise Refused(409, f"{one} `{name[:100]}` is in the configuration file: change it there, and reload")

        async def change(tables: Added) -> None:
            rows = tables.setdefault(array, {})
            if new and name in rows:
                raise NameTaken(f"there is {'an' if one[0] == 'a' else 'a'} {one} `{name}` already: PUT changes it")
            if not new and name not in rows:
                raise NameUnknown(f"there is no {one} `{name[:100]}` that was added here")
            if table is None:
                del rows[name]
            else:
                rows[name] = table
            assert gateway.reloader is not None
            await gateway.reloader.check(tables)

        await gateway.additions.change(gateway.store, change)
        done = await gateway.reloader.reload()
        if done.problem:
            raise Refused(409, f"it was stored, but the old configuration stays in force: {_one_line(done.problem)}")
        return (201 if new else 200), {**_reload_as_json(done), ("removed" if table is None else one): name}

    def _added(self, array: str) -> Mapping[str, Any]:
        return {} if self._gateway.additions is None else self._gateway.additions.tables.get(array, {})

    # The store

    async def decide_store(self, name: str, body: StoreDecision) -> Answer:
        store = self._gateway.store
        await store.look_again()
        if not store.problem:
            raise Refused(409, "there is nothing to decide: the store has what this process knows of it")
        await store.decide(body.decision)
        await self._read_keys_again()
        return 200, {"decision": body.decision}

    # Requests

    async def list_turns(self, name: str, body: None) -> Answer:
        return 200, {"turns": [asdict(turn) for turn in self._gateway.stats.pending.listed()]}

    async def drop_turn(self, name: str, body: None) -> Answer:
        keys = self._gateway.stats.pending.keys_of(name)
        if not keys:
            raise Refused(404, f"this process holds no turn `{name[:20]}`: GET {BASE}/turns lists them")
        for key in keys:
            await self._gateway.turn_store.drop(key)
            self._gateway.stats.pending.release(key)
        return 200, {"dropped": name}

    async def list_requests(self, name: str, body: None) -> Answer:
        return 200, {"requests": [asdict(request) for request in self._gateway.stats.recent.latest()]}


@contextmanager
def _refusing() -> Generator[None]:
    """Mistakes of the caller, as statuses."""
    try:
        yield
    except UserError as error:
        status = 409 if isinstance(error, NameTaken) else 404 if isinstance(error, NameUnknown) else 422
        raise Refused(status, _one_line(str(error))) from None


def _one_line(text: str) -> str:
    return "; ".join(text.splitlines())


def _reload_as_json(done: Reload) -> dict[str, Any]:
    return {"changes": list(done.changes), "needs_restart": list(done.needs_restart)}


Work: TypeAlias = Callable[[AdminApi, str, Any], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    """Below `BASE`; `{name}` stands for one part of it. The name of a model may have slashes, as in `openai/gpt-5`."""
    summary: str
    work: Work
    body: type[BaseModel] | None = None

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    def match(self, path: str) -> str | None:
        """The name in a path that fits; empty if this one has no name."""
        before, has_name, after = self.path.partition("{name}")
        if not has_name:
            return "" if path == self.path else None
        name = path.removeprefix(before).removesuffix(after)
        fits = path.startswith(before) and path.endswith(after) and len(name) == len(path) - len(before) - len(after)
        parts = name.split("/")
        if not fits or not all(parts) or not name.isprintable() or (len(parts) > 1 and before != "/aliases/"):
            return None
        return name


def _on(array: str) -> Sequence[Operation]:
    one, many, path = ONE_OF[array], array, f"/{'aliases' if array == 'models' else array}"

    async def list_all(api: AdminApi, name: str, body: None) -> Answer:
        return await api.list_tables(array)

    async def add(api: AdminApi, name: str, body: NewTable) -> Answer:
        return await api.add_table(array, body)

    async def put(api: AdminApi, name: str, body: NewTable) -> Answer:
        return await api.put_table(array, name, body)

    async def remove(api: AdminApi, name: str, body: None) -> Answer:
        return await api.remove_table(array, name)

    return (
        Operation("GET", path, f"All {many}: of the file, and those that were added here.", list_all),
        Operation("POST", path, f"Adds a table of [[{array}]] for all gateways that share the store.", add, NewTable),
        Operation("PUT", f"{path}/{{name}}", f"Changes {one} `name`, which was added here.", put, NewTable),
        Operation("DELETE", f"{path}/{{name}}", f"Removes {one} `name`, which was added here.", remove),
    )


OPERATIONS: Sequence[Operation] = (
    Operation("GET", "/version", "The version, when it started, and the last reload.", AdminApi.show_version),
    Operation("GET", "/config", "The settings in force, without secrets.", AdminApi.show_config),
    Operation("POST", "/reload", "Reads the configuration again.", AdminApi.reload, Body),
    Operation("GET", "/keys", "All keys, without their secrets.", AdminApi.list_keys),
    Operation("POST", "/keys", "Creates a key. Its secret is in this answer only.", AdminApi.create_key, NewKey),
    Operation("PATCH", "/keys/{name}", "Changes what a key may do.", AdminApi.change_key, KeyChange),
    Operation("POST", "/keys/{name}/rotate", "Makes a new key in place of one.", AdminApi.rotate_key, Rotation),
    Operation("DELETE", "/keys/{name}", "Revokes a key.", AdminApi.revoke_key),
    *(operation for array in NAME_OF if array in TABLES for operation in _on(array)),
    Operation(
        "POST", "/store", "Writes back what an emptied store held, or not.", AdminApi.decide_store, StoreDecision
    ),
    Operation("GET", "/turns", "The turns whose calls are held, in this process.", AdminApi.list_turns),
    Operation("DELETE", "/turns/{name}", "Gives up a held turn: its calls are not released.", AdminApi.drop_turn),
    Operation("GET", "/requests", "The last hundred requests of this process.", AdminApi.list_requests),
)


def _find(method: str, path: str) -> tuple[Operation, str]:
    below = path.removeprefix(BASE) if path.startswith(f"{BASE}/") else ""
    fitting = [(each, name) for each in OPERATIONS if (name := each.match(below)) is not None]
    for each, name in fitting:
        if each.method == method:
            return each, name
    if fitting:
        allowed = sorted({each.method for each, _ in fitting} | ({"HEAD"} if fitting[0][0].method == "GET" else set()))
        raise Refused(405, f"{path[:200]} needs {' or '.join(allowed)}", {"allow": ", ".join(allowed)})
    raise Refused(404, f"there is no path {path[:200]}: GET {DESCRIPTION} lists the paths", kind="unknown_url")
