"""Each private name of JAX that we read is there, so that a report is as good as it can be.

Where one is gone a fallback gives less: paths as "args[0]['w']", no mesh, a second compile. A new
version of JAX fails here first.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.monitoring
import jax.numpy as jnp
import pytest

from hbmwatch._jax import compiles
from hbmwatch._jax.errors import is_mosaic_error
from hbmwatch._jax.executable import direct_call, hlo_module
from hbmwatch._jax.lowering import LoweringDetails, lowering_details
from tests.test_layers import MODULES, foreign_private_names

X = jnp.ones(4)
TRACED: Any = jax.jit(lambda x, unused: {"y": x + 1}).trace(X, X)
LOWERED = TRACED.lower()
COMPILED = LOWERED.compile()
COMPILED(X, X)
EQUATION: Any = jax.make_jaxpr(lambda x: x + 1)(X).jaxpr.eqns[0]

# Names that not every supported version has: jax 0.7 moved the devices.
MOVED = jax.__version_info__ >= (0, 7)
ABSENT = (
    {"compile_args['device_assignment']", "Traced._args_flat"}
    if MOVED
    else {"MeshComputation._device_list", "Traced._consts"}
)


def module(name: str) -> Any:
    """A module of JAX."""
    return importlib.import_module(name)


def source_info() -> Any:
    """The module that keeps the user's frames."""
    return module("jax._src.source_info_util")


def lowering() -> Any:
    """The computation in a lowered program."""
    return LOWERED._lowering


def compile_args() -> Any:
    """What JAX compiles the computation with."""
    return lowering().compile_args


def runtime_executable() -> Any:
    """The runtime's part of a compiled program."""
    return COMPILED.runtime_executable()


def dimension() -> Any:
    """A symbolic dimension."""
    (symbol,) = jax.export.symbolic_shape("b")
    return symbol


def jit_info() -> Any:
    """What jax.jit keeps of its keywords."""
    jitted: Any = jax.jit(lambda x: x)
    return jitted._jit_info


NAMES: dict[str, Callable[[], object]] = {
    "Lowered._lowering": lowering,
    "MeshComputation.compile_args": compile_args,
    "MeshComputation._device_list": lambda: lowering()._device_list,
    "compile_args['all_args_info']": lambda: compile_args()["all_args_info"],
    "compile_args['kept_var_idx']": lambda: compile_args()["kept_var_idx"],
    "compile_args['num_devices']": lambda: compile_args()["num_devices"],
    "compile_args['in_shardings']": lambda: compile_args()["in_shardings"],
    "compile_args['out_shardings']": lambda: compile_args()["out_shardings"],
    "compile_args['device_assignment']": lambda: compile_args()["device_assignment"],
    "AllArgsInfo.debug_info": lambda: compile_args()["all_args_info"].debug_info,
    "DebugInfo.arg_names": lambda: compile_args()["all_args_info"].debug_info.arg_names,
    "DebugInfo.result_paths": lambda: compile_args()["all_args_info"].debug_info.result_paths,
    "ArgInfo._aval": lambda: jax.tree_util.tree_leaves(LOWERED.args_info)[0]._aval,
    "Compiled._call": lambda: COMPILED._call,
    "Compiled.runtime_executable": lambda: runtime_executable().hlo_modules(),
    "Array.unsafe_buffer_pointer": lambda: X.unsafe_buffer_pointer(),
    "_profiler.ProfilerSession": lambda: module("jax._src.lib")._profiler.ProfilerSession,
    "profiler._profile_state": lambda: module("jax._src.profiler")._profile_state,
    "_ProfileState.lock": lambda: module("jax._src.profiler")._profile_state.lock,
    "_ProfileState.reset": lambda: module("jax._src.profiler")._profile_state.reset,
    "compiler.compile_or_get_cached": lambda: module("jax._src.compiler").compile_or_get_cached,
    "Traced._consts": lambda: TRACED._consts,
    "Traced._args_flat": lambda: TRACED._args_flat,
    "Traced._num_consts": lambda: TRACED._num_consts,
    "Traced.lower": lambda: jax.stages.Traced.lower,
    "PjitFunction._jit_info": lambda: jit_info(),
    "PjitInfo.static_argnums": lambda: jit_info().static_argnums,
    "PjitInfo.static_argnames": lambda: jit_info().static_argnames,
    "PjitInfo.compiler_options_kvs": lambda: jit_info().compiler_options_kvs,
    "ModuleContext.get_backend": lambda: (
        module("jax._src.interpreters.mlir").ModuleContext.get_backend
    ),
    "ad.linearize": lambda: module("jax._src.interpreters.ad").linearize,
    "config.pgle_profiling_runs": lambda: module("jax._src.config").pgle_profiling_runs,
    "config.enable_pgle": lambda: module("jax._src.config").enable_pgle,
    "linear_util.wrap_init": lambda: module("jax._src.linear_util").wrap_init,
    "source_info_util.current": lambda: source_info().current(),
    "source_info_util.register_exclusion": lambda: source_info().register_exclusion,
    "source_info_util.user_context": lambda: source_info().user_context,
    "source_info_util.current_name_stack": lambda: source_info().current_name_stack(),
    "JaxprEqn.source_info.traceback": lambda: EQUATION.source_info.traceback,
    "JaxprEqn.source_info.name_stack": lambda: EQUATION.source_info.name_stack,
    "JaxprEqn.ctx.manager": lambda: EQUATION.ctx.manager,
    "Primitive.get_bind_params": lambda: EQUATION.primitive.get_bind_params({}),
    "mlir.module_to_bytecode": lambda: module("jax._src.interpreters.mlir").module_to_bytecode,
    "_DimExpr._get_vars": lambda: dimension()._get_vars(),
    "_DimExpr._evaluate": lambda: dimension()._evaluate({"b": 2}),
    "xla_client.make_tfrt_tpu_c_api_device_topology": lambda: (
        module("jaxlib.xla_client").make_tfrt_tpu_c_api_device_topology
    ),
    "xla_client.DeviceTopology._make_compile_only_devices": lambda: (
        module("jaxlib._jax").DeviceTopology._make_compile_only_devices
    ),
    "xla_client.load_pjrt_plugin_dynamically": lambda: (
        module("jaxlib.xla_client").load_pjrt_plugin_dynamically
    ),
    "xla_client.initialize_pjrt_plugin": lambda: module("jaxlib.xla_client").initialize_pjrt_plugin,
    "xla_client.DeviceAssignment": lambda: module("jaxlib.xla_client").DeviceAssignment.create,
    "_jax.DeviceList": lambda: module("jaxlib._jax").DeviceList,
    "_jax.CompileOnlyPyClient": lambda: module("jaxlib._jax").CompileOnlyPyClient,
    "mosaic.MosaicError": lambda: module("jax._src.pallas.mosaic.error_handling").MosaicError,
}


