"""Keep a lease for the process that does the work: take, renew and release it, in a thread of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from data_contracts.errors import Fenced, StorageUnavailable
from infra.store import Lease, Store
from infra.store.lease import RENEW_EVERY_S, with_process
from infra.store.retry import RETRY_S, Outage

PATIENCE_S = 30.0


class LeaseKeeper(threading.Thread):
    """Takes the lease, renews it and releases it.

    It is a thread, so that neither a slow store nor a slow caller lets the lease lapse. A signal reaches only the main
    thread, so it cannot interrupt between taking the lease and recording that it was taken.

    Args:
        path: the lease's path.
        holder: who takes it; shown to others that wait. This process's id is appended.
        patience_s: how long another holder's lease must stand still before it is taken over.
        renew_s: seconds between renewals.
        on_away: called, once for each outage, with the reason why the store does not take a renewal.

    Attributes:
        away: why the store did not take the last renewal, such as a full disk; None if it did.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        holder: str,
        *,
        patience_s: float = PATIENCE_S,
        renew_s: float = RENEW_EVERY_S,
        on_away: Callable[[StorageUnavailable], object] = lambda error: None,
    ) -> None:
        super().__init__(daemon=True)
        self._store, self._path, self._holder = store, path, with_process(holder)
        self._patience_s, self._renew_s = patience_s, renew_s
        self._known, self._stopped, self._abandoned = threading.Event(), threading.Event(), False
        self._on_away = on_away
        self.away: StorageUnavailable | None = None
        self._lease: Lease | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Take the lease and renew it until `stop` is called."""
        try:
            lease = self._take()
        except _Stopped:
            return
        except BaseException as error:
            self._error = error
            self._known.set()
            return
        self._lease = lease
        self._known.set()
        try:
            while not self._stopped.wait(self._renew_s):
                self._renew(lease)
            if not self._abandoned:
                with contextlib.suppress(Fenced, StorageUnavailable):
                    lease.release()
        except BaseException as error:
            self._error = error

    def _renew(self, lease: Lease) -> None:
        """Renew the lease; while the store does not take it, nobody else can take the lease either."""
        before = self.away
        try:
            lease.renew()
            self.away = None
        except StorageUnavailable as error:
            self.away = error
            if before is None:
                self._on_away(error)

    def token(self, timeout_s: float) -> int | None:
        """The lease's fencing token once the lease is held; None if it is not held within `timeout_s`."""
        self._known.wait(timeout_s)
        self.check()
        return None if self._lease is None else self._lease.token

    def confirm(self) -> None:
        """Fenced if the store says that another process holds the lease; nothing while the store does not answer."""
        self.check()
        if self._lease is not None:
            with contextlib.suppress(StorageUnavailable):
                self._lease.confirm()

    def check(self) -> None:
        """Raise Fenced if the lease was lost, or any other error of the keeper."""
        if self._error is not None:
            raise self._error

    def stop(self, *, abandon: bool = False) -> None:
        """Release the lease, or stop waiting for it, and end the thread.

        Args:
            abandon: leave the lease as it is, as if the process had been killed: a reaper answers that.
        """
        self._abandoned = abandon
        self._stopped.set()
        if self.is_alive():
            self.join()

    def _take(self) -> Lease:
        outage = Outage()
        while True:
            try:
                return Lease.take(
                    self._store,
                    self._path,
                    self._holder,
                    patience_s=self._patience_s,
                    on_wait=lambda *_: outage.answered(),
                    sleep=self._sleep,
                )
            except StorageUnavailable as error:
                outage.failed(error)
                self._sleep(RETRY_S)

    def _sleep(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise _Stopped


class _Stopped(Exception):
    """`stop` was called while waiting for the lease."""
