"""An S3 server and a GCS emulator for tests, and what clients need to find them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Nothing may look for credentials, or for a store, outside of this machine.
ENVIRONMENT = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "NO_GCE_CHECK": "true",
}


class Servers:
    """The two servers, in a child process."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        s3, gcs = self._answer()
        self.environment = ENVIRONMENT | at(s3, gcs)

    def ask(self, command: str, *arguments: object) -> Any:
        """The answer to a command of store_servers.py."""
        assert self._child.stdin is not None
        print(json.dumps([command, *arguments]), file=self._child.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._child.stdout is not None
        return json.loads(self._child.stdout.readline())


def at(s3: str, gcs: str) -> dict[str, str]:
    """What makes clients use servers at these addresses."""
    return {"AWS_ENDPOINT_URL": s3, "STORAGE_EMULATOR_HOST": gcs}


@contextmanager
def running() -> Iterator[Servers]:
    """The servers, while the body runs."""
    command = [sys.executable, str(Path(__file__).with_name("store_servers.py"))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        try:
            yield Servers(child)
        finally:
            child.kill()
