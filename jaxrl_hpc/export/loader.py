"""Load and use an exported policy. Needs jax, numpy and flatbuffers, and the files beside this one.

    from policy import load
    policy = load("my_policy")                  # greedy; load("my_policy", sample=True, seed=1) draws actions
    carry = None                                # at the start of every episode
    action, carry = policy.act(obs, carry)      # one observation, or a batch of them [B, …]; where they have
                                                # several parts also as the mapping or tuple that they were

`policy.metadata` says which environment it was trained on and what its observations and actions are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np

try:
    import flatbuffers  # noqa: F401  # jax.export reads programs with it
except ImportError:
    raise ImportError("an exported policy needs flatbuffers: pip install flatbuffers") from None

FORMAT = "jaxrl_hpc policy"
VERSION = 1


class PolicyError(ValueError):
    """A folder without a policy, or with a damaged one. The message names it."""


def read_metadata(folder: str | Path) -> dict[str, Any]:
    """Content of metadata.json; PolicyError if the folder is not an exported policy."""
    path = Path(folder) / "metadata.json"
    try:
        metadata = json.loads(path.read_text())
    except FileNotFoundError:
        raise PolicyError(f"{folder} is not an exported policy: it has no metadata.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise PolicyError(f"{path} cannot be read: {error}") from None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise PolicyError(f"{folder} is not an exported policy: its metadata.json is of something else")
    version = metadata.get("version")
    if not isinstance(version, int):
        raise PolicyError(f"{path} is damaged: it names no version of the format")
    if version > VERSION:
        raise PolicyError(f"{folder} was exported in format {version}, newer than this loader's {VERSION}")
    return metadata


def load(folder: str | Path, *, sample: bool = False, seed: int = 0) -> Policy:
    """The policy in a folder. `sample`: draw actions from its distribution, beginning with `seed`.

    Raises only PolicyError if the folder is not an exported policy, incomplete or damaged.
    """
    metadata = read_metadata(folder)
    name = "sample" if sample else "greedy"
    programs = metadata.get("programs")
    if not isinstance(programs, dict):
        raise PolicyError(f"{folder} is damaged: its metadata.json names no programs")
    if name not in programs:
        raise PolicyError(
            f"{folder} holds a {metadata.get('agent')} policy, which has one action per observation"
        )
    try:
        return Policy(Path(folder), metadata, programs[name], seed)
    except FileNotFoundError as error:
        raise PolicyError(f"{folder} is incomplete: {Path(error.filename).name} is missing") from None
    except Exception as error:  # NumPy, zipfile, flatbuffers and JAX each have their own
        raise PolicyError(f"{folder} is damaged: {type(error).__name__}: {error}") from error


def as_vector(obs: Any, layout: Sequence[Mapping[str, Any]]) -> Any:
    """Observations of several parts, as mappings or tuples, as the vectors that a policy was trained on.

    Each part may have a leading axis of B observations. Whole numbers stand for one-hot parts.
    """
    if not layout or isinstance(obs, np.ndarray | jax.Array):
        return obs
    rows = []
    for part in layout:
        value = obs
        for key in part["name"].split("/"):
            try:
                value = value[key] if isinstance(value, Mapping) else value[int(key)]
            except (KeyError, IndexError, TypeError, ValueError):
                raise ValueError(f"this observation lacks the part {part['name']}") from None
        value, shape = np.asarray(value), tuple(part["shape"])
        if part["one_hot"] and value.dtype.kind in "iu":
            value = np.eye(shape[0], dtype=np.float32)[value]
        if value.shape[value.ndim - len(shape) :] != shape:
            raise ValueError(f"{part['name']} has shape {shape}, but in this observation {value.shape}")
        rows.append(value.reshape(*value.shape[: value.ndim - len(shape)], -1))
    return np.concatenate(rows, axis=-1)


class Policy:
    """Observations in, actions out. Its only state is the number of actions drawn."""

    def __init__(self, folder: Path, metadata: dict[str, Any], program: dict[str, Any], seed: int) -> None:
        self.metadata = metadata
        self.env: str = metadata["env"]
        self._shape = tuple(metadata["observation"]["shape"])
        self._dtype = np.dtype(metadata["observation"]["dtype"])
        self._layout: list[dict[str, Any]] = metadata["observation"].get("layout", [])
        with open(folder / "weights.npz", "rb") as file, np.load(file) as arrays:
            weights = {name: arrays[f"weights/{name}"] for name in program["weights"]}
            self._start = {name: arrays[f"carry/{name}"] for name in program["carry"]}
        self._weights = jax.device_put(weights)
        content = (folder / Path(program["file"]).name).read_bytes()
        # a program with a wrong bit may still load, and then act differently
        if program.get("sha256") not in (None, hashlib.sha256(content).hexdigest()):
            raise PolicyError(f"the checksum of {program['file']} is wrong")
        self._program = jax.jit(jax.export.deserialize(bytearray(content)).call)
        self._seed = seed

    def initial_carry(self, batch: int = 1) -> dict[str, np.ndarray]:
        """Memory at the start of `batch` episodes; empty for policies without memory."""
        return {name: np.repeat(value, batch, axis=0) for name, value in self._start.items()}

    def act(
        self, obs: Any, carry: dict[str, np.ndarray] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """(action, carry for the next step). Without a carry the episode begins here."""
        array = np.asarray(as_vector(obs, self._layout), self._dtype)
        single = array.shape == self._shape
        batch = array[None] if single else array
        if batch.shape[1:] != self._shape:
            raise ValueError(f"an observation has shape {self._shape}, but this one has {array.shape}")
        carry = self.initial_carry(len(batch)) if carry is None else carry
        action, carry = self._program(self._weights, carry, batch, np.int32(self._seed))
        self._seed = (self._seed + 1) % 2**31  # other draws in the next step
        host = jax.device_get((action[0] if single else action, carry))
        return host
