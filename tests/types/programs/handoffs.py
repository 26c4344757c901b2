"""Agents that hand off to each other."""

from unbroken import Agent, ScriptedModel
from unbroken_testing import Call

billing = Agent(ScriptedModel("It is paid."), name="billing")
support = Agent(ScriptedModel([Call("transfer_to_billing")]), name="support", handoffs=[billing])
billing.hand_off_to(support.as_handoff(description="For everything else."))
result = support.run_sync("Is order 7 paid?")
assert (result.agent, result.output) == ("billing", "It is paid.")
