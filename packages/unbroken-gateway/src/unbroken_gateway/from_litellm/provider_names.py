"""The providers by the prefix that LiteLLM's configurations give their models (`azure/my-deployment`): which of our
profiles it is, and which variables LiteLLM reads if the file has no key or address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    profile: str
    keys: tuple[str, ...] = ()
    """The variables that LiteLLM reads the key from, the first that is set."""
    addresses: tuple[str, ...] = ()
    """The same for the address."""
    base_url: str = ""
    """The address of a provider that has no profile of its own here, but speaks the wire openai-chat."""
    wire: str = ""
    takes_any_key: bool = False
    """Usually a server of one's own, whose key is often a placeholder."""


def _compatible(base_url: str, *keys: str, address: str = "") -> Known:
    return Known("compatible", keys, (address,) if address else (), base_url)


_COHERE = Known("cohere", ("COHERE_API_KEY", "CO_API_KEY"), ("COHERE_API_BASE",))
_OLLAMA = Known("ollama", ("OLLAMA_API_KEY",), ("OLLAMA_API_BASE",), wire="ollama", takes_any_key=True)
_OPENAI = Known("openai-chat", ("OPENAI_API_KEY",), ("OPENAI_BASE_URL", "OPENAI_API_BASE"))
_VERTEX = Known("vertex")
_ANY_SERVER = Known("compatible", takes_any_key=True)

