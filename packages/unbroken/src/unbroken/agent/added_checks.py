"""The decorators of an agent that add checks: `@agent.check_output`. Each adds middleware of `unbroken.guardrails`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, TypeVar, overload

from unbroken import guardrails
from unbroken.agent.options import Settings
from unbroken.middleware import Middleware

CheckT = TypeVar("CheckT", bound=Callable[..., Any])


class AddedChecks:
    """The part of an `Agent` that adds checks to its middleware."""

    settings: Settings

    @overload
    def check_input(self, check: CheckT) -> CheckT: ...
    @overload
    def check_input(self, *, parallel: bool = ...) -> Callable[[CheckT], CheckT]: ...
    def check_input(self, check: Any = None, **options: Any) -> Any:
        """A decorator for a check of the prompt (`unbroken.guardrails.check_input`)."""
        return self._add_check(guardrails.check_input, check, options)

    @overload
    def check_answers(self, check: CheckT) -> CheckT: ...
    @overload
    def check_answers(self, *, retries: int = ...) -> Callable[[CheckT], CheckT]: ...
    def check_answers(self, check: Any = None, **options: Any) -> Any:
        """A decorator for a check of each answer of the model (`unbroken.guardrails.check_answers`)."""
        return self._add_check(guardrails.check_answers, check, options)

    @overload
    def check_calls(self, check: CheckT) -> CheckT: ...
    @overload
    def check_calls(self, *, tools: Collection[str] = ...) -> Callable[[CheckT], CheckT]: ...
    def check_calls(self, check: Any = None, **options: Any) -> Any:
        """A decorator for a check of each tool call (`unbroken.guardrails.check_calls`)."""
        return self._add_check(guardrails.check_calls, check, options)

    @overload
    def check_output(self, check: CheckT) -> CheckT: ...
    @overload
    def check_output(self, *, retries: int = ...) -> Callable[[CheckT], CheckT]: ...
    def check_output(self, check: Any = None, **options: Any) -> Any:
        """A decorator for a check of the final output (`unbroken.guardrails.check_output`)."""
        return self._add_check(guardrails.check_output, check, options)

    def _add_check(self, make: Callable[..., Middleware], check: Any, options: dict[str, Any]) -> Any:
        """The last check is the innermost, as if it stood last in `middleware=`."""

        def add(check: Any) -> Any:
            middleware = (*self.settings.middleware, make(check, **options))
            self.settings = replace(self.settings, middleware=middleware)
            return check

        return add if check is None else add(check)
