"""An S3 server and a GCS emulator on the loopback address, in a child process of the tests.

Run by its path: it prints the two addresses as JSON and then answers commands, one a line, until
its stdin is closed.
"""

from __future__ import annotations

import functools
import http.server
import json
import logging
import math
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage
from moto import settings
from moto.backends import get_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

READS = ["s3:Get*", "s3:List*"]
HOST, BUCKET, ACCOUNT = "127.0.0.1", "bucket", "123456789012"


class Faulty:
    """A WSGI application that counts its requests, and answers writes with a status if asked to."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self.app = app
        self.requests: Counter[str] = Counter()
        self.status = ""

    def fail(self, status: str) -> None:
        """Answer each write with this status; "" to serve it."""
        self.status = status

    def mend(self) -> None:
        """Serve everything again, whoever asks."""
        self.status = ""
        settings.INITIAL_NO_AUTH_ACTION_COUNT = math.inf

    def count(self) -> dict[str, int]:
        """The requests since the last count, by method."""
        counted, self.requests = self.requests, Counter()
        return counted

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        self.requests[method] += 1
        if not self.status or method not in ("PUT", "POST"):
            return self.app(environ, start_response)
        start_response(self.status, [("Content-Type", "text/xml")])
        code = self.status.partition(" ")[2].replace(" ", "")
        return [f"<Error><Code>{code}</Code><Message>No space left.</Message></Error>".encode()]


def seed(prefix: str, count: int) -> None:
    """Give a report that is in the bucket to that many runs, which are named by number."""
    backend = get_backend("s3")[ACCOUNT]["aws"]
    report = backend.get_object(BUCKET, "report.json")
    assert report is not None
    for number in range(count):
        name = f"{prefix}/plugins/profile/2026_01_01_00_00_00_hbmwatch_p0_1_a_{number}/report.json"
        backend.put_object(BUCKET, name, report.value)


def protect() -> list[str]:
    """From now on ask for credentials; returns those of a user who may only read."""
    user, policy = (
        secrets.token_hex(8),
        {"Statement": [{"Effect": "Allow", "Action": READS, "Resource": "*"}]},
    )
    backend = get_backend("iam")[ACCOUNT]["aws"]
    backend.create_user("us-east-1", user)
    backend.put_user_policy(user, "reads", json.dumps({"Version": "2012-10-17", **policy}))
    key = backend.create_access_key(user)
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
    return [key.access_key_id, key.secret_access_key]


def main() -> None:
    """Serve until stdin is closed."""
    logging.disable()
    s3 = Faulty(DomainDispatcherApplication(create_backend_app))
    storage = Storage(use_memory_fs=True)
    create_bucket(BUCKET, storage)
    handler = functools.partial(RequestHandler, storage)
    servers = [
        make_server(HOST, 0, s3, threaded=True),
        http.server.ThreadingHTTPServer((HOST, 0), handler),
    ]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    get_backend("s3")[ACCOUNT]["aws"].create_bucket(BUCKET, "us-east-1")
    print(json.dumps([f"http://{HOST}:{server.server_port}" for server in servers]), flush=True)
    commands: dict[str, Callable[..., Any]] = {
        "seed": seed,
        "protect": protect,
        "fail": s3.fail,
        "count": s3.count,
        "mend": s3.mend,
    }
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(commands[command](*arguments)), flush=True)


if __name__ == "__main__":
    main()
