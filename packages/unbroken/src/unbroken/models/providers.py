"""The provider profiles: wire, address, key, quirks, and the source of that knowledge.

What is specific to a vendor's requests is data in this file and nowhere else; a deviation in its responses is a line in
the decoder of its wire. Profiles in the user's file (`provider_files`) take precedence over these; other packages add
theirs by entry points. `docs/providers.md` is generated from them (`python docs/providers_page.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from unbroken.errors import UnknownProvider, UserError
from unbroken.models.provider_files import ProfileTable, read_profiles, user_file
from unbroken.models.quirks import Quirks
from unbroken_wires.messages import Json
from unbroken_wires.plugins import load, misnamed, plugins
from unbroken_wires.wires.json_access import MISTRAL, OPENAI_IDS
from unbroken_wires.wires.openai_models import ONLY_RESPONSES, OPENAI

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CHAT, RESPONSES, MESSAGES, GEMINI = "openai-chat", "openai-responses", "anthropic-messages", "gemini"
OLLAMA, COHERE, BEDROCK = "ollama", "cohere-v2", "bedrock-converse"

KeyHeader: TypeAlias = Literal["", "bearer", "x-api-key", "x-goog-api-key", "api-key"]

Signing: TypeAlias = Literal["", "aws"]

KEY_HEADERS: dict[str, tuple[str, str]] = {
    "bearer": ("Authorization", "Bearer "),
    "x-api-key": ("x-api-key", ""),
    "x-goog-api-key": ("x-goog-api-key", ""),
    "api-key": ("api-key", ""),
}
"""How a key is sent: the header, and the prefix before the key."""


_PLAIN = Quirks()
_NO_LEAKS = Quirks(prose=False)
_THINKING_OFF = Quirks(prose=False, lost_reasoning="off")
_ON_BEDROCK = Quirks(choices=frozenset({"auto", "required", "one"}), prose=False, lost_reasoning="off")
_ALONE = Quirks(native_output="alone")
_ON_WIRES = {MESSAGES: _THINKING_OFF, OLLAMA: Quirks(choices=frozenset(), native_output="alone"), BEDROCK: _ON_BEDROCK}
"""What every server of a wire needs; empty for other wires."""


@dataclass(frozen=True, slots=True)
class Provider:
    name: str
    title: str
    wire: str
    base_url: str = ""
    keys: tuple[str, ...] = ()
    """Variables that may hold the key; the first one that is set is used."""
    several_calls: bool | None = None
    """Whether it returns several calls in one response. None: it depends on the model, or is not known."""
    known_from: Literal["recorded", "documented, not tried"] = "documented, not tried"
    """The source of that: "recorded" means several calls in one recorded response of this provider."""
    quirks: Quirks = _PLAIN
    needs_key: bool = True
    other_wires: Mapping[str, str] = field(default_factory=dict[str, str])
    """Other wires that it supports, each with its base URL."""
    elsewhere: str = ""
    """The profile to use if the user gives a base URL, which means another server with the same wire."""
    base_url_variables: tuple[str, ...] = ()
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Parts of the base URL that are settings of `connect`, and the variables that may hold them."""
    port: int = 0
    """The port of a base URL that has neither scheme nor port."""
    prefix: str = ""
    """Path between the base URL and the wire's path."""
    path: str = ""
    """The path after the base URL, if it differs from the wire's."""
    dated_path: str = ""
    """The same if an API version is given."""
    version_variables: tuple[str, ...] = ()
    methods: tuple[str, str] | None = None
    """The `{method}` in the path for one body and for a stream, if they differ from the wire's."""
    key_header: KeyHeader = ""
    """How the key is sent, if the provider does it differently from the wire."""
    signing: Signing = ""
    """How requests are signed if there is no key."""
    note: str = ""
    aliases: tuple[str, ...] = ()
    prices: str = ""
    """The name of its price list in `genai-prices`; empty if it has none."""

    def needs_responses(self, model: str) -> bool:
        """Does it take tools for this model only on the Responses API, although chat completions are its wire?"""
        if self.wire != CHAT or RESPONSES not in self.other_wires or self.name not in OPENAI:
            return False
        return model in ONLY_RESPONSES


