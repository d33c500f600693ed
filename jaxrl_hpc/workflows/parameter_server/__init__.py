from jaxrl_hpc.workflows.parameter_server.workflow import Config as Config
from jaxrl_hpc.workflows.parameter_server.workflow import make as make
