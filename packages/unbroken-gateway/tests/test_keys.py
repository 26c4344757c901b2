"""Gateway keys: created once, stored as a hash, revoked while the gateway runs; the file survives any failure."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from unbroken import UserError
from unbroken.clock import VirtualClock
from unbroken_gateway.keys import GatewayKey, KeyRing, change_key, create_key, list_keys, revoke_key, rotate_key
from unbroken_gateway.spending.allowance import read_allowance

ANN = GatewayKey("ann", aliases=("gpt-5", "fast"), requests_per_minute=60, in_flight=4)


def test_a_key_is_found_by_the_secret_that_was_shown_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = create_key(path, ANN, now=lambda: 1000.0)
    other = create_key(path, GatewayKey("bob"), now=lambda: 2000.0)
    assert secret.startswith("ub-")
    assert len(secret) == 3 + 43
    assert secret != other
    ring = KeyRing(path)
    ann, bob = ring.find(secret), ring.find(other)
    assert ann is not None
    assert bob is not None
    assert replace(ann, id="") == GatewayKey("ann", ("gpt-5", "fast"), 60, 4, 1000.0)
    assert replace(bob, id="") == GatewayKey("bob", created=2000.0)
    assert len({ann.id, bob.id, ""}) == 3
    assert KeyRing(path).find(secret) == ann
    for wrong in ("", "ann", secret[:-1], secret.upper(), f"{secret} ", "ub-é\udc80", "x" * 100_000):
        assert ring.find(wrong) is None


def test_the_file_contains_hashes_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = create_key(path, ANN)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert secret not in text
    assert secret.removeprefix("ub-") not in text
    saved = json.loads(text)
    assert saved["version"] == 6
    assert saved["keys"][0]["sha256"] == sha256(secret.encode()).hexdigest()
    assert secret not in repr(KeyRing(path).find(secret))
    assert os.listdir(tmp_path) == ["keys.json"]


def test_a_key_with_models_allows_only_these() -> None:
    assert ANN.allows("fast")
    assert not ANN.allows("slow")
    assert GatewayKey("all").allows("slow")


def test_names_are_taken_once_and_revoked_by_name(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    create_key(path, ANN)
    create_key(path, GatewayKey("bob"))
    with pytest.raises(UserError, match=r"there is a key `ann` in .*: revoke it first, or choose another name"):
        create_key(path, GatewayKey("ann"))
    revoke_key(path, "ann")
    assert [key.name for key in list_keys(path)] == ["bob"]
    with pytest.raises(UserError, match=r"there is no key `ann` in .*; there are: bob"):
        revoke_key(path, "ann")
    assert os.listdir(tmp_path) == ["keys.json"]


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a\n", "ä", "x" * 65, "../x"])
def test_a_name_must_be_one_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="a key's name has letters, digits and"):
        create_key(tmp_path / "keys.json", GatewayKey(name))


def test_a_limit_is_a_number_from_1(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="key `a` cannot be limited to 0 requests in flight: give a number from 1"):
        create_key(tmp_path / "keys.json", GatewayKey("a", in_flight=0))
    assert os.listdir(tmp_path) == []


def test_a_running_gateway_notices_a_new_key_and_a_revoked_one(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    clock = VirtualClock()
    ring = KeyRing(path, clock)
    assert len(ring) == 0
    secret = create_key(path, ANN)
    assert ring.find(secret) is None  # the file is checked once a second
    clock.advance(1)
    assert ring.find(secret) is not None
    revoke_key(path, "ann")
    assert ring.find(secret) is not None
    clock.advance(1)
    assert ring.find(secret) is None


def test_a_file_that_becomes_damaged_at_run_time_changes_nothing_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    secret = create_key(path, ANN)
    clock = VirtualClock()
    ring = KeyRing(path, clock)
    path.write_text('{"version": 1, "ke')
    with caplog.at_level(logging.INFO, "unbroken.gateway"):
        for _ in range(3):
            clock.advance(1)
            assert ring.find(secret) is not None
    [line] = caplog.messages
    assert line.startswith("reading the gateway keys failed, the old ones stay valid: the gateway keys in ")
    assert line.endswith("are damaged: it is not JSON; restore the file, or remove it and make new keys")
    path.unlink()
    other = create_key(path, GatewayKey("bob"))
    clock.advance(1)
    assert ring.find(secret) is None
    assert ring.find(other) is not None


def test_a_file_that_was_removed_has_no_keys_any_more(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = create_key(path, ANN)
    clock = VirtualClock()
    ring = KeyRing(path, clock)
    path.unlink()
    clock.advance(1)
    assert ring.find(secret) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "are damaged: it is not JSON"),
        ("[]", "are damaged: it is not a JSON object"),
        ("{}", "are damaged: `version` or `keys` is missing"),
        ('{"version": 1, "keys": {}}', "are damaged: `version` or `keys` is missing"),
        ('{"version": 1, "keys": [{"name": "a", "sha256": "12"}]}', "are damaged: key 1 in it is not complete"),
        ('{"version": 7, "keys": []}', r"were written by a newer Unbroken \(version 7\): update this one"),
    ],
)
def test_a_damaged_file_is_reported_at_the_start_and_left_alone(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(UserError, match=told):
        KeyRing(path)
    with pytest.raises(UserError, match=told):
        create_key(path, ANN)
    assert path.read_text() == text
    assert os.listdir(tmp_path) == ["keys.json"]


def test_the_leftovers_of_a_killed_process_do_not_get_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    create_key(path, ANN)
    (tmp_path / "keys.json.new").write_text("half")
    with pytest.raises(UserError, match=r"are being changed by another command, or .*: remove keys\.json\.new"):
        create_key(path, GatewayKey("bob"), patience=0.02)
    assert [key.name for key in list_keys(path)] == ["ann"]


def test_a_path_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be changed: No such file or directory"):
        create_key(tmp_path / "nowhere" / "keys.json", ANN)
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        KeyRing(tmp_path)


def test_through_a_link_the_file_itself_is_changed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "keys.json"
    link.symlink_to(tmp_path / "real" / "keys.json")
    secret = create_key(link, ANN)
    create_key(link, GatewayKey("bob"))
    assert link.is_symlink()
    assert KeyRing(tmp_path / "real" / "keys.json").find(secret) is not None


def test_many_at_once_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    program = (
        "import sys; from unbroken_gateway.keys import *\n"
        "for n in range(10): create_key(sys.argv[1], GatewayKey(f'{sys.argv[2]}-{n}'), patience=30)"
    )
    makers = [subprocess.Popen([sys.executable, "-c", program, str(path), who]) for who in "abc"]
    assert [maker.wait(60) for maker in makers] == [0, 0, 0]
    assert {key.name for key in list_keys(path)} == {f"{who}-{n}" for who in "abc" for n in range(10)}


def test_a_key_has_a_tenant_and_keys_of_an_older_file_have_none(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = create_key(path, GatewayKey("ann", tenant="acme"))
    key = KeyRing(path).find(secret)
    assert key is not None
    assert key.tenant == "acme"
    saved = json.loads(path.read_text())
    saved["version"] = 2
    del saved["keys"][0]["tenant"]
    path.write_text(json.dumps(saved))
    key = KeyRing(path).find(secret)
    assert key is not None
    assert key.tenant == ""
    with pytest.raises(UserError, match="all of them printable"):
        create_key(path, GatewayKey("bob", tenant="a\nb"))


def test_a_key_is_valid_until_it_expires(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.json", VirtualClock(5000.0)
    secret = create_key(path, GatewayKey("ann", expires=5060.0), now=clock.now)
    ring = KeyRing(path, clock)
    found = ring.find(secret)
    assert found is not None
    assert ring.find_expired(secret) is None
    clock.advance(60)
    assert ring.find(secret) is None
    assert ring.find_expired(secret) == found
    assert ring.find_expired("ub-unknown") is None
    with pytest.raises(UserError, match="would have expired already"):
        create_key(path, GatewayKey("bob", expires=4000.0), now=clock.now)


def test_a_new_key_replaces_another_which_stays_valid_for_a_while(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.json", VirtualClock(5000.0)
    first = create_key(path, ANN, now=clock.now)
    before = KeyRing(path, clock).find(first)
    clock.advance(10)
    second = rotate_key(path, "ann", keep=100, now=clock.now)
    ring = KeyRing(path, clock)
    old, new = ring.find(first), ring.find(second)
    assert before is not None
    assert new is not None
    assert old == replace(before, expires=5110.0)
    assert new == replace(before, created=5010.0), "the same limits, and the same id for what is stored"
    clock.advance(50)
    third = rotate_key(path, "ann", keep=0, now=clock.now)
    ring = KeyRing(path, clock)
    assert [ring.find(secret) is not None for secret in (first, second, third)] == [False, False, True]
    revoke_key(path, "ann")
    assert list_keys(path) == ()
    with pytest.raises(UserError, match="no key `ann`"):
        rotate_key(path, "ann", keep=0)


def test_a_key_without_an_id_in_an_older_file_keeps_the_id_of_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = create_key(path, ANN)
    now = KeyRing(path).find(secret)
    file = json.loads(path.read_text())
    for key in file["keys"]:
        del key["id"], key["expires"]
    path.write_text(json.dumps({**file, "version": 3}))
    assert KeyRing(path).find(secret) == now


@pytest.mark.parametrize("changed", [{"expires": "soon"}, {"expires": True}, {"id": "../x"}, {"id": 5}], ids=str)
def test_an_invalid_expiry_or_id_in_the_file_is_reported(tmp_path: Path, changed: dict[str, object]) -> None:
    path = tmp_path / "keys.json"
    create_key(path, ANN)
    file = json.loads(path.read_text())
    file["keys"][0] |= changed
    path.write_text(json.dumps(file))
    with pytest.raises(UserError, match="key 1 in it is not complete"):
        KeyRing(path)


def test_a_key_has_a_team_budgets_and_tokens_per_minute_and_those_of_an_older_file_have_none(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    budgets = (read_allowance("20usd/day"), read_allowance("0.5usd/month"))
    secret = create_key(path, GatewayKey("ann", team="search", budgets=budgets, tokens_per_minute=9000))
    ann = KeyRing(path).find(secret)
    assert ann is not None
    assert (ann.team, ann.budgets, ann.tokens_per_minute) == ("search", budgets, 9000)
    saved = json.loads(path.read_text())
    assert saved["keys"][0]["budgets"] == ["20usd/day", "0.5usd/month"]
    for damage in ({"budgets": ["20"]}, {"team": 1}, {"tokens_per_minute": 0}):
        path.write_text(json.dumps({**saved, "keys": [{**saved["keys"][0], **damage}]}))
        with pytest.raises(UserError, match="are damaged"):
            KeyRing(path)
    older = {name: value for name, value in saved["keys"][0].items() if name not in ("team", "budgets")}
    del older["tokens_per_minute"]
    path.write_text(json.dumps({"version": 4, "keys": [older]}))
    assert KeyRing(path).find(secret) == GatewayKey("ann", created=ann.created, id=ann.id)


def test_a_key_is_changed_and_stays_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    create_key(path, GatewayKey("ann"), now=lambda: 1.0)
    secret = rotate_key(path, "ann", 3600.0)
    before = KeyRing(path).find(secret)
    assert before is not None
    changed = change_key(path, "ann", lambda key: replace(key, name="eve", id="", team="search"))
    assert changed == replace(before, team="search")
    assert {key.team for key in list_keys(path)} == {"search"}
    assert [key.expires is None for key in list_keys(path)] == [False, True]
    twice = (read_allowance("1usd/day"), read_allowance("2usd/day"))
    with pytest.raises(UserError, match="key `ann` has two budgets for the same time"):
        change_key(path, "ann", lambda key: replace(key, budgets=twice))
    with pytest.raises(UserError, match="key `ann`: a team's name has letters"):
        change_key(path, "ann", lambda key: replace(key, team="a b"))
    with pytest.raises(UserError, match="there is no key `eve`"):
        change_key(path, "eve", lambda key: key)
