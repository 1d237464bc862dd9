"""Names that several of our modules share: Prefect's variables, what our servers add, and settings of all of them."""

from __future__ import annotations

API_URL = "PREFECT_API_URL"
# The `user:password` that a client shows, and the one that a server asks for.
API_AUTH = "PREFECT_API_AUTH_STRING"
SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
SERVER_HOST = "PREFECT_SERVER_API_HOST"
PAGES_URL = "PREFECT_SERVER_UI_API_URL"
HOME = "PREFECT_HOME"
LEASE_STORAGE = "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"

# Where our servers sign a browser in, and where they give a link for it.
SIGN_IN_PAGE = "/trainwright/sign-in"
SIGN_IN_LINKS = "/trainwright/links"
# Begins the name of who answers a form if a team's proxy checked it; nobody can state such a name.
SIGNED_IN = "signed in as "

NO_ANALYTICS = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
ANY_SERVER = {
    **NO_ANALYTICS,
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # By default leases are in the server's memory: after a restart it would count their slots for ever.
    LEASE_STORAGE: "prefect.server.concurrency.lease_storage.filesystem",
}
