"""Where a request becomes deltas: HTTP to any provider, or a script. The only room that awaits a provider."""

from unbroken.models.connect import connect
from unbroken.models.guarded import Guarded
from unbroken.models.http import HTTPModel
from unbroken.models.model import Model
from unbroken.models.sessions import close_session

__all__ = ["Guarded", "HTTPModel", "Model", "close_session", "connect"]
