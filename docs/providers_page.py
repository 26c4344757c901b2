"""Writes docs/providers.md: `python docs/providers_page.py > docs/providers.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from unbroken.models.provider_files import FIELDS, QUIRKS, VARIABLE
from unbroken.models.providers import ROWS, Provider
from unbroken.models.quirks import ALL_CHOICES, Quirks
from unbroken.wires import WIRES

_HEAD = """\
# Providers

<!-- Made from src/unbroken/models/providers.py: `python docs/providers_page.py > docs/providers.md` -->

A model is named `provider:model`; the model's own name may hold colons and slashes.

```python
from unbroken import connect

model = connect("ollama:qwen3:4b")
model = connect("openai:gpt-5", api_key="YOUR-KEY", reasoning="low", max_tokens=4000)
model = connect("openai:my-model", base_url="http://127.0.0.1:8000/v1")  # any OpenAI-compatible server
```

- **Keys** come from the variable in the table, or from `api_key=`: a string, or a function (plain or async) that
  gives one for each request. A model with a `base_url` of your own needs none. A header of that name in `headers=`, and
  a user in `base_url`, come before a key of the environment. Keys, and the values of `headers=` and `query=`, stand in
  no error, log or `repr`.
- **`base_url`** points to another server of the same wire, with or without `/v1`, or to the whole address of an
  endpoint. `openai:` and `openai-chat:` then speak openai-chat, which such servers do; `wire=` says otherwise.
- **`wire=`** picks another of a provider's wires: `connect("openai:gpt-5", wire="openai-chat")`.
- **Settings**: `temperature`, `top_p`, `max_tokens`, `stop`, `seed`, `reasoning` (none, minimal, low, medium, high or
  xhigh), `cache`, `headers`, `query`, `extra` (merged into each body last, as it is), `organization`, `project`,
  `location`, `api_version`. What a request says itself comes first.
- **Time-outs** in seconds, `None` waits for ever: `connect_timeout=10`, `first_byte=120` (from the connection to the
  first byte of the answer), `idle=60` (between two reads), `total=None`. The time that your own code takes between two
  deltas counts only for `total`.
- **Before the first byte** a failure raises a `ProviderError` (`Unauthorized`, `ModelNotFound`, `RequestRefused`,
  `RateLimited`, `Unavailable`, `Unreachable`, `TimedOut`) with `status` and `retry_after`. **After it** a lost
  connection or silence is no exception: the last delta is `Ended`, and its verdict says what became of the response.
- **Connections** are shared by all models on one event loop, kept for 50 idle seconds, and closed with the loop. A kept
  connection that turns out to be dead before anything came back is replaced and the request sent again, as all clients
  do: a server that read the request and closed without an answer gets it twice. Redirects are not followed, because
  the key would go with them.
