"""`unbroken serve` and `unbroken keys`, run as a user runs them: what is printed, what is served, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError

import loaded_command
import pytest
from hidden_packages import run_without
from terminals import COMMAND, environment, in_pipe, invoke

from unbroken_testing import Call
from unbroken_testing import serve as upstream_of

PATIENCE = 30.0
LOADED = ("unbroken_gateway.app", "unbroken_gateway.commands.serve", "unbroken_gateway.http.uvicorn_server")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    monkeypatch.chdir(tmp_path)


class Serving:
    def __init__(self, process: loaded_command.Started, out: IO[str]) -> None:
        self.process = process
        self.printed: list[str] = []
        for line in out:
            self.printed.append(line.rstrip("\n"))
            if line.startswith("Ctrl-C"):
                break
        assert self.printed, "nothing was served"

    def said(self, what: str) -> str:
        return next(line[len(what) :].strip() for line in self.printed if line.startswith(f"{what} "))

    def get(self, path: str, key: str = "") -> tuple[int, Any]:
        return self._ask(path, None, key)

    def post(self, path: str, body: object, key: str = "") -> tuple[int, Any]:
        return self._ask(path, json.dumps(body).encode(), key)

    def _ask(self, path: str, body: bytes | None, key: str) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(f"{self.said('listens on')}{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, json.loads(answer.read())
        except HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        os.kill(self.process.pid, number)
        return self.process.wait(PATIENCE)


@contextmanager
def serving(*arguments: str, env: Mapping[str, str] | None = None) -> Generator[Serving]:
    out, its_out = os.pipe()
    with open(os.devnull) as nothing, Path("log").open("w") as log:
        streams = nothing.fileno(), its_out, log.fileno()
        process = loaded_command.start(
            "serve", "--port", "0", *arguments, streams=streams, env=environment(env), load=LOADED
        )
    os.close(its_out)
    with open(out) as printed:
        try:
            yield Serving(process, printed)
        finally:
            process.kill()
            process.wait()


def question(*messages: object, **more: object) -> dict[str, object]:
    asked = {"role": "user", "content": "What is the weather like?"}
    return {"model": "demo", "messages": [asked, *messages], "tools": TOOLS, **more}


def test_without_options_a_demo_model_is_served_until_ctrl_c() -> None:
    with serving() as server:
        url = server.said("listens on")
        assert url.startswith("http://127.0.0.1:")
        assert server.said("OpenAI clients") == f"{url}/v1"
        assert server.said("Anthropic clients") == server.said("Gemini clients") == url
        assert server.said("model") == "demo: a script to try clients with"
        assert server.said("store") == "sqlite:unbroken-gateway.db"
        assert server.said("held calls") == (
            "survive a restart; --store PATH keeps them elsewhere, --store memory: nowhere"
        )
        assert server.said("keys") == "not required"
        assert server.said("status page") == f"{url}/"
        assert [model["id"] for model in server.get("/v1/models")[1]["data"]] == ["demo"]
        status, answer = server.post("/v1/chat/completions", question())
        assert status == 200
        assert len(answer["choices"][0]["message"]["tool_calls"]) == 3
        assert server.stop() == 0
    lines = [line.split(" unbroken.gateway: ")[1] for line in Path("log").read_text().splitlines()]
    started = f"started at={url} workers=1 store=sqlite:unbroken-gateway.db models=demo"
    assert lines == [started, "stopping in_work=0", "stopped"]
    assert sorted(os.listdir()) == ["log", "unbroken-gateway.db"]
    assert Path("unbroken-gateway.db").stat().st_mode & 0o777 == 0o600  # it holds conversations


def test_with_memory_nothing_is_left_and_the_first_lines_say_so() -> None:
    with serving("--store", "memory:") as server:
        assert (server.said("store"), server.said("held calls")) == ("memory:", "are lost when the gateway stops")
        assert server.stop() == 0
    assert os.listdir() == ["log"]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which nobody can write")
def test_in_a_folder_that_cannot_be_written_to_a_line_says_that_held_calls_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir("/proc/self")
    done = invoke("serve", "--check")
    assert "held calls         are lost when the gateway stops\n" in done.stdout
    assert done.stderr == (
        f"unbroken: {Path.cwd()} cannot be written to, so held calls and what was spent are lost when the gateway "
        "stops: name a file elsewhere with --store PATH\n"
    )
    assert invoke("serve", "--check", "--store", "memory:").stderr == ""
    for needs_a_file in ("--workers=2", "--store=/tmp/elsewhere.db"):
        assert "store              memory" not in invoke("serve", "--check", needs_a_file).stdout


@pytest.mark.parametrize("how", ["restarted", "beside it"])
def test_held_calls_survive_a_restart_and_a_gateway_of_the_same_folder_releases_them(how: str) -> None:
    history: list[object] = []
    with ExitStack() as stack:
        server = stack.enter_context(serving("--serial"))
        for city in ("Beijing", "Shanghai", "Shenzhen"):
            message = server.post("/v1/chat/completions", question(*history))[1]["choices"][0]["message"]
            [call] = message["tool_calls"]
            assert json.loads(call["function"]["arguments"])["city"] == city
            history += [message, {"role": "tool", "tool_call_id": call["id"], "content": f"{city}: rain"}]
            if how == "restarted":
                assert server.stop() == 0
            server = stack.enter_context(serving("--serial"))
        final = server.post("/v1/chat/completions", question(*history))[1]["choices"][0]["message"]["content"]
    assert all(f'get_weather gave "{city}: rain"' in final for city in ("Beijing", "Shanghai", "Shenzhen"))


def test_requests_are_logged_on_request() -> None:
    with serving("--access-log", "--serial") as server:
        server.post("/v1/chat/completions", question())
        server.post("/v1/embeddings", {"model": "none"})
        assert server.stop() == 0
    held, passed = re.findall("request (key=.*)", Path("log").read_text())
    assert re.fullmatch(
        r"key=- client=openai-chat alias=demo status=200 seconds=\d+\.\d{3} calls=1 handed=1/3 repairs=- "
        r"upstream=- input=\d+ output=\d+ first=\d\.\d+ failed=- \[[0-9a-f]{16}\]",
        held,
    )
    assert passed.startswith("key=- client=passed alias=- status=404 seconds=0.")


def test_serial_releases_the_three_calls_of_the_demo_model_one_by_one() -> None:
    with serving("--serial", "--store", "turns.db") as server:
        assert server.said("model") == "demo: a script to try clients with, one call at a time"
        history: list[object] = []
        cities: list[str] = []
        for _ in range(3):
            message = server.post("/v1/chat/completions", question(*history))[1]["choices"][0]["message"]
            [call] = message["tool_calls"]
            cities.append(json.loads(call["function"]["arguments"])["city"])
            history += [message, {"role": "tool", "tool_call_id": call["id"], "content": f"{cities[-1]}: rain"}]
        assert cities == ["Beijing", "Shanghai", "Shenzhen"]
        final = server.post("/v1/chat/completions", question(*history))[1]["choices"][0]
        assert final["finish_reason"] == "stop"
        assert all(f'get_weather gave "{city}: rain"' in final["message"]["content"] for city in cities)
        assert server.stop(signal.SIGTERM) == 0
    assert len(re.findall(" INFO unbroken.gateway: serial_hold ", Path("log").read_text())) == 3
    assert Path("turns.db").exists()


@pytest.mark.parametrize("given", ["--all-calls", "--no-all-calls", ""])
def test_three_calls_for_a_serial_client_take_two_requests_to_the_model(given: str) -> None:
    calls = [Call("get_weather", city=city) for city in ("Oslo", "Rome", "Lima")]
    with upstream_of(calls, "Sunny everywhere.") as upstream:
        model = ["--upstream", "openai:m", "--alias", "demo", "--base-url", upstream.base_url()]
        options = ["--serial", *filter(None, [given])]
        with serving(*model, *options, env={"OPENAI_API_KEY": "of-the-tests"}) as server:
            said = server.said("model")
            history: list[object] = []
            for _ in calls:
                message = server.post("/v1/chat/completions", question(*history))[1]["choices"][0]["message"]
                [call] = message["tool_calls"]
                history += [message, {"role": "tool", "tool_call_id": call["id"], "content": "sun"}]
            final = server.post("/v1/chat/completions", question(*history))[1]["choices"][0]["message"]
        assert final["content"] == "Sunny everywhere."
        asked = ["parallel_tool_calls" in body for body in upstream.bodies]
        assert asked == ([True, True] if given == "--no-all-calls" else [False, False])
    words = {
        "--all-calls": ", the model may return all calls at once",
        "--no-all-calls": ", the model is asked for one at a time too",
    }
    assert said == f"demo: openai:m (openai-chat), one call at a time{words.get(given, '')}"


@pytest.mark.parametrize("asked", ["option", "file"])
def test_with_json_logs_nothing_else_is_printed(asked: str) -> None:
    has_logs = "[log]\njson = true\n" if asked == "file" else ""
    Path("unbroken.toml").write_text(f'{has_logs}[keys]\nrequired = true\n[[models]]\nmodel = "demo"\n')
    command = [*COMMAND, "serve", "--port", "0", *(["--json"] if asked == "option" else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [json.loads(process.stderr.readline()) for _ in range(2)]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
    lines += map(json.loads, err.splitlines())
    assert (process.returncode, out) == (0, "")
    assert [line["level"] for line in lines] == ["info", "warning", "info", "info"]
    assert lines[0]["event"] == "started"
    assert lines[0]["at"].startswith("http://127.0.0.1:")
    assert lines[1]["message"].startswith("there is no key yet")
    assert {line["logger"] for line in lines} == {"unbroken.gateway"}
    assert all(line["time"].endswith("Z") for line in lines)


def test_with_json_logs_mistakes_and_the_check_are_json_too() -> None:
    Path("unbroken.toml").write_text('[log]\njson = true\n[[models]]\nmodel = "demo"\nserial = 3\n')
    done = invoke("serve")
    assert (done.exit_code, done.stdout) == (2, "")
    found = json.loads(done.stderr)
    assert (found["level"], found["message"]) == (
        "error",
        "unbroken.toml:5: [[models]] 1: `serial` has to be true or false",
    )
    assert invoke("serve", "--check").stderr.startswith("unbroken: unbroken.toml:5: ")
    done = invoke("serve", "--check", "--json", "--upstream", "ollama:qwen3")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"what": "model", "value": "qwen3: ollama:qwen3 (openai-chat)"} in lines
    assert json.loads(done.stderr)["message"].startswith("unbroken.toml is not read")


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_workers_share_a_port_and_a_store_and_reload_on_a_signal(workers: int) -> None:
    Path("unbroken.toml").write_text('[[models]]\nmodel = "demo"\n')
    with serving("--workers", str(workers)) as server:
        assert server.said("store") == "sqlite:unbroken-gateway.db"
        status, answer = server.post("/v1/messages", {**question(), "tools": [], "max_tokens": 99})
        assert (status, answer["stop_reason"]) == (200, "end_turn")
        Path("unbroken.toml").write_text('[[models]]\nmodel = "demo"\nalias = "other"\n')
        os.kill(server.process.pid, signal.SIGHUP)
        until = time.monotonic() + PATIENCE
        while Path("log").read_text().count("config_reloaded changes=2 restart=-") < workers:
            assert time.monotonic() < until
            time.sleep(0.05)
        for _ in range(2 * workers):
            assert [model["id"] for model in server.get("/v1/models")[1]["data"]] == ["other"]
        assert server.stop() == 0


def test_keys_are_required_and_changes_are_noticed_while_it_runs() -> None:
    secret = invoke("keys", "create", "ann", "--alias", "demo", "--requests-per-minute", "5").stdout.strip()
    with serving("--keys", "on") as server:
        assert server.said("keys") == "required, 1 in unbroken-keys.json"
        assert server.get("/v1/models")[0] == 401
        assert server.get("/v1/models", "ub-wrong")[0] == 401
        assert server.get("/v1/models", secret)[0] == 200
        statuses = [server.post("/v1/chat/completions", question(), secret)[0] for _ in range(6)]
        assert statuses == [200] * 5 + [429]
        other = invoke("keys", "create", "bob").stdout.strip()
        assert invoke("keys", "revoke", "ann").stdout == "the key of `ann` was revoked\n"
        until = time.monotonic() + PATIENCE
        while server.get("/v1/models", secret)[0] == 200 and time.monotonic() < until:
            time.sleep(0.05)
        assert server.get("/v1/models", secret)[0] == 401
        assert server.get("/v1/models", other)[0] == 200
        assert server.stop() == 0
    log = Path("log").read_text()
    assert "gateway keys read again" in log
    assert secret not in log
    assert other not in log


def test_a_port_in_use_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = in_pipe("serve", "--port", str(port))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"unbroken: listening on 127.0.0.1:{port} failed: Address already in use; "
        "choose another port, or 0 for any free port\n"
    )


def test_server_packages_are_imported_late_and_named_if_they_are_missing() -> None:
    program = "import sys; sys.argv = ['unbroken', 'serve', '--port', '0']; from unbroken_cli import main; main()"
    done = run_without("uvicorn", program)
    assert done.returncode == 2
    assert done.stderr == (
        "unbroken: the gateway needs uvicorn: pip install 'unbroken[gateway]' "
        "(in a checkout: pip install ./packages/* 'unbroken[gateway]')\n"
    )
    program = (
        "import sys; from unbroken_cli.commands import build; build(); "
        "print({'uvicorn', 'prometheus_client', 'redis'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"


CONFIG = """
[server]
port = 9999

