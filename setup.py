"""Compiles small libraries for CPUs into the package; everything else is in pyproject.toml.

They are accelerators, not needs: where one cannot be compiled, the package installs without it.
"""

import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.extension import Extension

# No FMA contraction: results must equal the pure JAX tree's bit for bit. No -march: AVX2 is chosen at
# run time.
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-DNDEBUG", "-fPIC", "-shared"]


class Library(NamedTuple):
    source: str
    headers: tuple[str, ...]
    without: str  # what happens if it is not there


LIBRARIES = {
    "jaxrl_hpc.replay.native.libsum_tree": Library(
        "jaxrl_hpc/replay/native/sum_tree.cc",
        ("jaxrl_hpc/replay/native/layout.h", "jaxrl_hpc/replay/native/descend.h"),
        "prioritised replay uses its slower pure JAX tree",
    ),
    "jaxrl_hpc.ops.libthreefry": Library(
        "jaxrl_hpc/ops/threefry.cc", (), "random numbers take longer on CPUs"
    ),
    "jaxrl_hpc.networks.native.libconvolution": Library(
        "jaxrl_hpc/networks/native/convolution.cc",
        ("jaxrl_hpc/networks/native/passes.h",),
        "convolutions take longer on CPUs",
    ),
    "jaxrl_hpc.envs.external.libpulse": Library(
        "jaxrl_hpc/envs/external/pulse.cc", (), "envpool's steps have no deadline"
    ),
    "jaxrl_hpc.comm.libpolling": Library(
        "jaxrl_hpc/comm/polling.cc", (), "ranks that wait inside programs keep their cores busy"
    ),
    "jaxrl_hpc.ops.libpause": Library(
        "jaxrl_hpc/ops/pause.cc", (), "run.step_seconds and run.update_seconds cannot be used"
    ),
}


class BuildLibraries(build_ext):
    """Compiles shared libraries; a failure is a warning."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        compiler = (getattr(self.compiler, "compiler_cxx", None) or ["g++"])[0]
        try:
            import jax.ffi

            command = [compiler, *FLAGS, f"-I{jax.ffi.include_dir()}", *ext.sources, "-o", str(target)]
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (ImportError, OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", "") or str(error)
            library = LIBRARIES[ext.name]
            warnings.warn(f"{library.source} was not compiled, {library.without}: {detail}", stacklevel=1)

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"  # loaded by ctypes: no Python ABI in its name

    def copy_extensions_to_source(self) -> None:
        for ext in self.extensions:
            place = Path(self.get_ext_filename(ext.name))
            for candidate in (Path(self.get_ext_fullpath(ext.name)), Path(self.build_lib) / place):
                if candidate.is_file() and candidate.resolve() != place.resolve():
                    self.copy_file(str(candidate), str(place))
                    break


class BuildWithConfigs(build_py):
    """configs/ stays at the top of the repository; a wheel carries it as jaxrl_hpc/configs."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copytree("configs", Path(self.build_lib) / "jaxrl_hpc" / "configs", dirs_exist_ok=True)


class PlatformWheel(bdist_wheel):
    """One wheel for all Pythons of a platform: ctypes loads the libraries, they know no Python ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    """A wheel with a compiled library belongs to one platform."""

    def has_ext_modules(self) -> bool:
        return sys.platform != "win32"


setup(
    ext_modules=[
        Extension(name, [library.source], depends=list(library.headers))
        for name, library in LIBRARIES.items()
    ],
    cmdclass={"build_ext": BuildLibraries, "build_py": BuildWithConfigs, "bdist_wheel": PlatformWheel},
    distclass=BinaryDistribution,
)
