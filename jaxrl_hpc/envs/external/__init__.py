"""Environments that are programs of their own: Gymnasium's, envpool's, parallel ones.

    simulator.py   what such a program must be able to do: B copies that reset themselves in the same step
    host.py        keeps simulators alive between calls; finds faults, names them, drops broken episodes
    bridge.py      a simulator as an `Env`: ordered callbacks out of the compiled program

The state of such an environment lies outside of the run: it is not in checkpoints, it cannot be copied, and
nothing may call it twice.
"""