@pytest.mark.parametrize("name", sorted(NAMES.keys() - ABSENT))
def test_a_private_name_is_there(name: str) -> None:
    """This version of JAX has it."""
    assert NAMES[name]() is not None


def test_every_private_name_that_is_read_is_in_the_table() -> None:
    """What the package reads of JAX's objects with a leading underscore has a test above."""
    read = {name for module in MODULES for name in foreign_private_names(module)}
    of_python = {"_exit"}

    assert sorted(name for name in read - of_python if not any(name in key for key in NAMES)) == []


@pytest.mark.parametrize("name", sorted(ABSENT))
def test_a_name_that_has_moved_is_not_there(name: str) -> None:
    """Where it is absent by design it is absent, so that the table above stays true."""
    with pytest.raises((AttributeError, KeyError)):
        NAMES[name]()


def test_a_lowered_program_has_all_its_details() -> None:
    """What the names give, as a whole: nothing of it has fallen back."""
    details = lowering_details(LOWERED)

    assert (details.argument_names, details.output_names) == (("x", "unused"), ("result['y']",))
    assert (details.kept_arguments, details.device_count) == (frozenset({0}), 1)
    assert (len(details.in_shardings), len(details.out_shardings)) == (1, 1)
    assert details.devices == (jax.devices()[0],)


def test_an_object_of_another_library_has_no_details() -> None:
    """Nothing is known of it, and nothing raises."""
    fields = LoweringDetails.__slots__

    found = lowering_details(object())

    assert [getattr(found, name) for name in fields] == [
        getattr(LoweringDetails(), name) for name in fields
    ]


def test_a_compiled_program_has_a_direct_call_and_a_module() -> None:
    """The direct call gives what the program gives; the module has the function's name."""
    call = direct_call(COMPILED)
    name, serialized = hlo_module(COMPILED)

    assert call is not None and call(X, X)["y"].tolist() == [2.0] * 4
    assert direct_call(jax.jit(jnp.sin)) is None
    assert name.startswith("jit__lambda") and len(serialized) > 100


def test_mosaic_s_error_is_known_by_its_name() -> None:
    """The class that Pallas raises when a kernel does not compile."""
    error = module("jax._src.pallas.mosaic.error_handling").MosaicError("no room")

    assert is_mosaic_error(error)
    assert not is_mosaic_error(ValueError("no room"))


def test_the_events_of_a_compile_are_recorded() -> None:
    """JAX tells its listeners of lowering and of compiling under the names that we know."""
    seen: list[str] = []

    def listen(event: str, duration_secs: float, **_: object) -> None:
        seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    jax.jit(lambda x: x * 3).lower(X).compile()

    assert {compiles._LOWERED, compiles._BACKEND_COMPILE} <= set(seen)
