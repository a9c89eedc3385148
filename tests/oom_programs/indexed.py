"""Programs in which an index selects more than there is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.oom_programs.base import array, case, on_one


@case("gathered-rows", "nod-ai/amd-shark-ai#1359: the weights of an expert for each token")
def expert_weights(fault: bool) -> Any:
    """Each token gets a copy of its experts' weights; the fix sorts tokens by expert."""
    experts, width, hidden = 64, 1024, 2048

    def layer(weights: Any, x: Any, chosen: Any) -> Any:
        if fault:
            return jax.nn.silu(jnp.einsum("td,tkdf->tkf", x, weights[chosen])).sum(1)
        order = jnp.argsort(chosen.reshape(-1))
        sizes = jnp.bincount(chosen.reshape(-1), length=experts)
        out = jax.nn.silu(jax.lax.ragged_dot(x[order // 2], weights, sizes))
        return out[jnp.argsort(order)].reshape(len(x), 2, hidden).sum(1)

    bf16 = jnp.bfloat16
    weights, x = array(experts, width, hidden, dtype=bf16), array(8192, width, dtype=bf16)
    return on_one(layer, weights, x, array(8192, 2, dtype=jnp.int32))


@case("gathered-rows", "orbital-materials/orb-models#173: features of all edges of a graph")
def edge_messages(fault: bool) -> Any:
    """Messages of all edges are made before they are added; the fix adds one block at a time."""

    def messages(w: Any, nodes: Any, edges: Any) -> Any:
        ends = jnp.concatenate([nodes[edges[:, 0]], nodes[edges[:, 1]]], -1)
        return jax.nn.silu(ends @ w)

    def update(w: Any, nodes: Any, edges: Any) -> Any:
        if fault:
            made = messages(w, nodes, edges)
            return jax.ops.segment_sum(made, edges[:, 1], num_segments=len(nodes))

        def add(total: Any, block: Any) -> Any:
            return total.at[block[:, 1]].add(messages(w, nodes, block)), None

        blocks = edges.reshape(256, -1, 2)
        return jax.lax.scan(add, jnp.zeros_like(nodes), blocks)[0]

    return on_one(update, array(256, 128), array(1 << 20, 128), array(40 << 20, 2, dtype=jnp.int32))


@case("gathered-rows", "jax-ml/jax#3206: the neighbors of all nodes, before their mean is taken")
def neighbor_means(fault: bool) -> Any:
    """All neighbors are gathered before they are reduced; the fix gathers one of each node."""

    def layer(w: Any, nodes: Any, neighbors: Any) -> Any:
        if fault:
            return jax.nn.relu(nodes[neighbors].mean(1) @ w)

        def add(total: Any, index: Any) -> Any:
            return total + nodes[index], None

        total, _ = jax.lax.scan(add, jnp.zeros_like(nodes), neighbors.T)
        return jax.nn.relu(total / neighbors.shape[1] @ w)

    nodes = array(589824, 512)
    return on_one(layer, array(512, 512), nodes, array(589824, 16, dtype=jnp.int32))
