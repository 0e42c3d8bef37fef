"""The part of ggml's C interface that ggml_worker.py uses, through ctypes. Loads the libraries of a build of ggml or
llama.cpp in place; needs no headers."""

import ctypes
import time
from ctypes import c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np

# Where builds and packages have the libraries.
FOLDERS = ["", "bin", "lib", "src", "build/bin", "build/lib", "build/src", "build/ggml/src", "bins/linux-x64"]
TYPES = {"float32": 0, "float16": 1, "int32": 26}  # enum ggml_type
ARENA = 1 << 20  # bytes for the descriptions of tensors and graphs; their data is stored elsewhere


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


tensor = context = graph = backend = c_void_p
# name: result, arguments
BASE = {
    "ggml_version": (c_char_p,),
    "ggml_init": (context, InitParams),
    "ggml_free": (None, context),
    "ggml_new_tensor_4d": (tensor, context, c_int, c_int64, c_int64, c_int64, c_int64),
    "ggml_view_4d": (tensor, context, tensor, *[c_int64] * 4, *[c_size_t] * 4),
    "ggml_permute": (tensor, context, tensor, c_int, c_int, c_int, c_int),
    "ggml_cont": (tensor, context, tensor),
    "ggml_mul_mat": (tensor, context, tensor, tensor),
    "ggml_soft_max_ext": (tensor, context, tensor, tensor, c_float, c_float),
    "ggml_flash_attn_ext": (tensor, context, *[tensor] * 4, *[c_float] * 3),
    "ggml_new_graph": (graph, context),
    "ggml_build_forward_expand": (None, graph, tensor),
    "ggml_backend_get_default_buffer_type": (c_void_p, backend),
    "ggml_backend_alloc_ctx_tensors": (c_void_p, context, backend),
    "ggml_backend_tensor_set": (None, tensor, c_void_p, c_size_t, c_size_t),
    "ggml_backend_tensor_get": (None, tensor, c_void_p, c_size_t, c_size_t),
    "ggml_backend_graph_compute": (c_int, backend, graph),
    "ggml_gallocr_new": (c_void_p, c_void_p),
    "ggml_gallocr_alloc_graph": (c_bool, c_void_p, graph),
}
# Newer than the others. The last argument is the number of states to keep; older versions ignore it.
RECURRENCES = {
    "ggml_gated_delta_net": (tensor, context, *[tensor] * 6, c_int64),
    "ggml_ssm_scan": (tensor, context, *[tensor] * 7, c_int64),
}
CPU = {
    "ggml_backend_cpu_init": (backend,),
    "ggml_backend_cpu_set_n_threads": (None, backend, c_int),
}


def find_libraries(directory):
    """libggml-base and all libggml-cpu under a directory; raises FileNotFoundError."""
    folders = [Path(directory) / folder for folder in FOLDERS]
    base = [path for folder in folders for path in sorted(folder.glob("libggml-base.so*"))]
    cpu = [path for folder in folders for path in sorted(folder.glob("libggml-cpu*.so*"))]
    if not base or not cpu:
        raise FileNotFoundError(
            f"no {'libggml-cpu*.so*' if base else 'libggml-base.so*'} in {directory}, nor in its folders "
            + ", ".join(FOLDERS[1:])
        )
    return base[0], cpu


class Ggml:
    def __init__(self, directory, threads):
        base, cpu = find_libraries(directory)
        base = ctypes.CDLL(str(base), ctypes.RTLD_GLOBAL)  # the other libraries find it by its name
        # A package has a library for each kind of CPU; each returns a score for this CPU, 0 if it does not run here.
        scores = {path: score(ctypes.CDLL(str(path))) for path in cpu}
        path = max(scores, key=scores.get)
        if scores[path] <= 0:
            raise OSError(f"none of the {len(cpu)} libggml-cpu fits this CPU")
        recurrences = {name: types for name, types in RECURRENCES.items() if hasattr(base, name)}
        self.recurrences = [name.removeprefix("ggml_") for name in recurrences]
        for library, functions in ((base, BASE), (base, recurrences), (ctypes.CDLL(str(path)), CPU)):
            for name, (result, *arguments) in functions.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name.removeprefix("ggml_"), function)
        kind = path.name.split(".")[0].removeprefix("libggml-cpu").removeprefix("-")
        self.name = self.version().decode() + (f"+{kind}" if kind else "")
        self.backend = self.backend_cpu_init()
        self.backend_cpu_set_n_threads(self.backend, threads)
        self.allocator = self.gallocr_new(self.backend_get_default_buffer_type(self.backend))

    def tensors(self, **arrays):
        """Tensors with these contents, which are never freed. ggml counts dimensions from the innermost."""
        arena = self.init(InitParams(ARENA, None, True))
        made = {}
        for name, array in arrays.items():
            shape = [*reversed(array.shape), 1, 1, 1, 1][:4]
            made[name] = self.new_tensor_4d(arena, TYPES[str(array.dtype)], *shape)
        if not self.backend_alloc_ctx_tensors(arena, self.backend):
            raise MemoryError("no memory for the inputs")
        for name, array in arrays.items():
            self.assign(made[name], array)
        return made

    def assign(self, target, array):
        array = np.ascontiguousarray(array)
        self.backend_tensor_set(target, array.ctypes.data, 0, array.nbytes)

    def compute(self, build, count):
        """Runs the graph that build(arena) makes: its seconds, and the first `count` floats of its result."""
        arena = self.init(InitParams(ARENA, None, True))
        result = build(arena)
        graph = self.new_graph(arena)
        self.build_forward_expand(graph, result)
        if not self.gallocr_alloc_graph(self.allocator, graph):
            raise MemoryError("no memory for the graph")
        start = time.perf_counter()
        status = self.backend_graph_compute(self.backend, graph)
        seconds = time.perf_counter() - start
        if status != 0:
            raise RuntimeError(f"the graph failed with status {status}")
        out = np.empty(count, np.float32)
        self.backend_tensor_get(result, out.ctypes.data, 0, out.nbytes)
        self.free(arena)
        return seconds, out


def score(library):
    return library.ggml_backend_score() if hasattr(library, "ggml_backend_score") else 1
