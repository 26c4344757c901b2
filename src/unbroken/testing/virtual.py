"""For now: the loop lives in `unbroken.virtual`."""

from unbroken.virtual import Deadlock, VirtualLoop, run

__all__ = ["Deadlock", "VirtualLoop", "run"]
