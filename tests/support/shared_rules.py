"""The shared rules and schemas of what providers accept, read from their folder; tests skip what is absent there."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

FOLDER = Path(os.environ.get("UNBROKEN_PROVIDER_RULES", ROOT.parent / "shared" / "providers"))
PRESENT = (FOLDER / "check.py").exists()
NEEDS_RULES = pytest.mark.skipif(not PRESENT, reason=f"no rules in {FOLDER}: set UNBROKEN_PROVIDER_RULES")

Object = dict[str, Any]


@cache
def _rules() -> Any:
    spec = importlib.util.spec_from_file_location("providers_check", FOLDER / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, module.load()


def broken_rules(
    wire: str, provider: str, model: str, body: Object, headers: Mapping[str, str], stream: bool
) -> list[str]:
    """The ids of the rules that the request breaks."""
    module, rules = _rules()
    sent = {"wire": wire, "provider": {"openai-chat": "openai"}.get(provider, provider), "model": model, "body": body}
    return [rule["id"] for rule in module.broken({**sent, "headers": headers, "stream": stream}, rules)]


@cache
def _validator(name: str) -> Any:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is in the extra `dev`")
    return jsonschema.Draft202012Validator(json.loads((FOLDER / "schemas" / f"{name}.request.json").read_text("utf-8")))


def schema_errors(name: str, body: Object) -> list[str]:
    """What is wrong with a body by the schema that its provider publishes."""
    return [error.message for error in _validator(name).iter_errors(body)]
