"""Writes docs/providers.md: `python docs/providers_page.py > docs/providers.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from unbroken.models.provider_files import FIELDS, QUIRKS, VARIABLE
from unbroken.models.providers import PROFILES, Provider
from unbroken.models.quirks import ALL_CHOICES, Quirks
from unbroken_wires.wires import WIRES

_HEAD = """\
# Providers

<!-- Generated from `unbroken/models/providers.py`: `python docs/providers_page.py > docs/providers.md` -->

A model is named `provider:model`; the model's own name may contain colons and slashes.

```python
from unbroken import connect

model = connect("ollama:qwen3:4b")
model = connect("openai:gpt-5", api_key="YOUR-KEY", reasoning="low", max_tokens=4000)
model = connect("openai:my-model", base_url="http://127.0.0.1:8000/v1")  # any OpenAI-compatible server
```

- **Keys** come from the variable in the table, or from `api_key=`: a string, or a function (plain or async) that
  returns one for each request. If you pass a `base_url`, no key is needed. A header of that name in `headers=` and a
  user in `base_url` take precedence over a key from the environment. Keys, and the values of `headers=` and `query=`,
  never appear in an error, log or `repr`.
- **`base_url`** points to another server with the same wire, with or without `/v1`, or is the full address of an
  endpoint. `openai:` and `openai-chat:` then use openai-chat, as such servers do; change that with `wire=`.
- **`wire=`** picks another of a provider's wires: `connect("openai:gpt-5", wire="openai-chat")`.
- **Settings**: `temperature`, `top_p`, `max_tokens`, `stop`, `seed`, `reasoning` (none, minimal, low, medium, high or
  xhigh), `cache`, `headers`, `query`, `extra` (merged into each body last, unchanged), `organization`, `project`,
  `location`, `api_version`. The values in a request take precedence.
- **Time-outs** in seconds (`None` means no limit): `connect_timeout=10`, `first_byte=120` (from the connection to the
  first byte of the response), `idle=60` (between two reads), `total=None`. The time that your own code takes between
  two deltas counts only for `total`.
- **Before the first byte** a failure raises a `ProviderError` (`Unauthorized`, `ModelNotFound`, `RequestRefused`,
  `RateLimited`, `Unavailable`, `Unreachable`, `TimedOut`) with `status` and `retry_after`. **After it** a lost
  connection or silence raises nothing: the last delta is `Ended`, and its verdict describes what went wrong.
- **Connections** are shared by all models on one event loop, kept for 50 idle seconds, and closed with the loop. If a
  kept connection turns out to be dead before any byte of the response, it is replaced and the request is sent again, as
  all clients do: a server that read the request and closed without a response gets it twice. Redirects are not
  followed, because that would send the key to another server.
