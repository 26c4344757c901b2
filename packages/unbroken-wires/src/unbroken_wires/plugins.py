"""What other installed packages add to ours, as entry points: wires, providers, commands.

Only a name that is not built in is looked for here: the metadata of all packages takes tens of milliseconds to read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from unbroken_wires.errors import UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def plugins(group: str, title: str, built_in: Collection[str], home: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group by name. `title` is what one of them is called in errors, with `{}` for its name;
    `built_in` are the names that the package `home` has itself. The same name twice is an error."""
    owners = dict.fromkeys(built_in, home)
    found: dict[str, EntryPoint] = {}
    for point in _entry_points(group):
        if point.name in owners:
            name = title.format(point.name)
            raise UserError(f"{name} is in two packages, {owners[point.name]} and {_package(point)}: uninstall one")
        owners[point.name] = _package(point)
        found[point.name] = point
    return found


def load(point: EntryPoint, title: str) -> Any:
    """What an entry point names."""
    try:
        return point.load()
    except Exception as error:  # the package may raise anything
        raise UserError(
            f"{title.format(point.name)} of the package {_package(point)} cannot be loaded from {point.value}: "
            f"{type(error).__name__}: {error}; repair the package, or uninstall it"
        ) from error


def misnamed(point: EntryPoint, title: str, wanted: type) -> UserError:
    """The error if that is something else, or has another name."""
    return UserError(
        f"{title.format(point.name)} of the package {_package(point)}: {point.value} has to be "
        f"a {wanted.__name__} of that name"
    )


@cache
def _entry_points(group: str) -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - start-up time

    return tuple(sorted(entry_points(group=group), key=_package))


def _package(point: EntryPoint) -> str:
    return point.module if point.dist is None else point.dist.name
