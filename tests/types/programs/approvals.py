"""Calls that need an approval: allowed, denied, edited."""

from unbroken import Agent, Allow, Deny, Edit, ScriptedModel, ToolCall, tool
from unbroken.tools.approval import Approval
from unbroken_testing import Call


@tool(approve=lambda arguments: arguments["amount"] > 10)
def transfer(to: str, amount: int) -> str:
    """Transfer money."""
    return f"{amount} to {to}"


def approve(call: ToolCall) -> Approval:
    if call.args["to"] == "Eve":
        return Deny("not to Eve")
    if call.args["amount"] > 100:
        return Edit({**call.args, "amount": 100})
    return Allow()


async def approve_later(call: ToolCall) -> Approval:
    return approve(call)


calls = [Call("transfer", to="Eve", amount=20), Call("transfer", to="Ada", amount=900)]
for approver in (approve, approve_later):
    result = Agent(ScriptedModel(calls, "Done."), [transfer], on_approval=approver).run_sync("Transfer.")
    assert result.calls[1].result.text.startswith("100 to Ada")
