"""The ranks of a job that an environment's parallel programs run on.

    mpirun -n 5 jaxrl-hpc train …         rank 0 learns, ranks 1 to 4 are the environment
    env.ranks_per_copy=2                  … in two groups of two; copies are distributed over groups

Rank 0 sends commands to all ranks of a group, which execute them together; the first of them answers.
Programs get their own communicator (a duplicate of their group's), so that messages do not mix.
"""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxrl_hpc.comm.ranks import launched_size
from jaxrl_hpc.envs.external.simulator import Wrong, describe_exception
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.user_code import search_working_directory


class Order(NamedTuple):
    """A command for a group."""

    what: str  # "make", "reset", "step", "close" or "stop"
    simulator: int  # number of the set of copies
    items: list[Any]  # per copy: (copy, seed) or (copy, action); for make: (copies, path, settings)


def patient(comm: Any, source: int) -> Any:
    """Receive from `source`, waiting without occupying a core as MPI itself would."""
    pause = 0.0
    while not comm.Iprobe(source=source):
        time.sleep(pause)
        pause = min(pause + 2e-5, 1e-3)
    return comm.recv(source=source)


class Groups:
    """Rank 0's end: one communicator to talk on, and the ranks of all groups."""

    def __init__(self, control: Any, members: list[list[int]]) -> None:
        self.control, self.members = control, members
        self.waiting = False

    def order(self, what: str, simulator: int, items: list[list[Any]]) -> list[Any]:
        """Send a command to all groups, each with its items -> their answers."""
        if self.waiting:
            raise Wrong("cannot continue: its ranks are still busy with the previous command")
        self.waiting = True
        for ranks, mine in zip(self.members, items, strict=True):
            for rank in ranks:
                self.control.send(Order(what, simulator, mine), dest=rank)
        answers = [patient(self.control, ranks[0]) for ranks in self.members]
        self.waiting = False
        return answers

    def stop(self) -> None:
        for rank in (rank for ranks in self.members for rank in ranks):
            self.control.send(Order("stop", 0, []), dest=rank)


def _divided(per_copy: int) -> tuple[Any, Any, list[list[int]]]:
    """(control communicator, this rank's group, ranks of all groups). Called by all ranks together."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    workers = world.Get_size() - 1
    per_copy = world.bcast(per_copy or workers if world.Get_rank() == 0 else None)
    control, rank = world.Dup(), world.Get_rank()
    group = world.Split(0 if rank == 0 else 1 + (rank - 1) // per_copy, rank)
    return control, group, [list(range(r, r + per_copy)) for r in range(1, 1 + workers, per_copy)]


def are_wanted(env: Any) -> bool:
    """Whether an environment's config asks for the job's other ranks."""
    return hasattr(env, "ranks_per_copy")


_made: list[Groups] = []  # at most one: ranks are divided once


def groups(per_copy: int) -> Groups:
    """On rank 0: the groups of this job."""
    if _made:
        return _made[0]
    workers = launched_size() - 1
    if workers < 1:
        raise UserError(
            "env.name: mpi_program needs ranks beside the one that learns: start with mpirun -n 3 jaxrl-hpc …"
        )
    if per_copy and workers % per_copy:
        raise UserError(
            f"env.ranks_per_copy is {per_copy}, but the {workers} ranks beside the one that learns cannot be "
            "divided into such groups: start one more than a multiple of it"
        )
    control, _, members = _divided(per_copy)
    _made.append(Groups(control, members))
    return _made[0]


def stop() -> None:
    """On rank 0, at the end: release the other ranks."""
    while _made:
        _made.pop().stop()


def load_program(path: str) -> Any:
    """The class that module:Class means, also from the working directory."""
    search_working_directory()
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def serve() -> None:
    """On all other ranks: execute the commands of rank 0 until it sends stop."""
    control, group, _ = _divided(0)
    first = group.Get_rank() == 0
    alive: dict[int, dict[int, Any]] = {}
    while True:
        order: Order = patient(control, 0)
        if order.what == "stop":
            return
        answers = carry_out(order, alive, group)
        if first:
            control.send(answers, dest=0)


def carry_out(order: Order, alive: dict[int, dict[int, Any]], group: Any) -> list[Any]:
    """All ranks of the group together -> per item an answer, or the text of what went wrong."""
    copies = alive.setdefault(order.simulator, {})
    if order.what == "make":
        ((numbers, path, settings),) = order.items

        def make() -> None:
            for copy in numbers:
                copies[copy] = load_program(path)(group.Dup(), **settings)

        return [_together(group, make)]
    if order.what == "close":
        for program in alive.pop(order.simulator).values():
            _together(group, program.close)
        return []
    return [
        _together(group, functools.partial(getattr(copies[copy], order.what), value))
        for copy, value in order.items
    ]


def _together(group: Any, function: Callable[[], Any]) -> tuple[Any, str]:
    """(result of the group's first rank, "") or (None, what went wrong on which rank)."""
    result: Any = None
    problem = ""
    try:
        result = function()
    except (Exception, SystemExit) as error:
        problem = describe_exception(error)
        # the others may wait for this rank inside the program: then this is the only message
        print(f"rank {_world_rank()} of the environment {problem}", file=sys.stderr, flush=True)
    problems = group.gather((_world_rank(), problem))
    if problems is None:
        return None, ""
    wrong = [f"{text} on rank {rank}" for rank, text in problems if text]
    return (None, "; ".join(wrong)) if wrong else (result, "")


def _world_rank() -> int:
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.Get_rank())
