"""Secrets where they lie in real images: tokens in code and settings, histories, encodings, archives.

Every value is made at run time, so that no scanner takes this file for a leak.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import string
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from backports import zstd

_HEX = "0123456789abcdef"
_UPPER = string.ascii_uppercase + string.digits
_SIGNED = string.ascii_letters + string.digits + "_-"
_Word = Callable[..., str]


class Case(NamedTuple):
    """A file, what is in it, the rule that has to find it, and the secret."""

    path: str
    data: bytes
    rule: str
    secret: str


def cases(word: _Word, pem: str) -> Mapping[str, Case]:
    """Make every case, by a name of its own; `pem` is a private key."""
    return {
        **_tokens(word),
        **_settings(word),
        **_code(word),
        **_commands(word),
        **_encodings(word, pem),
        **_archives(word, pem),
    }


def _case(path: str, text: str, rule: str, secret: str) -> Case:
    return Case(path, text.encode(), rule, secret)


def _tokens(word: _Word) -> Mapping[str, Case]:
    wandb, slack = word(40, _HEX), f"T{word(9, _UPPER)}/B{word(10, _UPPER)}/{word(24)}"
    discord, client = word(68, _SIGNED), f"{word(3)}8Q~{word(34)}"
    sas = base64.b64encode(word(32).encode()).decode().replace("=", "%3D").replace("+", "%2B")
    sendgrid, terraform = f"SG.{word(22, _SIGNED)}.{word(43, _SIGNED)}", f"{word(14)}.atlasv1.{word(67)}"
    hook = f"https://discord.com/api/webhooks/{word(18, string.digits)}/{discord}"
    plain = {
        "Anthropic key": (f"sk-ant-api03-{word(93, _SIGNED)}AA", "anthropic-key"),
        "NVIDIA key": (f"nvapi-{word(64, _SIGNED)}", "nvidia-key"),
        "SendGrid key": (sendgrid, "sendgrid-key"),
        "Databricks token": (f"dapi{word(32, _HEX)}", "databricks-token"),
        "DigitalOcean token": (f"dop_v1_{word(64, _HEX)}", "versioned-token"),
        "OpenRouter key": (f"sk-or-v1-{word(64, _HEX)}", "versioned-token"),
        "Pulumi token": (f"pul-{word(40, _HEX)}", "pulumi-token"),
        "Terraform Cloud token": (terraform, "terraform-token"),
        "Grafana token": (f"glsa_{word(32)}_{word(8, _HEX)}", "prefixed-token"),
        "Groq key": (f"gsk_{word(52)}", "prefixed-token"),
        "Linear key": (f"lin_api_{word(40)}", "prefixed-token"),
        "Doppler token": (f"dp.pt.{word(43)}", "prefixed-token"),
        "Replicate token": (f"r8_{word(37)}", "replicate-token"),
        "Telegram token": (f"{word(10, '123456789')}:AA{word(33, _SIGNED)}", "telegram-token"),
        "Mailgun key": (f"key-{word(32, _HEX)}", "mailgun-key"),
        "Google client secret": (f"GOCSPX-{word(28, _SIGNED)}", "google-client-secret"),
        "Google access token": (f"ya29.{word(120, _SIGNED)}", "google-oauth-token"),
        "Azure client secret": (client, "azure-client-secret"),
        "later W&B key": (f"wandb_v1_{word(77)}", "wandb-key"),
    }
    made = {
        name: _case(f"opt/app/use{number}.py", f"client = Client('{token}')\n", rule, token)
        for number, (name, (token, rule)) in enumerate(plain.items())
    }
    shared = word(43) + "="
    account, auth = f"AC{word(32, _HEX)}", word(32, _HEX)
    return {
        **made,
        "W&B key in .netrc": _case(
            "home/u/.netrc",
            f"machine api.wandb.ai\n  login user\n  password {wandb}\n",
            "netrc-password",
            wandb,
        ),
        "W&B key in a script": _case("job/run.sh", f"wandb login {wandb}\n", "wandb-key", wandb),
        "Slack webhook": _case(
            "opt/app/notify.py", f'URL = "https://hooks.slack.com/services/{slack}"\n', "slack-webhook", slack
        ),
        "Discord webhook": _case("opt/app/notify.js", f"post('{hook}')\n", "discord-webhook", discord),
        "Azure SAS": _case(
            "opt/app/data.md",
            f"https://x.blob.core.windows.net/d?sv=2022-11-02&sp=r&sig={sas}&se=2030\n",
            "azure-sas",
            sas,
        ),
        "Azure connection string": _case(
            "opt/app/hub.js",
            f"use('Endpoint=sb://x.example/;SharedAccessKeyName=a;SharedAccessKey={shared}')\n",
            "azure-shared-key",
            shared,
        ),
        "Twilio token": _case(
            "opt/app/sms.py", f'c = twilio.rest.Client("{account}", "{auth}")\n', "twilio-key", auth
        ),
    }


def _settings(word: _Word) -> Mapping[str, Case]:
    w = [word(9) + "7x" for _ in range(40)]
    long = [word(20) for _ in range(8)]
    state = {"resources": [{"type": "aws_db_instance", "attributes": {"password": long[0]}}]}
    texts = {
        "short password in .env": ("srv/a/.env", f"DB_PASSWORD={w[0]}\n", w[0]),
        "six letters in .env": ("srv/b/.env.production", f"POSTGRES_PASSWORD={w[1][:6]}\n", w[1][:6]),
        "quoted in .env": ("srv/c/app.env", f'REDIS_PASS="{w[2]}"\n', w[2]),
        "systemd unit": (
            "etc/systemd/system/job.service",
            f'[Service]\nEnvironment="API_TOKEN={w[3]}"\n',
            w[3],
        ),
        "/etc/default": ("etc/default/trainer", f"export TRAINER_SECRET='{w[4]}'\n", w[4]),
        "cron": ("etc/cron.d/backup", f"0 3 * * * root MYSQL_PWD={w[5]} mysqldump all\n", w[5]),
        "crontab": ("var/spool/cron/crontabs/root", f"@daily PGPASSWORD={w[6]} pg_dump jobs\n", w[6]),
        "Terraform state": ("opt/infra/terraform.tfstate", json.dumps(state, indent=1), long[0]),
        "Terraform variables": ("opt/infra/prod.tfvars", f'db_password = "{w[7]}"\n', w[7]),
        "Makefile": ("opt/app/Makefile", f"REGISTRY_PASSWORD := {long[1]}\n", long[1]),
        "Dockerfile": ("opt/app/Dockerfile", f"FROM x\nENV API_TOKEN {long[2]}\n", long[2]),
        "list of variables": (
            "opt/k8s/pod.yaml",
            f'env:\n- name: DB_PASSWORD\n  value: "{long[3]}"\n',
            long[3],
        ),
        "XML": ("opt/app/web.xml", f"<datasource><password>{long[4]}</password></datasource>\n", long[4]),
        "JSON settings": ("opt/app/appsettings.json", json.dumps({"ApiKey": long[5]}), long[5]),
        "Java properties": ("opt/app/db.properties", f"spring.datasource.password={long[6]}\n", long[6]),
        "Redis": ("etc/redis/redis.conf", f"requirepass {long[7]}\n", long[7]),
    }
    return {name: _case(path, text, "named-secret", secret) for name, (path, text, secret) in texts.items()}


def _code(word: _Word) -> Mapping[str, Case]:
    w = [word(8) + "9" + word(8) + "Q4" for _ in range(20)]
    django = word(
        50, string.ascii_lowercase + string.digits + "!@#^&*(-_=+)".replace("(", "").replace(")", "")
    )
    cell = {"cells": [{"source": [f'os.environ["API_KEY"] = "{w[0]}"\n'], "cell_type": "code"}]}
    texts = {
        "Python": ("opt/app/train.py", f'password = "{w[1]}"\n', w[1]),
        "call in Python": ("opt/app/db.py", f"connect(host='db', password='{w[2]}')\n", w[2]),
        "default in Python": ("opt/app/env.py", f'os.environ.setdefault("API_TOKEN", "{w[3]}")\n', w[3]),
        "Django": ("opt/site/settings.py", f"SECRET_KEY = '{django}'\n", django),
        "notebook": ("home/u/explore.ipynb", json.dumps(cell, indent=1), w[0]),
        "JavaScript": ("opt/web/app.js", f"const config = {{ apiKey: '{w[4]}' }};\n", w[4]),
        "TypeScript": ("opt/web/app.ts", f'const token: string = "{w[5]}";\n', w[5]),
        "text": ("home/u/notes.txt", f"the admin password: {w[6]}\n", w[6]),
        "Markdown": ("opt/app/README.md", f"Log in with password `{w[7]}`\npassword: `{w[7]}`\n", w[7]),
        "log": ("var/log/job.log", f"10:00 connecting with token={w[8]}\n", w[8]),
        "Python history": ("root/.python_history", f"db_password = '{w[9]}'\n", w[9]),
        "Go": ("opt/app/main.go", f'var apiKey = "{w[10]}"\n', w[10]),
    }
    return {name: _case(path, text, "named-secret", secret) for name, (path, text, secret) in texts.items()}


def _commands(word: _Word) -> Mapping[str, Case]:
    w = [word(6) + "4" + word(5) for _ in range(20)]
    bearer = word(40)
    texts = {
        "curl": (
            "root/.bash_history",
            f"ls\ncurl -s -u deploy:{w[0]} https://x.example/\n",
            "command-password",
            w[0],
        ),
        "curl in a script": (
            "opt/get.sh",
            f"curl --user ci:{w[1]} -O https://x/y\n",
            "command-password",
            w[1],
        ),
        "mysql": ("home/u/.bash_history", f"mysql -u root -p{w[2]} jobs\n", "command-password", w[2]),
        "sshpass": (
            "home/u/.zsh_history",
            f": 1700000000:0;sshpass -p {w[3]} ssh h\n",
            "command-password",
            w[3],
        ),
        "docker login on a command line": (
            "opt/push.sh",
            f"docker login -u ci -p {w[4]} r.example\n",
            "command-password",
            w[4],
        ),
        "psql history": ("root/.psql_history", f"ALTER ROLE jobs PASSWORD '{w[5]}';\n", "sql-password", w[5]),
        "mysql history": (
            "root/.mysql_history",
            f"CREATE USER a IDENTIFIED BY '{w[6]}';\n",
            "sql-password",
            w[6],
        ),
        "option": ("opt/start.sh", f"server --password {w[7]} --port 1\n", "named-secret", w[7]),
        "header": (
            "opt/app/call.py",
            f'headers = {{"Authorization": "Bearer {bearer}"}}\n',
            "authorization-header",
            bearer,
        ),
        "pair in Python": (
            "opt/app/get.py",
            f"requests.get(url, auth=('ann', '{w[8]}'))\n",
            "call-password",
            w[8],
        ),
        "URL in Python": (
            "opt/app/url.py",
            f"DB = 'postgresql://app:{w[9]}@db.internal/jobs'\n",
            "url-password",
            w[9],
        ),
        "URL in a notebook": (
            "home/u/db.ipynb",
            f'{{"a": ["mysql://app:{w[10]}@10.0.0.5/x"]}}',
            "url-password",
            w[10],
        ),
    }
    return {name: _case(*row) for name, row in texts.items()}


def _encodings(word: _Word, pem: str) -> Mapping[str, Case]:
    secret, token, short = word(20), f"hf_{word(34)}", word(6) + "3" + word(4)
    manifest = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: x\ndata:\n"
    der = base64.b64decode("".join(pem.splitlines()[1:-1]))
    body = b"\x04" + (1_600_000_000).to_bytes(4) + b"\x16" + word(100).encode()
    pgp = b"\x95" + len(body).to_bytes(2) + body
    newer = b"\xc5" + bytes([len(body)]) + body
    text = f"api_token: '{secret}'\n"
    return {
        "UTF-16 with a mark": Case("opt/app/win.yaml", text.encode("utf-16"), "named-secret", secret),
        "UTF-16 without one": Case(
            "opt/app/win.ini", f"[global]\npassword={secret}\n".encode("utf-16-le"), "named-secret", secret
        ),
        "Kubernetes Secret": _case(
            "opt/k8s/secret.yaml", f"{manifest}  password: {_base64(short)}\n", "kubernetes-secret", short
        ),
        "token in a Kubernetes Secret": _case(
            "opt/k8s/hf.yaml", f"{manifest}  HF: {_base64(token)}\n", "hugging-face-token", token
        ),
        "script in base64": _case(
            "opt/cloud-init.yaml",
            f"content: {_base64(f'#!/bin/sh{chr(10)}export X={token}{chr(10)}')}\n",
            "hugging-face-token",
            token,
        ),
        "PEM in base64": _case(
            "opt/tls.txt", f"tls.key = {_base64(pem)}\n", "encoded-private-key", _base64(pem)[:80]
        ),
        "DER key": Case("etc/ssl/private/site.der", der, "der-private-key", pem.splitlines()[2]),
        "DER key without a name": Case("opt/blob", der, "der-private-key", pem.splitlines()[2]),
        "binary PGP key": Case("root/.gnupg/secring.gpg", pgp, "pgp-binary-key", pgp[-60:].decode()),
        "binary PGP key in a new packet": Case("root/key.pgp", newer, "pgp-binary-key", newer[-60:].decode()),
        "key of gpg-agent": Case(
            "root/.gnupg/private-keys-v1.d/A1.key",
            f"(21:protected-private-key(3:rsa{secret}{secret}))".encode(),
            "gpg-agent-key",
            secret,
        ),
        "KeePass": Case(
            "home/u/p.kdbx",
            b"\x03\xd9\xa2\x9a\x67\xfb\x4b\xb5" + word(80).encode(),
            "password-database",
            secret,
        ),
        "keytab": Case(
            "etc/krb5.keytab", b"\x05\x02\0\0\0\x40" + word(64).encode(), "kerberos-keytab", secret
        ),
        "Java key store by its bytes": Case(
            "opt/app/store",
            b"\xfe\xed\xfe\xed\0\0\0\2\0\0\0\1\0\0\0\1" + word(80).encode(),
            "java-key-store",
            secret,
        ),
    }


def _archives(word: _Word, pem: str) -> Mapping[str, Case]:
    secrets = [f"hf_{word(34)}" for _ in range(16)]
    texts = [f"token for the hub: {secret}\n".encode() for secret in secrets]
    rows = {
        "zip": ("opt/a.zip", zipped({"conf/app.txt": texts[0]})),
        "wheel": ("opt/own-1.0-py3-none-any.whl", zipped({"own/__init__.py": b"", "own/hub.py": texts[1]})),
        "jar": ("opt/app.jar", zipped({"META-INF/MANIFEST.MF": b"", "app.properties": texts[2]})),
        "tgz": ("opt/b.tgz", gzip.compress(tarred({"x/y.txt": texts[3]}))),
        "xz": ("opt/c.txt.xz", lzma.compress(texts[4])),
        "bz2": ("opt/d.txt.bz2", bz2.compress(texts[5])),
        "zstd": ("opt/e.txt.zst", zstd.compress(texts[6])),
        "gzip under another name": ("opt/f.bin", gzip.compress(texts[7])),
        "second gzip member": ("opt/g.gz", gzip.compress(b"first\n") + gzip.compress(texts[8])),
        "tar": ("opt/h.tar", tarred({"z.txt": texts[9]})),
        "zip in a tar.xz": ("opt/i.tar.xz", lzma.compress(tarred({"in.zip": zipped({"n.txt": texts[10]})}))),
        "Debian package": ("opt/j.deb", deb(lzma.compress(tarred({"./etc/j.conf": texts[11]})))),
        "zipapp": ("opt/k.pyz", b"#!/usr/bin/env python3\n" + zipped({"__main__.py": texts[12]})),
        "git object": ("src/.git/objects/ab/" + word(38, _HEX), compress_object(texts[13])),
        "large member": (
            "opt/l.tar.bz2",
            bz2.compress(tarred({"big.bin": b"\0" * (9 << 20) + texts[14] + b"\0" * 99})),
        ),
    }
    made = {
        name: Case(path, data, "hugging-face-token", secret)
        for (name, (path, data)), secret in zip(rows.items(), secrets, strict=False)
    }
    return {
        **made,
        "PEM in a zip": Case(
            "opt/m.zip", zipped({"k.pem": pem.encode()}), "private-key", pem.splitlines()[2]
        ),
    }


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Make a zip whose members are deflated."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tarred(files: Mapping[str, bytes]) -> bytes:
    """Make a plain tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def deb(data: bytes) -> bytes:
    """Make what a Debian package is, as far as it matters here: an `ar` of two members."""
    made = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0\n"), ("data.tar.xz", data)):
        made += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        made += b"\n" * (len(content) % 2)
    return made


def compress_object(data: bytes) -> bytes:
    """Make a loose object of git."""
    return zlib.compress(b"blob %d\0" % len(data) + data)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
