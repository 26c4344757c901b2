"""What a translation has to report, each with its place in the file, and what the file takes from the environment.

No message quotes a value: a key may be anywhere in such a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from unbroken_gateway.from_litellm.yaml_values import Value, as_mapping
from unbroken_gateway.setting_types import is_variable

Kind: TypeAlias = Literal["note", "missing", "unsafe", "wrong"]
"""`note`: translated, but you should know; `missing`: without a counterpart; `unsafe`: the same, and it protects
something, so the file is not served as it is; `wrong`: LiteLLM would not accept it either."""

REFERENCE = "os.environ/"
_PLACEHOLDER = re.compile(
    r"(?i)|none|null|no|na|n/a|empty|any|anything|x+|-|(?:sk-)?(?:fake|dummy|placeholder|not[-_ ]?needed|ignored|"
    r"unused|no[-_ ]?key|random|test|ollama|vllm|lm-?studio|local|1234|12345|123)(?:[-_ ]?(?:api)?[-_ ]?key)?"
)
"""What people write where a server takes any key."""


@dataclass(frozen=True, slots=True)
class Finding:
    kind: Kind
    file: str
    line: int
    path: str
    words: str

    def __str__(self) -> str:
        label = "not translated" if self.kind in ("missing", "unsafe") else ""
        return ": ".join(part for part in (f"{self.file}:{self.line}", label, self.path, self.words) if part)


@dataclass(slots=True)
class Findings:
    """Collects them; each place is reported once."""

    all: list[Finding] = field(default_factory=list[Finding])

    def add(self, kind: Kind, at: Value, words: str) -> None:
        found = Finding(kind, at.file, at.line, at.path, words)
        if found not in self.all:
            self.all.append(found)

    def note(self, at: Value, words: str) -> None:
        self.add("note", at, words)

    def missing(self, at: Value, words: str) -> None:
        self.add("missing", at, words)

    def unsafe(self, at: Value, words: str) -> None:
        self.add("unsafe", at, words)

    def wrong(self, at: Value, words: str) -> None:
        self.add("wrong", at, words)


class Variables:
    """The environment, with the section `environment_variables` of the file, which comes first in LiteLLM too."""

    def __init__(self, environment: Mapping[str, str], section: Value | None, findings: Findings) -> None:
        self._environment = environment
        self._findings = findings
        self._section = section
        self._written: dict[str, str] = {}
        for name, value in as_mapping(section).items():
            text = value.data
            if isinstance(text, str) and text.startswith(REFERENCE):
                text = environment.get(text.removeprefix(REFERENCE))
            if text is not None and not isinstance(text, dict | list):
                self._written[name] = _as_text(text)
        self.to_set: dict[str, str] = {}
        """What the gateway needs and the environment does not have: values that are written in the file."""
        self._secrets: dict[str, str] = {}
        self._asked: set[str] = set()

    def get(self, name: str) -> str:
        self._asked.add(name)
        return self._written.get(name) or self._environment.get(name, "")

    def use(self, name: str) -> str:
        """The configuration names this variable."""
        if name in self._written and self._written[name] != self._environment.get(name):
            self.to_set[name] = self._written[name]
        return name

    def use_first(self, names: Iterable[str]) -> str:
        """The first of these that is set; empty if none is."""
        return next((self.use(name) for name in names if self.get(name)), "")

    def name_of(self, value: Value) -> str:
        """The variable that a value refers to; empty if it is no reference."""
        text = value.data
        if not isinstance(text, str) or not text.startswith(REFERENCE):
            return ""
        name = text.removeprefix(REFERENCE)
        if not is_variable(name):
            self._findings.wrong(value, "does not name a variable behind os.environ/")
            return ""
        return name

    def text(self, value: Value | None) -> str:
        """A text that is no secret. A reference is replaced by what the variable holds now."""
        if value is None:
            return ""
        if isinstance(value.data, dict | list):
            self._findings.wrong(value, "has to be a text")
            return ""
        if isinstance(value.data, str) and value.data.startswith(REFERENCE):
            name = self.name_of(value)
            if name and not self.get(name):
                self._findings.wrong(value, f"the variable {name} is not set: set it, it is read for the translation")
            return self.get(name) if name else ""
        return _as_text(value.data).strip()

    def number(self, value: Value | None) -> float | int | None:
        if value is None:
            return None
        text = self.text(value)
        try:
            number = float(text) if isinstance(value.data, str | int | float) else None
        except ValueError:
            number = None
        if number is None or isinstance(value.data, bool) or number != number or abs(number) == float("inf"):
            if text or not self.name_of(value):
                self._findings.wrong(value, "has to be a number")
            return None
        return int(number) if number.is_integer() else number

    def key(self, value: Value, alias: str, takes_any: bool) -> str:
        """The variable that holds a secret of the file; empty if it is a placeholder. A secret that is written in the
        file gets a variable of its own."""
        if name := self.name_of(value):
            return self.use(name)
        text = self.text(value)
        if not text or (takes_any and _PLACEHOLDER.fullmatch(text)):
            return ""
        return self.keep(value, text, f"{_as_name(alias)}_API_KEY")

    def keep(self, value: Value, secret: str, wanted: str) -> str:
        """Puts a secret that is written in the file into a variable."""
        if secret not in self._secrets:
            held = {**self._environment, **self._written}
            taken = {*self._secrets.values(), *(name for name, text in held.items() if text != secret)}
            wanted = wanted if is_variable(wanted) else "LITELLM_API_KEY"
            names = (wanted, *(f"{wanted}_{number}" for number in range(2, len(taken) + 3)))
            self._secrets[secret] = next(name for name in names if name not in taken)
        name = self._secrets[secret]
        self.to_set[name] = secret
        self._findings.note(value, f"a secret is written here; the translation expects it in the variable {name}")
        return name

    def report(self) -> None:
        """Notes what becomes of the section of the file."""
        for name, value in as_mapping(self._section).items():
            if name in self.to_set:
                words = "is used; `unbroken serve --from-litellm` sets it, for a file of your own set it yourself"
                self._findings.note(value, words)
            elif name not in self._asked:
                self._findings.note(value, "has no use here, and is not set")


def _as_text(data: object) -> str:
    return str(data).lower() if isinstance(data, bool) else str(data)


def _as_name(alias: str) -> str:
    name = re.sub(r"[^A-Z0-9]+", "_", alias.upper()).strip("_")
    return name if name[:1].isalpha() else f"MODEL_{name}".rstrip("_")
