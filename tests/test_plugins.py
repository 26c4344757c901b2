"""Packages of others add wires, providers and commands: a wheel is built, installed into an environment, and used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0"

"""

ACME = """\
from dataclasses import replace

import typer
from unbroken.models.providers import Provider
from unbroken_wires.messages import Json, Request
from unbroken_wires.wires import find_wire

CHAT = find_wire("openai-chat")


def encode_request(request: Request) -> dict[str, Json]:
    return {**CHAT.encode_request(request), "user": "acme"}


WIRE = replace(CHAT, name="acme-chat", encode_request=encode_request)
PROVIDER = Provider("acme", "Acme", "acme-chat", keys=("ACME_KEY",), base_url_variables=("ACME_BASE_URL",))
command = typer.Typer()


@command.command()
def hello() -> None:
    print("hello from acme")
"""

POINTS = """\
[project.entry-points."unbroken.wires"]
acme-chat = "{module}:WIRE"

[project.entry-points."unbroken.providers"]
acme = "{module}:PROVIDER"

[project.entry-points."unbroken.commands"]
acme = "{module}:command"
"""

RUNS = """\
import json
import os
from pathlib import Path
from urllib.request import Request, urlopen

from unbroken import Agent, connect
from unbroken_gateway import read_config, running
from unbroken_testing import serve

with serve("From Python.", "Like it.", "On its wire.", "Through the gateway.") as server:
    os.environ |= {"ACME_BASE_URL": server.base_url(), "ACME_KEY": "a key", "UNBROKEN_PROVIDERS": "providers.toml"}
    Path("providers.toml").write_text('[providers.mine]\\nlike = "acme"\\n[providers.acme]\\nquirks.strict = false\\n')
    texts = [Agent(model).run_sync("Hi").text for model in ("acme:large", "mine:large")]
    texts.append(Agent(connect("compatible:any", base_url=server.base_url(), wire="acme-chat")).run_sync("Hi").text)
    Path("unbroken.toml").write_text(
        '[server]\\nport = 0\\n'
        '[[models]]\\nalias = "fast"\\nmodel = "acme:large"\\nwire = "acme-chat"\\n'
    )
    body = {"model": "fast", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
    with running(read_config("unbroken.toml")) as url:
        with urlopen(Request(f"{url}/v1/messages", json.dumps(body).encode())) as response:
            texts.append(json.load(response)["content"][0]["text"])
    print(json.dumps([texts, [sent["user"] for sent in server.bodies]]))
"""


ERRORS = """\
import json

from unbroken import connect
from unbroken_wires.wires import find_wire

raised = []
for call in CALLS:
    try:
        eval(call)
        raised.append("")
    except Exception as error:
        raised.append(str(error))
print(json.dumps(raised))
"""

BUILT_IN = """\
import sys

from unbroken import connect
from unbroken.models.providers import PROFILES
from unbroken_wires.wires import WIRES, find_wire

for name in WIRES:
    find_wire(name)
for profile in PROFILES:
    connect(f"{profile.name}:large", base_url="http://127.0.0.1:1", api_key="a key")
print(int("importlib.metadata" in sys.modules))
"""


def build(folder: Path, name: str, points: str, source: str = ACME) -> Path:
    """The wheel of a package with one module. In `points`, `{module}` is its name."""
    module = name.replace("-", "_")
    place = folder / name
    place.mkdir()
    (place / f"{module}.py").write_text(source)
    (place / "pyproject.toml").write_text(PROJECT.format(name=name) + points.format(module=module))
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=place, check=True, capture_output=True
    )
    (wheel,) = (place / "dist").glob("*.whl")
    return wheel


