"""LangChain's agent, streamed."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from tools import PROMPT, ROUNDS, delete_folder, get_weather

agent = create_agent(ChatOpenAI(model="demo"), tools=[get_weather, delete_folder])
ask = {"messages": [{"role": "user", "content": PROMPT}]}
for message, _ in agent.stream(ask, {"recursion_limit": 2 * ROUNDS}, stream_mode="messages"):
    if message.type == "AIMessageChunk":
        print(message.text, end="", flush=True)
