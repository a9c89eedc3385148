"""A changed program, compiled ahead of time from shapes: does it fit, and what is its peak.

jax is imported in functions, so that `import hbmwatch` stays light.
"""

from __future__ import annotations

import dataclasses
import inspect
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hbmwatch import _hlo
from hbmwatch._call import CallInfo, call_info
from hbmwatch._evidence import Argument, Evidence, is_replicated
from hbmwatch._flow import Flow
from hbmwatch._leaves import undonated
from hbmwatch._message import parse_oom
from hbmwatch._records import Finding, OomMessage, PeakSummary
from hbmwatch._sizes import format_size

Change = Literal["donation", "half-batch", "bfloat16", "sharding"]

# What each kind of finding lets us try ourselves.
_CHANGES: dict[str, Change] = {
    "donation": "donation",
    "aggregate": "half-batch",
    "dtype": "bfloat16",
    "replication": "sharding",
}


@dataclass(frozen=True, slots=True)
class Verification:
    """What a changed program needs, by the compiler that would compile it.

    Attributes:
        change: What was changed ("donation of state['params'], state['mu']").
        fits: Whether it fits the device; None where the compiler does not say (GPU and CPU
            compilers never fail for memory, and no limit was given).
        peak_bytes_before: The peak of the program as it was, on one device.
        peak_bytes: The peak of the changed program.
        total_bytes: All that the compiler allocates for the changed program.
        limit_bytes: What the device offers, as far as is known.
        seconds: How long both compiles took.
        error: The first line of why the changed program did not compile; "" where it did.
    """

    change: str
    fits: bool | None
    peak_bytes_before: int | None
    peak_bytes: int | None
    total_bytes: int | None = None
    limit_bytes: int | None = None
    seconds: float = 0.0
    error: str = ""

    @property
    def saves_bytes(self) -> int | None:
        """By how much the peak fell; None where one of the two is not known."""
        if self.peak_bytes is None or self.peak_bytes_before is None:
            return None
        return self.peak_bytes_before - self.peak_bytes

    def measured(self, finding: Finding) -> Finding:
        """The finding with what was measured in place of what was derived.

        A finding of which nothing could be measured comes back as it is.
        """
        if self.saves_bytes is None or self.peak_bytes is None:
            return finding
        fits = {True: "fits", False: "still does not fit", None: "compiles"}[self.fits]
        said = f"; measured: with {self.change} it {fits}, the peak {format_size(self.peak_bytes)}"
        return dataclasses.replace(
            finding,
            saves_bytes=self.saves_bytes,
            certainty="measured",
            evidence=finding.evidence + said,
        )

    def __str__(self) -> str:
        fits = {True: "fits", False: "does not fit", None: "compiles"}[self.fits]
        if self.peak_bytes is None or self.peak_bytes_before is None:
            return f"with {self.change}: {self.error or 'not measured'}"
        return (
            f"with {self.change} the program {fits}: its peak is {format_size(self.peak_bytes)}, "
            f"it was {format_size(self.peak_bytes_before)}"
        )


@dataclass(frozen=True, slots=True)
class _Compiled:
    """What one compile left."""

    program: _hlo.Program | None
    summary: PeakSummary | None
    message: OomMessage | None
    error: str


@dataclass(frozen=True, slots=True)
class _Call:
    """A call by shapes: which leaves are arrays, and what the step says of them."""

    step: Any
    leaves: tuple[Any, ...]
    arrays: tuple[int, ...]
    tree: Any
    lowered: Any
    info: CallInfo

    @property
    def shapes(self) -> list[Any]:
        """The array leaves, as jax.ShapeDtypeStructs."""
        return [self.leaves[i] for i in self.arrays]


