"""Writes docs/rules.md: `python docs/rules_page.py > docs/rules.md`."""

from __future__ import annotations

import sys

from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.rules import Rule

_HEAD = """\
# What providers refuse

<!-- Generated from `unbroken_wires/wires/*/*_rules.py`: `python docs/rules_page.py > docs/rules.md` -->

A request can have the right shape and still be refused: a model family does not know a setting, or not beside another
one. These are the rules that Unbroken knows. A request is written so that it obeys them; what a model would refuse is
left out, or replaced by the nearest that it accepts, and reported: `result.warnings` in the library, the header
`x-unbroken-dropped` in the gateway. Where that would change what the request means, it is an `InvalidRequest`. What is
in `extra` is sent as it is. `ScriptedServer` and `FaultyServer` ([testing.md](testing.md)) refuse the same, in the
provider's own words where they are known.

`unbroken probe --rules --provider anthropic --model claude-opus-4-7` prints those of one model, without a request.
"""


def make_page() -> str:
    return _HEAD + "".join(_of_wire(wire, find_wire(wire).rules()) for wire in WIRES)


def _of_wire(wire: str, rules: tuple[Rule, ...]) -> str:
    rows = "".join(dict.fromkeys(_row(rule) for rule in rules))  # a limit of two fields is one rule to a reader
    return f"\n## {wire}\n\n| rule | providers | models | source |\n|---|---|---|---|\n{rows}"


def _row(rule: Rule) -> str:
    says = rule.says.replace("|", "\\|")
    models = "all" if str(rule.models) == "*" else str(rule.models).replace("|", "\\|").replace("*", "\\*")
    return f"| {says} | {', '.join(rule.providers)} | {models} | {rule.source} |\n"


if __name__ == "__main__":
    sys.stdout.write(make_page())