KNOWN: Mapping[str, Known] = {
    "openai": _OPENAI,
    "text-completion-openai": _OPENAI,
    "azure": Known("azure", ("AZURE_API_KEY",), ("AZURE_API_BASE",)),
    "azure_text": Known("azure", ("AZURE_API_KEY",), ("AZURE_API_BASE",)),
    "anthropic": Known("anthropic", ("ANTHROPIC_API_KEY",), ("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL")),
    "gemini": Known("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), ("GEMINI_API_BASE",)),
    "vertex_ai": _VERTEX,
    "vertex_ai_beta": _VERTEX,
    "bedrock": Known("bedrock", ("AWS_BEARER_TOKEN_BEDROCK",)),
    "bedrock_converse": Known("bedrock", ("AWS_BEARER_TOKEN_BEDROCK",)),
    "cohere": _COHERE,
    "cohere_chat": _COHERE,
    "mistral": Known("mistral", ("MISTRAL_API_KEY",), ("MISTRAL_API_BASE",)),
    "groq": Known("groq", ("GROQ_API_KEY",), ("GROQ_API_BASE",)),
    "xai": Known("xai", ("XAI_API_KEY",), ("XAI_API_BASE",)),
    "openrouter": Known("openrouter", ("OPENROUTER_API_KEY", "OR_API_KEY"), ("OPENROUTER_API_BASE",)),
    "deepseek": Known("deepseek", ("DEEPSEEK_API_KEY",), ("DEEPSEEK_API_BASE",)),
    "together_ai": Known(
        "together",
        ("TOGETHER_API_KEY", "TOGETHER_AI_API_KEY", "TOGETHERAI_API_KEY", "TOGETHER_AI_TOKEN"),
        ("TOGETHER_AI_API_BASE",),
    ),
    "fireworks_ai": Known(
        "fireworks",
        ("FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY", "FIREWORKSAI_API_KEY", "FIREWORKS_AI_TOKEN"),
        ("FIREWORKS_API_BASE",),
    ),
    "cerebras": Known("cerebras", ("CEREBRAS_API_KEY",), ("CEREBRAS_API_BASE",)),
    "dashscope": Known("qwen", ("DASHSCOPE_API_KEY",), ("DASHSCOPE_API_BASE",)),
    "moonshot": Known("moonshot", ("MOONSHOT_API_KEY",), ("MOONSHOT_API_BASE",)),
    "zai": Known("zhipu", ("ZAI_API_KEY",), ("ZAI_API_BASE",)),
    "minimax": Known("minimax", ("MINIMAX_API_KEY",), ("MINIMAX_API_BASE",)),
    "ollama": _OLLAMA,
    "ollama_chat": _OLLAMA,
    "hosted_vllm": Known("vllm", ("HOSTED_VLLM_API_KEY",), ("HOSTED_VLLM_API_BASE",), takes_any_key=True),
    "lm_studio": Known("lmstudio", ("LM_STUDIO_API_KEY",), ("LM_STUDIO_API_BASE",), takes_any_key=True),
    "llamafile": Known("llamacpp", ("LLAMAFILE_API_KEY",), ("LLAMAFILE_API_BASE",), takes_any_key=True),
    "openai_like": _ANY_SERVER,
    "custom_openai": _ANY_SERVER,
    "aiohttp_openai": _ANY_SERVER,
    "xinference": _ANY_SERVER,
    "litellm_proxy": Known("compatible", ("LITELLM_PROXY_API_KEY",), ("LITELLM_PROXY_API_BASE",), takes_any_key=True),
    "databricks": Known("compatible", ("DATABRICKS_API_KEY",), ("DATABRICKS_API_BASE",)),
    # Providers without a profile that speak openai-chat, with LiteLLM's address for each.
    "ai21_chat": _compatible("https://api.ai21.com/studio/v1", "AI21_API_KEY", address="AI21_API_BASE"),
    "aiml": _compatible("https://api.aimlapi.com/v1", "AIML_API_KEY", address="AIML_API_BASE"),
    "baseten": _compatible("https://inference.baseten.co/v1", "BASETEN_API_KEY"),
    "codestral": _compatible("https://codestral.mistral.ai/v1", "CODESTRAL_API_KEY", address="CODESTRAL_API_BASE"),
    "deepinfra": _compatible("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY", address="DEEPINFRA_API_BASE"),
    "featherless_ai": _compatible("https://api.featherless.ai/v1", "FEATHERLESS_AI_API_KEY", "FEATHERLESS_API_KEY"),
    "friendliai": _compatible("https://api.friendli.ai/serverless/v1", "FRIENDLIAI_API_KEY", "FRIENDLI_TOKEN"),
    "github": _compatible("https://models.inference.ai.azure.com", "GITHUB_API_KEY", address="GITHUB_API_BASE"),
    "hyperbolic": _compatible("https://api.hyperbolic.xyz/v1", "HYPERBOLIC_API_KEY", address="HYPERBOLIC_API_BASE"),
    "jina_ai": _compatible("https://api.jina.ai/v1", "JINA_AI_API_KEY", "JINA_API_KEY"),
    "lambda_ai": _compatible("https://api.lambda.ai/v1", "LAMBDA_API_KEY", address="LAMBDA_API_BASE"),
    "meta_llama": _compatible("https://api.llama.com/compat/v1", "LLAMA_API_KEY", address="LLAMA_API_BASE"),
    "modelscope": _compatible("https://api-inference.modelscope.cn/v1", "MODELSCOPE_API_KEY"),
    "morph": _compatible("https://api.morphllm.com/v1", "MORPH_API_KEY", address="MORPH_API_BASE"),
    "nebius": _compatible("https://api.studio.nebius.ai/v1", "NEBIUS_API_KEY", address="NEBIUS_API_BASE"),
    "novita": _compatible("https://api.novita.ai/v3/openai", "NOVITA_API_KEY", address="NOVITA_API_BASE"),
    "nscale": _compatible("https://inference.api.nscale.com/v1", "NSCALE_API_KEY", address="NSCALE_API_BASE"),
    "nvidia_nim": _compatible(
        "https://integrate.api.nvidia.com/v1", "NVIDIA_NIM_API_KEY", address="NVIDIA_NIM_API_BASE"
    ),
    "perplexity": _compatible(
        "https://api.perplexity.ai", "PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY", address="PERPLEXITY_API_BASE"
    ),
    "poe": _compatible("https://api.poe.com/v1", "POE_API_KEY"),
    "sambanova": _compatible("https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY", address="SAMBANOVA_API_BASE"),
    "scaleway": _compatible("https://api.scaleway.ai/v1", "SCW_SECRET_KEY"),
    "v0": _compatible("https://api.v0.dev/v1", "V0_API_KEY", address="V0_API_BASE"),
    "vercel_ai_gateway": _compatible("https://ai-gateway.vercel.sh/v1", "VERCEL_AI_GATEWAY_API_KEY"),
    "volcengine": _compatible("https://ark.cn-beijing.volces.com/api/v3", "VOLCENGINE_API_KEY", "ARK_API_KEY"),
    "wandb": _compatible("https://api.inference.wandb.ai/v1", "WANDB_API_KEY", address="WANDB_API_BASE"),
}

BEGINNINGS: Mapping[str, str] = {
    "gpt-": "openai",
    "chatgpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "text-embedding-": "openai",
    "omni-moderation": "openai",
    "dall-e": "openai",
    "whisper-": "openai",
    "tts-": "openai",
    "ft:gpt-": "openai",
    "claude-": "anthropic",
    "gemini-": "vertex_ai",
    "command-": "cohere_chat",
}
"""The provider of a model that has no prefix."""

NOT_SERVED: Mapping[str, str] = {
    "azure_ai": "serve it by Azure's own OpenAI address: model: azure/DEPLOYMENT, api_base: https://RESOURCE.openai.azure.com",
    "sagemaker": "give the endpoint a server that speaks openai-chat, and name it as openai/MODEL with api_base",
    "huggingface": "use openai/MODEL with api_base: https://router.huggingface.co/v1",
    "vllm": "start the server of vLLM, and use hosted_vllm/MODEL with api_base",
    "cloudflare": "use openai/MODEL with api_base: https://api.cloudflare.com/client/v4/accounts/ACCOUNT/ai/v1",
    "github_copilot": "its log-in is not supported",
    "chatgpt": "its log-in is not supported",
}
"""Prefixes without a counterpart, and what to do instead."""
