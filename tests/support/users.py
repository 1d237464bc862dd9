"""Work of another user: what the tests do as root may not be all that others may do."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

NOBODY = GROUP = 65534
COLLEAGUE = 65533


def as_user(uid: int, work: Callable[[], object], umask: int = 0o022) -> None:
    """Do `work` in a process of another user, if this one's rights allow that, else in one of this user."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(GROUP, GROUP, GROUP)
                os.setresuid(uid, uid, uid)
            os.umask(umask)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def open_to_all(folder: Path) -> None:
    """Let every user reach a folder and read what is in it."""
    while folder != folder.parent:
        if folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | 0o055)
        folder = folder.parent
