"""Logs of processes that lost another one. Gloo's and JAX's lines are from real jobs on the CPU."""

from __future__ import annotations

import pytest

from hbmwatch._messages.peer_loss import lost_peer

LOGS = {
    "killed peer, on the CPU": (
        "ValueError: UNKNOWN: Gloo all-reduce failed: "
        "[external/gloo/gloo/transport/tcp/pair.cc:538] "
        "Read error [127.0.0.1]:30133: Connection reset by peer",
        "Gloo's all-reduce failed: connection reset by peer",
    ),
    "missed heartbeats": (
        "F0926 17:26:32.075587  157988 client.h:77] Terminating process because the JAX "
        "distributed "
        "service detected fatal errors. This most likely indicates that another task died; see the "
        "other task logs for more details. absl::Status: UNAVAILABLE: The following tasks are "
        "unhealthy (stopped sending heartbeats):\n/job:jax_worker/replica:0/task:3\n"
        "/job:jax_worker/replica:0/task:11\nThe tasks have crashed.",
        "processes 3, 11 stopped sending heartbeats",
    ),
    "missed heartbeats, jax 0.10": (
        "F1130 11:25:35.964856   10751 client.h:80] Terminating process because the JAX "
        "distributed "
        "service detected fatal errors. absl::Status: UNAVAILABLE: The following tasks are "
        "unhealthy "
        "(stopped sending heartbeats):\n1\nThe tasks have crashed. Check the task logs for an "
        "earlier error",
        "process 1 stopped sending heartbeats",
    ),
    "the coordinator's process ended": (
        "Terminating process because the JAX distributed service detected fatal errors. "
        "absl::Status: UNAVAILABLE: Failed to send RPC to coordination service. Either the leader "
        "task was preempted/died/restarted unexpectedly or this task is experiencing network "
        "issues.",
        "the coordination service, which runs in process 0, did not answer",
    ),
    "the coordinator's process was stopped": (
        "Terminating process because the JAX distributed service detected fatal errors. "
        "absl::Status: DEADLINE_EXCEEDED: Deadline Exceeded\n\n"
        "RPC: /xla.coordination.CoordinationService/Heartbeat",
        "the coordination service, which runs in process 0, did not answer",
    ),
    "a killed peer, at the exit": (
        "ValueError: UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:547"
        "] Connection closed by peer [127.0.0.1]:4768\n"
        "F1130 16:36:00.992193   25816 client.h:80] Terminating process because the JAX "
        "distributed service detected fatal errors. absl::Status: INTERNAL: Shutdown barrier has "
        "failed.\n"
        "Barrier result: 'INTERNAL: Barrier failed because: task is set to ERROR: UNAVAILABLE: "
        "Task 1 heartbeat timeout. This indicates that the remote task has failed",
        "process 1 stopped sending heartbeats",
    ),
    "a barrier": (
        "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: levanter_barrier_sync_3::0. "
        "This "
        "usually happens because a task triggered the barrier too early or too slowly.",
        "the barrier levanter_barrier_sync_3::0 timed out: not all processes reached it",
    ),
    "NCCL": (
        "NCCL operation ncclGroupEnd() failed: remote process exited or there was a network error",
        "NCCL: the remote process exited or there was a network error",
    ),
    "the service alone": (
        "Terminating process because the coordinator detected missing heartbeats. This most likely",
        "JAX's distributed service ended this process, because another process died",
    ),
    "the coordinator is gone": (
        "UNAVAILABLE: failed to connect to all addresses; the coordination service at 10.0.0.2",
        "the coordination service, which runs in process 0, did not answer",
    ),
    "another error": ("ValueError: Incompatible shapes for dot: got (8, 8) and (4,).", None),
    "nothing": ("", None),
}


@pytest.mark.parametrize("name", LOGS)
def test_what_a_log_says_of_a_lost_process(name: str) -> None:
    """One clause; None where the log says nothing of another process."""
    log, expected = LOGS[name]

    assert lost_peer(f"step 100\n{log}\nexit status 1\n") == expected
