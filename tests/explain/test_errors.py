"""HbmOomError as an object: its text, its copies, and what is an OOM."""

from __future__ import annotations

import concurrent.futures
import copy
import gc
import inspect
import multiprocessing
import pickle
import subprocess
import sys
import traceback
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.xla_client
import pytest

from hbmwatch import HbmOomError, OomReport, watch_hbm
from hbmwatch._explain.errors import ReportNote, find_oom, report_of
from tests.live import SMALL, fill

TEXT = "RESOURCE_EXHAUSTED: Out of memory allocating 1125899906842624 bytes."
HEADLINE = "hbmwatch: fill ran out of memory at run time on CPU: requested 1.00 PiB"


def oom_of(logdir: str) -> HbmOomError:
    """A real one."""
    try:
        watch_hbm(fill, logdir=logdir)(jnp.ones(8))
    except HbmOomError as oom:
        return oom
    raise AssertionError("a petabyte was there")


@pytest.fixture
def oom(tmp_path: Path) -> HbmOomError:
    """A caught error."""
    return oom_of(str(tmp_path))


def test_it_begins_with_the_caught_text_and_ends_in_one_line(oom: HbmOomError) -> None:
    """str(exc) is the compiler's text, unchanged, and the headline."""
    assert str(oom) == f"{oom.message.text}\n{HEADLINE}"
    assert oom.message.text == str(oom.report.message.text)


def test_it_is_what_handlers_of_jax_catch(oom: HbmOomError) -> None:
    """Handlers for either name of JAX's class keep working, and the error code is 8."""
    assert isinstance(oom, jax.errors.JaxRuntimeError)
    assert isinstance(oom, jaxlib.xla_client.XlaRuntimeError)
    assert getattr(oom, "error_code", 8) == 8


