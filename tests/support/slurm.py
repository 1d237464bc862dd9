"""A real Slurm on this machine: slurmctld and three slurmd, on loopback, with a munge key of their own. Needs root."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from infra.processes.processes import kill_marked, marked_env, new_mark
from tests.support.waiting import free_port, listens, until

PARTITION = "gpu"
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=15
KillWait=10
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
JobAcctGatherType=jobacct_gather/none
{accounting}
{nodes}
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""
NO_ACCOUNTING = "AccountingStorageType=accounting_storage/none"
ACCOUNTING = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.socket
AccountingStorageEnforce=associations,qos
AccountingStoreFlags=job_comment
"""
DATABASE = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdPort={port}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
"""
# An account and a quality of service that this user may use.
ACCOUNT, QOS = "vision", "high"


class Slurm:
    """A cluster whose machines are this one.

    Args:
        folder: whose parents everybody may enter, with a path short enough for a socket.
        accounting: whether slurmdbd and a database of its own keep accounts.

    Attributes:
        environment: of commands that ask it.
    """

    def __init__(self, folder: Path, machines: int = 3, *, accounting: bool = False) -> None:
        self.folder, self.mark = folder, new_mark()
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.machines = [f"n{number}" for number in range(machines)]
        host = socket.gethostname().partition(".")[0]
        lines = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2 RealMemory=1000"
            for name in self.machines
        ]
        port = free_port()
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=host,
                port=free_port(),
                user="root",
                folder=folder,
                nodes="\n".join(lines),
                partition=PARTITION,
                accounting=ACCOUNTING.format(port=port, folder=folder) if accounting else NO_ACCOUNTING,
            )
        )
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (folder / "munge.key").chmod(0o400)
        (folder / "logs").mkdir(mode=0o700)
        names = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        options = [f"--{name}={folder / file}" for name, file in names.items()]
        self._begin("munged", "--force", f"--log-file={folder}/logs/munged.log", *options)
        if accounting:
            self._start_accounting(port)
        self.start_controller()
        for name in self.machines:
            self.start_machine(name)
        self.wait_until_idle()

    def _start_accounting(self, port: int) -> None:
        """Start a database and slurmdbd, with a cluster, an account and a quality of service."""
        data, socket_path, storage_port = self.folder / "data", self.folder / "database.socket", free_port()
        password = secrets.token_hex(16)
        self._begin("mariadb-install-db", "--no-defaults", "--user=root", "--skip-test-db", f"--datadir={data}")
        subprocess.Popen(
            [
                *("mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={socket_path}"),
                *("--bind-address=127.0.0.1", f"--port={storage_port}", f"--log-error={self.folder / 'database.log'}"),
            ],
            env=marked_env(self.mark),
            stderr=subprocess.DEVNULL,
        )
        until(lambda: listens(storage_port), what=self.said)
        made = f"CREATE USER slurm@localhost IDENTIFIED BY '{password}'; GRANT ALL ON slurm.* TO slurm@localhost"
        self._begin("mariadb", "--no-defaults", f"--socket={socket_path}", f"--execute={made}")
        configuration = self.folder / "slurmdbd.conf"
        configuration.touch(0o600)
        configuration.write_text(
            DATABASE.format(folder=self.folder, port=port, storage_port=storage_port, password=password)
        )
        self._begin("slurmdbd")
        until(lambda: listens(port), what=self.said)
        for added in (
            ("cluster", "test"),
            ("account", ACCOUNT),
            ("qos", QOS),
            ("user", "root", f"account={ACCOUNT}", f"qos=normal,{QOS}"),
        ):
            self._begin("sacctmgr", "--immediate", "add", *added)

    def wait_until_idle(self) -> None:
        """Wait until no machine is down or has a job."""
        idle = ["idle", str(len(self.machines))]
        asked = ("sinfo", "--noheader", "--format=%T %D", f"--partition={PARTITION}")
        until(lambda: self.ask(*asked).split() == idle, what=self.said)

    def start_controller(self) -> None:
        """Start slurmctld, which knows the jobs that it knew before."""
        self._begin("slurmctld")

    def start_machine(self, name: str) -> None:
        """Start a machine's slurmd."""
        self._begin("slurmd", "-N", name)

    def stop_controller(self) -> None:
        """Kill slurmctld."""
        self._kill("slurmctld")

    def lose(self, name: str) -> None:
        """Kill a machine's slurmd and all that it runs; nobody is told."""
        self._kill(f"slurmd -N {name}", f"SLURMD_NODENAME={name}")

    def ask(self, *command: str, environment: Mapping[str, str] | None = None) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment, **(environment or {})}, capture_output=True, text=True,
            timeout=480, check=False,
        )  # fmt: skip
        return done.stdout

    def jobs(self) -> list[str]:
        """Ids of the jobs that are not over, the newest last."""
        return sorted(self.ask("squeue", "--noheader", "--format=%i").split(), key=int)

    def said(self) -> str:
        """What the daemons have logged."""
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        """End all that runs."""
        kill_marked(self.mark)

    def _begin(self, *command: str) -> None:
        environment = {**marked_env(self.mark), **self.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=480, check=False)
        assert done.returncode == 0, done.stderr + self.said()

    def _kill(self, *parts: str) -> None:
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            except OSError:
                continue
            said = text.replace(b"\0", b" ").decode(errors="replace")
            if str(self.mark) in said and any(part in said for part in parts):
                os.kill(int(process.name), 9)
