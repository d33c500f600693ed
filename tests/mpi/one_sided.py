"""What ranks do with one-sided memory in tests: at random, and checked against what all of them did.

python -m tests.mpi.one_sided KIND,… ITEMS [progress|thread|full|broken|status…]

Rank 0 tells what it found, a line per kind.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
from mpi4py import MPI

from jaxrl_hpc.comm import exit_without_finalize
from jaxrl_hpc.comm.exit_without_finalize import stuck
from jaxrl_hpc.comm.rma import window as windows
from jaxrl_hpc.comm.rma.atomics import AtomicCounter, Bitmap
from jaxrl_hpc.comm.rma.progress_thread import ProgressThread
from jaxrl_hpc.comm.rma.ring import RingQueue, Rule
from jaxrl_hpc.comm.rma.selftest import examine
from jaxrl_hpc.comm.rma.transport import RmaOptions, connect
from jaxrl_hpc.comm.rma.versioned_slot import VersionedSlot
from jaxrl_hpc.comm.rma.window import Kind, Window
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.transport import BufferSizes
from jaxrl_hpc.comm.waiting import Backoff
from tests.telling import tell

LARGEST = 3000  # bytes of an item


def payload(producer: int, number: int) -> np.ndarray:
    """Bytes of any length that end in a checksum of who made them and which they are."""
    rng = np.random.default_rng([producer, number])
    body = rng.integers(0, 256, int(rng.integers(0, LARGEST - 12)), np.uint8)
    head = np.array([producer, number], np.int32).view(np.uint8)
    check = np.array([zlib.crc32(head.tobytes() + body.tobytes())], np.uint32).view(np.uint8)
    return np.concatenate([head, body, check])


def whole(data: np.ndarray, producer: int, number: int) -> bool:
    named = data[:8].view(np.int32).tolist() == [producer, number]
    return named and zlib.crc32(data[:-4].tobytes()) == int(data[-4:].copy().view(np.uint32)[0])


def counters(comm: Any, kind: Kind, count: int) -> dict[str, Any]:
    """Every rank adds to counters of all ranks; tickets of one of them are all different."""
    rank, size = comm.Get_rank(), comm.Get_size()
    window = Window(comm, 3 * AtomicCounter.NBYTES, kind)
    totals = [AtomicCounter(window, owner, 0) for owner in range(size)]
    tickets, high = (AtomicCounter(window, size - 1, i * AtomicCounter.NBYTES) for i in (1, 2))
    rng = np.random.default_rng(rank)
    added, mine = np.zeros(size, np.int64), []
    values = rng.integers(-(2**40), 2**40, count)
    for value in values.tolist():
        owner = int(rng.integers(size))
        totals[owner].add(value)
        added[owner] += value
        mine.append(tickets.add(1))
        high.maximum(value)
    window.barrier()
    expected = comm.allreduce(added)
    everyone = np.concatenate(comm.allgather(np.array(mine)))
    good = [
        [one.read() for one in totals] == expected.tolist(),
        np.array_equal(np.sort(everyone), np.arange(count * size)),
        high.read() == max(0, comm.allreduce(values.max(), MPI.MAX)),
    ]
    return finish(comm, window, {"right": all(good)})


def bits(comm: Any, kind: Kind, count: int) -> dict[str, Any]:
    """All ranks set, then clear, all bits in orders of their own: each bit has one who was first."""
    rank = comm.Get_rank()
    window = Window(comm, Bitmap.nbytes(count), kind)
    flags = Bitmap(window, 0, 0, count)
    right = True
    for change, before in ((flags.set, False), (flags.clear, True)):
        order = np.random.default_rng([7, rank]).permutation(count).tolist()
        first = [bit for bit in order if change(bit) == before]
        window.barrier()
        right &= sorted(bit for one in comm.allgather(first) for bit in one) == list(range(count))
        right &= bool((flags.all() != before).all())
        window.barrier()
    return finish(comm, window, {"right": right})


def slot(comm: Any, kind: Kind, count: int) -> dict[str, Any]:
    """Rank 0 publishes without pause; all others read without pause."""
    rank = comm.Get_rank()
    window = Window(comm, VersionedSlot.nbytes(LARGEST), kind)
    shared = VersionedSlot(window, 0, 0, LARGEST)
    torn, seen, out = 0, [-1], np.zeros(LARGEST, np.uint8)
    backoff = Backoff()
    for number in range(count if rank == 0 else 0):
        data = payload(0, number)
        shared.write(np.concatenate([data, np.zeros(LARGEST - data.size, np.uint8)]), 2 * number)
    while not shared.settle():  # a reader asked for time
        time.sleep(1e-3)
    while rank != 0 and seen[-1] < 2 * (count - 1):
        version = shared.read(out)
        if version is None:
            backoff.pause()
            continue
        length = payload(0, version // 2).size
        torn += not whole(out[:length], 0, version // 2)
        seen.append(version)
        backoff.reset()
    reads, retries = comm.reduce(len(seen) - 1), comm.reduce(shared.retries)
    rising = comm.allreduce(int(seen == sorted(set(seen))), MPI.MIN)
    found = {"torn": comm.reduce(torn), "rising": bool(rising), "reads": reads, "retries": retries}
    return finish(comm, window, found)


def rings(comm: Any, kind: Kind, rule: Rule, consumers: int, count: int, seed: int) -> dict[str, Any]:
    """The first ranks take from all rings, in any order; each of the others has one, in anyone's memory."""
    rank, size = comm.Get_rank(), comm.Get_size()
    rng = np.random.default_rng(seed)
    capacity, producers = int(rng.integers(1, 9)), list(range(consumers, size))
    owners = {p: int(rng.integers(size)) for p in producers}
    room = RingQueue.nbytes(capacity, LARGEST)
    window = Window(comm, Bitmap.nbytes(size) + size * room, kind)
    active = Bitmap(window, 0, 0, size)
    first = Bitmap.nbytes(size)
    made = {
        p: RingQueue(window, owners[p], first + p * room, capacity, LARGEST, rule, alone=consumers == 1)
        for p in producers
    }
    if rank in producers:
        active.set(rank)
    window.barrier()
    own, found, bad = np.random.default_rng([seed, rank]), [], 0
    if rank in producers:
        for number in range(count):
            made[rank].push(payload(rank, number))
            if own.random() < 0.01:
                time.sleep(own.random() * 1e-3)
        active.clear(rank)
    else:
        backoff = Backoff()
        while True:
            ended = not active.all().any()
            p = int(own.choice(producers))
            item = made[p].take()
            if item is not None:
                bad += not whole(item.data, p, item.number)
                found.append((p, item.number))
                backoff.reset()
            elif ended and not any(ring.waiting() for ring in made.values()):
                break
            else:
                backoff.pause()
    lists = comm.gather(found)
    counts = comm.gather({p: dict(made[p].counts) for p in producers})
    result = {"bad": comm.reduce(bad), "rule": rule, "consumers": consumers, "kind": kind}
    if rank == 0:
        result |= accounts(lists, counts, producers, consumers, count)
    return finish(comm, window, result)