[store]
url = "turns.db"

[keys]
required = true

[[models]]
alias = "work"
model = "openai:gpt-5"
api_key_env = "WORK_KEY"
fallback = ["home"]

[[models]]
alias = "home"
model = "ollama:qwen3"
serial = true

[[clients]]
name = "pi"
user_agent = "pi/"
"""


def test_check_prints_what_would_be_served() -> None:
    Path("unbroken.toml").write_text(CONFIG)
    done = invoke("serve", "--check", env={"WORK_KEY": "sk-secret"})
    assert (done.exit_code, done.stdout) == (
        0,
        """\
would listen on    http://127.0.0.1:9999
OpenAI clients     http://127.0.0.1:9999/v1
Anthropic clients  http://127.0.0.1:9999
Gemini clients     http://127.0.0.1:9999
model              work: openai:gpt-5 (openai-responses), else home
model              home: ollama:qwen3 (openai-chat), one call at a time
client             pi: one call at a time
store              sqlite:turns.db
keys               required, 0 in unbroken-keys.json
configuration      unbroken.toml
""",
    )
    assert done.stderr == (
        "unbroken: there is no key yet: create one with `unbroken keys create NAME --file unbroken-keys.json`\n"
    )
    assert os.listdir() == ["unbroken.toml"]


EVERYTHING = """
[server]
cors_origins = ["https://app.example"]
[admin]
key_env = "ADMIN"
shared = true
[telemetry]
enabled = true
[[teams]]
name = "search"
requests_per_minute = 60
[[budgets]]
team = "search"
amount = "20usd/day"
[[budgets]]
name = "house"
amount = "500usd/month"
warn_at = 0.5
[[models]]
model = "openai:gpt-5"
alias = "big"
hooks = "hooks.py"
fallback = ["xai:grok", "small"]
[[models.guardrails]]
use = "redact"
name = "cards"
pattern = "[0-9]{16}"
[[models.deployments]]
api_key_env = "KEY_A"
[[models.deployments]]
api_key_env = "KEY_B"
[[models]]
alias = "small"
model = "openai:gpt-5-mini"
api_key_env = "KEY_C"
"""


def test_check_names_guardrails_budgets_telemetry_and_the_admin_api() -> None:
    Path("hooks.py").write_text("def on_request(request, info):\n    pass\n")
    Path("unbroken.toml").write_text(EVERYTHING)
    env = {"ADMIN": "a" * 32, "KEY_A": "a", "KEY_B": "b", "KEY_C": "c", "XAI_API_KEY": "d"}
    done = invoke("serve", "--check", env=env)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[lines.index("keys               not required") - 3 :] == [
        "guardrails         big: hooks in hooks.py, cards (redact)",
        "store              sqlite:unbroken-gateway.db",
        "held calls         survive a restart; --store PATH keeps them elsewhere, --store memory: nowhere",
        "keys               not required",
        "spend              counted, and kept for 400 days",
        "budget             team search: 20usd/day, a warning at 80%",
        "budget             all: 500usd/month (house), a warning at 50%",
        "team               search: 60 requests a minute",
        "admin API          http://127.0.0.1:8400/admin/v1, its key is in ADMIN; it may add models, teams and budgets",
        "web pages          those of https://app.example may use the API",
        "telemetry          OpenTelemetry to http://localhost:4318, without messages and answers",
        "configuration      unbroken.toml",
    ]


def test_check_names_every_variable_that_is_missing() -> None:
    Path("unbroken.toml").write_text(EVERYTHING)
    done = invoke("serve", "--check", env=dict.fromkeys(["ADMIN", "KEY_A", "KEY_B", "KEY_C", "XAI_API_KEY"]))
    assert done.exit_code == 2
    lines = [line.removeprefix("unbroken: unbroken.toml:") for line in done.stderr.splitlines()]
    missing = "should hold the key but is not set: set it"
    assert lines == [
        "5: the variable ADMIN should hold the admin key but is not set: set it",
        f"19: [[models]] 1: deployment `openai-1`: the variable KEY_A {missing}",
        f"19: [[models]] 1: deployment `openai-2`: the variable KEY_B {missing}",
        "19: [[models]] 1: fallback `xai:grok`: provider `xai` needs a key: set XAI_API_KEY or name a variable with "
        "`api_key_env`",
        lines[4],
        f"32: [[models]] 2: the variable KEY_C {missing}",
    ]
    assert "hooks.py" in lines[4]


def test_check_reports_all_mistakes_and_exits_with_2() -> None:
    Path("unbroken.toml").write_text(CONFIG.replace("serial", "seriel").replace("9999", "99999"))
    done = invoke("serve", "--check", env={"WORK_KEY": None})
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "unbroken: unbroken.toml:3: [server]: `port` has to be a whole number from 0 to 65535",
        "unbroken: unbroken.toml:11: [[models]] 1: the variable WORK_KEY should hold the key but is not set: set it",
        "unbroken: unbroken.toml:20: [[models]] 2: unknown key `seriel`, did you mean `serial`?",
    ]


def test_the_journal_of_durable_runs_is_shown_and_checked() -> None:
    config = '[[models]]\nmodel = "demo"\n[durable]\njournal = "%s"\n'
    Path("unbroken.toml").write_text(config % "sqlite:///runs.db")
    done = invoke("serve", "--check")
    assert done.exit_code == 0
    assert "durable runs       sqlite:///runs.db, at http://127.0.0.1:8400/runs/\n" in done.stdout
    for url, words in (
        ("runs.db", "has to be sqlite:///PATH, postgresql://HOST/DATABASE, or env:VARIABLE"),
        ("postgresql://me:pass@host/runs", "has a password in it"),
        ("env:NOT_SET", "variable NOT_SET is not set"),
    ):
        Path("unbroken.toml").write_text(config % url)
        done = invoke("serve", "--check", env={"NOT_SET": None})
        assert done.exit_code == 2
        assert done.stderr.startswith("unbroken: unbroken.toml:4: ")
        assert words in done.stderr


def test_all_missing_keys_are_reported_in_terms_of_the_file() -> None:
    Path("unbroken.toml").write_text(CONFIG.replace("ollama:qwen3", "xai:grok").replace("fallback", "# fallback"))
    done = invoke("serve", "--check", env={"XAI_API_KEY": None, "WORK_KEY": None})
    assert done.exit_code == 2
    work, home = done.stderr.splitlines()
    assert work.startswith("unbroken: unbroken.toml:11: [[models]] 1: the variable WORK_KEY should hold the key")
    assert home == (
        "unbroken: unbroken.toml:17: [[models]] 2: provider `xai` needs a key: "
        "set XAI_API_KEY or name a variable with `api_key_env`"
    )
    done = invoke("serve", "--check", "--upstream", "xai:grok", env={"XAI_API_KEY": None})
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        "unbroken: unbroken.toml is not read, because --upstream names the model",
        "unbroken: provider `xai` needs a key: set XAI_API_KEY or name a variable with --api-key-env",
    ]


def test_options_override_the_file() -> None:
    Path("gateway.toml").write_text(CONFIG)
    arguments = ["serve", "--check", "--config", "gateway.toml", "--port", "1234", "--serial", "--keys", "off"]
    done = invoke(*arguments, env={"WORK_KEY": "sk-secret"})
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "would listen on    http://127.0.0.1:1234"
    assert "model              work: openai:gpt-5 (openai-responses), one call at a time, else home" in lines
    assert "keys               not required" in lines
    assert lines[-1] == "configuration      gateway.toml"


def test_the_address_of_the_store_may_be_in_a_variable_and_is_not_shown() -> None:
    done = invoke("serve", "--check", "--store", "env:STORE_URL", env={"STORE_URL": None})
    assert (done.exit_code, done.stderr) == (
        2,
        "unbroken: the store's address is missing: variable STORE_URL is not set; export it, or name another store\n",
    )
    done = invoke("serve", "--check", "--store", "env:STORE_URL", env={"STORE_URL": "redis://:hunter2@cache/0"})
    assert done.exit_code == 0
    assert "store              env:STORE_URL\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--config", "a.toml", "--upstream", "openai:a"), "--config and --upstream cannot be used together: the file"),
        (("--config", "none.toml"), "none.toml: there is no such file; without one, name a model with --upstream"),
        (("--keys", "maybe"), "--keys maybe: give on or off"),
        (("--hold-timeout", "soon"), "--hold-timeout has to be a time above 0"),
        (("--port", "70000"), "--port has to be a whole number from 0 to 65535"),
        (("--upstream", "gpt-5"), "--upstream has to be PROVIDER:MODEL like openai:gpt-5"),
        (("--alias", "a"), "--alias goes with --upstream PROVIDER:MODEL, which is missing"),
        (("--host", "0.0.0.0"), "--host lets everybody who reaches this machine use your providers' keys: turn"),
        (("--host", "0.0.0.0", "--keys", "off"), "--host lets everybody who reaches this machine use your providers"),
    ],
)
def test_wrong_options_give_one_line_and_exit_with_2(arguments: tuple[str, ...], told: str) -> None:
    done = invoke("serve", "--check", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"unbroken: {told}")


def test_another_address_can_be_open_to_all_if_that_is_stated_twice() -> None:
    done = invoke("serve", "--check", "--host", "0.0.0.0", "--keys", "off", "--open-to-all")
    assert done.exit_code == 0
    assert done.stdout.startswith(
        "would listen on    http://0.0.0.0:8400\nOpenAI clients     http://127.0.0.1:8400/v1\n"
    )


def test_unusable_stores_and_key_files_are_reported_with_the_rest() -> None:
    Path("unbroken-keys.json").write_text("{")
    Path("unbroken.toml").write_text(
        CONFIG.replace("turns.db", "none/turns.db").replace('"home"\nmodel', '"home"\nmodle')
    )
    done = invoke("serve", "--check", env={"WORK_KEY": "sk-secret"})
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert [line.partition(": ")[2].partition(": ")[0] for line in lines] == [
        "unbroken.toml:6",
        "unbroken.toml:8",
        "unbroken.toml:17",
        "unbroken.toml:19",
    ]
    done = invoke("serve", "--check", "--keys", "off", "--store", "redis://127.0.0.1:99999/0", "--upstream", "ollama:x")
    assert done.exit_code == 2
    assert "the address of the store on Redis cannot be read" in done.stderr


def test_a_client_profile_that_can_never_match_is_reported() -> None:
    Path("unbroken.toml").write_text(CONFIG.replace("user_agent =", 'key = "nobody"\nuser_agent ='))
    create = invoke("keys", "create", "somebody")
    assert create.exit_code == 0
    done = invoke("serve", "--check", env={"WORK_KEY": "sk-secret"})
    assert (done.exit_code, done.stderr) == (
        0,
        "unbroken: client `pi` has the key `nobody`, but unbroken-keys.json has no key of that name: "
        "its profile is never used\n",
    )
    done = invoke("serve", "--check", "--keys", "off", env={"WORK_KEY": "sk-secret"})
    assert "but keys are not required: its profile is never used\n" in done.stderr
    invoke("keys", "create", "nobody")
    assert invoke("serve", "--check", env={"WORK_KEY": "sk-secret"}).stderr == ""


def test_missing_keys_are_noted_next_to_the_list() -> None:
    done = invoke("keys", "list")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "unbroken: no keys in unbroken-keys.json; `unbroken keys create NAME` creates one\n"


@pytest.mark.parametrize("command", [(), ("serve",), ("run",), ("keys", "list"), ("faults", "run")], ids=" ".join)
def test_help_shows_no_value_for_flags(command: tuple[str, ...]) -> None:
    shown = invoke(*command, "--help").stdout
    assert "--help" in shown
    assert "bool" not in shown


def test_keys_are_listed_without_the_keys() -> None:
    created = invoke("keys", "create", "ann", "--in-flight", "2")
    secret = created.stdout.strip()
    assert (
        created.stderr
        == "unbroken: this is the key of `ann`; it cannot be shown again, only its hash is in unbroken-keys.json\n"
    )
    invoke("keys", "create", "bob", "--alias", "a", "--alias", "b")
    ann, bob = (line.split("\t") for line in invoke("keys", "list").stdout.splitlines())
    assert ann[:4] == ["ann", "all", "no limit", "2"]
    assert bob[:4] == ["bob", "a, b", "no limit", "no limit"]
    listed = invoke("keys", "list", "--json").stdout
    assert [key["name"] for key in json.loads(listed)] == ["ann", "bob"]
    assert secret not in listed
    assert "sha" not in listed


def test_keys_are_stored_where_the_configuration_puts_them() -> None:
    Path("unbroken.toml").write_text(CONFIG.replace("required = true", 'required = true\nfile = "ours.json"'))
    refused = invoke("keys", "create", "ann", "--alias", "wrok").exception
    assert str(refused) == "--alias wrok: unbroken.toml has no such model; there are: work, home"
    assert invoke("keys", "create", "ann", "--alias", "work").exit_code == 0
    assert sorted(os.listdir()) == ["ours.json", "unbroken.toml"]
    done = in_pipe("keys", "revoke", "bob")
    assert (done.returncode, done.stderr) == (2, "unbroken: there is no key `bob` in ours.json; there are: ann\n")


def test_none_cannot_be_combined_with_other_passes(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    done = invoke("keys", "create", "ann", "--pass", "none", "--pass", "GET /v1/files", "--file", str(file))
    assert "--pass none: this means that nothing is passed through" in str(done.exception)
    assert not file.exists()


def test_a_key_may_expire_and_be_replaced() -> None:
    created = invoke("keys", "create", "ann", "--expires", "90d").stdout.strip()
    assert created.startswith("ub-")
    done = invoke("keys", "rotate", "ann", "--keep", "30m")
    assert done.stdout.startswith("ub-")
    assert done.stdout.strip() != created
    assert "The old one is valid for 30m more" in done.stderr
    old, new = json.loads(invoke("keys", "list", "--json").stdout)
    assert new["expires"] - old["expires"] > 80 * 86400
    assert len(invoke("keys", "list").stdout.splitlines()) == 2
    invoke("keys", "revoke", "ann")
    assert invoke("keys", "list", "--json").stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("create", "bob", "--expires", "soon"),
            "--expires 'soon': give a time like 30m, 24h or 7d from now, or a day as",
        ),
        (("create", "bob", "--expires", "2001-01-01"), "key `bob` would have expired already"),
        (("rotate", "bob"), "there is no key `bob`"),
        (("rotate", "bob", "--keep", "a while"), "--keep 'a while': give a time"),
    ],
)
def test_a_wrong_time_or_name_of_a_key_is_reported(arguments: tuple[str, ...], words: str) -> None:
    assert words in str(invoke("keys", *arguments).exception)


def test_a_key_may_be_limited_to_a_name_that_an_alias_with_a_star_serves() -> None:
    Path("unbroken.toml").write_text('[[models]]\nalias = "gpt-*"\nmodel = "openai:gpt-*"\n')
    assert invoke("keys", "create", "ann", "--alias", "gpt-5", "--alias", "gpt-*").exit_code == 0
    assert "has no such model" in str(invoke("keys", "create", "bob", "--alias", "claude").exception)
