from jaxrl_hpc.workflows.sharded.workflow import Config as Config
from jaxrl_hpc.workflows.sharded.workflow import make as make
