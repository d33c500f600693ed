"""Environments on separate ranks, the policy in one place: SEED (Espeholt et al. 2020).

    environment rank:  step ── observation, reward, flags ──→ server:  batch → act ── actions ──→ step
                                                              transitions → unrolls → learn

Environment ranks have no parameters, so nothing is published and no rank acts with an old copy: lag
accumulates only while an unroll is being filled. Recurrent carries live on the server. Everything else, from
several servers (which average gradients) to checkpoints, is as in `async`.
"""

from jaxrl_hpc.workflows.central_inference.workflow import Config as Config
from jaxrl_hpc.workflows.central_inference.workflow import make as make