def install(folder: Path, wheel: Path) -> Path:
    """The Python of an environment in which it is installed, beside all that this one has."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    own = [path for path in sys.path if path.endswith("site-packages")]
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "tests.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in own))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(pip, check=True)
    return python


def run(python: Path, *words: str | Path, beside: Sequence[Path] = ()) -> subprocess.CompletedProcess[str]:
    """Runs it with these wheels beside what is installed: Python imports from a wheel, too."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("UNBROKEN")}
    environment = {**clean, "PYTHONPATH": os.pathsep.join(map(str, beside))}
    command = [python, *words]
    return subprocess.run(
        command, cwd=python.parents[1], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def printed(python: Path, code: str, *beside: Path) -> Any:
    done = run(python, "-c", code, beside=beside)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def errors(python: Path, *calls: str, beside: Sequence[Path] = ()) -> list[str]:
    """What they raise, or "" for a call that raises nothing."""
    return printed(python, f"CALLS = {calls!r}\n{ERRORS}", *beside)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plugins")


@pytest.fixture(scope="module")
def python(folder: Path) -> Path:
    """Of an environment with the package `acme`."""
    return install(folder / "environment", build(folder, "acme", POINTS))


def test_a_wire_and_a_provider_of_another_package_work_in_an_agent_a_profile_and_a_gateway(python: Path) -> None:
    texts, users = printed(python, RUNS)
    assert texts == ["From Python.", "Like it.", "On its wire.", "Through the gateway."]
    assert users == ["acme"] * 4


def test_a_command_of_another_package_runs(python: Path) -> None:
    done = run(python, "-m", "unbroken", "acme", "hello")
    assert (done.stdout, done.stderr) == ("hello from acme\n", "")


def test_errors_list_the_names_of_other_packages_too(python: Path) -> None:
    of_wire, of_provider = errors(python, "find_wire('acme')", "connect('acmee:large')")
    assert of_wire.endswith("cohere-v2, bedrock-converse, acme-chat")
    assert "did you mean `acme`?" in of_provider


def test_two_packages_with_the_same_name_are_an_error_that_names_both(python: Path, folder: Path) -> None:
    other = [build(folder, "other-acme", POINTS)]
    both = "is in two packages, acme and other-acme: uninstall one"
    raised = errors(python, "find_wire('acme-chat')", "connect('acme:large')", beside=other)
    assert raised == [f"wire `acme-chat` {both}", f"provider `acme` {both}"]
    done = run(python, "-m", "unbroken", "acme", beside=other)
    assert (done.returncode, done.stderr) == (2, f"unbroken: `unbroken acme` {both}\n")


def test_a_name_that_is_built_in_is_an_error_when_the_package_is_found(python: Path, folder: Path) -> None:
    """A program that uses only what is built in does not find it: the packages are not searched."""
    points = POINTS.replace("acme-chat =", "openai-chat =").replace('acme = "{module}:P', 'openai = "{module}:P')
    shadow = [build(folder, "shadow", points.replace('acme = "{module}:c', 'chat = "{module}:c'))]
    built_in = ("find_wire('openai-chat')", "connect('openai:gpt-5', api_key='a key')")
    raised = errors(python, *built_in, "find_wire('acme-chat')", "connect('acme:large')", beside=shadow)
    assert raised == [
        "",
        "",
        "wire `openai-chat` is in two packages, unbroken-wires and shadow: uninstall one",
        "provider `openai` is in two packages, unbroken and shadow: uninstall one",
    ]
    done = run(python, "-m", "unbroken", "acme", beside=shadow)
    assert "`unbroken chat` is in two packages, unbroken-cli and shadow: uninstall one" in done.stderr


def test_a_package_that_cannot_be_used_is_named(python: Path, folder: Path) -> None:
    points = POINTS.replace("acme", "broken")
    broken = build(folder, "broken", points, "raise KeyError('no such file')\n")
    assert errors(python, "find_wire('broken-chat')", beside=[broken]) == [
        "wire `broken-chat` of the package broken cannot be loaded from broken:WIRE: "
        "KeyError: 'no such file'; repair the package, or uninstall it"
    ]
    wrong = build(folder, "wrong", points, "WIRE = PROVIDER = 'something else'\n")
    assert errors(python, "find_wire('broken-chat')", "connect('broken:large')", beside=[wrong]) == [
        "wire `broken-chat` of the package wrong: wrong:WIRE has to be a Wire of that name",
        "provider `broken` of the package wrong: wrong:PROVIDER has to be a Provider of that name",
    ]


def test_what_is_built_in_is_used_without_reading_the_metadata_of_packages() -> None:
    assert printed(Path(sys.executable), BUILT_IN) == 0