- **Proxies** come from `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` as they stand when `connect` is called
  (http and https proxies; never for this machine's own addresses), certificates from `SSL_CERT_FILE` and
  `SSL_CERT_DIR`.

| provider | name | wire | key | base URL | several calls at once | known from |
|---|---|---|---|---|---|---|
"""


def _keys(names: Iterable[str], words: Mapping[str, str]) -> str:
    return "".join(f"| `{name}` | {words[name]} |\n" for name in names)


_ROW_KEYS = {
    "title": "its name for people",
    "wire": "openai-chat, openai-responses, anthropic-messages or gemini; quirks of another wire are not taken over",
    "base_url": "where it is, with its `/v1`",
    "keys": "variables that may hold the key; the first that is set counts",
    "several_calls": "does it give several calls in one response? For people only",
    "known_from": '"recorded" or "documented, not tried"',
    "needs_key": "true: without a key it is not even asked",
    "other_wires": 'more wires that it speaks: `{ anthropic-messages = "https://…" }`',
    "elsewhere": "the row that counts once `base_url=` is given",
    "base_url_variables": "variables that may hold the base URL",
    "parts": "settings that stand as `{project}` or `{location}` in `base_url`, with their variables",
    "port": "the port of a base URL that has neither scheme nor port",
    "prefix": "what stands between the base URL and the wire's path",
    "path": "what follows the base URL, with `{model}` and `{method}` in it",
    "dated_path": "the same when `api_version` is given",
    "version_variables": "variables that may hold `api_version`",
    "key_header": "bearer, x-api-key, x-goog-api-key or api-key, where it is not as the wire has it",
    "note": "for people",
    "aliases": "other names",
}
_QUIRK_KEYS = {
    "rename": 'keys of the body under another name: `{ max_tokens = "max_completion_tokens" }`',
    "drop": "keys of the body that are left out",
    "add": "keys that every body has",
    "reasoning": "what the body has for an effort, `*` for all others: `{ none = { thinking = false } }`",
    "choices": "the choices of tools that it takes, of auto, none, required and one",
    "asks_for_several": "it gives one call at a time unless the request asks for several",
    "call_ids": 'a rule for ids: `{ longest = 9, shortest = 9, allowed = "[A-Za-z0-9]" }`',
    "no_call_ids": "calls and results go without ids (gemini)",
    "stream_with_tools": "false: a request with tools is sent unstreamed",
    "strict": "false: tools go without `strict`",
    "lost_reasoning": "where it demands its own reasoning back and that is gone: `blank`, `off` or `placeholder`",
    "prose": "false: calls in the text are not looked for",
}

_QUIRKS = """
"Recorded": several calls in one response of this provider are among the recordings that the decoders are tested with.
"Documented, not tried": it stands in somebody's documents; nobody here has seen it.

## What is done otherwise than the wire says

| provider | |
|---|---|
"""

_OWN = f"""
## Rows of your own

A provider that is not in the table, or that does otherwise than its row says, gets a row in your own file:
`~/.config/unbroken/providers.toml` (or under `XDG_CONFIG_HOME`), or the file that `{VARIABLE}` names; set to
nothing, that variable switches the file off. [`unbroken probe`](probe.md) asks a server what it can do and writes its
row.

```toml
[providers.mine]
base_url = "http://127.0.0.1:9000/v1"
keys = ["MY_SERVER_KEY"]          # variables, never the key itself

[providers.mine.quirks]
stream_with_tools = false         # ask whole when there are tools
choices = ["auto", "required"]    # it knows no other tool_choice
```

`connect("mine:qwen3")` and `--model mine:qwen3` then just work. A row starts from `compatible`, or from the row that it
is `like`; one by the name of a known provider changes that provider. What is wrong in the file is told in one line,
with the file, the row and the key. The file is read when a model is connected, and again only after it changed.

| key | of `[providers.NAME]` |
|---|---|
| `like` | the row to start from |
{_keys(FIELDS, _ROW_KEYS)}
| key | of `[providers.NAME.quirks]` |
|---|---|
{_keys(QUIRKS, _QUIRK_KEYS)}"""


def make_page() -> str:
    rows = "".join(_row(row) for row in ROWS)
    quirks = "".join(f"| {row.title} | {' '.join(said)} |\n" for row in ROWS if (said := _said(row)))
    return f"{_HEAD}{rows}{_QUIRKS}{quirks}{_OWN}"


def _row(row: Provider) -> str:
    names = ", ".join(f"`{name}:`" for name in (row.name, *row.aliases))
    wires = ", ".join([row.wire, *row.other_wires])
    keys = " or ".join(f"`{key}`" for key in row.keys) or "`api_key=`"
    address = f"`{row.base_url}`" if row.base_url else "`base_url=`"
    if row.base_url_variables:
        address += " or " + " or ".join(f"`{variable}`" for variable in row.base_url_variables)
    several = {True: "yes", False: "no", None: "depends on the model"}[row.several_calls]
    optional = "" if row.needs_key else " (optional)"
    return f"| {row.title} | {names} | {wires} | {keys}{optional} | {address} | {several} | {row.known_from} |\n"


def _said(row: Provider) -> list[str]:
    said = [*_spelling(row.quirks), *_asking(row)]
    if row.key_header:
        said.append(f"The key goes into the header of {row.key_header}, not of {WIRES[row.wire].http.key_header}.")
    if row.note:
        said.append(row.note)
    return said


_LOST = {
    "blank": "`reasoning_content` is sent blank",
    "off": "Thinking is turned off",
    "placeholder": "A placeholder signs the call",
}


def _spelling(quirks: Quirks) -> list[str]:
    said = [f"`{key}` is sent as `{name}`." for key, name in quirks.rename.items()]
    if quirks.drop:
        said.append(f"Left out: {', '.join(f'`{key}`' for key in sorted(quirks.drop))}.")
    said += [f"`{key}` is always sent." for key in quirks.add]
    if quirks.reasoning:
        fields = sorted({key for spelled in quirks.reasoning.values() for key in spelled})
        said.append(f"Reasoning is asked for with {', '.join(f'`{key}`' for key in fields)}.")
    if quirks.call_ids is not None:
        said.append(f"Call ids have {quirks.call_ids.longest} characters at most.")
    if quirks.no_call_ids:
        said.append("Calls and results go without ids.")
    if not quirks.strict:
        said.append("Tools go without `strict`.")
    if quirks.lost_reasoning:
        said.append(f"{_LOST[quirks.lost_reasoning]} where its own reasoning is gone.")
    return said


def _asking(row: Provider) -> list[str]:
    quirks, said = row.quirks, list[str]()
    if missing := ALL_CHOICES - quirks.choices:
        names = {"required": "any tool", "one": "one tool", "none": "none", "auto": "auto"}
        said.append(f"Choices it does not take: {', '.join(sorted(names[kind] for kind in missing))}.")
    if "none" not in quirks.choices:
        said.append("In the final request a system line says that no tool will run.")
    if quirks.asks_for_several:
        said.append("Several calls are asked for, or it gives one.")
    if not quirks.stream_with_tools:
        said.append("Requests with tools are not streamed.")
    if WIRES[row.wire].calls_leak and not quirks.prose:
        said.append("Calls in the text are not looked for.")
    return said


if __name__ == "__main__":
    sys.stdout.write(make_page())
