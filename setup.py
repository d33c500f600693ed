"""Compiles the replay's sum tree for CPUs into the package; everything else is in pyproject.toml.

The library is an accelerator, not a need: where it cannot be compiled, the package installs without it
and uses the same tree in pure JAX.
"""

import subprocess
import sys
import warnings
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_ext import build_ext
from setuptools.extension import Extension

SOURCE = "jaxrl_hpc/replay/native/sum_tree.cc"
HEADERS = ["jaxrl_hpc/replay/native/layout.h", "jaxrl_hpc/replay/native/descend.h"]
LIBRARY = "jaxrl_hpc/replay/native/libsum_tree.so"
# No FMA contraction: results must equal the pure JAX tree's bit for bit. No -march: AVX2 is chosen at
# run time.
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-DNDEBUG", "-fPIC", "-shared"]


class BuildKernel(build_ext):
    """Compiles one shared library; a failure is a warning."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        compiler = (getattr(self.compiler, "compiler_cxx", None) or ["g++"])[0]
        try:
            import jax.ffi

            command = [compiler, *FLAGS, f"-I{jax.ffi.include_dir()}", SOURCE, "-o", str(target)]
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (ImportError, OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", "") or str(error)
            warnings.warn(
                f"the native sum tree was not compiled, the pure JAX one will be used: {detail}", stacklevel=1
            )

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"  # loaded by ctypes: no Python ABI in its name

    def copy_extensions_to_source(self) -> None:
        built = Path(self.get_ext_fullpath(self.extensions[0].name))
        source = Path(self.build_lib) / LIBRARY
        for candidate in (built, source):
            if candidate.is_file() and candidate.resolve() != Path(LIBRARY).resolve():
                self.copy_file(str(candidate), LIBRARY)
                return


class BinaryDistribution(Distribution):
    """A wheel with a compiled library belongs to one platform."""

    def has_ext_modules(self) -> bool:
        return sys.platform != "win32"


setup(
    ext_modules=[Extension("jaxrl_hpc.replay.native.libsum_tree", [SOURCE], depends=HEADERS)],
    cmdclass={"build_ext": BuildKernel},
    distclass=BinaryDistribution,
)