def accounts(
    lists: list[list[tuple[int, int]]], counts: list[dict], producers: list[int], consumers: int, count: int
) -> dict[str, Any]:
    """What was delivered against what was counted, over all ranks."""
    delivered = [item for one in lists for item in one]
    lost = {p: counts[p][p]["rejected"] + counts[p][p]["dropped"] for p in producers}
    arrived = {p: sum(q == p for q, _ in delivered) for p in producers}
    ordered = all(
        numbers == sorted(numbers)
        for one in lists
        for numbers in ([n for q, n in one if q == p] for p in producers)
    )
    return {
        "twice": len(delivered) - len(set(delivered)),
        "ordered": ordered,
        "missing": sum(count - arrived[p] - lost[p] for p in producers),
        "delivered": len(delivered),
        "lost": sum(lost.values()),
        "collisions": sum(counts[c][p]["collisions"] for c in range(consumers) for p in producers),
    }


def progress(comm: Any, kind: Kind, thread: bool) -> dict[str, Any]:
    """How many operations on the last rank's memory end while it sits in one compiled call."""
    import jax
    import jax.numpy as jnp

    rank, size = comm.Get_rank(), comm.Get_size()
    long = jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda _, y: y * 0.999999 + 1e-6, x))
    long(jnp.float32(0.5), 10).block_until_ready()
    window = Window(comm, 2 * AtomicCounter.NBYTES + 4096, kind)
    target = size - 1
    number, left = AtomicCounter(window, target, 0), AtomicCounter(window, 0, AtomicCounter.NBYTES)
    data, least = np.zeros(4096, np.uint8), 0
    with ProgressThread(comm) if thread else contextlib.nullcontext():
        for attempt in range(20):  # a rank of a busy machine may not run at all during a call
            done = 0
            window.barrier()
            if rank == target:
                long(jnp.float32(0.5), 50_000_000).block_until_ready()
                left.add(1)
            while rank != target and left.read() == attempt:
                number.add(1)
                window.write(target, 128, data)
                window.read(target, 128, data)
                done += left.read() == attempt
            window.barrier()
            least = max(least, comm.allreduce(done if rank != target else 2**31, MPI.MIN))
            if least > 10:
                break
    return finish(comm, window, {"least": least})


