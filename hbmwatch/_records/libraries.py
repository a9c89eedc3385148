"""Which files are the user's code, and which a library's."""

from __future__ import annotations

import functools
import re

# Other installed packages are the user's: containers `pip install` their training code.
LIBRARIES = frozenset(
    """
    IPython _pytest absl beartype blackjax brax chex click cloudpickle clu dask decorator
    diffrax diffusers distrax dm_env dm_pix e3nn_jax einops elegy equinox etils evosax evox fedjax
    fiddle fire flax flaxformer gin google gpjax grain gymnasium gymnax haiku hbmwatch hydra
    ipykernel jax jax_dataclasses jax_md jax_triton jaxlib jaxlie jaxopt jaxtyping jmp joblib jraph
    kauldron keras keras_core lightning lineax mctx ml_collections ml_dtypes netket neural_tangents
    numpy numpyro objax opt_einsum optax optimistix orbax oryx ott paxml penzai pluggy praxis pymc
    pytensor pytest quax qwix ray rlax scipy seqio sklearn submitit t5x tensorboardX
    tensorflow tensorflow_probability tensorstore tf_keras tinygp tokamax toolz torch torch_xla
    torchax tqdm transformer_engine transformers trax treescope treex typeguard typer wandb wrapt
    xprof
    """.split()
)
_INSTALLED = re.compile(r"/(?:site|dist)-packages/(\w+)", re.IGNORECASE)
# Python's library, libraries that run from a checkout, and code without a file but for cells.
_OTHER_LIBRARY = re.compile(
    r"/lib(?:64)?/python3(?:\.\d+)?/|/jax/_src/|/jaxlib/"
    r"|^<(?!stdin>|console>|ipython-input|python-input)"
)
# All but the user's part of `hbmwatch demo`; a user may have a folder of this name too.
_OWN = re.compile(
    r"/hbmwatch/_(?:analysis|cli/(?!demo\.)|explain|findings|jax|messages|preflight|profiles|records"
    r"|report|watch|xla)/?\b"
)
_DEMO = "/hbmwatch/_cli/demo."


@functools.lru_cache(maxsize=1 << 14)
def is_own(path: str) -> bool:
    """Whether a file is hbmwatch's, whose frames no stack shows.

    Args:
        path: The path of a file; more may follow it, such as ":12" for a line.
    """
    return bool(_OWN.search(path.replace("\\", "/")))


@functools.lru_cache(maxsize=1 << 14)
def is_library(path: str) -> bool:
    """Whether a file is in a library; buffers of one program share most of their frames.

    The user's code is everything but Python's standard library and the packages in LIBRARIES.

    Args:
        path: The path of a file; more may follow it, such as ":12" for a line.
    """
    path = path.replace("\\", "/")
    if _DEMO in path:
        return False
    if is_own(path):
        return True
    installed = _INSTALLED.search(path)
    if installed:
        return installed[1] in LIBRARIES
    return bool(_OTHER_LIBRARY.search(path))
