"""Imported when Python starts with this folder on its path: lets a warm process carry out what was about to start.

See `tests.support.warm_children`. Where that process cannot stand for this one, Python goes on to start as usual.
"""

import os
import sys

# The socket of the warm process, for the processes of a test that may be forked from it.
ADDRESS = "WARM_CHILDREN"
MODULES = {
    "infra.processes.light_imports",
    "infra.processes.tied_to_parent",
    "infra.gang.node.rank_bootstrap",
    "infra.gang.node.supervisor",
}
TIED = {"infra.processes.tied_to_parent", "infra.gang.node.rank_bootstrap"}


def _stand_in(address: str) -> None:
    import json
    import signal
    import socket

    command = sys.orig_argv[4:]
    passed = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.connect(address)
    except OSError:
        return
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    numbers = [number for number in numbers if number != channel.fileno() and os.path.exists(f"/proc/self/fd/{number}")]
    umask = os.umask(0)
    os.umask(umask)
    request = {
        "executable": sys.executable,
        "command": command,
        "line": sys.orig_argv,
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "umask": umask,
        "numbers": numbers,
        "parent": os.getppid(),
        "interruptible": signal.getsignal(signal.SIGINT) is not signal.SIG_IGN,
    }
    socket.send_fds(channel, [b"r"], numbers)
    channel.sendall(json.dumps(request).encode() + b"\n")
    answers = channel.makefile("r")
    if (pid := answers.readline().strip()) == "no":
        channel.close()
        return
    for number in passed:
        signal.signal(number, lambda got, _frame: os.kill(int(pid), got))
    if command[0] in TIED:
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != request["parent"]:
            os._exit(1)
    code = int(answers.readline() or "1")
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if sys.orig_argv[1:4] == ["-P", "-u", "-m"] and sys.orig_argv[4] in MODULES and os.environ.get(ADDRESS):
    _stand_in(os.environ[ADDRESS])
