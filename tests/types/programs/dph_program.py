"""A program in DPH."""

from unbroken import ScriptedModel
from unbroken_dph import ProgramResult, run_program_sync

result: ProgramResult = run_program_sync("/prompt/ Say hello. -> said\n", ScriptedModel("Hello."), [], {"city": "Rome"})
assert result.variables["city"] == "Rome"
