"""Optional dependencies: the extra that installs a module, and the message where it is missing."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

from jaxrl_hpc.errors import UserError

# [project.optional-dependencies] of pyproject.toml; a test compares them
EXTRA_OF = {
    "matplotlib": "plots",
    "PIL": "plots",
    "jinja2": "report",
    "markupsafe": "report",
    "tensorboardX": "tensorboard",
    "wandb": "tracking",
    "mlflow": "tracking",
    "gymnasium": "external",
    "envpool": "external",
    "ale_py": "external",
    "h5py": "datasets",
    "zmq": "elastic",
    "rejax": "peers",
    "flashbax": "peers",
    "cpprb": "peers",
}
INSTALL_MPI = "jaxrl-hpc doctor --install-mpi"


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def how_to_install(extra: str) -> str:
    """The command; it also works from a checkout, because the package itself is there already."""
    return f'pip install "jaxrl-hpc[{extra}]"'


@contextlib.contextmanager
def missing_extras_told() -> Iterator[None]:
    """A module of an extra that is not installed becomes one sentence with the command."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRA_OF:
            raise
        raise UserError(
            f"this needs {module}, which is not installed: {how_to_install(EXTRA_OF[module])}"
        ) from None
