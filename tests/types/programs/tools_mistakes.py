from unbroken import Agent, CallContext, ScriptedModel, tool


@tool(efect="read")  # wrong
def one(city: str) -> str:
    return city


@tool(effect="reads")  # wrong
def two(city: str) -> str:
    return city


@tool(timeout="5")  # wrong
def three(city: str) -> str:
    return city


@tool
def four(context: CallContext[int], city: str) -> str:
    return city * context.dps  # wrong


Agent(ScriptedModel("Hello."), [four], deps="three")  # wrong
Agent(ScriptedModel("Hello."), toolz=[four])  # wrong
