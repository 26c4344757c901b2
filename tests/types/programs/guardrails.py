"""Checks as middleware and as decorators; `Retry` comes from where the docs import it."""

from unbroken import Agent, RunContext, ScriptedModel, ToolCall, tool
from unbroken.guardrails import Retry, Veto, check_calls, check_input, check_output, redact
from unbroken_testing import Call


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def no_passwords(text: str) -> None:
    if "password" in text:
        raise Veto("No passwords.")


def at_most_50(context: RunContext[dict[str, int]], call: ToolCall) -> None:
    if call.args["amount"] > context.deps["most"]:
        raise Veto("too much")


agent = Agent(
    ScriptedModel([Call("pay", amount=90)], "no", "No."),
    [pay],
    deps={"most": 50},
    middleware=[check_input(no_passwords), check_calls(at_most_50, tools=["pay"]), redact(r"\d{16}")],
)


@agent.check_output
def is_a_sentence(text: str) -> None:
    if not text.endswith("."):
        raise Retry("Answer with a sentence.")


result = agent.run_sync("Pay 90.")
assert result.output == "No." and result.calls[0].result.error
assert check_output(is_a_sentence, retries=2) is not None