COPIES = {
    "pickle": lambda oom: pickle.loads(pickle.dumps(oom)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_are_equal(how: str, oom: HbmOomError) -> None:
    """Type, text, report and note survive."""
    oom.add_note("a note of the user's")

    twin = COPIES[how](oom)

    assert type(twin) is HbmOomError
    assert (str(twin), twin.report, twin.__notes__) == (str(oom), oom.report, oom.__notes__)
    assert report_of(twin) == oom.report


def fail_in_a_worker(logdir: str) -> None:
    """What a worker process runs."""
    watch_hbm(fill, logdir=logdir)(jnp.ones(8))


@pytest.mark.slow
def test_it_crosses_a_process_pool(tmp_path: Path) -> None:
    """An HbmOomError that a worker raises is one in the parent, with its report."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        error = pool.submit(fail_in_a_worker, str(tmp_path)).exception()

    assert isinstance(error, HbmOomError)
    assert error.summary is not None
    assert error.summary.peak_bytes == 2**50 + 32


def test_a_traceback_shows_the_text_once_and_the_report(oom: HbmOomError) -> None:
    """Raised `from None`, it prints the compiler's sentence once, and the report as its note."""
    printed = "".join(traceback.format_exception(oom))

    assert printed.count(oom.message.text) == 1
    assert printed.endswith(f"{HEADLINE}\n{oom.report}\n")
    assert oom.__suppress_context__


def test_the_original_is_the_context_and_the_visible_cause_where_jax_filters_nothing(
    tmp_path: Path,
) -> None:
    """JAX's own error is the context, and is shown if JAX's traceback filtering is off."""
    step = watch_hbm(fill, logdir=tmp_path)
    seen: list[Any] = []
    for mode in ("auto", "off"):
        jax.config.update("jax_traceback_filtering", mode)
        try:
            step(jnp.ones(8))
        except HbmOomError as error:
            seen.append((type(error.__context__), error.__cause__ is error.__context__))
        finally:
            jax.config.update("jax_traceback_filtering", "auto")

    jaxs = jax.errors.JaxRuntimeError
    assert seen == [(jaxs, False), (jaxs, True)]


def helper(x: jax.Array) -> Any:
    """A line of the user's, below the watch."""
    try:
        return jax.jit(fill)(x)
    except jax.errors.JaxRuntimeError as error:
        error.add_note("batch 17")
        raise


def helper_in_a_block(x: jax.Array) -> None:
    with watch_hbm():
        helper(x)


@pytest.mark.parametrize("watched", [helper_in_a_block, watch_hbm(helper, jit=False)])
def test_the_frames_and_notes_below_the_watch_are_kept(watched: Any) -> None:
    """Where a whole loop is watched, the traceback still says which line of it failed."""
    try:
        watched(jnp.ones(8))
    except HbmOomError as error:
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        notes = error.__notes__

    assert "helper" in names
    assert notes[0] == "batch 17" and [type(note) for note in notes] == [str, ReportNote]


def late(x: jax.Array) -> jax.Array:
    """Fails asynchronously, so that whoever waits raises the error."""
    return fill(x) @ jnp.ones(2**24)


def in_a_call(step: Any) -> None:
    step(jnp.ones(8)).block_until_ready()


def in_a_block(step: Any) -> None:
    with watch_hbm():
        kept = jax.jit(inspect.unwrap(step))(jnp.ones(8))
    kept.block_until_ready()


def in_a_helper(step: Any) -> None:
    watch_hbm(in_a_call, jit=False)(step)


SHOWN = {  # the frames of the error: the last one is the user's line
    in_a_call: ["test_the_last_frame_is_the_users", "in_a_call"],
    in_a_block: ["test_the_last_frame_is_the_users", "in_a_block"],
    in_a_helper: ["test_the_last_frame_is_the_users", "in_a_helper", "in_a_call"],
}


@pytest.mark.parametrize("fun", [fill, late])
@pytest.mark.parametrize("call", SHOWN)
def test_the_last_frame_is_the_users(call: Any, fun: Any, tmp_path: Path) -> None:
    """In every tool, also in one that knows no marks of hidden frames: there are none of ours."""
    step = jax.jit(fun) if call is in_a_helper else watch_hbm(fun, logdir=tmp_path)
    try:
        call(step)
    except HbmOomError as error:
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]

    assert [name for n, name in enumerate(frames) if name not in frames[:n]] == SHOWN[call]


def test_a_compiled_program_has_the_frames_of_a_bare_one(tmp_path: Path) -> None:
    """JAX leaves its own ones in there."""
    frames = []
    for step in (jax.jit(fill), watch_hbm(fill, logdir=tmp_path)):
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            step.lower(SMALL).compile()(SMALL)
        frames.append([frame.name for frame in traceback.extract_tb(caught.value.__traceback__)])

    assert frames[0] == frames[1]


def test_where_jax_hides_no_frames_ours_stay(tmp_path: Path) -> None:
    """As with JAX's own frames, to find faults in them."""
    jax.config.update("jax_traceback_filtering", "off")
    try:
        watch_hbm(fill, logdir=tmp_path)(SMALL)
    except HbmOomError as error:
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    finally:
        jax.config.update("jax_traceback_filtering", "auto")

    assert frames[-2:] == ["watched", "raise_explained"]


def test_what_was_being_handled_is_shown_as_with_bare_jit(tmp_path: Path) -> None:
    """If the step runs out of memory in the handler of a user's error, that error is shown too."""
    step = watch_hbm(fill, logdir=tmp_path)
    try:
        try:
            raise LookupError("checkpoint 41 is corrupt")
        except LookupError:
            step(jnp.ones(8))
    except HbmOomError as error:
        printed = traceback.format_exc()
        context = error.__context__

    assert isinstance(context, LookupError)
    assert [printed.count(text) for text in ("LookupError: checkpoint 41", TEXT)] == [1, 1]


def test_a_kept_error_holds_no_array_without_its_traceback(tmp_path: Path) -> None:
    """with_traceback(None) is all that it takes, as with bare jit."""
    x = jnp.ones(8)
    alive = weakref.ref(x)
    kept: list[HbmOomError] = []
    try:
        watch_hbm(fill, logdir=tmp_path)(x)
    except HbmOomError as error:
        kept.append(error.with_traceback(None))

    del x
    assert kept and (alive() is None or jax.__version_info__ < (0, 8))  # which has a cycle


def is_freed(step: Any) -> bool:
    """Whether a failed call's argument is freed without a garbage collection."""
    gc.disable()
    try:
        x = jnp.ones(8)
        gone = weakref.ref(x)
        try:
            step(x).block_until_ready()
        except jax.errors.JaxRuntimeError:
            pass
        del x
        return gone() is None
    finally:
        gc.enable()


def test_arrays_are_freed_when_the_except_block_ends(tmp_path: Path) -> None:
    """No cycle of ours keeps the failed call's arguments (jax 0.6.2 has one of its own)."""
    assert is_freed(watch_hbm(fill, logdir=tmp_path)) == is_freed(jax.jit(fill))
    assert is_freed(jax.jit(fill)) or jax.__version_info__ < (0, 8)


JAX_ERROR = jax.errors.JaxRuntimeError


class MosaicError(Exception):
    """Stands in for jax._src.pallas.mosaic's class of this name, which a TPU compile raises."""


MosaicError.__module__ = "jax._src.pallas.mosaic.error_handling"


class Foreign(Exception):
    """Somebody else's exception."""


class Unprintable(jax.errors.JaxRuntimeError):  # type: ignore[misc]
    """An exception that raises when it is asked for its text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def caused(error: BaseException, cause: BaseException) -> BaseException:
    """`error`, raised from `cause`."""
    error.__cause__ = cause
    return error


def cyclic() -> BaseException:
    """Two exceptions that are each other's cause."""
    first, second = Foreign("a"), Foreign("b")
    return caused(first, caused(second, first))


OOMS = {
    "jax's class": JAX_ERROR(TEXT),
    "a warm jit call": ValueError(TEXT),
    "Pallas": MosaicError(TEXT),
    "an old CPU client": JAX_ERROR(
        "INTERNAL: Buffer Definition Event: Error preparing computation: "
        "Out of memory allocating 1125899906842624 bytes."
    ),
    "in a group, as of tasks": ExceptionGroup("two tasks", [KeyError(1), JAX_ERROR(TEXT)]),
    "wrapped": caused(Foreign("step 3"), JAX_ERROR(TEXT)),
    "wrapped twice": caused(Foreign("a"), caused(Foreign("b"), ValueError(TEXT))),
}
OTHERS = {
    "somebody's own text": Foreign(TEXT),
    "another status": JAX_ERROR("INVALID_ARGUMENT: Executable expected parameter 0 of size 4"),
    "a value error": ValueError("out of memory is what I would call this"),
    "a value error that quotes an OOM": ValueError(f"cannot load the checkpoint: {TEXT}"),
    "what a callback raised": JAX_ERROR(
        "INTERNAL: CpuCallback error calling callback: Traceback (most recent call last):\n"
        "RuntimeError: disk: Out of memory allocating 5 bytes."
    ),
    "a cycle": cyclic(),
    "unprintable": Unprintable("x"),
    "Python's own": MemoryError("cannot allocate"),
}


@pytest.mark.parametrize("name", OOMS)
def test_an_oom_is_found(name: str) -> None:
    """In each class in which it comes, and along the chain of causes."""
    found = find_oom(OOMS[name])

    assert found is not None
    assert found[1].requested_bytes == 2**50


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_oom_is_not_found(name: str) -> None:
    """Another class with an OOM's text, another text in JAX's class, a cycle of causes."""
    assert find_oom(OTHERS[name]) is None


def test_a_note_carries_the_report(oom: HbmOomError) -> None:
    """The note is a text that holds the report as data, also when pickled."""
    note = ReportNote(oom.report)
    twin = pickle.loads(pickle.dumps(note))

    assert note == str(oom.report) == twin
    assert twin.report == oom.report


def test_an_empty_report_reads(oom: HbmOomError) -> None:
    """With nothing but the message there still is a text and a headline."""
    bare = HbmOomError(TEXT, OomReport(message=oom.message))

    assert str(bare).startswith(TEXT)
    assert "requested 1.00 PiB" in str(bare.report)


@pytest.mark.slow
def test_the_error_reaches_the_user_of_a_script(tmp_path: Path) -> None:
    """An uncaught one prints the report under the error, in fewer lines than a terminal has."""
    code = (
        "import sys, jax.numpy as jnp; from hbmwatch import watch_hbm\n"
        "fill = lambda x: jnp.broadcast_to(x[0], (2**24, 2**24)) + 1\n"
        "step = watch_hbm(fill, logdir=sys.argv[1])\n"
        "step(jnp.ones(8))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    lines = ran.stderr.splitlines()

    assert ran.returncode == 1
    assert "hbmwatch.HbmOomError: " in ran.stderr
    assert f"xprof --logdir={tmp_path}" in ran.stderr
    assert len(lines) <= 40
