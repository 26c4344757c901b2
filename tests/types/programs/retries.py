"""Tools that fail, and tools that ask for another try."""

from unbroken import Agent, Policy, Retry, RetryingModel, ScriptedModel, ToolFailed, ToolOutput, tool
from unbroken_testing import Break, Call, Say


@tool(effect="read", retries=2)
def search(query: str) -> ToolOutput:
    """Search."""
    if len(query) < 3:
        raise Retry("Give at least three letters.")
    if query == "all":
        raise ToolFailed("too much")
    return ToolOutput(f"found {query}", data={"count": 1})


model = ScriptedModel([Call("search", query="t")], [Say("Tea."), Break()], [Call("search", query="tea")], "Tea.")
agent = Agent(RetryingModel(model, attempts=3), [search], policy=Policy(tool_retries=2, result_limit=500))
result = agent.run_sync("Tea?")
assert [record.result.outcome for record in result.calls] == ["retry", "done"]
assert result.calls[1].result.data == {"count": 1}
