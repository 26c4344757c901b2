"""The options that say which model is asked, and where: the same in every command that asks one."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from unbroken.wires import WIRES

ModelName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        envvar="UNBROKEN_MODEL",
        metavar="PROVIDER:MODEL",
        help="For example openai:gpt-5, ollama:qwen3.",
    ),
]
BaseUrl: TypeAlias = Annotated[str, typer.Option(metavar="URL", help="Another server that speaks the provider's wire.")]
ApiKeyEnv: TypeAlias = Annotated[
    str, typer.Option(metavar="VARIABLE", help="Where the key is; else the provider's own variable.")
]
WireName: TypeAlias = Annotated[str, typer.Option(help=f"One of {', '.join(WIRES)}; else the provider's first.")]
