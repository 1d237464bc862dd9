"""Which names of tags and of fields in addresses are those of secrets."""

from __future__ import annotations

import pytest

from data_contracts.pipeline_spec.data import credential_in, is_named_like_secret

SECRETS = [
    "token", "accessToken", "ACCESS_TOKEN", "authtoken", "X-Amz-Security-Token", "secret", "client.secret",
    "clientSecret", "password", "db_password", "sslpassword", "passwd", "Passwort", "api_key", "apikey", "api-key",
    "apiKeys", "x/api/key", "AWSAccessKeyId", "access.key", "private_key", "privateKey", "credential", "credentials",
    "X-Amz-Credential", "authorization", "cookie", "session_cookies", "auth", "OAuth2", "signature", "X-Amz-Signature",
    "sig", "jwt",
]  # fmt: skip
HARMLESS = [
    "deploy.env", "service_account", "host-key", "key.owner", "key", "projectKey", "sortKey", "monkey", "tokenizer",
    "tokens", "max_tokens", "author", "authors", "secretary", "passage", "keyboard", "primary_key", "username",
    "access", "api_keyboard", "4711",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRETS + HARMLESS)
def test_a_name_like_a_secrets(name: str) -> None:
    assert is_named_like_secret(name) is (name in SECRETS)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("https://x.org/?key=a", "a field key that looks like a secret"),
        ("https://x.org/?page=2&X-Amz-Signature=a", "a field X-Amz-Signature that looks like a secret"),
        ("https://x.org/?key=", None),
        ("see postgresql://ann:a@db/names", "a password"),
        ("postgresql://ann:env:NAME@db/names", None),
        ("postgresql://ann@db/names", None),
        ("http://a@x.org", "a user, which may be a token"),
        ("ssh://git@x.org/y", None),
        ("ann:a@x.org", None),
        ("HTTPS://a@x.org", "a user, which may be a token"),
        ("postgresql://ann:a/b@db/names", "a password"),
        ("https://x.org:8080/@scope/name", None),
        ("https://x.org/#access_token=a", "a field access_token that looks like a secret"),
        ("https://x.org/?pass=a", "a field pass that looks like a secret"),
        ("s3://b/year=202?/account_key=7/*.parquet", None),
        ("s3://b/day-????/api_key=5/v?&token=1/x.csv", None),
    ],
)
def test_what_an_address_holds(text: str, what: str | None) -> None:
    assert credential_in(text) == what


def test_a_long_text_is_read_once() -> None:
    """A pattern that began anew at each letter took a minute."""
    assert credential_in("a" * 1_000_000 + "://") is None
    assert credential_in("a." * 500_000) is None
