"""`%load_ext hbmwatch`: an OOM in any cell of IPython or Jupyter shows its report; `%%hbm`."""

from __future__ import annotations

import ast
import shlex
from typing import Any

import jax

from hbmwatch._explain.errors import report_of
from hbmwatch._watch.decorator import watch_hbm

# jaxlib raises ValueError for an OOM in a warm call.
_MAY_BE_OOMS = (jax.errors.JaxRuntimeError, ValueError)


def load_ipython_extension(shell: Any) -> None:
    """Show a report for each OOM, and add `%%hbm`; IPython calls this for `%load_ext hbmwatch`.

    Args:
        shell: The IPython.InteractiveShell.
    """
    shell.set_custom_exc(_MAY_BE_OOMS, _show)

    def hbm(line: str, cell: str) -> Any:
        """Run a cell inside `with watch_hbm(LOGDIR)`.

        %%hbm [LOGDIR]

        The cell waits for the arrays that it makes, so it also raises an out-of-memory error that
        is asynchronous. LOGDIR is the folder for the profile; by default a temporary folder.
        """
        return _run_watched(shell, line, cell)

    shell.register_magic_function(hbm, magic_kind="cell")


def unload_ipython_extension(shell: Any) -> None:
    """Show OOMs as IPython does; IPython calls this for `%unload_ext hbmwatch`."""
    shell.set_custom_exc((), None)
    shell.magics_manager.magics["cell"].pop("hbm", None)


def _run_watched(shell: Any, line: str, cell: str) -> Any:
    """Run a cell's code in a watch; the value of its last line, which IPython shows."""
    folders = shlex.split(line)
    if len(folders) > 1:
        from IPython.core.error import UsageError

        raise UsageError("%%hbm takes one argument at most: the folder for the profile")
    code = "\n" + shell.transform_cell(cell)  # so that lines count from that of the magic
    name = shell.compile.cache(code, shell.execution_count, raw_code=cell)
    tree = shell.transform_ast(shell.compile.ast_parse(code, filename=name))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with watch_hbm(*folders):
        exec(shell.compile(tree, name, "exec"), shell.user_ns)
        if last is not None:
            value = eval(shell.compile(ast.Expression(last.value), name, "eval"), shell.user_ns)
    return value


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
    # A terminal has the text already, as a note of the error; a notebook can show the page.
    if report is not None and (report_of(error) is None or hasattr(shell, "kernel")):
        from IPython.display import display

        display(report)  # type: ignore[no-untyped-call]
