"""Configs: the settings of a run as validated data.

Names are loaded when they are used. `sources` needs no JAX, so that commands which only read files respond at
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_hpc.lazy import lazy_names

if TYPE_CHECKING:
    from jaxrl_hpc.config.files import Config as Config
    from jaxrl_hpc.config.files import from_dict as from_dict
    from jaxrl_hpc.config.files import json_schema as json_schema
    from jaxrl_hpc.config.files import load as load
    from jaxrl_hpc.config.files import mistakes_located as mistakes_located
    from jaxrl_hpc.config.files import validate as validate
    from jaxrl_hpc.config.sources import CONFIG_DIRS as CONFIG_DIRS
    from jaxrl_hpc.config.sources import apply_override as apply_override
    from jaxrl_hpc.config.sources import find_file as find_file
    from jaxrl_hpc.config.sources import put as put
    from jaxrl_hpc.config.sources import search_beside as search_beside
    from jaxrl_hpc.read_files import parse_yaml as parse_yaml
    from jaxrl_hpc.read_files import read_yaml as read_yaml

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        f"{__name__}.files": ("Config", "from_dict", "json_schema", "load", "mistakes_located", "validate"),
        f"{__name__}.sources": ("CONFIG_DIRS", "apply_override", "find_file", "put", "search_beside"),
        "jaxrl_hpc.read_files": ("parse_yaml", "read_yaml"),
    },
)
