"""Workers that act and learn independently, and share parameters: pull, H iterations, push.

    worker w:  get parameters → H × ( unroll, K × learn ) → give the change ─┐
        ↑──────────── parameters with all workers' changes ←─ rule ←─────────┘

No worker waits for another. The rule defines how changes are combined (comm/params/exchange.py,
comm/params/server.py), the optimiser is each worker's own or at the server
(workflows/parameter_server/exchange_schemes.py). Parallel DQN as in Gorila (Nair et al. 2015), A3C (Mnih et
al. 2016), Hogwild! (Recht et al. 2011). Workers claim their next share of a chunk from a counter, so a slow
one does less and does not delay others; chunks end together.
"""

from jaxrl_hpc.workflows.parameter_server.config import Config as Config
from jaxrl_hpc.workflows.parameter_server.runtime import make as make
