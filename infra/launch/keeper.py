"""Keeps a lease for whoever does the work: takes it, renews it and gives it back, in a thread of its own."""

from __future__ import annotations

import contextlib
import threading

from data_contracts.errors import Fenced, StorageUnavailable
from infra.launch.patience import RETRY_S, Outage
from infra.store import Lease, Store
from infra.store.lease import RENEW_EVERY_S

PATIENCE_S = 30.0


class Keeper(threading.Thread):
    """Takes the lease, renews it and gives it back.

    In a thread, so that neither a slow store nor a slow caller lets it lapse, and a signal, which reaches only the
    main thread, cannot come between the taking and the note that it was taken.

    Args:
        path: where the lease lies.
        holder: who takes it, as others that wait are told.
        patience_s: how long the lease of another must stand still before it is taken over.
        renew_s: how often it is renewed.
    """

    def __init__(
        self, store: Store, path: str, holder: str, *, patience_s: float = PATIENCE_S, renew_s: float = RENEW_EVERY_S
    ) -> None:
        super().__init__(daemon=True)
        self._store, self._path, self._holder = store, path, holder
        self._patience_s, self._renew_s = patience_s, renew_s
        self._known, self._stopped = threading.Event(), threading.Event()
        self._token: int | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Until `stop` is called."""
        try:
            lease = self._take()
        except _Stopped:
            return
        except BaseException as error:
            self._error = error
            self._known.set()
            return
        self._token = lease.token
        self._known.set()
        try:
            while not self._stopped.wait(self._renew_s):
                # While the store is away nobody else can take the lease either.
                with contextlib.suppress(StorageUnavailable):
                    lease.renew()
            with contextlib.suppress(Fenced, StorageUnavailable):
                lease.release()
        except BaseException as error:
            self._error = error

    def token(self, timeout_s: float) -> int | None:
        """The lease's fencing token once it is ours; None if it is not within `timeout_s`."""
        self._known.wait(timeout_s)
        self.check()
        return self._token

    def check(self) -> None:
        """Raise Fenced if the lease was lost, or whatever else went wrong with it."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Give the lease back, or stop waiting for it, and end the thread."""
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
    """The lease is no longer wanted."""
