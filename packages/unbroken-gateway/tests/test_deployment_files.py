"""The files of `deploy/`: they can be read, and every option, setting, path, metric and label in them exists."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkout import ROOT
from typer.main import get_command

from unbroken_cli.commands import build
from unbroken_gateway.config import read_config
from unbroken_gateway.settings import GatewaySettings

DEPLOY = ROOT / "deploy"
OF_PROCESSES = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}
LABELS_OF_PROMETHEUS = {"instance", "job", "le"}


def documents(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / path).read_text("utf-8")))


def manifests(kind: str) -> dict[str, Any]:
    (found,) = [each for each in documents("kubernetes/gateway.yaml") if each["kind"] == kind]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Each query of the dashboard and of the alerts, by its name."""
    board = json.loads((DEPLOY / "grafana/dashboard.json").read_text("utf-8"))
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield f"dashboard: {panel['title']} {target['refId']}", target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield f"dashboard: {variable['name']}", variable["query"]["query"]
    for group in documents("prometheus/alerts.yml")[0]["groups"]:
        for rule in group["rules"]:
            yield f"alert: {rule['alert']}", rule["expr"]


@pytest.mark.parametrize(
    "file", sorted(path for path in DEPLOY.rglob("*") if path.suffix in (".yaml", ".yml", ".json", ".toml")), ids=str
)
def test_every_file_can_be_read(file: Path) -> None:
    text = file.read_text("utf-8")
    if file.suffix == ".toml":
        assert tomllib.loads(text)
        assert read_config(file).keys  # nothing is served to others without keys
    else:
        assert json.loads(text) if file.suffix == ".json" else list(yaml.safe_load_all(text))


def test_every_query_names_metrics_and_labels_that_the_gateway_exports() -> None:
    """`tests/docs` compares the table of the metrics with what the gateway exports."""
    page = (DEPLOY.parent / "docs" / "gateway.md").read_text("utf-8")
    labels = {
        name: {label.strip() for label in listed.split(",")}
        for name, listed in re.findall(r"^\| `(unbroken_\w+)` \|([^|]*)\|", page, re.MULTILINE)
    }
    exported = {*labels, *OF_PROCESSES}
    count = 0
    for where, query in expressions():
        used = set(re.findall(r"\b(?:unbroken_\w+|process_\w+|up\b)", re.sub(r'"[^"]*"', "", query)))
        assert used, where
        used = {name.removesuffix("_bucket") for name in used}
        assert used <= exported, where
        grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
        matched = set(re.findall(r'(\w+)\s*=~?"', query))
        known = {each for name in used for each in labels.get(name, ())}
        assert (grouped | matched) <= known | LABELS_OF_PROMETHEUS, where
        count += 1
    assert count > 40


def test_commands_use_options_that_exist() -> None:
    serve = get_command(build()).commands["serve"]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType] - a group of commands
    options = {option for each in serve.params for option in each.opts}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    image = (DEPLOY / "Dockerfile").read_text("utf-8")
    unit = (DEPLOY / "unbroken.service").read_text("utf-8")
    (container,) = manifests("Deployment")["spec"]["template"]["spec"]["containers"]
    (command,) = re.findall(r"^CMD (\[.*\])$", image, re.MULTILINE)
    (started,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    for words in (json.loads(command), container["args"], started.split()[1:]):
        assert words[0] == "serve"
        assert {word for word in words if word.startswith("--")} <= options


def test_the_time_to_stop_is_enough_for_streams_to_end() -> None:
    """Kubernetes, Docker and systemd kill a process after a while: later than the gateway ends by itself."""
    cluster = read_config(DEPLOY / "kubernetes/unbroken.toml")
    pod = manifests("Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > cluster.stop_delay + cluster.stop_timeout
    probe = pod["containers"][0]["readinessProbe"]
    assert cluster.stop_delay > probe["periodSeconds"] * probe["failureThreshold"]
    compose = read_config(DEPLOY / "unbroken.toml")
    grace = documents("compose.yaml")[0]["services"]["gateway-1"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > compose.stop_delay + compose.stop_timeout
    unit = (DEPLOY / "unbroken.service").read_text("utf-8")
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(seconds) > GatewaySettings(()).stop_delay + GatewaySettings(()).stop_timeout


def test_probes_ports_and_users_agree() -> None:
    pod = manifests("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {container[f"{each}Probe"]["httpGet"]["path"] for each in ("startup", "liveness")} == {"/healthz"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    port = read_config(DEPLOY / "kubernetes/unbroken.toml").port
    assert container["ports"] == [{"name": "http", "containerPort": port}]
    image = (DEPLOY / "Dockerfile").read_text("utf-8")
    assert f"USER {pod['securityContext']['runAsUser']}\n" in image
    assert f"EXPOSE {port}\n" in image
    assert manifests("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == "gateway"
    (label,) = manifests("Deployment")["spec"]["selector"]["matchLabels"].items()
    assert label in manifests("Service")["spec"]["selector"].items()
    assert label in manifests("PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items()
    balancer = (DEPLOY / "nginx.conf").read_text("utf-8")
    assert "client_max_body_size 32m;" in balancer
    assert GatewaySettings(()).max_body == 32 << 20
    for name in documents("kubernetes/kustomization.yaml")[0]["resources"]:
        assert documents(f"kubernetes/{name}")
