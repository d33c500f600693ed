from jaxrl_hpc.workflows.central_inference.workflow import Config as Config
from jaxrl_hpc.workflows.central_inference.workflow import make as make