def finish(comm: Any, window: Window, result: dict[str, Any]) -> dict[str, Any]:
    result["operations"] = comm.allreduce(window.operations)
    window.free()
    return result


def broken(comm: Any) -> dict[str, Any]:
    """What the self-test finds: where all is well, where sums are wrong, where an operation never ends."""
    found, left = {"works": examine(comm), "network": examine(comm, "network")}, {}
    atomic, claim = Window.atomic, Window.compare_and_swap
    last = comm.Get_rank() == comm.Get_size() - 1
    if last:
        Window.atomic = lambda self, op, *rest, **more: atomic(self, op, *rest, **more) + (op == "read")
    found["wrong"] = examine(comm, seconds=60)
    Window.atomic, left["wrong"] = atomic, stuck()
    if last:  # waits inside MPI for a message that nobody sends
        Window.compare_and_swap = lambda self, *_: self.comm.recv(source=0, tag=99)
    found["endless"] = examine(comm, seconds=10)
    Window.compare_and_swap, left["endless"] = claim, stuck()
    return {name: verdict._asdict() | {"stuck": left.get(name)} for name, verdict in found.items()}


def full(comm: Any) -> dict[str, Any]:
    """The last rank finds no room for a large window, though there was enough for the self-test."""
    plain = windows.shutil.disk_usage
    if comm.Get_rank() == comm.Get_size() - 1:
        windows.shutil.disk_usage = lambda path: plain(path)._replace(free=2**20)
    roles = Roles(comm, comm.Get_rank(), 1, comm.Get_size() - 1, 1)
    options = RmaOptions("actor", rule="reject")
    found = {size: connect(roles, BufferSizes(size, 64, 2), options) for size in (1000, 2**20)}
    windows.shutil.disk_usage = plain
    made = {size: comm.allgather(structures is not None) for size, structures in found.items()}
    for structures in found.values():
        if structures is not None:
            structures.close()
    return {"full": made}


def everything(comm: Any, kind: Kind, items: int) -> dict[str, Any]:
    results: dict[str, Any] = {
        "kind": kind,
        "counters": counters(comm, kind, items),
        "bits": bits(comm, kind, 70),
        "slot": slot(comm, kind, items),
        "rings": [
            rings(comm, kind, rule, consumers, items, seed)
            for seed, rule in enumerate(["block", "reject", "drop_oldest"])
            for consumers in sorted({1, comm.Get_size() - 1})
        ],
    }
    parts = [results["counters"], results["bits"], results["slot"], *results["rings"]]
    return results | {"operations": sum(part["operations"] for part in parts)}


def exit_late(status: int) -> None:
    """All others have exited long before; the launcher must not have ended this one for that."""
    time.sleep(1)
    tell({"last words": 1})
    os._exit(status)


def main() -> int:
    comm, options = MPI.COMM_WORLD, sys.argv[3:]
    for kind in filter(None, sys.argv[1].split(",")):
        results = everything(comm, kind, int(sys.argv[2]))
        results |= {
            name: progress(comm, kind, name == "thread") for name in options if name in ("progress", "thread")
        }
        if comm.Get_rank() == 0:
            tell(results)
    if "full" in options:
        found = full(comm)
        if comm.Get_rank() == 0:
            tell(found)
    if "broken" in options:
        found = broken(comm)
        if comm.Get_rank() == 0:
            tell(found)
        if comm.Get_rank() == 1:
            exit_without_finalize.os = SimpleNamespace(**vars(os) | {"_exit": exit_late})  # type: ignore[assignment]
    return 7 if "status" in options else 0


if __name__ == "__main__":
    sys.exit(exit_without_finalize.with_status(main))
