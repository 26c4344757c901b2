"""What each feature of the gateway costs when it is used: the gateway with the feature beside one without, in turns.
`bench/gateway.py` prints it; alone: `python bench/gateway_features.py`."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from gateway import CHAT, KB, asking, question, take_turns
from gateway_client import post
from gateway_processes import Server, gateway
from gateway_upstream import upstream

from unbroken_gateway.keys import GatewayKey, create_key


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    more: str = ""
    """Tables of the configuration. `{upstream}` stands for the port of the upstream."""
    of_model: str = ""
    """More settings of each model."""
    keys: bool = False
    """A key with limits is required and sent."""


_PRICE = "price = { input = 1.0, output = 2.0 }\n"


def _deployments(*names: str) -> str:
    return "".join(f'\n[[models.deployments]]\nname = "{name}"\n' for name in names)


def _guardrail(use: str, option: str) -> str:
    return f'\n[[models.guardrails]]\nuse = "{use}"\n{option}\n'


HOOKS = """def on_request(request, info):
    if "forbidden" in str(request.messages[-1]):
        raise ValueError
"""

FEATURES = (
    Feature("keys with limits", keys=True),
    Feature("two deployments", of_model=_deployments("east", "west")),
    Feature("spend", "[spend]\nenabled = true\n", of_model=_PRICE),
    Feature("a budget", '[[budgets]]\namount = "1000000usd/day"\n', of_model=_PRICE),
    Feature("a budget and limits", '[[budgets]]\namount = "1000000usd/day"\n', of_model=_PRICE, keys=True),
    Feature("OpenTelemetry", '[telemetry]\nenabled = true\nendpoint = "http://127.0.0.1:{upstream}"\n'),
    Feature("the access log", "[server]\naccess_log = true\n"),
    Feature("a redaction", of_model=_guardrail("redact", "pattern = '[0-9]{4}( [0-9]{4}){3}'")),
    Feature("a veto of calls", of_model=_guardrail("check_calls", "veto = 'rm -rf'")),
    Feature("a hook on requests", of_model="hooks = 'hooks.py'\n"),
    Feature("recording all requests", '[record]\nfolder = "recordings"\n'),
)


@contextmanager
def with_feature(feature: Feature, upstream: int, directory: Path, name: str) -> Generator[tuple[Server, bytes]]:
    """A gateway with the feature, and the request for it."""
    more, headers = feature.more.replace("{upstream}", str(upstream)), ""
    (directory / "hooks.py").write_text(HOOKS)
    if feature.keys:
        file = directory / f"{name}-keys.json"
        key = GatewayKey("bench", requests_per_minute=10_000_000, in_flight=10_000)
        headers = f"x-api-key: {create_key(file, key)}\r\n"
        more = f"{more}\n[keys]\nrequired = true\nfile = {json.dumps(str(file))}\n"
    request = post(CHAT, question("calls", KB), headers)
    if headers:  # the benches' client sends a key of its own
        request = request.replace(b"\r\nAuthorization: Bearer not-a-key", b"")
    with gateway(upstream, directory, name=name, more=more, of_model=feature.of_model) as server:
        yield server, request


async def _measure(plain: Server, server: Server, request: bytes, times: int, turns: int) -> float:
    spent = await take_turns([plain], asking(post(CHAT, question("calls", KB))), times, turns)
    used = await take_turns([server], asking(request), times, turns)
    spent.turns |= used.turns
    return spent.ratio(server.name, plain.name)


def costs(port: int, directory: Path, plain: Server, times: int, turns: int) -> dict[str, float]:
    """By feature: CPU of a passed-through request of 1 KB, as a multiple of the gateway that does not use it."""
    found: dict[str, float] = {}
    for number, feature in enumerate(FEATURES):
        with with_feature(feature, port, directory, f"feature{number}") as (server, request):
            ratios = [uvloop.run(_measure(plain, server, request, times, 1)) for _ in range(turns)]
            found[feature.name] = sorted(ratios)[len(ratios) // 2]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns: numbers to look at, not to quote")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as place, upstream() as port, gateway(port, Path(place)) as plain:
        for name, ratio in costs(port, Path(place), plain, 200, 3 if quick else 9).items():
            print(f"{name:40}{ratio:6.2f} x the CPU of a request without it", flush=True)


if __name__ == "__main__":
    main()
