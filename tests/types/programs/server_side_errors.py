"""Errors: one tree, with what is needed to continue."""

from unbroken import Agent, ChainBroken, ProviderError, RetryingModel, ScriptedModel, UnbrokenError, UserError
from unbroken_testing import Break

agent = Agent(RetryingModel(ScriptedModel(*[[Break()]] * 3, "Hello."), attempts=3))
try:
    agent.run_sync("Hi.")
except ChainBroken as error:
    assert agent.run_sync(history=error.messages).output == "Hello."
except (ProviderError, UserError) as error:
    print(error)
assert issubclass(ChainBroken, UnbrokenError)
