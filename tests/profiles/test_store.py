"""Addresses of buckets and the clients that open them, without a store."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import logging
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from hbmwatch import ProfileError, load_peak_summary, watch_hbm
from hbmwatch._profiles import store_child
from hbmwatch._profiles.store import Store, missing_package
from hbmwatch._records.addresses import check_address, remote_address
from tests.live import fill
from tests.live import run as run_child

pytestmark = pytest.mark.slow


def test_nothing_is_opened_before_a_failure() -> None:
    """A step with an address that succeeds loads no client, opens no socket, starts no process."""
    code = """
seen = []
def audit(name, args):
    if name in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen"):
        seen.append(name)
sys.addaudithook(audit)
step = watch_hbm(lambda x: x + 1, logdir="gs://bucket/x")
for _ in range(3):
    jax.block_until_ready(step(x))
clients = {"fsspec", "gcsfs", "aiohttp", "multiprocessing.connection", "hbmwatch._profiles.stored"}
print(seen, sorted(clients & sys.modules.keys()))
"""
    assert run_child(code) == "[] []\n"


@pytest.mark.parametrize(
    ("address", "missing", "text"),
    [
        ("gs://bucket", {"gcsfs"}, "gcsfs is not installed: pip install 'hbmwatch[gcs]'"),
        ("s3://bucket", {"s3fs", "fsspec"}, "s3fs is not installed: pip install 'hbmwatch[s3]'"),
        ("sftp://host", {"fsspec"}, "fsspec is not installed: pip install 'fsspec'"),
        ("sftp://host", {"gcsfs", "s3fs"}, ""),
    ],
)
def test_a_missing_package_is_named(
    address: str, missing: set[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that installs it: in a warning at decoration, and where it is needed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else find(name)
    )

    assert missing_package(address) == text
    if not text:
        return
    with pytest.warns(UserWarning, match=f"nothing can be written to {address}: {text[:20]}"):
        watch_hbm(fill, logdir=address)
    with Store() as store, pytest.raises(ProfileError, match=r"cannot read .* is not installed"):
        store.entries(address)


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf"])
def test_a_time_limit_that_is_none_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At decoration, and where an address is read; for a folder of this host it does not count."""
    monkeypatch.setenv("HBMWATCH_REMOTE_SECONDS", value)
    text = f"HBMWATCH_REMOTE_SECONDS='{value}' is not a number of seconds above 0"

    with pytest.raises(ValueError, match=text):
        watch_hbm(fill, logdir="gs://bucket/x")
    with pytest.raises(ValueError, match=text):
        load_peak_summary("gs://bucket/x")
    watch_hbm(fill, logdir="folder")


NO_ADDRESS = {
    "gs://": "'gs://' names no bucket and no folder",
    "s3:///": "'s3:///' names no bucket and no folder",
    "GS://bucket/x": "'GS://bucket/x' has a protocol in capitals: write gs://bucket/x",
    "simplecache::": "'simplecache::' is chained: pass the address alone, as gs://...",
    "simplecache::gs://b/x": "'simplecache::gs://b/x' is chained: pass the address alone, as "
    "gs://b/x",
    "zip://a::gs://b/x": "'zip://a::gs://b/x' is chained: pass the address alone, as gs://b/x",
}


@pytest.mark.parametrize("address", NO_ADDRESS)
def test_what_looks_like_an_address_and_is_none_is_refused(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At decoration, and where it is read; no folder of this host gets such a name."""
    monkeypatch.chdir(tmp_path)
    text = f"^{re.escape(NO_ADDRESS[address])}$"
    with pytest.raises(ValueError, match=text):
        watch_hbm(fill, logdir=address)
    with pytest.raises(ValueError, match=text):
        load_peak_summary(address)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["a::b", "C:/x", "a:b", "runs/gs://", "::", "1:/x"])
def test_a_folder_with_colons_is_one_of_this_host(folder: str) -> None:
    """Windows has drives, and C++ has names with them."""
    check_address(folder)
    assert remote_address(folder) is None


def test_what_else_fsspec_opens(tmp_path: Path) -> None:
    """In a store that has folders they are made; one that cannot be opened is a sentence."""
    file = tmp_path / "file"
    file.write_text("content")
    folder = f"file://{tmp_path}/new/folder"
    with Store() as store:
        store.write({f"{folder}/a": file})
        assert store.entries(folder) == (("a", False),)
        assert list(store.read([f"{folder}/a"])) == [b"content"]
        errors = {
            "xyz://a": "cannot read xyz://a: ValueError: Protocol not known: xyz",
            "memory://a": "cannot read memory://a: ValueError: a store in memory ends with its",
            "sftp://127.0.0.1/a": "cannot read sftp://127.0.0.1/a: a package is missing (",
        }
        for address, text in errors.items():
            with pytest.raises(ProfileError, match=re.escape(text)):
                store.entries(address)


def raising(error: Exception) -> Callable[[], NoReturn]:
    """What raises an error."""

    def call() -> NoReturn:
        raise error

    return call


def test_each_error_of_a_client_has_its_reason() -> None:
    """Errors as the clients raise them for the answers of stores."""
    gcs = pytest.importorskip("gcsfs.retry")
    auth = pytest.importorskip("google.auth.exceptions")
    denied = b'{"error": {"code": 401, "message": "Anonymous caller does not have access."}}'
    answers: list[tuple[Callable[[], object], str]] = [
        (lambda: gcs.validate_response(401, denied, "a"), "access denied (Anonymous caller does"),
        (lambda: gcs.validate_response(403, b"no", "a"), "access denied (Forbidden: a no)"),
        (lambda: gcs.validate_response(404, b"", "a"), "no such bucket or folder"),
        (lambda: gcs.validate_response(507, b"no space", "a"), "full (no space, 507)"),
        (raising(auth.DefaultCredentialsError("none were found")), "no credentials (none were"),
        (raising(OSError(errno.EROFS, "Read-only file system")), "read-only (Read-only file sys"),
        (raising(OSError(errno.ENOSPC, "No space left on device")), "full (No space left on dev"),
        (raising(socket.gaierror(-2, "Name not known")), "unknown host (Name not known)"),
        (raising(TimeoutError()), "no answer"),
        (raising(KeyError("a?X-Amz-Signature=1 b")), "KeyError: 'a b'"),
        (
            raising(ConnectionRefusedError('no connection to "http://a:9/b?list-type=2&prefix="')),
            'connection refused (no connection to "http://a:9/b")',
        ),
    ]
    for call, text in answers:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            call()
        assert store_child.described(caught.value).startswith(text)


def test_the_reason_of_the_last_attempt_is_remembered() -> None:
    """What gcsfs logs when it tries again; it does so for longer than the time limit."""
    gcs = pytest.importorskip("gcsfs.retry")
    attempts = store_child.Attempts()
    tries = []

    async def request() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise gcs.ChecksumError("Cannot connect to host")
        return "done"

    logger = logging.getLogger("gcsfs")
    logger.addHandler(attempts)
    logger.setLevel(logging.DEBUG)
    try:
        assert asyncio.run(gcs.retry_request(request, retries=2)()) == "done"
    finally:
        logger.removeHandler(attempts)
        logger.setLevel(logging.NOTSET)

    assert attempts.last == "Cannot connect to host"
