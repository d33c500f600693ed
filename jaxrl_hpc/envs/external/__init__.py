"""Environments outside of the compiled program: Gymnasium, envpool, parallel programs.

    simulator.py   the interface of a simulator: B copies that reset themselves in the same step
    host.py        keeps simulators alive between calls; finds faults, names them, drops broken episodes
    bridge.py      a simulator as an `Env`: ordered callbacks out of the compiled program

The state of such an environment is not part of the run: it is not in checkpoints, cannot be copied, and must
not be stepped twice.
"""
