"""Configs: what a run is made of, as validated data."""

from jaxrl_hpc.config.files import CONFIG_DIRS as CONFIG_DIRS
from jaxrl_hpc.config.files import Config as Config
from jaxrl_hpc.config.files import apply_override as apply_override
from jaxrl_hpc.config.files import find_file as find_file
from jaxrl_hpc.config.files import from_dict as from_dict
from jaxrl_hpc.config.files import json_schema as json_schema
from jaxrl_hpc.config.files import load as load
from jaxrl_hpc.config.files import mistakes_located as mistakes_located
from jaxrl_hpc.config.files import put as put
from jaxrl_hpc.config.files import search_beside as search_beside
from jaxrl_hpc.config.files import validate as validate
from jaxrl_hpc.read_files import parse_yaml as parse_yaml
from jaxrl_hpc.read_files import read_yaml as read_yaml
