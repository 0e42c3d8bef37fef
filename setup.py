"""Builds the torch ops, layers and models with CMake and puts their libraries into the package."""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).absolute().parent
LIBRARIES = {"libovq_ops": "ops", "libovq_nn": "nn", "libovq_models": "models", "libovq_sentencepiece": "text"}  # and where they are


class CMakeBuild(build_ext):
    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extensions(self):
        import torch

        build = Path(self.build_temp).absolute()
        configure = ["cmake", "-S", str(ROOT), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"]
        configure += ["-DOVQ_BUILD_TORCH=ON", "-DOVQ_BUILD_TESTS=OFF", "-DOVQ_BUILD_CLI=OFF", "-DOVQ_INSTALL=OFF"]
        configure += ["-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN"]
        if os.path.isdir(torch.utils.cmake_prefix_path):
            configure.append(f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}")
        if shutil.which("ninja"):
            configure += ["-G", "Ninja"]
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build), "--target", "ovq_models", "--parallel", jobs], check=True)
        super().build_extensions()

    def build_extension(self, ext):
        name = ext.name.split(".")[-1]
        target = Path(self.get_ext_fullpath(ext.name)).absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(Path(self.build_temp).absolute() / "python" / "ovq" / "torch_version.txt", target.parent)
        shutil.copy2(Path(self.build_temp).absolute() / "lib" / LIBRARIES[name] / f"{name}.so", target)


(ROOT / "build").mkdir(exist_ok=True)
setup(
    ext_modules=[Extension(f"ovq.{name}", sources=[]) for name in LIBRARIES],
    cmdclass={"build_ext": CMakeBuild},
    options={"egg_info": {"egg_base": "build"}},
)
