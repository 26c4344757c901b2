"""The examples in the README and the docs are true: Python runs, commands print what is shown."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints
from urllib.request import Request as HTTPRequest
from urllib.request import urlopen

import loaded_command
import pytest
from checkout import PACKAGES, ROOT
from pydantic import TypeAdapter
from typer.main import get_command

from unbroken import Request, ToolMessage
from unbroken.models.connect import Settings, connect
from unbroken.models.quirks import WAYS
from unbroken.models.scripted import Answer
from unbroken.trajectory.redaction import secrets_in_environment
from unbroken_cli.commands import build
from unbroken_gateway import ClientProfile, GatewaySettings, UpstreamSettings, read_config, running, setting_types
from unbroken_gateway.admin.gateway_metrics import COUNTS_DIR, GatewayMetrics, count_dead_worker
from unbroken_gateway.config import ServeOptions, settings_from_options
from unbroken_gateway.config.reading import PLACES
from unbroken_gateway.relay.exchange import DROP_REFUSED, MOVE_TEXT
from unbroken_gateway.setting_types import ConnectOptions
from unbroken_gateway.turns import serial
from unbroken_gateway.upstreams.upstream import open_upstreams
from unbroken_testing import Call, Uses, serve
from unbroken_wires.messages import Usage

PAGES = [
    *sorted(ROOT.glob("README*.md")),
    *sorted(PACKAGES.glob("*/README.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
    ROOT / "deploy" / "README.md",
]
GATEWAY = ROOT / "docs" / "gateway.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


TWINS = sorted(page for page in PAGES if page.name.endswith(".zh-CN.md"))
"""The pages in Chinese. Each has the code of its page in English, so that running one of them is enough."""


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in TWINS and blocks(page, "python")],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-examples")  # they name models but send no request
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    for each in ROOT.iterdir():  # files that a page makes do not land among those of the project
        (tmp_path / each.name).symlink_to(each)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks(page, "python"):
        if named := re.match(r"# (\w+\.py)\n", block):  # a file that other programs of the page use
            Path(named[1]).write_text(block, "utf-8")
        exec(compile(block, str(page), "exec", dont_inherit=True), names)


def answer(request: Request) -> Answer:
    """The model of the examples. It counts files, with a tool if it is given one."""
    last = request.messages[-1]
    if isinstance(last, ToolMessage):
        return ["There is more in src than in tests.", Uses(520, 14)]
    if request.tools:
        calls = [Call("count_lines", folder=folder) for folder in ("src", "tests")]
        return ["Let me count.", *calls, Uses(310, 40)]
    return ["I cannot look: I have no tools.", Uses(20, 9)]


def commands(page: Path, program: str) -> list[tuple[list[str], str]]:
    """The commands of a page that call this program, each with what it prints."""
    return [(words, shown) for words, shown in map(_command, blocks(page, "console")) if words[0] == program]


def _command(block: str) -> tuple[list[str], str]:
    lines = block.removeprefix("$ ").splitlines(keepends=True)
    for end in range(1, len(lines) + 1):
        try:
            return shlex.split("".join(lines[:end])), "".join(lines[end:])
        except ValueError:  # a quotation that continues in the next line
            continue
    raise AssertionError(f"a command without an end: {block}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_with_its_output_is_one_that_is_run_here(page: Path) -> None:
    made = ["make", "refunds"]  # its own test compares it: examples/refunds/tests
    words = [_command(block)[0] for block in blocks(page, "console")]
    assert {first for first, *rest in words if [first, *rest] != made} <= {"unbroken", "curl"}


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in TWINS and commands(page, "unbroken")],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_the_commands_of_a_page_print_what_it_shows(page: Path) -> None:
    with serve(answer) as server:
        for words, shown in commands(page, "unbroken"):
            together = words[-1] == "2>&1"
            done = loaded_command.run(
                *(words[1:-1] if together else words[1:]),
                cwd=str(ROOT),
                env={**os.environ, "OPENAI_API_KEY": "of-the-examples", "OPENAI_BASE_URL": server.base_url()},
                together=together,
            )
            assert steady(done.stdout.decode()) == steady(shown)


def steady(text: str) -> str:
    """Removes what differs from run to run and from day to day: seconds, prices, and counts, which a page may leave out
    (`…`)."""
    text = re.sub(r" cost (about )?\$[\d.]+", " cost $0.0000", text)
    return re.sub(r"([\d,]+|…) (?=files|lines)", "0 ", re.sub(r"\d+\.\d+ s\b", "0.00 s", text))


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in TWINS and commands(page, "curl")],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_a_gateway_without_options_answers_as_the_page_shows(page: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed here")
    with running(settings_from_options(ServeOptions(port=0, store="memory:"))) as url:
        for words, shown in commands(page, "curl"):
            done = subprocess.run(
                ["curl", "--noproxy", "*", *(word.replace("http://127.0.0.1:8400", url) for word in words[1:])],
                stdout=subprocess.PIPE,
                check=True,
                timeout=60,
            )
            told = done.stdout.decode().replace("\r\n", "\n").strip()
            wanted = ".*?".join(map(re.escape, shown.strip().split("…")))  # omissions are marked
            assert re.fullmatch(wanted, told, re.DOTALL), told


@pytest.mark.parametrize("chinese", TWINS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_both_languages_of_a_page_show_the_same_commands_and_code(chinese: Path) -> None:
    english = chinese.with_name(chinese.name.replace(".zh-CN", ""))
    for language in ("python", "console", "toml", "dph"):
        assert blocks(english, language) == blocks(chinese, language)


def test_every_link_between_pages_works() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text("utf-8")):
            other = page.parent / target if target else page
            assert other.exists(), f"{page.name} links to {target}"
            assert not heading or heading in headings(other), f"{page.name} links to {target}#{heading}"


def headings(page: Path) -> list[str]:
    """The anchors that GitHub generates for headings."""
    found = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found]


def test_the_page_of_the_architecture_shows_what_each_package_needs_and_only_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    graph = page.split("```text\n")[1].split("```")[0]
    drawn = {row.split()[0]: set(row.split()[2:]) for row in graph.splitlines()}
    assert drawn == {file.parent.name: own_dependencies(file) for file in PACKAGES.glob("*/pyproject.toml")}
    folders = [ROOT, *PACKAGES.glob("*/src"), *PACKAGES.glob("*/src/*"), *PACKAGES.glob("*/tests/**/")]
    named = re.findall(r"`([\w-]+(?:/[\w-]+)*(?:\.py|/))`", page)
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []


def own_dependencies(file: Path) -> set[str]:
    """The packages of this repository that one of them always needs."""
    needed = tomllib.loads(file.read_text("utf-8"))["project"]["dependencies"]
    return {name for each in needed if (name := each.partition("==")[0]).startswith("unbroken")}


# The gateway


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    _, _, rest = page.read_text("utf-8").partition(f"\n{heading}\n")
    assert rest, f"{page.name} has no heading {heading}"
    table = re.search(r"^\|.*\n\|[-|]+\n((?:\|.*\n)+)", rest, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in table[1].splitlines()]


def in_code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def defaults(heading: str) -> dict[str, str]:
    """Each key of a table of the page, with its documented default."""
    return {key: default for keys, default, _ in rows(GATEWAY, heading) for key in in_code(keys)}


def check_defaults(told: Mapping[str, str], known: Mapping[str, tuple[Any, Any]]) -> None:
    """Exactly the existing keys. A default in code is as in the file; other text is for keys without a default."""
    assert sorted(told) == sorted(known)
    for key, cell in told.items():
        kind, default = known[key]
        if code := in_code(cell):
            assert TypeAdapter(kind).validate_python(tomllib.loads(f"key = {code[0]}")["key"]) == default, key
        else:
            assert not default, key


def test_the_page_of_the_gateway_has_every_setting_with_its_default() -> None:
    known: dict[str, dict[str, tuple[Any, Any]]] = {}
    for name, (table, key) in PLACES.items():
        known.setdefault(table, {})[key] = types_of(GatewaySettings)[name], getattr(GatewaySettings(()), name)
    for table in ("server", "store", "serial"):
        check_defaults(defaults(f"### `[{table}]`"), known.pop(table))
    rest = {f"{table}.{key}": setting for table, keys in known.items() for key, setting in keys.items()}
    check_defaults(defaults("### `[repair]`, `[chain]`, `[keys]`"), rest)


def test_the_page_of_the_gateway_has_every_key_of_models_and_clients_with_its_default() -> None:
    asked = {name: parameter.default for name, parameter in inspect.signature(connect).parameters.items()}
    given = {**asked, **fields_of(Settings), **fields_of(UpstreamSettings)}
    kinds = types_of(UpstreamSettings) | types_of(ConnectOptions)
    del kinds["options"]
    check_defaults(defaults("### `[[models]]`"), {key: (kind, given[key]) for key, kind in kinds.items()})
    given = fields_of(ClientProfile)
    kinds = types_of(ClientProfile)
    check_defaults(defaults("### `[[clients]]`"), {key: (kind, given[key]) for key, kind in kinds.items()})


def types_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, localns={"values": setting_types}, include_extras=True)


def fields_of(kind: Any) -> dict[str, Any]:
    """The defaults of a dataclass; None for a field that has none, or that is empty."""
    return {field.name: None if field.default is MISSING else field.default for field in fields(kind)} | {
        field.name: field.default_factory() for field in fields(kind) if field.default_factory is not MISSING
    }


def test_the_configurations_of_the_page_are_read_and_its_agent_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType] - partly typed
    for code in blocks(GATEWAY, "python"):
        if named := re.match(r"# (\w+\.py)\n", code):
            (tmp_path / named[1]).write_text(code)
    platforms, configuration, deployments = blocks(GATEWAY, "toml")
    check_platforms(tmp_path / "platforms.toml", platforms, monkeypatch)
    file = tmp_path / "unbroken.toml"
    file.write_text(configuration)
    settings = read_config(file)
    (tmp_path / "deployments.toml").write_text(deployments)
    (smart,) = read_config(tmp_path / "deployments.toml").upstreams
    assert [(each.name, each.weight, each.priority) for each in smart.deployments] == [
        ("east", 3, 1),
        ("west", 1, 1),
        ("reserve", 1, 2),
    ]
    shop = [upstream for upstream in settings.upstreams if upstream.model.startswith("python:")]
    with running(GatewaySettings(tuple(shop), store="memory:", port=0)) as url:
        body = {"model": "shop", "max_tokens": 100, "messages": [{"role": "user", "content": "When do you open?"}]}
        with urlopen(HTTPRequest(f"{url}/v1/messages", json.dumps(body).encode())) as told:
            assert json.load(told)["content"] == [{"type": "text", "text": "From nine to five."}]


def check_platforms(file: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the models can be connected to, with its own wire."""
    for name in ("AZURE_OPENAI_API_KEY", "CO_API_KEY", "AWS_BEARER_TOKEN_BEDROCK"):
        monkeypatch.setenv(name, "of-the-examples")
    token = file.with_name("vertex-token")
    token.write_text("of-the-examples")
    file.write_text(text.replace("/run/secrets/vertex-token", str(token)))
    upstreams = open_upstreams(read_config(file).upstreams)
    assert {alias: upstream.wire for alias, upstream in upstreams.items()} == {
        "claude-aws": "bedrock-converse",
        "gemini-vertex": "gemini",
        "gpt-azure": "openai-chat",
        "command": "cohere-v2",
        "qwen": "ollama",
    }