_COMPLETION_TOKENS = {"max_tokens": "max_completion_tokens"}
_THINKING: dict[str, Mapping[str, Json]] = {
    "none": {"thinking": {"type": "disabled"}},
    "*": {"thinking": {"type": "enabled"}},
}
_EFFORTS: dict[str, Mapping[str, Json]] = {
    effort: {"reasoning": {"effort": effort}} for effort in ("none", "minimal", "low", "medium", "high", "xhigh")
}
_THINKING_BY_EFFORT: dict[str, Mapping[str, Json]] = _THINKING | {
    effort: {"thinking": {"type": "enabled"}, "reasoning_effort": effort}
    for effort in ("minimal", "low", "medium", "high", "xhigh")
}
"""The newest families know both; for the others a rule leaves the effort out."""

_OPENAI = Provider(
    "openai",
    "OpenAI",
    RESPONSES,
    "https://api.openai.com/v1",
    ("OPENAI_API_KEY",),
    several_calls=True,
    known_from="recorded",
    quirks=Quirks(rename=_COMPLETION_TOKENS, call_ids=OPENAI_IDS, prose=False, native_output="always"),
    other_wires={CHAT: "https://api.openai.com/v1"},
    elsewhere="compatible",
    base_url_variables=("OPENAI_BASE_URL",),
    note="With a base URL: any server with the wire openai-chat.",
    prices="openai",
)