def verify(
    step: Callable[..., Any],
    *args: Any,
    change: Change | Finding | None = None,
    variant: Callable[..., Any] | None = None,
    paths: Sequence[str] = (),
    axis: str | None = None,
    limit_bytes: int | None = None,
    timeout_s: float = 120.0,
    **kwargs: Any,
) -> Verification:
    """Compile a step as it is and with a change, for the same device, from shapes alone.

    Nothing runs and no device memory is touched: arrays among the arguments are taken by their
    shapes. On a TPU (or a TPU topology) a program that does not fit costs the compiler a fraction
    of a second, one that fits as long as it always does.

    Args:
        step: A jitted function, or one that watch_hbm returned: what has `.lower`.
        args: Its arguments, as arrays or jax.ShapeDtypeStructs.
        change: "donation" of what comes back updated, "half-batch", "bfloat16" arguments, or
            "sharding" of replicated arguments; or a Finding, for the change that it advises.
        variant: A function with the same arguments to compile instead of step (with jax.checkpoint
            in its place, say). A jitted one keeps its own options; another one gets the donation
            and the shardings of step.
        paths: The argument leaves to change, by the beginning of their pytree path; those that the
            figures point to where it is empty.
        axis: The mesh axis for "sharding"; the largest where it is None.
        limit_bytes: What the device offers, where the compiler does not say (GPU, CPU).
        timeout_s: How many seconds to wait for each compile. The compiler cannot be stopped: a
            compile that takes longer goes on in the background.
        kwargs: Keyword arguments of the step.

    Raises:
        TypeError: step has no `.lower`.
        ValueError: Nothing to change was asked for or found, or nothing that we can try.
    """
    wanted = _wanted(change, variant)
    start = time.perf_counter()
    call = _call(step, args, kwargs)
    before = _compile(call.lowered, timeout_s)
    evidence = _evidence(before, call.info)
    try:
        if variant is not None:
            what, lowered = _variant(call, variant)
        else:
            what, lowered = _changed(call, evidence, wanted, tuple(paths), axis)
    except _NothingToChange as nothing:
        raise ValueError(str(nothing)) from None
    after = lowered if isinstance(lowered, _Compiled) else _compile(lowered, timeout_s)
    return _verification(what, before, after, limit_bytes, time.perf_counter() - start)


class _NothingToChange(Exception):
    """A change for which the program gives no place."""


def _wanted(change: Change | Finding | None, variant: object) -> str:
    """The change that was asked for.

    Raises:
        ValueError: None, both, or one that we cannot try ourselves.
    """
    if (change is None) == (variant is None):
        raise ValueError("verify needs either change=... or variant=...")
    if variant is not None:
        return "variant"
    name = _CHANGES.get(change.slug, change.slug) if isinstance(change, Finding) else change
    if name not in get_args(Change):
        choices = ", ".join(map(repr, get_args(Change)))
        raise ValueError(
            f"{name!r} cannot be tried from shapes: choose one of {choices}, or pass variant=..."
        )
    return str(name)


# --- the call -------------------------------------------------------------------------------------


def _call(step: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    """The call by shapes, and the step lowered for it."""
    import jax

    if not hasattr(step, "lower"):
        raise TypeError(
            "verify needs a jitted function or one that watch_hbm returned (something with .lower)"
        )
    given, tree = jax.tree.flatten((args, kwargs))
    leaves = [_shape(leaf) for leaf in given]
    shaped_args, shaped_kwargs = jax.tree.unflatten(tree, leaves)
    lowered = step.lower(*shaped_args, **shaped_kwargs)
    lowered = getattr(lowered, "lowered", lowered)
    info = call_info(lowered)
    arrays = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct))
    placed = _placed(leaves, arrays, lowered, info)
    return _Call(step, tuple(placed), arrays, tree, lowered, info)


def _shape(leaf: Any) -> Any:
    """An array by its shape, dtype and sharding; anything else as it is."""
    import jax

    if isinstance(leaf, jax.ShapeDtypeStruct) or not (
        hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    ):
        return leaf
    committed = isinstance(leaf, jax.Array) and getattr(leaf, "committed", True)
    sharding = leaf.sharding if committed else None
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _placed(leaves: list[Any], arrays: Sequence[int], lowered: Any, info: CallInfo) -> list[Any]:
    """The leaves, those without a sharding with the one that the step gives them."""
    import jax

    details = getattr(getattr(lowered, "_lowering", None), "compile_args", {})
    given = iter(details.get("in_shardings") or ())
    by_leaf = [next(given, None) if leaf.used else None for leaf in info.arguments]
    if len(by_leaf) != len(arrays):
        return leaves
    placed = list(leaves)
    for index, sharding in zip(arrays, by_leaf):
        leaf = leaves[index]
        if leaf.sharding is None and isinstance(sharding, jax.sharding.Sharding):
            placed[index] = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return placed


