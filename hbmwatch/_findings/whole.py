"""What needs a matrix as a whole, so that blocks of its rows cannot be computed one by one."""

from __future__ import annotations

from hbmwatch._findings.candidate import Candidate

_PRODUCTS = "with a function that computes the product of the matrix and a vector in blocks"
_LARGEST = (
    "for a few of the largest eigenvalues, jax.experimental.sparse.linalg.lobpcg_standard, "
    f"{_PRODUCTS}"
)
# The operations of jax.lax.linalg by the last part of their op_name, and what replaces them.
_FACTORIZATIONS = {
    "cholesky": (
        "A Cholesky factorization",
        f"to solve a linear system, jax.scipy.sparse.linalg.cg, {_PRODUCTS}",
    ),
    "lu": (
        "An LU factorization",
        f"to solve a linear system, jax.scipy.sparse.linalg.gmres, {_PRODUCTS}",
    ),
    "eigh": ("An eigendecomposition", _LARGEST),
    "eig": ("An eigendecomposition", ""),
    "svd": ("A singular value decomposition", ""),
    "geqrf": ("A QR factorization", ""),
    "qr": ("A QR factorization", ""),
}
_ALONG_AN_AXIS = {
    "sort": "is not sorted",
    "fft": "is not transformed",
    "triangular_solve": "no triangular solve mixes",
}


def factorization(candidate: Candidate) -> str:
    """The factorization that reads a buffer, by its op_name ("cholesky"); "" for none."""
    for reader in candidate.facts.buffers.readers(candidate.first):
        parts = reader.metadata.op_name.split("/")
        found = next((part for part in parts if part in _FACTORIZATIONS), "")
        if found:
            return found
    return ""


def reader_named(name: str) -> str:
    """A factorization in words ("A Cholesky factorization")."""
    return _FACTORIZATIONS[name][0]


def instead_of(name: str) -> str:
    """What to use in place of a factorization of the whole matrix; "" where nothing is known."""
    return _FACTORIZATIONS[name][1]


def is_part_of_one(candidate: Candidate) -> bool:
    """Whether a buffer is inside of one operation, which the compiler writes out in several."""
    name = candidate.first.name
    expanded = _last(name) in _FACTORIZATIONS or _last(name) in _ALONG_AN_AXIS
    return expanded and any(user.metadata.op_name == name for user in candidate.uses)


def _last(op_name: str) -> str:
    """The operation at the end of an op_name, without the jit that it is in."""
    return op_name.rpartition("/")[2].removeprefix("jit(").rstrip(")")


def along_an_axis(candidate: Candidate) -> str:
    """What holds of an axis that blocks may cut ("is not sorted"); "" where all are alike."""
    for reader in candidate.uses:
        for word in (reader.opcode, _last(reader.metadata.op_name)):
            if word in _ALONG_AN_AXIS:
                return _ALONG_AN_AXIS[word]
    return ""
