"""Ranks that act and learn, and average their parameters with neighbours, without a centre or waiting.

    rank i:  H × ( unroll, K × learn ) → publish x_i → x_i ← (1 − rate) x_i + rate · mean of x_i and x_j
                                         own memory ←────── read ────── neighbours j, whenever they like

Asynchronous decentralised parallel SGD (Lian et al. 2018), for actors and learners as in Assran et al. 2019:
a rank reads the latest parameters of its neighbours from their memory (comm/params/peers.py), and skips those
without new ones. `staleness` bounds how far a rank may be ahead of its neighbours. With 0, one exchange per
update and the complete graph, plain SGD takes the steps of `sharded`.
"""

from jaxrl_hpc.workflows.gossip.config import Config as Config
from jaxrl_hpc.workflows.gossip.runtime import make as make
