"""What is seen of the wishes besides their events: numbers, alerts when too many go wrong, and recordings."""

from __future__ import annotations

from typing import Any

from command_agent.tools import TOOL_CHAIN_CONTINUE_PROMPT, TOOLS, instructions_for
from unbroken import Agent, Model, Policy
from unbroken.trajectory.alerts import Alerts
from unbroken.trajectory.recorder import Recorder


class Watch:
    """One for all wishes of a program. An alert is a warning in the log (`unbroken.metrics`), once for each; `record`
    is a folder in which each wish is recorded."""

    def __init__(self, record: str = "") -> None:
        self._alerts = Alerts()
        self._recorder = Recorder(record) if record else None

    def agent(self, model: Model, instructions: str) -> Agent:
        """An agent that grants wishes and is watched."""
        policy = Policy(continue_prompt=TOOL_CHAIN_CONTINUE_PROMPT)
        return Agent(model, TOOLS, instructions, policy=policy, sinks=[self._alerts], record=self._recorder)

    def agent_for(self, player: str, model: Model) -> Agent:
        """The agent of one player of the block world."""
        return self.agent(model, instructions_for(player))

    def numbers(self) -> dict[str, Any]:
        """The metrics of all wishes so far, and the alerts that have fired."""
        return {**self._alerts.metrics.to_json(), "alerts": [str(each) for each in self._alerts.fired]}