PROFILES = (
    _OPENAI,
    replace(_OPENAI, name="openai-chat", title="OpenAI, chat completions", wire=CHAT, other_wires={}),
    replace(
        _OPENAI,
        name="openai-responses",
        title="OpenAI, responses",
        quirks=replace(_NO_LEAKS, native_output="always"),
        other_wires={},
        elsewhere="",
        note="",
    ),
    Provider(
        "anthropic",
        "Anthropic",
        MESSAGES,
        "https://api.anthropic.com",
        ("ANTHROPIC_API_KEY",),
        several_calls=True,
        known_from="recorded",
        quirks=replace(_THINKING_OFF, native_output="always"),
        base_url_variables=("ANTHROPIC_BASE_URL",),
        note="A request without max_tokens is sent with the most that the model can write, or 8192 if unknown.",
        aliases=("claude",),
        prices="anthropic",
    ),
    Provider(
        "gemini",
        "Google Gemini",
        GEMINI,
        "https://generativelanguage.googleapis.com",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        several_calls=True,
        known_from="recorded",
        quirks=Quirks(prose=False, lost_reasoning="placeholder", native_output="always"),
        base_url_variables=("GOOGLE_GEMINI_BASE_URL",),
        note="This wire cannot ask for one call only.",
        aliases=("google",),
        prices="google",
    ),
    Provider(
        "vertex",
        "Google Vertex AI, Gemini",
        GEMINI,
        "https://{location}-aiplatform.googleapis.com/v1/projects/{project}/locations/{location}/publishers/google",
        several_calls=True,
        known_from="recorded",
        quirks=Quirks(no_call_ids=True, prose=False, native_output="always"),
        parts={
            "project": ("GOOGLE_CLOUD_PROJECT",),
            "location": ("GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_REGION"),
        },
        path="/models/{model}:{method}",
        key_header="bearer",
        note="api_key is an access token, or a function that returns one.",
        prices="google",
    ),
    Provider(
        "vertex-claude",
        "Google Vertex AI, Claude",
        MESSAGES,
        "https://{location}-aiplatform.googleapis.com/v1/projects/{project}/locations/{location}/publishers/anthropic",
        several_calls=True,
        quirks=replace(_THINKING_OFF, drop=frozenset({"model"}), require={"anthropic_version": "vertex-2023-10-16"}),
        parts={
            "project": ("ANTHROPIC_VERTEX_PROJECT_ID", "GOOGLE_CLOUD_PROJECT"),
            "location": ("CLOUD_ML_REGION", "GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_REGION"),
        },
        path="/models/{model}:{method}",
        methods=("rawPredict", "streamRawPredict"),
        key_header="bearer",
        note="api_key is an access token, or a function that returns one.",
        prices="google",
    ),
    Provider(
        "bedrock",
        "Amazon Bedrock",
        BEDROCK,
        "https://bedrock-runtime.{location}.amazonaws.com",
        ("AWS_BEARER_TOKEN_BEDROCK",),
        several_calls=True,
        known_from="recorded",
        quirks=replace(_ON_BEDROCK, native_output="always"),
        needs_key=False,
        base_url_variables=("AWS_ENDPOINT_URL_BEDROCK_RUNTIME",),
        parts={"location": ("AWS_REGION", "AWS_DEFAULT_REGION")},
        signing="aws",
        note="Any model with Converse: Claude, Nova, gpt-oss and others. Without an API key, requests are signed with "
        'your AWS credentials; that needs `pip install "unbroken[bedrock]"`.',
        aliases=("aws",),
        prices="aws",
    ),
    Provider(
        "cohere",
        "Cohere",
        COHERE,
        "https://api.cohere.com",
        ("CO_API_KEY", "COHERE_API_KEY"),
        several_calls=True,
        known_from="recorded",
        quirks=replace(_NO_LEAKS, native_output="alone"),
        other_wires={CHAT: "https://api.cohere.ai/compatibility/v1"},
        base_url_variables=("CO_API_URL",),
        note="One tool is chosen by offering it alone.",
        prices="cohere",
    ),
    Provider(
        "azure",
        "Azure OpenAI",
        CHAT,
        "",
        ("AZURE_OPENAI_API_KEY",),
        several_calls=True,
        known_from="recorded",
        quirks=Quirks(rename=_COMPLETION_TOKENS, call_ids=OPENAI_IDS, prose=False, native_output="always"),
        base_url_variables=("AZURE_OPENAI_ENDPOINT",),
        prefix="/openai/v1",
        dated_path="/openai/deployments/{model}/chat/completions",
        version_variables=("OPENAI_API_VERSION",),
        key_header="api-key",
        other_wires={RESPONSES: ""},
        note="The model is the deployment. With api_version, the older interface (by deployment and date) is used, on "
        "openai-chat.",
        prices="azure",
    ),
    Provider(
        "deepseek",
        "DeepSeek",
        CHAT,
        "https://api.deepseek.com",
        ("DEEPSEEK_API_KEY",),
        several_calls=True,
        known_from="recorded",
        quirks=Quirks(reasoning={"none": {"thinking": {"type": "disabled"}}}, strict=False, lost_reasoning="blank"),
        other_wires={MESSAGES: "https://api.deepseek.com/anthropic"},
        note="`strict` tools need its beta address, so `strict` is left out.",
        prices="deepseek",
    ),
    Provider(
        "qwen",
        "Alibaba Qwen (DashScope)",
        CHAT,
        "https://dashscope.aliyuncs.com/compatible-mode/v1",
        ("DASHSCOPE_API_KEY",),
        several_calls=True,
        quirks=Quirks(
            reasoning={"none": {"enable_thinking": False}, "*": {"enable_thinking": True}},
            choices=frozenset({"auto", "none", "one"}),
            asks_for_several=True,
        ),
        base_url_variables=("DASHSCOPE_BASE_URL",),
        note="International: base_url=https://dashscope-intl.aliyuncs.com/compatible-mode/v1.",
        aliases=("dashscope", "alibaba"),
    ),
    Provider(
        "moonshot",
        "Moonshot AI (Kimi)",
        CHAT,
        "https://api.moonshot.ai/v1",
        ("MOONSHOT_API_KEY",),
        several_calls=True,
        quirks=Quirks(reasoning=_THINKING_BY_EFFORT, choices=frozenset({"auto", "none"}), lost_reasoning="blank"),
        other_wires={MESSAGES: "https://api.moonshot.ai/anthropic"},
        note="China: base_url=https://api.moonshot.cn/v1.",
        aliases=("kimi",),
        prices="moonshotai",
    ),
    Provider(
        "zhipu",
        "Zhipu AI (Z.ai, GLM)",
        CHAT,
        "https://api.z.ai/api/paas/v4",
        ("ZAI_API_KEY", "ZHIPUAI_API_KEY"),
        several_calls=True,
        known_from="recorded",
        quirks=Quirks(reasoning=_THINKING_BY_EFFORT, choices=frozenset({"auto", "one"}), strict=False),
        note="China: base_url=https://open.bigmodel.cn/api/paas/v4. Arguments stream with extra={'tool_stream': True}.",
        aliases=("zai", "glm"),
        prices="zai",
    ),
    Provider(
        "minimax",
        "MiniMax",
        CHAT,
        "https://api.minimax.io/v1",
        ("MINIMAX_API_KEY",),
        quirks=Quirks(
            rename=_COMPLETION_TOKENS,
            drop=frozenset({"parallel_tool_calls", "seed"}),
            add={"reasoning_split": True},
            reasoning={"none": {"thinking": {"type": "disabled"}}, "*": {"thinking": {"type": "adaptive"}}},
            choices=frozenset(),
            strict=False,
        ),
        other_wires={MESSAGES: "https://api.minimax.io/anthropic"},
        note="China: base_url=https://api.minimaxi.com/v1.",
        prices="minimax",
    ),
    Provider(
        "mistral",
        "Mistral AI",
        CHAT,
        "https://api.mistral.ai/v1",
        ("MISTRAL_API_KEY",),
        several_calls=True,
        known_from="recorded",
        quirks=Quirks(
            rename={"seed": "random_seed"},
            drop=frozenset({"stream_options"}),
            call_ids=MISTRAL,
            native_output="alone",
        ),
        note="It reports usage without being asked.",
        prices="mistral",
    ),
    Provider(
        "groq",
        "Groq",
        CHAT,
        "https://api.groq.com/openai/v1",
        ("GROQ_API_KEY",),
        several_calls=True,
        known_from="recorded",
        prices="groq",
    ),
    Provider(
        "xai",
        "xAI (Grok)",
        CHAT,
        "https://api.x.ai/v1",
        ("XAI_API_KEY",),
        several_calls=True,
        known_from="recorded",
        quirks=Quirks(native_output="always"),
        other_wires={RESPONSES: "https://api.x.ai/v1"},
        aliases=("grok",),
        prices="x-ai",
    ),
    Provider(
        "openrouter",
        "OpenRouter",
        CHAT,
        "https://openrouter.ai/api/v1",
        ("OPENROUTER_API_KEY",),
        several_calls=True,
        known_from="recorded",
        quirks=Quirks(reasoning=_EFFORTS),
        other_wires={RESPONSES: "https://openrouter.ai/api/v1"},
        prices="openrouter",
    ),
    Provider(
        "together",
        "Together AI",
        CHAT,
        "https://api.together.xyz/v1",
        ("TOGETHER_API_KEY",),
        several_calls=True,
        known_from="recorded",
        prices="together",
    ),
    Provider(
        "fireworks",
        "Fireworks AI",
        CHAT,
        "https://api.fireworks.ai/inference/v1",
        ("FIREWORKS_API_KEY",),
        quirks=_ALONE,
        prices="fireworks",
    ),
    Provider(
        "cerebras",
        "Cerebras",
        CHAT,
        "https://api.cerebras.ai/v1",
        ("CEREBRAS_API_KEY",),
        quirks=Quirks(
            rename=_COMPLETION_TOKENS,
            drop=frozenset({"parallel_tool_calls"}),
            choices=frozenset({"auto", "none", "required"}),
        ),
        note="Some models refuse `parallel_tool_calls` with status 400.",
        prices="cerebras",
    ),
    Provider(
        "ollama",
        "Ollama",
        CHAT,
        "http://127.0.0.1:11434/v1",
        ("OLLAMA_API_KEY",),
        several_calls=True,
        known_from="recorded",
        quirks=Quirks(choices=frozenset(), native_output="alone"),
        needs_key=False,
        other_wires={OLLAMA: "http://127.0.0.1:11434"},
        base_url_variables=("OLLAMA_HOST",),
        port=11434,
        prefix="/v1",
    ),
    Provider(
        "vllm",
        "vLLM",
        CHAT,
        "http://127.0.0.1:8000/v1",
        ("VLLM_API_KEY",),
        quirks=_ALONE,
        needs_key=False,
        note="Start it with --enable-auto-tool-choice and a --tool-call-parser.",
    ),
    Provider(
        "sglang",
        "SGLang",
        CHAT,
        "http://127.0.0.1:30000/v1",
        ("SGLANG_API_KEY",),
        quirks=_ALONE,
        needs_key=False,
        note="Start it with a --tool-call-parser.",
    ),
    Provider(
        "lmstudio",
        "LM Studio",
        CHAT,
        "http://127.0.0.1:1234/v1",
        ("LMSTUDIO_API_KEY",),
        quirks=_ALONE,
        needs_key=False,
        other_wires={RESPONSES: "http://127.0.0.1:1234/v1", MESSAGES: "http://127.0.0.1:1234"},
        aliases=("lm-studio",),
    ),
    Provider(
        "llamacpp",
        "llama.cpp",
        CHAT,
        "http://127.0.0.1:8080/v1",
        ("LLAMA_API_KEY",),
        several_calls=True,
        known_from="recorded",
        # Measured on its server of 2026: it accepts the name of a tool and then ignores it.
        quirks=Quirks(choices=frozenset({"auto", "none", "required"}), asks_for_several=True, native_output="alone"),
        needs_key=False,
        note="Start it with --jinja.",
        aliases=("llama.cpp", "llama-cpp"),
    ),
    Provider(
        "compatible",
        "any OpenAI-compatible server",
        CHAT,
        needs_key=False,
        note="Needs base_url; sends a key only if api_key is given.",
    ),
)
"""docs/providers.md lists them in this order: hosted providers first, then servers on the same machine."""

