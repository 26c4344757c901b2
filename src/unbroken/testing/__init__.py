"""For the tests of those who build on Unbroken: a scripted model, a loop on virtual time, a scripted HTTP server."""

from unbroken.models.script import Answer, Break, Call, Cut, End, ErrorInside, Fail, Pause, Raw, Say, Step, Think, Uses
from unbroken.models.scripted import ScriptedModel
from unbroken.testing.server import ScriptedServer, serve
from unbroken.testing.strict import check_request
from unbroken.testing.virtual import Deadlock, VirtualLoop
from unbroken.testing.virtual import run as run_virtual

__all__ = [
    "Answer",
    "Break",
    "Call",
    "Cut",
    "Deadlock",
    "End",
    "ErrorInside",
    "Fail",
    "Pause",
    "Raw",
    "Say",
    "ScriptedModel",
    "ScriptedServer",
    "Step",
    "Think",
    "Uses",
    "VirtualLoop",
    "check_request",
    "run_virtual",
    "serve",
]
