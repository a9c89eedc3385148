"""What a buffer is for, by its pytree path and its op_name."""

from __future__ import annotations

import pytest

from hbmwatch import PeakOp
from hbmwatch._records.roles import ROLES, argument_role, role_of

OPTIMIZER, PARAMETERS, CACHE, UNKNOWN = "optimizer state", "parameters", "cache", ""

# Paths of real train states, by library, and of hand-written ones.
PATHS = {
    # flax.linen: a TrainState, and variables on their own
    "state.params['Dense_0']['kernel']": PARAMETERS,
    "state.params['BatchNorm_0']['scale']": PARAMETERS,
    "state.params['Embed_0']['embedding']": PARAMETERS,
    "state.params['MultiHeadDotProductAttention_0']['value']['kernel']": PARAMETERS,
    "state.opt_state[0].mu['Embed_0']['embedding']": OPTIMIZER,
    "state.opt_state[0].nu['Dense_0']['kernel']": OPTIMIZER,
    "state.opt_state[0].count": OPTIMIZER,
    "state.step": UNKNOWN,
    "state.batch_stats['BatchNorm_0']['mean']": UNKNOWN,
    "variables['params']['Dense_0']['bias']": PARAMETERS,
    "variables['batch_stats']['BatchNorm_0']['var']": UNKNOWN,
    "variables['cache']['layers_0']['attention']['cached_key']": CACHE,
    "params['velocity_net']['kernel']": PARAMETERS,
    "params['encoder']['mu']['kernel']": PARAMETERS,
    # flax.nnx: modules and optimizers, as objects and as states
    "model['layers'][0]['kernel'].value": PARAMETERS,
    "model.nu_net.kernel": PARAMETERS,
    "optimizer['opt_state'][0]['mu']['layers'][0]['kernel'].value": OPTIMIZER,
    "optimizer['step'].value": OPTIMIZER,
    "optimizer.model.layers[0].kernel.value": PARAMETERS,
    "args[0]['opt_state'][0]['nu']['layers'][0]['bias'].value": OPTIMIZER,
    # flax.optim, before optax
    "optimizer.target['params']['kernel']": PARAMETERS,
    "optimizer.state.param_states['kernel'].momentum": OPTIMIZER,
    # optax: every kind of state
    "opt_state[0].mu['params']['Dense_0']['kernel']": OPTIMIZER,
    "opt_state[0].trace['Dense_0']['kernel']": OPTIMIZER,
    "opt_state[0].v_row['params']['Dense_0']['kernel']": OPTIMIZER,
    "opt_state[0].sum_of_squares['params']['Dense_0']['bias']": OPTIMIZER,
    "opt_state[0].params['params']['Dense_0']['kernel']": OPTIMIZER,
    "opt_state[0].diff_params_memory['params']['Dense_0']['bias']": OPTIMIZER,
    "opt_state.hyperparams['weight_decay']": OPTIMIZER,
    "opt_state.inner_state[0].nu['Dense_0']['kernel']": OPTIMIZER,
    "opt_state.inner_opt_state[0].mu['Dense_0']['kernel']": OPTIMIZER,
    "opt_state.acc_grads['Dense_0']['kernel']": OPTIMIZER,
    "opt_state.inner_states['a'].inner_state[0].mu['Dense_0']['bias']": OPTIMIZER,
    "opt_state[1].ema['Dense_0']['kernel']": OPTIMIZER,
    "optax_state[0].mu['w']": OPTIMIZER,
    # equinox
    "model.layers[0].weight": PARAMETERS,
    "model.cell.weight_ih": PARAMETERS,
    "model.layers[2].bias": PARAMETERS,
    "opt_state[0].mu.layers[1].weight": OPTIMIZER,
    "layers[0].weight": PARAMETERS,
    "weight_hh": PARAMETERS,
    # haiku
    "params['mlp/~/linear_0']['w']": PARAMETERS,
    "params['transformer/embed']['embeddings']": PARAMETERS,
    "opt_state[0].nu['mlp/~/linear_1']['b']": OPTIMIZER,
    "state['batch_norm/~/mean_ema']['average']": UNKNOWN,
    # hand-written states
    "state.ema": OPTIMIZER,
    "state.ema_params['dense']['kernel']": OPTIMIZER,
    "params_ema['w']": OPTIMIZER,
    "state.moments[0]": OPTIMIZER,
    "state['mu'][0]": OPTIMIZER,
    "state['momentum'][3]['wq']": OPTIMIZER,
    "state[1][0].nu['w1']": OPTIMIZER,
    "adam_m['w']": OPTIMIZER,
    "exp_avg": OPTIMIZER,
    "exp_avg_sq['kernel']": OPTIMIZER,
    "momentum_buffer['kernel']": OPTIMIZER,
    "optim['w']": OPTIMIZER,
    "w": PARAMETERS,
    "W1": PARAMETERS,
    "theta": PARAMETERS,
    "weights[3]": PARAMETERS,
    "state['params'][0]['w']": PARAMETERS,
    "teacher_params['dense']['kernel']": PARAMETERS,
    "train_state.model.opt['kernel']": PARAMETERS,
    "params": PARAMETERS,
    "opt": OPTIMIZER,
    "hyperparams['lr']": UNKNOWN,
    "hyper_params['weight']": UNKNOWN,
    "batch['loss_weights']": UNKNOWN,
    "batch['weights']": UNKNOWN,
    "inputs['embedding']": UNKNOWN,
    "kv_cache['layers_0'][1]": CACHE,
    "loss_scale": UNKNOWN,
    "x": UNKNOWN,
    "args[0]": UNKNOWN,
    "optical_flow": UNKNOWN,
    "": UNKNOWN,
}


@pytest.mark.parametrize("path", PATHS)
def test_an_argument_s_role_is_what_its_path_says(path: str) -> None:
    """The first key that names parameters or an optimizer's state decides."""
    assert argument_role(path) == PATHS[path]


@pytest.mark.parametrize(
    ("op", "role"),
    [
        (PeakOp("p", op_name="state.ema['w']", kind="parameter"), "optimizer state"),
        (PeakOp("p", op_name="x", kind="parameter"), "arguments"),
        (PeakOp("p", op_name="x", kind="parameter", role="batch"), "batch"),
        (PeakOp("o", op_name="jit(f)/add", kind="output"), "outputs"),
        (PeakOp("c", kind="constant"), "constants"),
        (PeakOp("", size_bytes=5), "small buffers"),
        (PeakOp("a", "all-gather-start", "jit(f)/jvp()/dot"), "collectives"),
        (PeakOp("a", "ragged-all-to-all", "jit(f)/dot"), "collectives"),
        (PeakOp("a", "reduce-scatter", ""), "collectives"),
        (
            PeakOp("r", "fusion", "transpose(jvp())/rematted_computation/dot"),
            "recomputed by jax.checkpoint",
        ),
        (PeakOp("b", "fusion", "jit(f)/transpose(jvp())/dot"), "backward temporaries"),
        (PeakOp("f", "fusion", "jit(f)/jvp()/dot"), "forward temporaries"),
        (PeakOp("t", "fusion", "jit(f)/dot", kind="temporary"), "other temporaries"),
    ],
)
def test_a_buffer_has_one_role(op: PeakOp, role: str) -> None:
    """The dataflow's role, else the kind, the path, the opcode or the op_name, in this order."""
    assert role_of(op) == role
    assert role in ROLES
