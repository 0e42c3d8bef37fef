"""Builds the torch ops with CMake and puts the library into the package."""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).absolute().parent


class CMakeBuild(build_ext):
    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")[:-1], "libovq_ops.so")

    def build_extension(self, ext):
        import torch

        build = Path(self.build_temp).absolute()
        target = Path(self.get_ext_fullpath(ext.name)).absolute()
        configure = ["cmake", "-S", str(ROOT), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"]
        configure += ["-DOVQ_BUILD_TORCH=ON", "-DOVQ_BUILD_TESTS=OFF", "-DOVQ_BUILD_CLI=OFF", "-DOVQ_INSTALL=OFF"]
        if os.path.isdir(torch.utils.cmake_prefix_path):
            configure.append(f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}")
        if shutil.which("ninja"):
            configure += ["-G", "Ninja"]
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build), "--target", "ovq_ops", "--parallel", jobs], check=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(build / "lib" / "ops" / "libovq_ops.so", target)


(ROOT / "build").mkdir(exist_ok=True)
setup(
    ext_modules=[Extension("ovq.libovq_ops", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
    options={"egg_info": {"egg_base": "build"}},
)
