"""A lock on an open file, so that one run has one writer. The operating system drops it when the file is closed or its
process dies, however it dies: a lock is never left behind."""

from __future__ import annotations

import os
import sys

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_FAR_AWAY = 1 << 40
"""Windows locks bytes, and then nobody else can read them: this one is behind the end of every recording."""


def lock(file: int, *, wait: bool = False) -> bool:
    """False if somebody else holds it: another process, or another task or thread of this one. With `wait`, returns
    once it is free. `OSError` if the file system has no locks."""
    if sys.platform == "win32":
        place = os.lseek(file, 0, os.SEEK_CUR)
        os.lseek(file, _FAR_AWAY, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        finally:
            os.lseek(file, place, os.SEEK_SET)
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
