"""A recorded run, listed, read and replayed."""

import tempfile

from unbroken import Agent, Recorder, ScriptedModel
from unbroken.trajectory.recording import list_recordings, read_recording

folder = tempfile.mkdtemp()
agent = Agent(ScriptedModel("Hello."), record=folder)
agent.run_sync("Hi.")
(summary,) = list_recordings(folder)
assert read_recording(summary.path).settings["schedule"] == "eager"
assert agent.replay(summary.path).output == "Hello."
assert Agent(ScriptedModel("Hello."), record=Recorder(folder)).run_sync("Hi.").run
