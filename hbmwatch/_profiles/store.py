"""Remote stores: what fsspec opens by an address, such as "gs://bucket/xprof".

A child process opens them, `store_child`: this process loads no client, keeps no thread of one, and
stops waiting at a time limit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from hbmwatch._profiles.child_process import ended_by, interpreter, last_lines
from hbmwatch._profiles.python_path import python_path
from hbmwatch._records.addresses import check_address, remote_address
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._records.setting_error import SettingError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_CHILD = str(Path(__file__).with_name("store_child.py"))
# The extra of setup.cfg for a protocol; the package is named after it, "gcsfs".
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}
_DEFAULT_SECONDS = 30.0
# The child says what it was waiting for a little before this process stops waiting for it.
_LAST_WORDS_SECONDS = 0.5
TOGETHER = 20  # files that one request reads: as many as `show` lists


def time_limit() -> float:
    """HBMWATCH_REMOTE_SECONDS: how long one request to a remote store may take; 30 by default.

    Raises:
        ValueError: It is not a number of seconds above 0.
    """
    text = os.environ.get("HBMWATCH_REMOTE_SECONDS", "").strip()
    try:
        seconds = float(text) if text else _DEFAULT_SECONDS
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise SettingError(f"HBMWATCH_REMOTE_SECONDS={text!r} is not a number of seconds above 0")
    return seconds


def missing_package(address: str) -> str:
    """The package that opens an address and is not installed, and how to install it; or "".

    It is looked for, not imported. Of most protocols only fsspec knows the package.
    """
    protocol = address.partition(":")[0]
    extra = _EXTRAS.get(protocol, "")
    for package, command in ((f"{extra}fs", f"hbmwatch[{extra}]"), ("fsspec", "fsspec")):
        if (extra or package == "fsspec") and importlib.util.find_spec(package) is None:
            return f"{package} is not installed: pip install '{command}'"
    return ""


class Entry(NamedTuple):
    """What is in a remote folder, with the interface of os.DirEntry."""

    name: str
    is_folder: bool

    def is_dir(self, **_: bool) -> bool:
        """Whether it is a folder."""
        return self.is_folder


class Store:
    """A child process that opens addresses; it starts with the first request."""

    def __init__(self) -> None:
        self._limit = time_limit()
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._output: IO[bytes] | None = None
        self._listed: dict[str, tuple[Entry, ...] | None] = {}

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        for opened in (self._connection, self._output):
            if opened is not None:
                opened.close()
        self._child = self._connection = self._output = None

    def forget(self) -> None:
        """Ask again for what has been listed."""
        self._listed.clear()

    def entries(self, address: str) -> tuple[Entry, ...] | None:
        """What is in a folder; None if there is none, and one entry without a name for a file.

        Raises:
            ProfileError: The store cannot be read.
        """
        if address not in self._listed:
            found = self._ask("list", [address], address, "read")["entries"]
            self._listed[address] = (
                None if found is None else tuple(Entry(*entry) for entry in found)
            )
        return self._listed[address]

    def read(
        self, addresses: Sequence[str], together: int = TOGETHER
    ) -> Iterator[bytes | ProfileError]:
        """The content of each file, or why it cannot be read; its cause is the OSError, if any.

        Args:
            addresses: The files.
            together: How many are read at once, also if the caller takes fewer.

        Raises:
            ProfileError: The store cannot be read.
        """
        for start in range(0, len(addresses), together):
            batch = addresses[start : start + together]
            reasons = self._ask("read", batch, batch[0], "read")["reasons"]
            # All of them before the first is handed out, as the caller may ask for another one.
            contents = [self._received(batch[0]) for reason in reasons if reason is None]
            for address, reason in zip(batch, reasons, strict=True):
                if reason is None:
                    yield contents.pop(0)
                    continue
                error = ProfileError(f"cannot read {address}: {reason[0]}", address)
                error.__cause__ = FileNotFoundError(address) if reason[1] else None
                yield error

    def write(self, files: Mapping[str, Path]) -> None:
        """Copy files of this host to their addresses, in this order.

        Raises:
            ProfileError: One cannot be written; those before it have been.
        """
        pairs = [[address, str(file)] for address, file in files.items()]
        self._ask("write", pairs, next(iter(files)).rpartition("/")[0], "write")

    def _ask(self, operation: str, addresses: Sequence[Any], where: str, verb: str) -> Any:
        """The child's answer to a request."""
        problem = f"cannot {verb} {where}"
        if missing := missing_package(where):
            raise ProfileError(f"{problem}: {missing}", where)
        deadline = time.monotonic() + self._limit
        connection = self._started()
        request = {
            "operation": operation,
            "addresses": list(addresses),
            "limit": self._limit,
            "deadline": deadline - min(_LAST_WORDS_SECONDS, self._limit / 5),
        }
        try:
            connection.send_bytes(json.dumps(request).encode())
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                self.close()
                raise ProfileError(f"{problem}: no answer within {self._limit:g} s", where)
        except OSError as error:
            raise self._ended(problem, where) from error
        answer = json.loads(self._received(where))
        if "error" in answer:
            raise ProfileError(f"{problem}: {answer['error']}", where)
        return answer

    def _received(self, where: str) -> bytes:
        """The next message of the child."""
        try:
            return self._started().recv_bytes()
        except (EOFError, OSError) as error:
            raise self._ended(f"cannot read {where}", where) from error

    def _ended(self, problem: str, where: str) -> ProfileError:
        """The child has ended: why, as far as it said so."""
        child, output = self._child, self._output
        if child is None or output is None:
            return ProfileError(problem, where)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
        status = ended_by(child.returncode) if child.returncode is not None else "no answer"
        output.seek(0)
        tail = last_lines(output.read())
        self.close()
        return ProfileError(f"{problem}: the process that opens it ended ({status}){tail}", where)

    def _started(self) -> Connection:
        """The connection to the child, which is started if it is not there."""
        if self._connection is not None:
            return self._connection
        from multiprocessing.connection import Pipe  # not at the top: most watches need none

        python = interpreter("fsspec runs")
        ours, theirs = Pipe()
        self._connection, self._output = ours, tempfile.TemporaryFile()
        with theirs:
            self._child = subprocess.Popen(
                [python, "-P", _CHILD, str(theirs.fileno()), str(os.getpid())],
                env={**os.environ, "PYTHONPATH": python_path()},
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
            )
        return ours


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A file or folder in a remote store, with as much of pathlib's interface as readers use.

    Attributes:
        address: Its address, without a slash at the end.
        store: What opens it.
    """

    address: str
    store: Store = field(repr=False, compare=False)

    def __str__(self) -> str:
        return self.address

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.address}/{name}", self.store)

    @property
    def name(self) -> str:
        """The last part."""
        return self.address.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        """The suffix of the last part."""
        return PurePosixPath(self.name).suffix

    def entries(self) -> tuple[Entry, ...]:
        """What is in the folder; nothing if there is none.

        Raises:
            ProfileError: The store cannot be read.
        """
        found = self.store.entries(self.address) or ()
        return tuple(entry for entry in found if entry.name)

    def is_dir(self) -> bool:
        """Whether it is a folder that holds something."""
        return bool(self.entries())

    def exists(self) -> bool:
        """Whether there is such a file, or such a folder that holds something."""
        return self.store.entries(self.address) is not None

    def read_bytes(self) -> bytes:
        """The content of the file.

        Raises:
            ProfileError: It cannot be read; its cause is the OSError, if any.
        """
        (content,) = self.store.read([self.address])
        if isinstance(content, ProfileError):
            raise content
        return content


Location = Path | RemotePath


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Location]:
    """A path of this host, or one in a remote store, which is open in the body.

    Raises:
        ValueError: HBMWATCH_REMOTE_SECONDS is not a number of seconds above 0, or the path looks
            like an address and is none that can be opened.
    """
    check_address(path)
    address = remote_address(path)
    if address is None:
        yield Path(path)
        return
    with Store() as store:
        yield RemotePath(address.rstrip("/"), store)