def test_the_configuration_to_deploy_is_valid_even_with_its_suggestions(tmp_path: Path) -> None:
    folder = ROOT / "deploy"
    settings = read_config(folder / "unbroken.toml")
    assert (settings.keys, settings.store, len(settings.upstreams)) == (True, "redis://valkey:6379/0", 1)
    file = tmp_path / "unbroken.toml"
    file.write_text(re.sub(r"(?m)^# (?=\[|\w+ = )", "", (folder / "unbroken.toml").read_text("utf-8")))
    settings = read_config(file)
    assert ([upstream.alias for upstream in settings.upstreams], len(settings.clients)) == (
        ["gpt-5", "claude", "any"],
        1,
    )
    mounted = re.findall(r"- \./([\w./]+):", (folder / "compose.yaml").read_text("utf-8"))
    assert mounted
    assert all((folder / name).exists() for name in mounted)


def test_the_page_of_the_gateway_names_every_case_repair_header_and_way_to_continue() -> None:
    cases = re.findall(r"(?m)^    (\S+(?: \S+)*)  +\S", serial.__doc__ or "")
    told = [case for case, *_ in rows(GATEWAY, "### The cases, by name")]
    assert len(cases) >= 10
    assert told[: len(cases)] == cases
    source = "".join(path.read_text("utf-8") for path in PACKAGES.glob("unbroken-gateway/src/**/*.py"))
    headers = {name for cell, *_ in rows(GATEWAY, "### Headers") for name in in_code(cell)}
    assert {name for name in headers if name.startswith("x-unbroken")} == set(
        re.findall(r"x-unbroken-[a-z-]*[a-z]", source)
    )
    repairs = {name for cell, *_ in rows(GATEWAY, "## Repairs") for name in in_code(cell)}
    assert repairs == {MOVE_TEXT, DROP_REFUSED, *re.findall(r'"((?:drop|insert|move|rename)-\w+)":', source)}
    ways = {name for cell, *_ in rows(GATEWAY, "## The model's own message comes back") for name in in_code(cell)}
    assert ways == set(WAYS)


