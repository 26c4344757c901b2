"""What `import unbroken` offers is what it says it offers."""

from __future__ import annotations

import types

import unbroken


def test_all_names_what_is_visible() -> None:
    visible = {name for name, value in vars(unbroken).items() if not isinstance(value, types.ModuleType)}
    visible = {name for name in visible if not name.startswith("_")} | {"__version__"}
    assert visible == set(unbroken.__all__)


def test_every_public_thing_has_words() -> None:
    silent = [
        name
        for name in unbroken.__all__
        if isinstance(value := getattr(unbroken, name), types.FunctionType) and not value.__doc__
    ]
    assert silent == []