def _donated(call: _Call) -> set[int]:
    """The positions among the array leaves that the step donates already."""
    if len(call.info.arguments) != len(call.arrays):
        return set()
    return {i for i, leaf in enumerate(call.info.arguments) if leaf.donated}


def _lower(
    call: _Call,
    fun: Callable[..., Any],
    shapes: Sequence[Any],
    donate: set[int],
    out_shardings: Any,
) -> Any:
    """A function lowered for array leaves alone; what is no array is closed over."""
    import jax

    def flat(*arrays: Any) -> Any:
        leaves = list(call.leaves)
        for index, array in zip(call.arrays, arrays):
            leaves[index] = array
        args, kwargs = jax.tree.unflatten(call.tree, leaves)
        return fun(*args, **kwargs)

    flat.__name__ = getattr(call.step, "__name__", "step")
    options: dict[str, Any] = {"donate_argnums": tuple(sorted(donate))}
    wanted: Any = jax.tree.structure(out_shardings, is_leaf=lambda leaf: leaf is None)
    if wanted == jax.tree.structure(jax.eval_shape(flat, *shapes)):
        options["out_shardings"] = out_shardings
    return jax.jit(flat, **options).lower(*shapes)


def _out_shardings(call: _Call) -> Any:
    """The shardings of the step's outputs, in their tree; None for those that are not given."""
    import jax

    details = getattr(getattr(call.lowered, "_lowering", None), "compile_args", {})
    given = list(details.get("out_shardings") or ())
    known = [s if isinstance(s, jax.sharding.Sharding) else None for s in given]
    structure: Any = jax.tree.structure(call.lowered.out_info)
    return jax.tree.unflatten(structure, known) if structure.num_leaves == len(known) else None


# --- the changes ----------------------------------------------------------------------------------


def _changed(
    call: _Call, evidence: Evidence | None, wanted: str, paths: tuple[str, ...], axis: str | None
) -> tuple[str, Any]:
    """What was changed, and the changed program lowered (or why it could not be)."""
    makers: dict[str, Callable[[], tuple[str, Callable[[], Any]]]] = {
        "donation": lambda: _donation(call, evidence, paths),
        "half-batch": lambda: _half_batch(call, evidence),
        "bfloat16": lambda: _bfloat16(call, paths),
        "sharding": lambda: _sharding(call, evidence, paths, axis),
    }
    what, lower = makers[wanted]()
    return what, _attempt(lower)


def _variant(call: _Call, variant: Callable[..., Any]) -> tuple[str, Any]:
    """The user's own variant: by its own jit, or with the step's donation and shardings."""
    import jax

    name = f"the variant {getattr(variant, '__name__', 'given')}"
    if hasattr(variant, "lower"):
        args, kwargs = jax.tree.unflatten(call.tree, call.leaves)
        return name, _attempt(lambda: variant.lower(*args, **kwargs))
    donate = _donated(call)
    out = _out_shardings(call)
    return name, _attempt(lambda: _lower(call, variant, call.shapes, donate, out))


def _attempt(lower: Callable[[], Any]) -> Any:
    """The program lowered; where it cannot be traced with the change, why."""
    try:
        return lower()
    except Exception as error:  # the user's code may not take other shapes or dtypes
        return _Compiled(None, None, None, f"{type(error).__name__}: {_first_line(error)}")


def _donation(
    call: _Call, evidence: Evidence | None, paths: tuple[str, ...]
) -> tuple[str, Callable[[], Any]]:
    """Donation of the arguments that come back updated."""
    pairs = undonated(evidence) if evidence is not None else []
    advised = {argument.leaf.path for argument, _ in pairs if argument.leaf is not None}
    chosen = _chosen(call, paths) if paths else {
        i for i, leaf in enumerate(call.info.arguments) if leaf.path in advised}
    if not chosen:
        raise _NothingToChange("no argument comes back in an output of its own, undonated")
    shapes, donate, out = call.shapes, _donated(call) | chosen, _out_shardings(call)
    return f"donation of {_names(call, chosen)}", lambda: _lower(
        call, call.step, shapes, donate, out)


