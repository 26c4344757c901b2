"""Ids that a provider does not take are sent in a short form, always the same one."""

from __future__ import annotations

import weakref

from unbroken_wires.wires.json_access import IdRule, fit

RULE = IdRule(40, "[a-zA-Z0-9_-]")


def test_different_ids_stay_different_and_the_same_id_stays_the_same() -> None:
    ids = [f"call {number}" for number in range(1000)] + [f"{'x' * 300}{number}" for number in range(1000)]
    fitted = [fit(id, RULE) for id in ids]
    assert len({*fitted}) == len(ids)
    assert max(map(len, fitted)) <= 40
    assert [fit(id, RULE) for id in ids] == fitted


def test_long_ids_do_not_stay_in_memory() -> None:
    class Id(str):
        """One that can be looked for later."""

    id = Id("x" * 100_000)
    kept = weakref.ref(id)
    fit(id, RULE)
    del id
    assert kept() is None