- **Proxies** come from `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` as they are set when `connect` is called
  (http and https proxies; never for this machine's own addresses), certificates from `SSL_CERT_FILE` and
  `SSL_CERT_DIR`.

| provider | name | wire | key | base URL | several calls at once | known from |
|---|---|---|---|---|---|---|
"""


def _keys(names: Iterable[str], words: Mapping[str, str]) -> str:
    return "".join(f"| `{name}` | {words[name]} |\n" for name in names)


_PROFILE_KEYS = {
    "title": "the name that people read",
    "wire": "one of " + ", ".join(WIRES) + "; quirks of another wire are not inherited",
    "base_url": "its address, including `/v1`",
    "keys": "variables that may hold the key; the first one that is set is used",
    "several_calls": "whether it returns several calls in one response; for information only",
    "known_from": '"recorded" or "documented, not tried"',
    "needs_key": "true: without a key no request is sent",
    "other_wires": 'other wires that it supports: `{ anthropic-messages = "https://…" }`',
    "elsewhere": "the profile to use if `base_url=` is given",
    "base_url_variables": "variables that may hold the base URL",
    "parts": "settings that replace `{project}` or `{location}` in `base_url`, with their variables",
    "port": "the port of a base URL that has neither scheme nor port",
    "prefix": "the path between the base URL and the wire's path",
    "path": "the path after the base URL; it may contain `{model}` and `{method}`",
    "dated_path": "the same if `api_version` is given",
    "version_variables": "variables that may hold `api_version`",
    "methods": "what `{method}` in the path is, for one body and for a stream",
    "key_header": "bearer, x-api-key, x-goog-api-key or api-key, if it differs from the wire",
    "signing": '"aws": without a key, requests are signed with AWS credentials',
    "note": "a note for people",
    "aliases": "other names",
    "prices": "the name of its price list in [genai-prices](limits.md#what-a-run-costs)",
}
_QUIRK_KEYS = {
    "rename": 'keys of the body with another name: `{ max_tokens = "max_completion_tokens" }`',
    "drop": "keys of the body that are left out",
    "add": "keys that are added to every body",
    "require": "the same, also for a body that the gateway passes on as its client wrote it",
    "reasoning": "the keys of the body for an effort, `*` for all others: `{ none = { thinking = false } }`",
    "choices": "the tool choices that it accepts, out of auto, none, required and one",
    "asks_for_several": "it returns one call at a time unless the request asks for several",
    "call_ids": 'a rule for ids: `{ longest = 9, shortest = 9, allowed = "[A-Za-z0-9]" }`',
    "no_call_ids": "calls and results are sent without ids (gemini)",
    "stream_with_tools": "false: a request with tools is sent without streaming",
    "strict": "false: tools are sent without `strict`",
    "lost_reasoning": "what to do if it requires its own reasoning back and that is lost: blank, off or placeholder",
    "native_output": "when a [structured answer](agent.md#a-structured-answer) is requested by its schema, not by a "
    "tool: never, alone (in a request without tools) or always",
    "prose": "false: do not look for calls in the text",
}

_QUIRKS = """
"Recorded": the recordings that the decoders are tested with contain several calls in one response of this provider.
"Documented, not tried": it is taken from documentation; nobody here has tried it.

## How providers differ from their wire

| provider | |
|---|---|
"""

_OWN = f"""
## Your own provider profiles

If a provider is not in the table, or differs from its profile, write a profile in your own file:
`~/.config/unbroken/providers.toml` (or under `XDG_CONFIG_HOME`), or the file named by `{VARIABLE}`; set that variable
to an empty string to switch the file off. [`unbroken probe`](probe.md) tests what a server can do and writes its
profile.

```toml
[providers.mine]
base_url = "http://127.0.0.1:9000/v1"
keys = ["MY_SERVER_KEY"]          # variables, never the key itself

[providers.mine.quirks]
stream_with_tools = false         # no streaming if the request has tools
choices = ["auto", "required"]    # the only values of tool_choice that it accepts
```

`connect("mine:qwen3")` and `--model mine:qwen3` then just work. A profile starts from `compatible`, or from the one
that `like` names; a profile with the name of a known provider changes that provider. A mistake in the file is reported
in one line, with the file, the profile and the key. The file is read when a model is connected, and again only if it
has changed.

| key | of `[providers.NAME]` |
|---|---|
| `like` | the profile to start from |
{_keys(FIELDS, _PROFILE_KEYS)}
| key | of `[providers.NAME.quirks]` |
|---|---|
{_keys(QUIRKS, _QUIRK_KEYS)}
## In a package of its own

Others can install a provider or a wire that you publish. Your package names them in entry points:

```toml
[project.entry-points."unbroken.providers"]
acme = "acme_models:PROVIDER"     # a Provider of that name

[project.entry-points."unbroken.wires"]
acme-chat = "acme_models:WIRE"    # a Wire of that name
```

```python
from dataclasses import replace

from unbroken.models.providers import Provider
from unbroken_wires.wires import find_wire

WIRE = replace(find_wire("openai-chat"), name="acme-chat")  # with what Acme does in its own way
PROVIDER = Provider("acme", "Acme", "acme-chat", "https://api.acme.example/v1", ("ACME_API_KEY",))
```

`connect("acme:large")`, `like = "acme"` in your own profiles and `model = "acme:large"` in the configuration of the
gateway then work. The gateway asks models on such a wire; its clients use one of [those that are built in](wires.md).
[A new wire](architecture.md#a-new-wire) describes what a wire consists of.

Installed packages are searched only for a name that is not built in. A name that is also built in, or in two packages,
is an error then. Commands are added in the same way, by `unbroken.commands`.
"""


def make_page() -> str:
    rows = "".join(_table_row(profile) for profile in PROFILES)
    quirks = "".join(f"| {profile.title} | {' '.join(lines)} |\n" for profile in PROFILES if (lines := _notes(profile)))
    return f"{_HEAD}{rows}{_QUIRKS}{quirks}{_OWN}"


def _table_row(profile: Provider) -> str:
    names = ", ".join(f"`{name}:`" for name in (profile.name, *profile.aliases))
    wires = ", ".join([profile.wire, *profile.other_wires])
    keys = " or ".join(f"`{key}`" for key in profile.keys) or "`api_key=`"
    address = f"`{profile.base_url}`" if profile.base_url else "`base_url=`"
    if profile.base_url_variables:
        address += " or " + " or ".join(f"`{variable}`" for variable in profile.base_url_variables)
    several = {True: "yes", False: "no", None: "depends on the model"}[profile.several_calls]
    optional = "" if profile.needs_key else " (optional)"
    cells = profile.title, names, wires, f"{keys}{optional}", address, several, profile.known_from
    return f"| {' | '.join(cells)} |\n"


def _notes(profile: Provider) -> list[str]:
    notes = [*_differences_in_body(profile.quirks), *_differences_in_calling(profile)]
    if profile.key_header:
        wires_header = WIRES[profile.wire].http.key_header
        notes.append(f"The key is sent in the {profile.key_header} header instead of {wires_header}.")
    if profile.note:
        notes.append(profile.note)
    return notes


_LOST = {
    "blank": "`reasoning_content` is sent blank",
    "off": "Thinking is turned off",
    "placeholder": "A placeholder signs the call",
}


def _differences_in_body(quirks: Quirks) -> list[str]:
    notes = [f"`{key}` is sent as `{name}`." for key, name in quirks.rename.items()]
    if quirks.drop:
        notes.append(f"Left out: {', '.join(f'`{key}`' for key in sorted(quirks.drop))}.")
    notes += [f"`{key}` is always sent." for key in (*quirks.add, *quirks.require)]
    if quirks.reasoning:
        fields = sorted({key for spelled in quirks.reasoning.values() for key in spelled})
        notes.append(f"Reasoning is set with {', '.join(f'`{key}`' for key in fields)}.")
    if quirks.call_ids is not None:
        notes.append(f"Call ids have at most {quirks.call_ids.longest} characters.")
    if quirks.no_call_ids:
        notes.append("Calls and results are sent without ids.")
    if not quirks.strict:
        notes.append("Tools are sent without `strict`.")
    if quirks.lost_reasoning:
        notes.append(f"{_LOST[quirks.lost_reasoning]} if its own reasoning is lost.")
    return notes


def _differences_in_calling(profile: Provider) -> list[str]:
    quirks, notes = profile.quirks, list[str]()
    if missing := ALL_CHOICES - quirks.choices:
        names = {"required": "any tool", "one": "one tool", "none": "none", "auto": "auto"}
        notes.append(f"Tool choices that it does not accept: {', '.join(sorted(names[kind] for kind in missing))}.")
    if "none" not in quirks.choices:
        notes.append("In the final request a system line states that no tool will run.")
    if quirks.native_output != "never":
        where = " in requests without tools" if quirks.native_output == "alone" else ""
        notes.append(f"A structured answer is requested by its schema{where}.")
    if quirks.asks_for_several:
        notes.append("The request asks for several calls; otherwise it returns one.")
    if not quirks.stream_with_tools:
        notes.append("Requests with tools are not streamed.")
    if WIRES[profile.wire].calls_leak and not quirks.prose:
        notes.append("The text is not searched for calls.")
    return notes


if __name__ == "__main__":
    sys.stdout.write(make_page())
