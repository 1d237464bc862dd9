"""Imported when Python starts with this folder on its path: lets a warm process carry out what was about to start.

See `tests.support.speed.children`. Where that process cannot stand for this one, Python goes on to start as usual.
"""

import os
import sys

# The sockets of the warm processes, for the processes of a test that may be forked from them. The last is for one
# command, and not for what that starts.
CHILDREN, PREFECT, COMMANDS = "WARM_CHILDREN", "WARM_PREFECT", "WARM_COMMANDS"
MODULES = {
    "infra.processes.tied_to_parent": CHILDREN,
    "infra.gang.rank_bootstrap": CHILDREN,
    "infra.gang.supervisor": CHILDREN,
    "torch.distributed.run": CHILDREN,
    "tests.zoo.sides": CHILDREN,
    "flows.cli": PREFECT,
    "infra.orchestrator.serve": PREFECT,
    "prefect.engine": PREFECT,
    "prefect.flow_engine": PREFECT,
    "prefect.runner._workspace_resolver": PREFECT,
    "prefect.runner._workspace_supervisor": PREFECT,
    "tests.support.asked": PREFECT,
    "tests.support.mirrored": PREFECT,
    "tests.support.program": CHILDREN,
    "tests.support.pooled": PREFECT,
}
TIED = {"infra.processes.tied_to_parent", "infra.gang.rank_bootstrap"}


def _command() -> list[str]:
    """The module that Python was asked to run, and its arguments; none where it was asked for something else."""
    line = sys.orig_argv
    return line[4:] if line[1:4] == ["-P", "-u", "-m"] else line[2:] if line[1:2] == ["-m"] else []


def _warm(command: list[str]) -> str | None:
    """The variable that names the warm process for a command."""
    if command[:1] == ["dask"] or command[:3] in (["prefect", "worker", "start"], ["prefect", "server", "database"]):
        return PREFECT
    if len(command) == 3 and command[2].endswith("/answer.json"):  # as `infra.child` starts one
        return CHILDREN
    return MODULES.get(command[0]) if command else None


def _stand_in(address: str, command: list[str]) -> None:
    import json
    import signal
    import socket

    passed = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
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
    line = json.dumps(request).encode() + b"\n"
    # Only now, and all at once: the warm process hears nobody else until it has this.
    try:
        channel.connect(address)
    except OSError:
        return
    socket.send_fds(channel, [b"r"], numbers)
    channel.sendall(line)
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
    if not (answer := answers.readline()):
        sys.stderr.write("the warm process that stood for this one is gone\n")
    code = int(answer or "1")
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if ((variable := _warm(_command())) and (place := os.environ.get(variable))) or (
    _command()[:1] == ["flows.cli"] and (place := os.environ.get(COMMANDS))
):
    _stand_in(place, _command())
