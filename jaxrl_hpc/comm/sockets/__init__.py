"""Actors that come and go: one more transport (comm/transport.py), over TCP instead of MPI.

wire            what travels, and the options of sockets on both ends
learner_end     a learner's end: connected actors, acknowledged unrolls
actor_end       an actor's end: how it joins, and how it notices that the connection has ended
"""
