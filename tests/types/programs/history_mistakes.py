from unbroken import Agent, Conversation, ScriptedModel, User

agent = Agent(ScriptedModel("Yes."))
agent.run_sync("Hi.", history=[{"role": "user", "content": "Hello."}])  # wrong
agent.run_sync("Hi.", history="Hello.")  # wrong
agent.run_sync("Hi.", history=["Hello."])  # wrong
agent.run_sync("Hi.", messages=[User.of("Hello.")])  # wrong
Conversation(agent, [{"role": "user", "content": "Hello."}])  # wrong
User.of("Hello.").content  # wrong
