"""DPH: a language for programs that use language models. `run_program` runs one, `check_program` finds mistakes without
running it, `flags` has the feature flags. Docs: docs/dph.md."""

from unbroken_dph import flags
from unbroken_dph.checking import check_program
from unbroken_dph.outputs import (
    BlockFinished,
    BlockRun,
    BlockStarted,
    InBlock,
    ProgramEvent,
    program_event_to_json,
)
from unbroken_dph.parsing import parse_program, read_source
from unbroken_dph.problems import InvalidProgram, Position, Problem, ProgramFailed, Source
from unbroken_dph.program import ProgramResult, ProgramRun, load_program, run_program, run_program_sync
from unbroken_dph.syntax import Program

__all__ = [
    "BlockFinished",
    "BlockRun",
    "BlockStarted",
    "InBlock",
    "InvalidProgram",
    "Position",
    "Problem",
    "Program",
    "ProgramEvent",
    "ProgramFailed",
    "ProgramResult",
    "ProgramRun",
    "Source",
    "check_program",
    "flags",
    "load_program",
    "parse_program",
    "program_event_to_json",
    "read_source",
    "run_program",
    "run_program_sync",
]
