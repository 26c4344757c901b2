"""Would a provider refuse this request? The checkers themselves are in the packages of the wires."""

from __future__ import annotations

from unbroken.messages import Json
from unbroken.wires import find_wire
from unbroken.wires.values import as_dict


def check_request(wire: str, body: Json) -> list[str]:
    """Everything for which a provider of this wire would refuse the request, one line each. Empty: it is accepted."""
    return check_shape(wire, body) or find_wire(wire).for_tests().check_request(as_dict(body))


def check_shape(wire: str, body: Json) -> list[str]:
    """Only what no server can read, however lax it is: nothing is asked, or a field has a wrong type."""
    check = find_wire(wire).for_tests().check_shape
    return check(as_dict(body)) if isinstance(body, dict) else ["the body is not a JSON object"]
