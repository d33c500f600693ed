"""Check this installation: what works, and how to fix what does not.

examples:
  jaxrl-hpc doctor
  jaxrl-hpc doctor --no-mpi
  jaxrl-hpc doctor --clean             also remove shared memory that killed jobs left
  jaxrl-hpc doctor --mpiexec /opt/mpi/bin/mpiexec --deadline 120
  jaxrl-hpc doctor --install-mpi         mpi4py and mpi4jax for the MPI in use, then the checks

Checks versions, devices, threads, memory, the compilation cache, compiled parts, Slurm and /dev/shm; starts
two MPI ranks that run an mpi4jax allreduce inside jit and use a one-sided window, and two processes connected
by JAX without MPI; and recommends flags.

exit codes: 0 everything required works; 1 something is broken. Missing optional parts (MPI on a laptop,
Slurm, optional packages) are not a failure.
"""

from __future__ import annotations

import argparse

MAX_DEADLINE = 86_400
MARKS = {"ok": ("green", "works"), "note": ("yellow", "note"), "broken": ("red", "broken")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-mpi", action="store_true", help="skip tests that start processes")
    parser.add_argument(
        "--clean", action="store_true", help="remove your segments in /dev/shm that no process uses"
    )
    parser.add_argument("--mpiexec", metavar="PATH", help="the launcher to test (default: the one found)")
    parser.add_argument(
        "--install-mpi",
        action="store_true",
        help="install mpi4py and mpi4jax for the MPI whose mpicc is found, else with MPICH",
    )
    parser.add_argument(
        "--deadline",
        type=float,
        default=90.0,
        metavar="SECONDS",
        help="time limit of each test that starts processes (default: 90)",
    )


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from jaxrl_hpc.cli.doctor_checks import BROKEN, local_checks
    from jaxrl_hpc.cli.doctor_jax import connected
    from jaxrl_hpc.cli.doctor_mpi import mpi
    from jaxrl_hpc.errors import UserError

    if not 1 <= args.deadline <= MAX_DEADLINE:
        raise UserError(f"--deadline: should be from 1 to {MAX_DEADLINE:,} seconds (it is {args.deadline:g})")
    console = Console()
    if args.install_mpi:
        from jaxrl_hpc.cli.install_mpi import install_mpi

        install_mpi()
    checks = list(local_checks(args.clean))
    if not args.no_mpi:
        with console.status("starting two MPI ranks …"):
            checks.append(mpi(args.mpiexec, args.deadline))
        with console.status("connecting two processes …"):
            checks.append(connected(args.deadline))
    table = Table("", "what", "found", box=None, pad_edge=False)
    for check in checks:
        colour, word = MARKS[check.status]
        table.add_row(f"[{colour}]{word}[/]", check.name, escape(check.finding))
    console.print(table)
    advice = [check for check in checks if check.advice]
    if advice:
        console.print("\n[bold]What to do[/]")
        for check in advice:
            console.print(f"• {check.name}: {escape(check.advice)}", soft_wrap=True)
    broken = [check.name for check in checks if check.status == BROKEN]
    if broken:
        console.print(f"\n[red]Broken: {', '.join(broken)}[/]")
        return 1
    console.print("\n[green]Everything required works.[/]")
    return 0
