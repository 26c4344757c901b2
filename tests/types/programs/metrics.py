"""What runs cost and how they go, with alerts."""

from unbroken import Agent, Alerts, Event, Metrics, ScriptedModel

metrics, alerts = Metrics(), Alerts()
seen: list[Event] = []
agent = Agent(ScriptedModel("Hello.", "Hello."), sinks=[metrics, alerts, seen.append])
agent.run_sync("Hi.")
assert agent.run_sync("Hi.").metrics.requests == 1
assert metrics.requests == 2 and seen