def test_the_page_of_the_gateway_has_every_metric_with_its_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = GatewayMetrics(["m"])
    metrics.request("m", "openai-chat", "gemini", 200, 0.1)
    deployment = metrics.deployment("m", "east")
    deployment.asked()
    deployment.answered(0.1)
    deployment.failed("limited")
    deployment.cooled()
    metrics.first_token("m", 0.1)
    metrics.tokens("m", Usage(1, 1, 1, 1, 1))
    metrics.held("m", 2)
    metrics.held_open(1)
    metrics.released("m")
    metrics.lost("m", "expired")
    metrics.expired("m")
    metrics.repaired("drop-orphan")
    metrics.guardrail("m", "redact", "changed")
    metrics.fallback("m")
    metrics.restarted("m", "lost")
    metrics.upstream_error("m", "lost")
    metrics.in_flight(1)
    metrics.kept("held")
    metrics.know(["m"])
    metrics.reloaded(done=True)
    metrics.spent("m", 0.1)
    metrics.uncounted("m", "price")
    metrics.estimated("m", Usage(1, 1), 0.5)
    metrics.over_limit("budget")
    metrics.budget_warning("b")
    assert len([name for name in vars(GatewayMetrics) if not name.startswith("_")]) == 24  # these, and `render`
    counts = tmp_path / "counts"
    counts.mkdir()
    monkeypatch.setenv(COUNTS_DIR, str(counts))
    count_dead_worker("SIGKILL")  # by the process that starts the workers
    of_workers, _ = metrics.render()
    monkeypatch.delenv(COUNTS_DIR)
    table = rows(GATEWAY, "## Metrics")
    series = r"(?m)^(unbroken_\w+?)(?:_bucket|_count|_sum)?(?:\{(.*)\})? "
    counted: dict[str, set[str]] = {}
    for name, labels in re.findall(series, (metrics.render()[0] + of_workers).decode()):
        counted.setdefault(name, set()).update(set(re.findall(r"(\w+)=", labels)) - {"le"})
    told = {in_code(name)[0]: set(re.findall(r"[a-z]+", labels)) for name, labels, _ in table}
    assert told == counted


