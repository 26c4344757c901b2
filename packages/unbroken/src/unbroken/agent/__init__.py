"""The agent: a model, some tools, and a loop that ends with an answer."""

from unbroken.agent.agent import Agent
from unbroken.agent.conversation import Conversation
from unbroken.agent.limits import Limits, Prices
from unbroken.agent.options import Policy
from unbroken.agent.output import Output
from unbroken.agent.prompts import Image
from unbroken.agent.result import Result
from unbroken.agent.streaming import RunStream

__all__ = ["Agent", "Conversation", "Image", "Limits", "Output", "Policy", "Prices", "Result", "RunStream"]
