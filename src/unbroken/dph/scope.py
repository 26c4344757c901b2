"""The variables of a program while it runs. Values are never changed in place: appending makes a new list, so children
of a `/parallel/` can each go on from the same values without seeing each other's."""

from __future__ import annotations

from typing import Any, cast

from unbroken.messages import Json, Message


class Scope(dict[str, Json]):
    """Names and values. `changes` are what was set and appended since it was forked, in order."""

    def __init__(self, values: dict[str, Json] | None = None) -> None:
        super().__init__(values or {})
        self.changes: list[tuple[str, bool, Json]] = []
        self.said: tuple[Message, ...] = ()
        """What blocks with `history=true` have said to each other."""

    def put(self, name: str, value: Json, *, append: bool) -> None:
        """Set a name, or append to the list that it has; one that has no list is made one."""
        self.changes.append((name, append, value))
        if not append:
            self[name] = value
        elif name not in self:
            self[name] = [value]
        else:
            before: Any = self[name]
            self[name] = [*cast("list[Json]", before), value] if isinstance(before, list) else [before, value]

    def fork(self) -> Scope:
        child = Scope(dict(self))
        child.said = self.said
        return child

    def join(self, child: Scope) -> None:
        """Take over what a child changed, after those that stand before it."""
        for name, append, value in child.changes:
            self.put(name, value, append=append)