_BY_NAME = {name: profile for profile in PROFILES for name in (profile.name, *profile.aliases)}


GROUP = "unbroken.providers"
"""The entry points by which other packages add profiles."""
_TITLE = "provider `{}`"


def find_provider(name: str) -> Provider:
    """The profile with that name or alias: of the user, of this file, of another package. If there is none, the error
    lists the known names."""
    return _find(name, _user_profiles())


def _find(name: str, users: Mapping[str, Provider]) -> Provider:
    profile = _known(name, users)
    if profile is not None:
        return profile
    near = get_close_matches(name.lower(), [*users, *_BY_NAME, *_plugins()], 3, cutoff=0.65)
    guess = f"did you mean {' or '.join(f'`{known}`' for known in near)}? There are" if near else "there are"
    names = dict.fromkeys([*(known.name for known in (*users.values(), *PROFILES)), *_plugins()])
    raise UnknownProvider(
        f"there is no provider `{name}`: {guess}: {', '.join(names)}; "
        f"for any OpenAI-compatible server, use openai:MODEL or compatible:MODEL with base_url="
    )


def _known(name: str, users: Mapping[str, Provider]) -> Provider | None:
    return users.get(name) or _BY_NAME.get(name) or _added(name)


def _plugins() -> Mapping[str, EntryPoint]:
    return plugins(GROUP, _TITLE, _BY_NAME, "unbroken")


