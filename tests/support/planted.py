"""Secrets of every kind, made anew for each test: none of them is anybody's, and none stands in this file."""

from __future__ import annotations

import base64
import json
import random
import string
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.core.process import run
from tests.support import planted_more

_LETTERS = string.ascii_letters + string.digits
_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_DASHES = "-" * 5


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A file with a secret: its place, its content, the rule that has to find it, and the secret itself."""

    path: str
    text: bytes
    rule: str
    secret: bytes


class Maker:
    """Makes secrets from a seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._chance = random.Random(seed)  # noqa: S311  none of it protects anything
        self._folder = folder

    def word(self, size: int, letters: str = _LETTERS) -> str:
        return "".join(self._chance.choices(letters, k=size))

    def all(self) -> Mapping[str, Planted]:
        """Every kind that the rules know, by a name of its own."""
        made = {**self._keys(), **self._tokens(), **self._files()}
        more = planted_more.cases(self.word, self._keygen("ecdsa", "-m", "PKCS8", "-N", ""))
        return {
            **{
                name: Planted(path=p, text=t.encode("latin-1"), rule=r, secret=s.encode())
                for name, (p, t, r, s) in made.items()
            },
            **{
                name: Planted(path=case.path, text=case.data, rule=case.rule, secret=case.secret.encode())
                for name, case in more.items()
            },
        }

    def _keygen(self, kind: str, *options: str) -> str:
        path = self._folder / f"key{len(list(self._folder.iterdir()))}"
        run(["ssh-keygen", "-q", "-t", kind, "-f", path, *options], timeout=60)
        return path.read_text()

    def _body(self, pem: str) -> str:
        return pem.split("\n")[2]

    def _keys(self) -> dict[str, tuple[str, str, str, str]]:
        openssh = self._keygen("ed25519", "-N", "")
        locked = self._keygen("ed25519", "-N", self.word(12))
        pkcs1 = self._keygen("rsa", "-b", "2048", "-m", "PEM", "-N", "")
        old = self._keygen("rsa", "-b", "2048", "-m", "PEM", "-N", self.word(12))
        pkcs8 = self._keygen("ecdsa", "-m", "PKCS8", "-N", "")
        pkcs8_locked = self._keygen("ecdsa", "-m", "PKCS8", "-N", self.word(12))
        body = base64.b64encode(self._chance.randbytes(300)).decode()
        pgp = f"{_DASHES}BEGIN PGP PRIVATE KEY BLOCK{_DASHES}\n\n{body}\n"
        putty = (
            "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nComment: x\nPublic-Lines: 1\n"
            f"{body[:40]}\nPrivate-Lines: 1\n{body[40:140]}\nPrivate-MAC: 00\n"
        )
        age = "AGE-SECRET-KEY-1" + self.word(58, "023456789ACDEFGHJKLMNPQRSTUVWXYZ")
        google = {
            "type": "service_account",
            "private_key_id": self.word(40, "0123456789abcdef"),
            "private_key": pkcs8.replace("\n", "\\n"),
        }
        kube = base64.b64encode(pkcs8.encode()).decode()
        return {
            "OpenSSH key": ("root/.ssh/id_ed25519", openssh, "private-key", self._body(openssh)),
            "OpenSSH key with passphrase": ("srv/deploy_key", locked, "private-key", self._body(locked)),
            "PKCS#1 key": ("opt/app/server.pem", pkcs1, "private-key", self._body(pkcs1)),
            "PEM key with Proc-Type": ("opt/app/old.pem", old, "private-key", old.split("\n")[5]),
            "PKCS#8 key": ("etc/ssl/private/site.key", pkcs8, "private-key", self._body(pkcs8)),
            "encrypted PKCS#8 key": (
                "etc/ssl/locked.key",
                pkcs8_locked,
                "private-key",
                self._body(pkcs8_locked),
            ),
            "host key": ("etc/ssh/ssh_host_ecdsa_key", pkcs8, "private-key", self._body(pkcs8)),
            "PGP key": ("root/secret.asc", pgp, "pgp-private-key", body[:60]),
            "PuTTY key": ("home/u/key.ppk", putty, "putty-private-key", body[40:140]),
            "age identity": ("home/u/keys.txt", f"# created\n{age}\n", "age-secret-key", age),
            "Google service account": (
                "root/gcp.json",
                json.dumps(google),
                "gcp-service-account",
                google["private_key_id"],
            ),
            "kubeconfig": (
                "root/.kube/config",
                f"users:\n- user:\n    client-key-data: {kube}\n",
                "kubeconfig-key",
                kube[:60],
            ),
            "key store": ("opt/app/keys.p12", "0\x82" + body, "key-store", body[:50]),
        }

    def _tokens(self) -> dict[str, tuple[str, str, str, str]]:
        thirty = self.word(30)
        github = f"ghp_{thirty}{_checksum(thirty)}"
        head, claims = (_part(part) for part in ({"alg": "HS256"}, {"sub": self.word(10)}))
        jwt = f"{head}.{claims}.{self.word(43)}"
        aws, aws_secret = "AKIA" + self.word(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"), self.word(40)
        tokens = {
            "GitHub token": (github, "github-token"),
            "GitHub fine-grained token": (
                f"github_pat_{self.word(22)}_{self.word(59)}",
                "github-fine-grained-token",
            ),
            "GitLab token": (f"glpat-{self.word(20)}", "gitlab-token"),
            "Slack token": (f"xoxb-{self.word(12, string.digits)}-{self.word(24)}", "slack-token"),
            "Hugging Face token": (f"hf_{self.word(34)}", "hugging-face-token"),
            "npm token": (f"npm_{self.word(36)}", "npm-token"),
            "Python index token": (f"pypi-AgE{self.word(120)}", "python-index-token"),
            "Docker token": (f"dckr_pat_{self.word(27)}", "docker-token"),
            "Google API key": (f"AIza{self.word(35)}", "google-api-key"),
            "JSON web token": (jwt, "json-web-token"),
            "AWS access key": (aws, "aws-access-key"),
            "Azure key": (f"AccountKey={self.word(86)}==", "azure-storage-key"),
            "Stripe key": (f"sk_live_{self.word(24)}", "stripe-key"),
            "OpenAI key": (f"sk-proj-{self.word(40)}T3BlbkFJ{self.word(40)}", "openai-key"),
            "Vault token": (f"hvs.{self.word(90)}", "vault-token"),
        }
        found = {
            name: (f"opt/app/notes{number}.py", f"# how to\nuse('{token}')\n", rule, token)
            for number, (name, (token, rule)) in enumerate(tokens.items())
        }
        credentials = f"[default]\naws_secret_access_key = {aws_secret}\n"
        return {
            **found,
            "AWS secret key": ("root/.aws/credentials", credentials, "aws-secret-key", aws_secret),
        }

    def _files(self) -> dict[str, tuple[str, str, str, str]]:
        word = [self.word(20) for _ in range(12)]
        login = base64.b64encode(f"alice:{word[0]}".encode()).decode()
        docker = json.dumps({"auths": {"registry.example.org": {"auth": login}}})
        netrc = f"machine index.example.org\nlogin alice\npassword {word[1]}\n"
        return {
            "docker login": ("root/.docker/config.json", docker, "docker-login", login),
            ".netrc": ("root/.netrc", netrc, "netrc-password", word[1]),
            "apt's auth.conf": (
                "etc/apt/auth.conf.d/site.conf",
                f"machine mirror.example.org login bob password {word[2]}\n",
                "netrc-password",
                word[2],
            ),
            "pip.conf": (
                "etc/pip.conf",
                f"[global]\nindex-url = https://ci:{word[3]}@index.example.org/simple\n",
                "url-password",
                word[3],
            ),
            "git's store": (
                "root/.git-credentials",
                f"https://{word[4]}@git.example.org\n",
                "git-credential",
                word[4],
            ),
            ".pgpass": ("root/.pgpass", f"db:5432:jobs:ann:{word[5]}\n", "pgpass-password", word[5]),
            ".npmrc": (
                "root/.npmrc",
                f"//npm.example.org/:_password={word[6]}\n",
                "npmrc-credential",
                word[6],
            ),
            "shadow": (
                "etc/shadow",
                f"root:$y$j9T${word[7]}${word[7]}:1:0:9:7:::\n",
                "password-hash",
                word[7],
            ),
            ".env": ("srv/app/.env", f"LOG=info\nDB_PASSWORD={word[8]}\n", "named-secret", word[8]),
            "YAML settings": ("etc/job/settings.yaml", f"api_key: '{word[9]}'\n", "named-secret", word[9]),
            "shell script": (
                "usr/local/bin/start.sh",
                f'export AUTH_TOKEN="{word[10]}"\n',
                "named-secret",
                word[10],
            ),
        }


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _checksum(text: str) -> str:
    number, made = zlib.crc32(text.encode()), ""
    for _ in range(6):
        number, digit = divmod(number, 62)
        made = _BASE62[digit] + made
    return made
