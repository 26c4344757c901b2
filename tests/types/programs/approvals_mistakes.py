from unbroken import Agent, Allow, Deny, Edit, ScriptedModel, ToolCall, tool
from unbroken.tools.approval import Approval


@tool(approve="always")  # wrong
def transfer(to: str) -> str:
    return to


def approve(call: ToolCall) -> Approval:
    if call.arguments["to"] == "Eve":  # wrong
        return Deny(3)  # wrong
    return Edit("Ada")  # wrong


def ask(call: ToolCall) -> bool:
    return True


agent = Agent(ScriptedModel("Hello."), [transfer], on_approval=ask)  # wrong
agent.resume_sync(agent.run_sync("Transfer."), Allow())  # wrong
