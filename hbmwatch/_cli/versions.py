"""`hbmwatch --version`: the versions of hbmwatch, JAX and its plugins."""

from __future__ import annotations

import argparse
import contextlib

from hbmwatch._version import __version__

_PACKAGES = ("jax", "jaxlib", "libtpu", "xprof")


class ShowVersions(argparse.Action):
    """Prints the versions of what is installed, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> None:
        print("\n".join(f"{name} {version}" for name, version in _versions().items()))
        parser.exit()


def _versions() -> dict[str, str]:
    """The versions of what is installed, without importing any of it."""
    import importlib.metadata  # as slow to load as all of `explain`

    versions = {"hbmwatch": __version__}
    plugins = {e.dist.name for e in importlib.metadata.entry_points(group="jax_plugins") if e.dist}
    for package in (*_PACKAGES, *sorted(plugins)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
