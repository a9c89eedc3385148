"""Donate the arguments that are returned updated, so that old and new values share their memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Literal

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings.donation import donate_keyword, undonated
from hbmwatch._preflight.changes.call import Call, Leaf, NothingToChange, names, path_keys, type_of
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits
from hbmwatch._records.sizes import format_size

# What is donated has to be this share of the peak, unless the step then fits by it.
_LEAST_GAIN = 0.03
# Arguments with a smaller part of the bytes of all are not worth a try of their own.
_LEAST_PART = 100
# What equinox.filter_jit calls the arrays that it does not donate.
_EQUINOX = ("dynamic_nodonate['first']", "dynamic_nodonate['rest']")


@dataclass(frozen=True, slots=True, kw_only=True)
class Donate(Edit):
    """Donation of some arguments, whose outputs get their shardings."""

    arguments: tuple[int, ...]

    def on(self, call: Call) -> Call:
        """The call with these arguments donated.

        A donated buffer is reused only by an output with the same sharding, so an output that XLA
        may place freely gets the sharding of its argument.
        """
        pairs = call.updated()
        donated = {i: dataclasses.replace(call.arguments[i], donated=True) for i in self.arguments}
        placed = {
            pairs[i]: call.outputs[pairs[i]].at(call.arguments[i].sharding)
            for i in self.arguments
            if i in pairs and call.mesh is not None and call.arguments[i].sharding is not None
        }
        return call.with_arguments(donated).with_outputs(placed)


def _edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    """What is updated element by element; then also what is returned in the same form."""
    if asked.paths:
        yield _edit(call, asked.chosen(call))
        return
    pairs = undonated(facts) if facts is not None else []
    advised = {argument.leaf.path for argument, _ in pairs if argument.leaf is not None}
    updated = {i for i, leaf in enumerate(call.arguments) if leaf.path in advised}
    others = _returned(call) - updated
    freed = sum(call.arguments[i].nbytes for i in updated | others)
    if (updated or others) and _is_too_little(freed, facts, asked.limit_bytes):
        raise NothingToChange(
            f"what the step could donate, {format_size(freed)}, is too little to make it fit"
        )
    if updated:
        yield _edit(call, updated)
    least = sum(leaf.nbytes for leaf in call.arguments) // _LEAST_PART
    if others and sum(call.arguments[i].nbytes for i in others) >= least:
        yield _edit(call, updated | others, others)
    elif not updated:
        raise NothingToChange(
            "nothing to donate: the step updates and returns no undonated argument"
        )


def _is_too_little(freed: int, facts: ProgramFacts | None, limit: int | None) -> bool:
    """Whether the step needs nearly as much without the old values."""
    if facts is None or limit is None:
        return False
    return freed < _LEAST_GAIN * facts.peak_bytes and facts.peak_bytes - freed > limit


def _edit(call: Call, chosen: Iterable[int], unsure: Collection[int] = ()) -> Donate:
    """The donation of some arguments, of which it is unsure whether the caller needs some later."""
    numbers = tuple(sorted(chosen))
    leaves = [call.arguments[i] for i in numbers]
    code = f"{_keyword(leaves)}, and use only the returned values afterwards"
    if unsure:
        code += f" (only if nothing needs the old {_roots(call, unsure)} after the call)"
    return Donate(what=f"donating {names(leaves)}", code=code, arguments=numbers)


def _keyword(leaves: Sequence[Leaf]) -> str:
    """The jit that donates them: equinox knows the first argument and the others."""
    first, others = (any(leaf.path.startswith(name) for leaf in leaves) for name in _EQUINOX)
    if first or others:
        return f'equinox.filter_jit(step, donate="{"all" if first else "all-except-first"}")'
    nameless = any(leaf.positional for leaf in leaves)
    return f"jax.jit(step, {donate_keyword([leaf.path for leaf in leaves], nameless)})"


def _roots(call: Call, chosen: Iterable[int]) -> str:
    """The arguments of the function that some leaves belong to."""
    return ", ".join(dict.fromkeys(path_keys(call.arguments[i].name)[0] for i in sorted(chosen)))


# --- returned in the same form --------------------------------------------------------------------


def _returned(call: Call) -> set[int]:
    """Undonated arguments whose whole tree is also a part of the result that depends on it.

    Such are a cache whose rows move, or a buffer that is written to. It may also be the input of an
    autoencoder, so the code says what the donation asks for.
    """
    forms = _forms(call.outputs)
    read = _reads(call)
    found: set[int] = set()
    by_root = [*_by_root(call, lambda leaf: leaf.path), *_by_root(call, lambda leaf: leaf.name)]
    for form in by_root:
        types = frozenset((keys, type_of(call.arguments[i])) for keys, i in form.items())
        for outputs in forms.get(types, ()):
            if all(read[outputs[keys]] >> i & 1 for keys, i in form.items()):
                found |= {i for i in form.values() if not call.arguments[i].donated}
    return found


def _by_root(call: Call, path: Callable[[Leaf], str]) -> Iterator[dict[tuple[str, ...], int]]:
    """The trees of the arguments, each as keys -> the argument, by one of the paths of a leaf."""
    found: dict[str, dict[tuple[str, ...], int]] = {}
    for i, leaf in enumerate(call.arguments):
        root, *keys = path_keys(path(leaf))
        found.setdefault(root, {})[tuple(keys)] = i
    yield from found.values()


def _forms(outputs: tuple[Leaf, ...]) -> dict[Any, list[dict[tuple[str, ...], int]]]:
    """The trees in the result: keys and types -> the outputs by their keys, for each such tree."""
    trees: dict[tuple[str, ...], dict[tuple[str, ...], int]] = {}
    for o, leaf in enumerate(outputs):
        keys = path_keys(leaf.path)
        for length in range(1, len(keys) + 1):
            trees.setdefault(keys[:length], {})[keys[length:]] = o
    found: dict[Any, list[dict[tuple[str, ...], int]]] = {}
    for tree in trees.values():
        types = frozenset((keys, type_of(outputs[o])) for keys, o in tree.items())
        found.setdefault(types, []).append(tree)
    return found


def _reads(call: Call) -> list[int]:
    """For each output the arguments that it depends on, as the bits of a number."""
    jaxpr = call.jaxpr.jaxpr
    first = len(call.constants)
    bits = {v: 1 << i for i, v in enumerate(jaxpr.invars[first:])}

    def of(atoms: Sequence[Any]) -> int:
        together = 0
        for v in atoms:
            together |= 0 if isinstance(v, Literal) else bits.get(v, 0)
        return together

    for equation in jaxpr.eqns:
        together = of(equation.invars)
        bits.update((v, together) for v in equation.outvars)
    return [of((v,)) for v in jaxpr.outvars]


DONATION = Change("donation", "A", "the same program: the values are the same", _edits)