def _half_batch(call: _Call, evidence: Evidence | None) -> tuple[str, Callable[[], Any]]:
    """Half the first dimension of the batch's arguments."""
    import jax

    arguments: tuple[Argument, ...] = evidence.batch[0] if evidence is not None else ()
    advised = {argument.leaf.path for argument in arguments if argument.leaf is not None}
    chosen = {i for i, leaf in enumerate(call.info.arguments) if leaf.path in advised}
    if not chosen:
        raise _NothingToChange("no argument has a dimension of its own that could be the batch")
    shapes = call.shapes
    for i in chosen:
        old = shapes[i]
        halved = (max(1, old.shape[0] // 2), *old.shape[1:])
        shapes[i] = jax.ShapeDtypeStruct(halved, old.dtype, sharding=old.sharding)
    donate, out = _donated(call), _out_shardings(call)
    return f"half the batch of {_names(call, chosen)}", lambda: _lower(
        call, call.step, shapes, donate, out)


def _bfloat16(call: _Call, paths: tuple[str, ...]) -> tuple[str, Callable[[], Any]]:
    """bfloat16 in place of wider float arguments."""
    import jax
    import jax.numpy as jnp

    shapes = call.shapes
    among = _chosen(call, paths) if paths else set(range(len(shapes)))
    wide = {i for i in among if jnp.issubdtype(shapes[i].dtype, jnp.floating)
            and shapes[i].dtype.itemsize > 2}
    if not wide:
        raise _NothingToChange("no argument is a float wider than bfloat16")
    for i in wide:
        old = shapes[i]
        shapes[i] = jax.ShapeDtypeStruct(old.shape, jnp.bfloat16, sharding=old.sharding)
    donate, out = _donated(call), _out_shardings(call)
    return f"bfloat16 {_names(call, wide)}", lambda: _lower(call, call.step, shapes, donate, out)


def _sharding(
    call: _Call, evidence: Evidence | None, paths: tuple[str, ...], axis: str | None
) -> tuple[str, Callable[[], Any]]:
    """Replicated arguments, and the outputs that they come back in, over one axis of the mesh."""
    import jax

    mesh = next((m for s in call.shapes if (m := getattr(s.sharding, "mesh", None))), None)
    sizes = dict(mesh.shape) if mesh is not None else {}
    over = axis or max(sizes, key=lambda name: sizes[name], default="")
    if mesh is None or over not in sizes:
        raise _NothingToChange(f"the arguments lie on no mesh with an axis {over!r}")
    whole = {a.leaf.path for a in (evidence.arguments if evidence is not None else ())
             if a.leaf is not None and is_replicated(a.sharding, len(a.dims))}
    among = _chosen(call, paths) if paths else {
        i for i, leaf in enumerate(call.info.arguments) if leaf.path in whole}
    shapes, moved = call.shapes, {}
    for i in among:
        spec = _spread(shapes[i].shape, over, sizes[over])
        if spec is not None:
            sharding = jax.sharding.NamedSharding(mesh, spec)
            moved[i] = sharding
            shapes[i] = jax.ShapeDtypeStruct(shapes[i].shape, shapes[i].dtype, sharding=sharding)
    if not moved:
        raise _NothingToChange(f"no replicated argument has a dimension that {over!r} divides")
    alike = {(shapes[i].shape, shapes[i].dtype): sharding for i, sharding in moved.items()}
    out = jax.tree.map(
        lambda info, given: alike.get((tuple(info.shape), info.dtype), given),
        call.lowered.out_info,
        _out_shardings(call),
        is_leaf=lambda leaf: leaf is None,
    ) if _out_shardings(call) is not None else None
    fun, donate = _unjitted(call.step), _donated(call)
    return f"{_names(call, set(moved))} over {over!r}", lambda: _lower(
        call, fun, shapes, donate, out)


def _spread(shape: tuple[int, ...], axis: str, parts: int) -> Any:
    """A PartitionSpec of the largest dimension that the axis divides; None where there is none."""
    from jax.sharding import PartitionSpec

    fitting = [length for length in shape if length % parts == 0 and length >= parts]
    if not fitting:
        return None
    dimension = shape.index(max(fitting))
    return PartitionSpec(*[axis if i == dimension else None for i in range(len(shape))])


def _unjitted(step: Any) -> Callable[..., Any]:
    """The plain function in a jitted one, free of its out_shardings."""
    found: Callable[..., Any] = inspect.unwrap(step)
    return found


def _chosen(call: _Call, paths: tuple[str, ...]) -> set[int]:
    """The positions of the leaves whose paths begin with one of these."""
    return {i for i, leaf in enumerate(call.info.arguments) if leaf.path.startswith(paths)}


def _names(call: _Call, chosen: set[int]) -> str:
    """The paths of a few leaves, and how many more."""
    paths = [call.info.arguments[i].path for i in sorted(chosen)]
    more = len(paths) - 2
    return ", ".join(paths[:2]) + (f" and {more} more" if more > 0 else "")


# --- compiling ------------------------------------------------------------------------------------


def _compile(lowered: Any, timeout_s: float) -> _Compiled:
    """Compile, and read the program from XLA's dump, failed or not; gives up after timeout_s."""
    found: list[_Compiled] = []
    thread = threading.Thread(
        target=lambda: found.append(_dumped(lowered)), name="hbmwatch-verify", daemon=True
    )
    thread.start()
    thread.join(timeout_s)
    if found:
        return found[0]
    return _Compiled(None, None, None, f"still compiling after {timeout_s:g} s")


def _dumped(lowered: Any) -> _Compiled:
    """Compile into a folder of its own, and read what XLA left there."""
    with tempfile.TemporaryDirectory(prefix="hbmwatch-verify-") as folder:
        options = {
            "xla_dump_to": folder,
            "xla_dump_hlo_as_proto": True,
            "xla_dump_hlo_pass_re": "^$",
        }
        error = ""
        message = None
        try:
            lowered.compile(compiler_options=options)
        except Exception as failure:  # what does not fit is an answer
            error = str(failure)
            message = parse_oom(error)
        dumped = sorted(Path(folder).glob("*after_optimizations.hlo.pb"), key=_size)
        if not dumped:
            return _Compiled(None, None, message, error or "XLA left no dump of the program")
        program = _hlo.parse_program(dumped[-1].read_bytes(), "verified")
    return _Compiled(program, _hlo.peak_summary(program), message, error)


def _size(path: Path) -> int:
    return path.stat().st_size


def _evidence(before: _Compiled, info: CallInfo) -> Evidence | None:
    """The figures of the program as it was; None where it could not be compiled."""
    if before.program is None or before.summary is None:
        return None
    flow = Flow(before.program, before.summary)
    return Evidence(before.program, before.summary, before.message or OomMessage(""), info, flow)


def _verification(
    what: str, before: _Compiled, after: _Compiled, limit_bytes: int | None, seconds: float
) -> Verification:
    """What both compiles say together."""
    known = [m.limit_bytes for m in (after.message, before.message) if m is not None]
    limit = limit_bytes or next((size for size in known if size is not None), None)
    total = after.summary.total_allocation_bytes if after.summary is not None else None
    fits: bool | None = None
    if after.message is not None:
        fits = False
    elif limit is not None and total is not None:
        fits = total <= limit
    return Verification(
        change=what,
        fits=fits,
        peak_bytes_before=before.summary.peak_bytes if before.summary is not None else None,
        peak_bytes=after.summary.peak_bytes if after.summary is not None else None,
        total_bytes=total,
        limit_bytes=limit,
        seconds=seconds,
        error=after.error.splitlines()[0] if after.error else "",
    )


def _first_line(error: Exception) -> str:
    """The first line of an error's text."""
    return (str(error).splitlines() or [""])[0]
