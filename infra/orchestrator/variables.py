"""Names of Prefect's variables that several of our modules use, and the settings that all servers of ours have."""

from __future__ import annotations

API_URL = "PREFECT_API_URL"
# The `user:password` that a client shows, and the one that a server asks for.
API_AUTH = "PREFECT_API_AUTH_STRING"
SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
SERVER_HOST = "PREFECT_SERVER_API_HOST"
PAGES_URL = "PREFECT_SERVER_UI_API_URL"
HOME = "PREFECT_HOME"
LEASE_STORAGE = "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"

NO_ANALYTICS = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
ANY_SERVER = {
    **NO_ANALYTICS,
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # By default leases are in the server's memory: after a restart it would count their slots for ever.
    LEASE_STORAGE: "prefect.server.concurrency.lease_storage.filesystem",
}
