"""What the operator's environment asks for, and each way in which it can be wrong."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.traces import (
    METRICS_ADDRESS,
    METRICS_PORT,
    METRICS_PUSH,
    METRICS_TOKEN_FILE,
    MetricsSettings,
    metrics_settings,
    metrics_token,
)


def test_nothing_a_port_a_range_an_address_and_a_gateway() -> None:
    assert metrics_settings({}) == MetricsSettings()
    assert not metrics_settings({METRICS_PORT: " "}).is_wanted
    assert metrics_settings({METRICS_PORT: "9400"}).ports == (9400,)
    found = metrics_settings({METRICS_PORT: "9400-9402", METRICS_ADDRESS: "::1", METRICS_PUSH: "http://gateway:9091/"})
    assert found == MetricsSettings((9400, 9401, 9402), "::1", "http://gateway:9091")


NO_PORTS = ["x", "0", "70000", "9402-9400", "-1", "9400,9401", "٣", "9400-"]
NO_URLS = ["gateway:9091", "ftp://gateway", "http://", "http://gateway:x", "http://[::1"]
REFUSED = [
    *((METRICS_PORT, port, "TRAINWRIGHT_METRICS_PORT is not a port") for port in NO_PORTS),
    *((METRICS_PUSH, url, "TRAINWRIGHT_METRICS_PUSH is not a URL") for url in NO_URLS),
    (METRICS_PUSH, "https://me:hunter2@gateway", "holds a password"),
    (METRICS_PUSH, "https://gateway/?token=hunter2", "holds a password"),
]


@pytest.mark.parametrize(("name", "value", "sentence"), REFUSED)
def test_what_is_no_port_or_url_is_refused_and_no_password_is_repeated(name: str, value: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        metrics_settings({name: value})
    assert "hunter2" not in str(caught.value)


def test_the_secret_is_made_once_and_only_its_owner_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    token = metrics_token({})
    assert len(token) > 40
    assert metrics_token({}) == token
    assert stat.S_IMODE((tmp_path / "home/metrics-token").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        (None, 0o600, "cannot be read from"),
        ("a-long-enough-secret", 0o640, "may have read the secret"),
        ("short", 0o600, "is not one word"),
        ("two words that are long", 0o600, "is not one word"),
        ("", 0o600, "is not one word"),
    ],
)
def test_a_secret_that_is_none_is_refused(text: str | None, mode: int, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(UsageError, match=sentence) as caught:
        metrics_token({METRICS_TOKEN_FILE: str(file)})
    assert not text or text not in str(caught.value)
