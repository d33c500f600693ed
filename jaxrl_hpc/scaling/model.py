"""A performance model of synchronous training with few measured parameters.

    T(R) = C + sum over messages of t(bytes, R)          per iteration
    t(bytes, R) = latency + bytes / bandwidth            fitted to allreduces inside a compiled loop
    t(bytes, N) = overhead + 2 log2(N) l + 2 (N - 1)/N bytes / b      over a network (l, b)

C is the compute time of one worker, measured alone. Several workers on one core take turns: C grows by
their number over the cores'. Synchronous steps wait for the slowest of N: with independent delays of
standard deviation sigma per iteration the expected wait is at most sigma sqrt(2 ln N).

Not modelled: contention between jobs, topology, and memory bandwidth shared between workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class LatencyBandwidth(NamedTuple):
    """Time of a message by its size."""

    latency: float  # seconds
    bandwidth: float  # bytes per second

    def time(self, size: float) -> float:
        return self.latency + size / self.bandwidth


class NetworkModel(NamedTuple):
    """Between nodes."""

    latency: float  # seconds, one way
    bandwidth: float  # bytes per second of a node's link

    def time(self, size: float, nodes: int, overhead: float) -> float:
        """An allreduce of `size` bytes over all nodes."""
        if nodes == 1:
            return 0.0
        hops, moved = 2 * math.log2(nodes), 2 * (nodes - 1) / nodes * size
        return overhead + hops * self.latency + moved / self.bandwidth


def fit(times: Mapping[str, float]) -> LatencyBandwidth:
    """Fit latency and bandwidth to seconds by bytes, with equal relative errors for small and large sizes."""
    sizes = np.array([float(size) for size in times])
    seconds = np.array(list(times.values()))
    # relative least squares: minimise sum ((a + b s - t) / t)^2
    matrix = np.stack([1 / seconds, sizes / seconds], axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(matrix, np.ones(len(sizes)), rcond=None)
    return LatencyBandwidth(max(float(latency), 1e-9), 1 / max(float(per_byte), 1e-15))


def bytes_of(message: Mapping[str, Any], shards: int, deterministic: bool) -> float:
    """The bytes of an allreduce with the same cost: a gather sends every shard's vector to all."""
    everyone = message["kind"] == "gather" or (message["kind"] == "add" and deterministic)
    return 4.0 * message["length"] * (shards / 2 if everyone else 1)


def communication(
    messages: Sequence[Mapping[str, Any]], line: LatencyBandwidth, shards: int, deterministic: bool
) -> float:
    """Seconds of an iteration that all messages take."""
    return sum(m["times"] * line.time(bytes_of(m, shards, deterministic)) for m in messages)


def over_network(
    messages: Sequence[Mapping[str, Any]],
    network: NetworkModel,
    nodes: int,
    overhead: float,
    shards_per_node: int,
    deterministic: bool,
) -> float:
    """Seconds of an iteration that all messages take when every node adds its own shards and batch.

    Rows of a batch drawn from all shards grow with the batch, and so does the data that every node receives.
    """
    shards = shards_per_node * nodes
    total = 0.0
    for message in messages:
        size = bytes_of(message, shards, deterministic) * (nodes if message["kind"] == "total" else 1)
        total += message["times"] * network.time(size, nodes, overhead)
    return total


def jitter(seconds: Sequence[float], iterations: int) -> float:
    """Standard deviation of one iteration, from the means of chunks of that length."""
    return float(np.std(seconds, ddof=1)) * math.sqrt(iterations) if len(seconds) > 1 else 0.0


def waiting(sigma: float, workers: int) -> float:
    """Expected wait for the slowest of n workers."""
    return sigma * math.sqrt(2 * math.log(workers)) if workers > 1 else 0.0