@pytest.mark.parametrize("command", ["serve", "keys create", "keys list", "keys revoke"])
def test_the_page_of_the_command_line_has_every_option_of_the_gateway(command: str) -> None:
    found: Any = get_command(build())
    for name in command.split():
        found = found.commands[name]
    options = {option for parameter in found.params for option in parameter.opts if option.startswith("--")}
    page = (ROOT / "docs" / "cli.md").read_text("utf-8").partition("## `unbroken serve`")[2].partition("\n## ")[0]
    told = set(re.findall(r"--[a-z-]+", page))
    assert options - {"--help"} <= told


@pytest.mark.parametrize("name", ["runs", "worker", "eval", "mcp"])
def test_the_page_of_the_command_line_has_every_option_of_a_command(name: str) -> None:
    group: Any = get_command(build())
    found: Any = group.commands[name]
    page = (ROOT / "docs" / "cli.md").read_text("utf-8").partition(f"## `unbroken {name}`")[2].partition("\n## ")[0]
    for command in getattr(found, "commands", {name: found}).values():
        options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        assert options - {"--help", "--debug", "--log-level"} <= set(re.findall(r"--[a-z-]+", page)), command.name
        assert name != "runs" or f"runs {command.name}" in page


def test_variables_named_as_on_the_recordings_page_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "recordings.md").read_text("utf-8")
    rows = page.split("### Variables that are named like secrets")[1].split("## ")[0].splitlines()
    names = [name for row in rows if row.startswith("|") for name in re.findall(r"`(\w+)`", row.split("|")[2])]
    assert len(names) >= 9
    for name in names:
        monkeypatch.setenv(name, f"the value of {name}")
        assert f"the value of {name}" in secrets_in_environment()
