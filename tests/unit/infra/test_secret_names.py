"""Which names of files and folders look like those of secrets."""

from __future__ import annotations

from pathlib import PurePosixPath

from infra.project import is_secret

SECRETS = [
    "secrets/db.json", "secrets/deep/er/readme.txt", "credentials/key.json", "config/credentials/prod.yaml",
    "token.json", "conf/token.txt", "hf_token.txt", "github-token", "access_tokens.yaml", "apiKey.txt", "api_key.json",
    "terraform.tfstate", "terraform.tfstate.backup", "infra/prod.tfvars", "prod.auto.tfvars.json", ".netrc", ".pgpass",
    ".npmrc", ".pypirc", "netrc", "kubeconfig", "kubeconfig.yaml", "service-account.json", "service-account-prod.json",
    "serviceAccount.json", "my-service-account.json", "a.p12", "a.keystore", "server.pem", "tls/server.key", "id_rsa",
    "id_rsa.pub", "id_ed25519", ".env", ".env.local", "prod.env", ".aws/credentials", ".ssh/config", "db_password.txt",
    "Passwords.TXT", "clientSecret.json", "client_secret_1.json", "private_key.txt", "private-keys/a", "kaggle.json",
    "my secrets.txt", "SECRETS/db.json", "aws_credentials", "creds.yaml", "secrets/vocab.json", "htpasswd", "auth.json",
    "tokens.json", "tokens.yaml", "keys.json", "key.txt", "github_pat.txt", "prod_token.json", "mytoken.txt",
    "token1.txt", "slack_token1.txt", "password1.txt", "Password2.json", "passwords2024.txt", "dbpassword.txt",
    "DBPASSWORD.txt", "mypassword.json", "MYSECRETS.yaml", "PRODSECRETS.json", "GITHUBTOKEN", "awscredentials.json",
    "openai_key.txt", "anthropic_key.txt", "stripe_key.json", "server_key.json", "ssl_key.txt", "encryption_key.txt",
    "deploy_rsa", "deploy_ed25519", "ssh/github_rsa", "privkey.txt", "server.key.old", "server.key~", "server.pem.bak",
    "server.pem.txt", "server.pem.bak.txt~", "serviceaccount.json", "gcp-sa.json", "firebase-adminsdk.json", "adc.json",
    "docker/config.json", ".docker/config.json", "kube/config", "kube-config.yaml", "my.cnf", "pip.conf", "s3cfg",
    "gitcredentials", "wg0.conf", "cookies.txt", "jwt.txt", "oauth.json", "vault-token", "vaultpass",
    "hf_token_list.txt", "s\u00e9crets.json", "\uff53ecrets.json", "se\u200bcrets.json", "token.json.orig",
    "id_rsa.save", "a/.env.swp",
]  # fmt: skip
NO_SECRETS = [
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokens.txt",
    "tokens/vocab.json", "tokenizer.py", "token.py", "secrets.py", "secrets/loader.py", "credentials.py",
    "tokens/__init__.py", "api_key.py", "vocab.json", "merges.txt", "keys.yaml", "keyboard.json", "monkey.json",
    "secretary.txt", "passage.txt", "compass.json", "environment.yml", "env.yaml", "config.yaml", "labels.json",
    "pad_token.json", "primary_keys.json", "README.md", "tokenization.json", "tokenizer.json.bak", "tokenizer2.json",
    "token_types.txt", "token_counts.json", "keypoints.json", "keywords.txt", "monkey.txt", "turkey.json",
    "my_tokens.py", "mypassword.py", "deploy_rsa.py", "sacred.json", "secretion.txt", "low_pass.json", "tokens",
    "tokens.npy", "train_tokens.npy", "subtokens.txt", "config.json", "core.txt", "patches.json", "hotkeys.json",
    "cookies/recipes.txt", "tokenizers/config.json", "universal.txt", "weights.yaml",
]  # fmt: skip


def test_names_like_those_of_secrets() -> None:
    assert [name for name in SECRETS if not is_secret(PurePosixPath(name))] == []
    assert [name for name in NO_SECRETS if is_secret(PurePosixPath(name))] == []
