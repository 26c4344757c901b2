from unbroken import Agent, ScriptedModel
from unbroken.guardrails import Veto, check_input, check_output


def check(text: str) -> None:
    raise Veto("No.", to="nobody")  # wrong


Agent(ScriptedModel("Hello."), middleware=[check])  # wrong
check_input(check, paralel=True)  # wrong
check_output(check, retries="2")  # wrong
