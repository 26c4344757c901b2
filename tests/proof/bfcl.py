"""The multi-turn tasks of the Berkeley Function-Calling Leaderboard (`bfcl-eval`): file systems, cars, brokers and
travel agencies, as Python objects. The reference solution of a task is a list of calls for each prompt."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
from collections.abc import Callable, Sequence
from functools import cache, cached_property, wraps
from pathlib import Path
from typing import Any, cast

from proof.replaying import Declared, Step, Task, World
from unbroken.tools.tool import Effect, Tool, tool

CATEGORIES = ("base", "long_context", "miss_func", "miss_param")
EXECUTOR = "bfcl_eval.eval_checker.multi_turn_eval"

WRITES = {
    "GorillaFileSystem": "cd cp echo mkdir mv rm rmdir touch",
    "MathAPI": "",
    "MessageAPI": "add_contact delete_message message_login send_message",
    "TicketAPI": "close_ticket create_ticket edit_ticket logout resolve_ticket ticket_login",
    "TradingBot": "add_to_watchlist cancel_order fund_account place_order remove_stock_from_watchlist trading_login "
    "trading_logout withdraw_funds",
    # A price is made up when it is looked at, and kept for the booking.
    "TravelAPI": "authenticate_travel book_flight cancel_booking get_flight_cost purchase_insurance "
    "register_credit_card set_budget_limit",
    "TwitterAPI": "authenticate_twitter comment follow_user mention post_tweet retweet unfollow_user",
    # A thermometer and a speedometer show the next random number.
    "VehicleControlAPI": "activateParkingBrake adjustClimateControl fillFuelTank get_current_speed "
    "get_outside_temperature_from_google lockDoors pressBrakePedal releaseBrakePedal setCruiseControl setHeadlights "
    "set_navigation startEngine",
}
"""The methods that change their object. All others are reads."""
STATELESS = {
    "MathAPI",
    "compute_exchange_rate",
    "estimate_distance",
    "gallon_to_liter",
    "get_nearest_airport_by_city",
    "get_zipcode_based_on_city",
    "list_all_airports",
    "liter_to_gallon",
}
"""A class, and methods of other classes, that look at no object: they need no key."""


def tasks(category: str) -> list[Task]:
    folder = Path(str(importlib.import_module("bfcl_eval").__file__)).parent / "data"
    name = f"BFCL_v4_multi_turn_{category}.json"
    solutions = {line["id"]: line["ground_truth"] for line in _lines(folder / "possible_answer" / name)}
    return [_task(line, solutions[line["id"]]) for line in _lines(folder / name)]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _task(entry: dict[str, Any], solution: list[list[str]]) -> Task:
    methods = _methods(_objects(entry))
    steps: list[Step] = []
    for prompt, calls in zip(entry["question"], solution, strict=True):
        text = "\n".join(message["content"] for message in prompt) or "(the missing function is there now)"
        steps.append(Step(text, tuple(_read_call(call, methods) for call in calls)))
    reference = _Reference(entry, solution)
    return Task(entry["id"], tuple(steps), lambda: _World(entry, reference))


def _read_call(call: str, methods: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """`mv('a', destination='b')` as a name and arguments that are JSON."""
    parsed = ast.parse(call, mode="eval").body
    if not (isinstance(parsed, ast.Call) and isinstance(parsed.func, ast.Name)):
        raise ValueError(f"this is not a call of a function: {call}")
    positional = [ast.literal_eval(value) for value in parsed.args]
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in parsed.keywords}
    bound = inspect.signature(methods[parsed.func.id]).bind(*positional, **named)
    return parsed.func.id, dict(bound.arguments)


def _objects(entry: dict[str, Any]) -> dict[str, Any]:
    """The objects of a task by class, as the benchmark makes them."""
    settings = importlib.import_module("bfcl_eval.constants.executable_backend_config")
    objects: dict[str, Any] = {}
    for name in entry["involved_classes"]:
        objects[name] = getattr(importlib.import_module(settings.CLASS_FILE_PATH_MAPPING[name]), name)()
        if name not in settings.STATELESS_CLASSES:
            scenario = copy.deepcopy(entry["initial_config"].get(name, {}))
            objects[name]._load_scenario(scenario, long_context=_is_long(entry))
    return objects


def _is_long(entry: dict[str, Any]) -> bool:
    return "long_context" in entry["id"]


def _methods(objects: dict[str, Any]) -> dict[str, Any]:
    return {
        name: method
        for found in objects.values()
        for name, method in inspect.getmembers(found, inspect.ismethod)
        if not name.startswith("_")
    }


class _Reference:
    """The results and the objects of the benchmark's own executor, which runs the calls one after another."""

    def __init__(self, entry: dict[str, Any], solution: list[list[str]]) -> None:
        self._entry = entry
        self._solution = solution

    @cached_property
    def outcome(self) -> tuple[list[str], dict[str, Any]]:
        execute = importlib.import_module(f"{EXECUTOR}.multi_turn_utils").execute_multi_turn_func_call
        entry, results, objects = self._entry, list[str](), dict[str, Any]()
        for calls in self._solution:  # it finds the objects of the earlier turns by the names that it is given here
            texts, objects = execute(
                calls, entry["initial_config"], entry["involved_classes"], "proof", entry["id"], _is_long(entry)
            )
            results.extend(texts)
        return results, objects


class _World(World):
    def __init__(self, entry: dict[str, Any], reference: _Reference) -> None:
        self._objects = _objects(entry)
        self._reference = reference

    def tools(self, declared: Declared) -> list[Tool]:
        return [
            made.__get__(target) for target in self._objects.values() for made in _tools_of(target.__class__, declared)
        ]

    def difference(self, results: Sequence[str]) -> str:
        expected, objects = self._reference.outcome
        checked = importlib.import_module(f"{EXECUTOR}.multi_turn_checker").state_checker(self._objects, objects)
        if not checked["valid"]:
            return f"state: {checked['error_message']} {checked['details']['differences']}"
        for at, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
            if ours != theirs:
                return f"result of call {at}: {ours[:200]} | {theirs[:200]}"
        return ""


@cache
def _tools_of(kind: type[Any], declared: Declared) -> tuple[Tool, ...]:
    """The public methods of a class as tools, to be bound to an object."""
    found = inspect.getmembers(kind, inspect.isfunction)
    return tuple(_as_tool(kind.__name__, method, declared) for name, method in found if not name.startswith("_"))


def _as_tool(kind: str, method: Callable[..., Any], declared: Declared) -> Tool:
    if declared == "wrong":
        return tool(effect="read", dedupe=False)(_in_their_words(method))
    if kind in STATELESS or method.__name__ in STATELESS:
        return tool(effect="read")(_in_their_words(method))
    effect: Effect = "write" if method.__name__ in WRITES[kind].split() else "read"
    return tool(effect=effect, key=lambda _: kind)(_in_their_words(method))


def _in_their_words(method: Callable[..., Any]) -> Callable[..., Any]:
    """Results become text as in the benchmark's executor, so that they can be compared."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> str:
        result = method(*args, **kwargs)
        try:
            return json.dumps(result) if isinstance(result, dict) else str(result)
        except TypeError:
            return str(cast("object", result))

    return call
