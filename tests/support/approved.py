"""Approves, in this process and its children, what a user approves once: which credentials an address is sent."""

from __future__ import annotations

import json
import os

from data_contracts.quoting import APPROVED
from infra.settings import approved_in_environment

S3_CREDENTIALS = ("env:TEST_S3_KEY", "env:TEST_S3_SECRET")


def approve_here(address: str, *names: str) -> None:
    """Let `address` be sent credentials; by default those of the tests' S3 servers."""
    approved = approved_in_environment()
    approved[address] = sorted({*approved.get(address, ()), *(names or S3_CREDENTIALS)})
    os.environ[APPROVED] = json.dumps(approved)
