"""`%load_ext hbmwatch`: an OOM in any cell of IPython or Jupyter shows its report."""

from __future__ import annotations

from typing import Any

import jax

from hbmwatch._explain.errors import report_of
from hbmwatch._watch.decorator import watch_hbm

# jaxlib raises ValueError for an OOM in a warm call.
_MAY_BE_OOMS = (jax.errors.JaxRuntimeError, ValueError)


def load_ipython_extension(shell: Any) -> None:
    """Show a report for each OOM; IPython calls this for `%load_ext hbmwatch`.

    Args:
        shell: The IPython.InteractiveShell.
    """
    shell.set_custom_exc(_MAY_BE_OOMS, _show)


def unload_ipython_extension(shell: Any) -> None:
    """Show OOMs as IPython does; IPython calls this for `%unload_ext hbmwatch`."""
    shell.set_custom_exc((), None)


def _show(shell: Any, kind: Any, error: Any, frames: Any, tb_offset: int | None = None) -> None:
    """Show an error that a cell raised, with its report if it is an OOM."""
    shown = error
    if report_of(error) is None:
        try:
            with watch_hbm():
                raise error
        except Exception as explained:
            shown = explained
    report = report_of(shown)
    shell.showtraceback((kind, error, frames), tb_offset=tb_offset)
    if report is not None and report_of(error) is None:
        from IPython.display import display

        display(report)  # type: ignore[no-untyped-call]