@cache
def _added(name: str) -> Provider | None:
    point = _plugins().get(name)
    if point is None:
        return None
    profile = load(point, _TITLE)
    if not isinstance(profile, Provider) or name not in (profile.name, *profile.aliases):
        raise misnamed(point, _TITLE, Provider)
    return profile


def is_own_profile(name: str) -> bool:
    """Whether the user's file has a profile with that name or alias."""
    return name in _user_profiles()


def with_wire(provider: Provider, wire: str) -> Provider:
    """The provider's profile for another of its wires."""
    if wire == provider.wire:
        return provider
    base = provider.other_wires.get(wire, provider.base_url)
    # Quirks are written for openai-chat; other wires do not have its keys.
    quirks = provider.quirks if wire == CHAT else _ON_WIRES.get(wire, _NO_LEAKS)
    if wire == RESPONSES:
        quirks = replace(quirks, native_output=provider.quirks.native_output)
    prefix = provider.prefix if wire in (CHAT, RESPONSES) else ""  # the paths of the others have the version in them
    return replace(
        provider, wire=wire, base_url=base, prefix=prefix, path="", dated_path="", methods=None, quirks=quirks
    )


def _user_profiles() -> Mapping[str, Provider]:
    path = user_file()
    if path is None:
        return {}
    try:
        state = path.stat()
        changed = state.st_mtime_ns, state.st_size
    except OSError:  # reading it reports the error
        changed = 0, 0
    return _read_user_profiles(path, changed)


@lru_cache(4)
def _read_user_profiles(path: Path, changed: tuple[int, int]) -> Mapping[str, Provider]:
    """The user's profiles by name and alias. Read again only if the file has `changed`."""
    users: dict[str, Provider] = {}
    try:
        for table in read_profiles(path):
            profile = _build(path, table, {**_BY_NAME, **users})
            users |= dict.fromkeys((profile.name, *profile.aliases), profile)
    except UserError as error:
        error.file = str(path)
        raise
    return users


def _build(path: Path, table: ProfileTable, known: Mapping[str, Provider]) -> Provider:
    """Builds a profile from its table. A table with the name of a known profile changes that profile; any other starts
    from the profile in `like`."""
    for key, name in (("like", table.like), ("elsewhere", table.fields.get("elsewhere"))):
        if name and _known(name, known) is None:
            near = get_close_matches(name, known, 1)
            guess = f"did you mean `{near[0]}`? There are" if near else "there are"
            raise UserError(
                f"{path}: [providers.{table.name}]: `{key}` names no provider profile before it: {guess}: "
                f"{', '.join(dict.fromkeys(one.name for one in known.values()))}"
            )
    start = _known(table.like or table.name, known) or known["compatible"]
    if "base_url" in table.fields:
        if start.elsewhere:  # as `connect` does if the user gives a base URL
            start = replace(_find(start.elsewhere, known), name=start.name, keys=start.keys, aliases=start.aliases)
        start = replace(start, base_url_variables=())
    if "wire" in table.fields:
        start = with_wire(start, table.fields["wire"])
    if start.name != table.name:
        start = replace(start, name=table.name, title=table.name, aliases=(), note="")
    return replace(start, **table.fields, quirks=replace(start.quirks, **table.quirks))
