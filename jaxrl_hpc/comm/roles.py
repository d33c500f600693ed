"""The roles of ranks in a job of actors and learners.

    ranks 0 … L - 1 learn, ranks L … N - 1 act;   actor a serves learner a mod L, or 0 if batches are shared

Numbers of actors are logical: environment copies, keys and states belong to an actor's number, so that a run
can be continued with more or fewer of them. Its learner follows from the number alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxrl_hpc.errors import UserError


class Roles(NamedTuple):
    """The job as one of its ranks sees it."""

    comm: Any  # MPI communicator of all ranks, for transports to duplicate; None: this process only inspects
    rank: int
    learners: int  # L
    actors: int
    served: int  # learners that have actors: L, or 1 if the first shares batches out

    @property
    def learns(self) -> bool:
        return self.rank < self.learners

    @property
    def number(self) -> int:
        """Among learners, or among actors."""
        return self.rank if self.learns else self.rank - self.learners

    def rank_of(self, actor: int) -> int:
        return self.learners + actor

    def learner_of(self, actor: int) -> int:
        """The rank that takes an actor's unrolls."""
        return actor % self.served

    def actors_of(self, learner: int) -> list[int]:
        """Actors that a learner serves."""
        return [a for a in range(self.actors) if self.learner_of(a) == learner]

    def describe(self) -> str:
        learners = f"{self.learners} learner{'s' if self.learners > 1 else ''}"
        return f"{learners} and {self.actors} actor{'s' if self.actors > 1 else ''}"


def assign(comm: Any, size: int, rank: int, learners: int, actors: int, shared: bool) -> Roles:
    """Roles of a job of `size` ranks; `actors` as in the config, 0 for all ranks that do not learn."""
    if size < learners + 1:
        plural = "s" if size > 1 else ""
        raise UserError(
            f"this is a job of {size} rank{plural}, but workflow.learners={learners} and at least one actor "
            f"need {learners + 1}: start it with mpirun -n {learners + (actors or 2)} jaxrl-hpc train …, or "
            "use workflow.name=fused"
        )
    if actors and learners + actors != size:
        raise UserError(
            f"workflow.learners + workflow.actors = {learners} + {actors} do not fit a job of {size} ranks: "
            f"start {learners + actors} ranks, or set workflow.actors=0 (all ranks that do not learn)"
        )
    served = 1 if shared else learners
    if size - learners < served:
        raise UserError(
            f"workflow.learners is {learners}, but only {size - learners} rank(s) act: each learner needs "
            "its own actor; start more ranks, or let one distribute batches (workflow.learner_mode=shared)"
        )
    return Roles(comm, rank, learners, size - learners, served)
