"""Opens remote stores with fsspec, in a child process that runs this file by its path.

The clients of stores start threads and event loops, retry for minutes and print into the log of
their process. This process answers one request at a time, each within its time limit, and ends
with the process that started it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

_READERS = 16
_LOOK_SECONDS = 0.5
# In these a file needs its folder. In a bucket a client would create the bucket.
_WITH_FOLDERS = {"file", "local", "sftp", "ssh", "ftp", "smb", "hdfs", "arrow_hdfs", "webhdfs"}
_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "DefaultCredentialsError",
    "RefreshError",
    "ClientAuthenticationError",
}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_SHOWN = re.compile(r"\?[^\s\"']+|^\[Errno -?\d+\] ")
_LONGEST = 300


class _Late(BaseException):
    """The time limit of a request is over; no client may catch it."""


class Attempts(logging.Handler):
    """Remembers why a client tries again: the reason, if the time limit ends the attempts."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "retry" in text.lower():
            self.last = text.rpartition("exception: ")[2].rpartition("error: ")[2]


_attempts = Attempts()


def main(descriptor: int, parent: int) -> NoReturn:
    """Answer requests until the other end of the connection is closed, or the parent is gone."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGALRM, _stop)
    for client in ("gcsfs", "s3fs"):
        logging.getLogger(client).addHandler(_attempts)
        logging.getLogger(client).setLevel(logging.DEBUG)
    # Else gcsfs asks for the type of the bucket by gRPC, for up to a minute where a proxy or an
    # emulator does not pass or know the call. Only a zonal bucket cannot be written without.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    # Else the search for credentials takes longer than the time limit where nothing answers at the
    # address of Google's metadata server: gcsfs asks it three and then five times, for 3 s each.
    os.environ.setdefault("GCE_METADATA_TIMEOUT", "1")
    os.environ.setdefault("GCE_METADATA_DETECT_RETRIES", "1")
    connection = Connection(descriptor)
    try:
        while True:
            _answer(connection, json.loads(connection.recv_bytes()))
    except (EOFError, OSError):
        os._exit(0)  # at a normal exit the clients would wait for their servers


def _end_with(parent: int) -> NoReturn:
    """End when the parent does; a process that it forked keeps the connection open."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(0)


def _answer(connection: Connection, request: dict[str, Any]) -> None:
    """Do what a request asks for, and send the result."""
    _attempts.last = ""
    # Both processes have the same clock.
    seconds = max(0.001, request["deadline"] - time.monotonic())
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        reply, contents = _OPERATIONS[request["operation"]](request["addresses"])
    except BaseException as error:
        reply, contents = {"error": _reason(error, request)}, ()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    connection.send_bytes(json.dumps(reply).encode())
    for content in contents:
        connection.send_bytes(content)


def _stop(*_: object) -> NoReturn:
    raise _Late


# --- the operations -------------------------------------------------------------------------------

_Answer = tuple[dict[str, Any], Sequence[bytes]]


def _opened(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    import fsspec

    if address.startswith("memory:"):
        raise ValueError("a store in memory ends with its process")
    system, path = fsspec.core.url_to_fs(address)
    return system, str(path)


def _list(addresses: list[str]) -> _Answer:
    """The names in a folder, and whether each is a folder; one name "" for a file."""
    (address,) = addresses
    system, path = _opened(address)
    system.invalidate_cache()
    try:
        found = system.ls(path, detail=True)
    except FileNotFoundError:
        return {"entries": None}, ()
    except NotADirectoryError:
        return {"entries": [["", False]]}, ()
    folder = path.rstrip("/")
    entries = []
    for entry in found:
        name = entry["name"].rstrip("/")
        if name != folder:
            entries.append([name.rpartition("/")[2], entry["type"] == "directory"])
        elif entry["type"] != "directory" and entry["size"]:
            entries.append(["", False])
    return {"entries": entries or None}, ()


def _read(addresses: list[str]) -> _Answer:
    """The contents of files; for one that cannot be read, why, and whether it exists."""
    opened = [_opened(address) for address in addresses]

    def content(place: tuple[Any, str]) -> bytes | Exception:
        system, path = place
        try:
            return bytes(system.cat_file(path))
        except Exception as error:
            return error

    with ThreadPoolExecutor(_READERS) as readers:
        found = list(readers.map(content, opened))
    reasons = [
        None if isinstance(got, bytes) else [described(got), isinstance(got, FileNotFoundError)]
        for got in found
    ]
    return {"reasons": reasons}, [got for got in found if isinstance(got, bytes)]


def _write(addresses: list[list[str]]) -> _Answer:
    """Copy files of this host, in this order; each is given as its address and its path."""
    for address, file in addresses:
        system, path = _opened(address)
        content = Path(file).read_bytes()
        protocols = {system.protocol} if isinstance(system.protocol, str) else {*system.protocol}
        if protocols & _WITH_FOLDERS:
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
        system.pipe_file(path, content)
    return {}, ()


_OPERATIONS: dict[str, Callable[[list[Any]], _Answer]] = {
    "list": _list,
    "read": _read,
    "write": _write,
}


# --- the reasons ----------------------------------------------------------------------------------


def _reason(error: BaseException, request: dict[str, Any]) -> str:
    """Why a request failed, as the end of a sentence."""
    if isinstance(error, _Late):
        last = f" (the last attempt: {_cleaned(_attempts.last)})" if _attempts.last else ""
        return f"no answer within {request['limit']:g} s{last}"
    return described(error)


def described(error: BaseException) -> str:
    """The kind of an error, and its text."""
    kind = next(filter(None, map(_kind, _chain(error))), "")
    text = next(filter(None, (_cleaned(str(link)) for link in _chain(error))), "")
    if not kind:
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{kind} ({text})" if " " in text else kind


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _kind(error: BaseException) -> str:
    """The kind of error that a client raised; "" if unknown."""
    names = {base.__name__ for base in type(error).__mro__}
    number = getattr(error, "errno", None)
    code = getattr(error, "code", None) or getattr(error, "status", None)
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # of botocore
        code = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    kinds = (
        ("a package is missing", "ImportError" in names),
        ("no credentials", bool(names & _NO_CREDENTIALS)),
        ("read-only", number == errno.EROFS or "NotImplementedError" in names),
        ("full", number in _FULL or code == 507),
        (
            "access denied",
            "PermissionError" in names or code in (401, 403) or str(error)[:9] == "Forbidden",
        ),
        ("no such bucket or folder", "FileNotFoundError" in names or code == 404),
        ("connection refused", "ConnectionRefusedError" in names),
        ("unknown host", "gaierror" in names),
        ("no answer", "TimeoutError" in names),
    )
    return next((kind for kind, applies in kinds if applies), "")


def _cleaned(text: str) -> str:
    """The text of an error in one line, without numbers and queries, which may be signed."""
    return _NOT_SHOWN.sub("", " ".join(text.split()))[:_LONGEST]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
