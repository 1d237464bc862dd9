"""Decides which names of files and folders look like those of secrets.

Words are compared whole, so that a tokenizer is not taken for a token. Patterns such as `*.env` and `host_key` count
too, because `code.include` brings in a file that is left out by mistake. Tags and addresses have a narrower rule
(`pipeline_spec.data`), environment variables a wider one (`infra.processes.environment`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

# Whole names of files or folders, in lower case.
_NAMES = (
    "*.pem", "*.key", "*.p8", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.keytab", "*.gpg", "*.ovpn",
    "*.jwt", "wg[0-9]*.conf", ".env*", "*.env", "*.env.*", ".aws", ".ssh", ".gnupg", ".kube", ".azure", ".docker",
    ".gcloud", ".vault*", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*[_-]rsa", "*[_-]rsa.*", "*[_-]dsa",
    "*[_-]dsa.*", "*[_-]ecdsa", "*[_-]ecdsa.*", "*[_-]ed25519", "*[_-]ed25519.*", ".netrc", "netrc", "_netrc",
    ".pgpass", "pgpass*", ".my.cnf", "my.cnf", "pip.conf", "pip.ini", ".npmrc", ".pypirc", ".htpasswd", "htpasswd",
    ".dockercfg", ".dockerconfigjson", ".boto", ".s3cfg", "s3cfg", ".rclone.conf", "rclone.conf", "kubeconfig*",
    "kube-config*", "kube_config*", "*.kubeconfig", "kaggle.json", "auth.json", "adc.json", "*adminsdk*", "jwt",
    "jwt.*", "oauth.*", "oauth2.*", "cookies.txt", "cookies.json", "cookies.sqlite", "*.tfstate", "*.tfstate.*",
    "*.tfvars", "*.tfvars.json", "token", "token.*", "*.token", "key.*", "keys.json", "keys.txt", "tokens.json",
    "tokens.yaml", "tokens.yml", "tokens.toml", "tokens.ini", "tokens.env",
)  # fmt: skip
# A folder and a file in it.
_PATHS = ("docker/config.json", "kube/config")
# Names are also checked without these endings: a copy of a secret is a secret.
_COPIES = ("~", ".backup", ".bak", ".old", ".orig", ".save", ".swo", ".swp", ".tmp")
# Anywhere in a word: `mypassword`, `PRODSECRETS`. A secretary, a secretion and a secretome do not match.
_PARTS = re.compile(r"passw|secret(?!ar|i|o)|credential|serviceaccount")
# Whole words, separated by `_`.
_WORDS = r"[a-z]*creds|cred|[a-z]*passwd|passphrases?|pwd|pat|service_accounts?"
_WORDS += r"|(?:admin|db|root|smtp|user|vault)_?pass|(?:firebase|gcloud|gcp|google)_sa"
# Words whose keys and tokens are secret: those of a table, a piano or a map are not.
_OWNERS = "access|account|admin|anthropic|api|auth|aws|azure|bearer|bot|client|cohere|decryption|deploy|encryption|gcp"
_OWNERS += "|gh|git|github|gitlab|google|gpg|groq|hf|host|huggingface|license|live|login|master|mistral|my|oauth"
_OWNERS += "|openai|personal|pgp|priv|private|prod|refresh|root|sa|secret|server|service|service_account|session"
_OWNERS += "|signing|slack|ssh|ssl|stripe|tls|wandb"
_SECRET_FILE = re.compile(rf"(?:^|_)(?:{_WORDS}|(?:{_OWNERS})_?(?:keys?|tokens?))(?:_|$)")
_TOKEN = re.compile(r"(?:^|_)[a-z]*tokens?(?:_|$)")
# With one of these words beside it, a token is a piece of text: `special_tokens_map.json`, `token_types.txt`.
_TEXT = "added|bos|char|class|cls|control|corpus|count|counts|drop|embedding|embeddings|end|eos|extra|frequencies"
_TEXT += "|frequency|id|ids|image|index|label|labels|length|lengths|list|map|mask|max|merges|num|pad|reserved|sep"
_TEXT += "|special|start|stop|subtoken|subtokens|subword|text|train|type|types|unk|unknown|val|valid|vocab|vocabulary"
_TEXT += "|word|words"
_TEXT_TOKEN = re.compile(rf"(?:^|_)(?:{_TEXT})(?:_|$)")
# The plural alone is a vocabulary, unless `_NAMES` has it with the extension of a configuration.
_VOCABULARY = re.compile(r"tokens(?:_[a-z]+)?")
# `prodApiKey.json` is `prod_api_key.json`, `token1.txt` is `token_txt`; every character but a letter separates words.
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_BETWEEN = re.compile(r"[^a-z]+")


def is_secret(path: PurePosixPath) -> bool:
    """Whether a folder or the file in the path is named like a secret. Python code never is."""
    if path.suffix == ".py":
        return False
    parts = [_plain(part) for part in path.parts]
    return "/".join(parts[-2:]).casefold() in _PATHS or any(map(_named_like_one, parts))


def without_copy(name: str) -> str:
    """A file's name without the endings of a copy: `rows.csv` for `rows.csv.bak~`."""
    while (ending := next((one for one in _COPIES if name.casefold().endswith(one)), None)) and len(name) > len(ending):
        name = name[: -len(ending)]
    return name


def _plain(name: str) -> str:
    """A name as a person sees it: no accents, no invisible characters, ordinary letters for wide ones."""
    return "".join(one for one in unicodedata.normalize("NFKD", name) if unicodedata.category(one) not in ("Mn", "Cf"))


def _named_like_one(part: str) -> bool:
    if any(fnmatchcase(name, pattern) for name in _names(part.casefold()) for pattern in _NAMES):
        return True
    words = _BETWEEN.sub("_", _CAMEL.sub("_", part).casefold()).strip("_")
    if _PARTS.search(words) or _SECRET_FILE.search(words):
        return True
    is_text = _TEXT_TOKEN.search(words) or _VOCABULARY.fullmatch(words)
    return _TOKEN.search(words) is not None and not is_text


def _names(name: str) -> Iterator[str]:
    """The name, and the names that it may be a copy of: `server.pem` for `server.pem.bak` and `server.pem.txt`."""
    yield name
    while (original := without_copy(name).removesuffix(".txt")) not in ("", name):
        name = original
        yield name
