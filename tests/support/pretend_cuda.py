"""A CUDA device that is none: tensors say that they are on it, and their numbers are on the CPU.

It finds what only a CUDA device would: tensors of two devices in one operation, operands that
its kernels refuse, and calls of `torch.cuda`. It finds nothing about the device's arithmetic.
"""

import contextlib
import time
from importlib import import_module
from types import SimpleNamespace

import torch
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from mplab.simulation import mode

NAME = "Pretended GPU"
_PLACE = torch.device("cuda", 0)
_CPU = torch.device("cpu")
_aten = torch.ops.aten
_BETWEEN_DEVICES = {
    "_to_copy",
    "copy_",
    "_copy_from",
    "index",
    "index_put_",
    "_index_put_impl_",
}
_NUMBERS = {"_local_scalar_dense", "equal", "is_nonzero", "_fused_sdp_choice"}


class OnCuda(torch.Tensor):
    """A tensor that says it is on the device; `inner` has its numbers."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device="cpu",  # for autograd, which asks for streams of any other device
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"OnCuda({self.inner!r})"

    device = property(lambda self: _PLACE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def data_ptr(self):
        return self.inner.data_ptr()

    def untyped_storage(self):
        return self.inner.untyped_storage()

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, other):  # as nn.Module.to sets it
        torch.Tensor.data.__set__(self, other)
        self.inner = other.inner

    def cpu(self):
        return self.inner.clone()

    def to(self, *args, **kwargs):
        args, kwargs = tree_map(_spelled, (args, kwargs))
        here = self.cpu() if _CPU in (*args, kwargs.get("device")) else super()
        return here.to(*args, **kwargs)

    def tolist(self):
        return self.inner.detach().tolist()

    def numpy(self, *args, **kwargs):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()."
        )

    def __array__(self, *args, **kwargs):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()."
        )

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _Device(TorchDispatchMode):
    """Makes tensors on the device where an operation asks for one."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def _run(func, args, kwargs):
    name = func._schema.name.partition("::")[2]
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    here = [t for t in tensors if isinstance(t, OnCuda)]
    if (asked := kwargs.get("device")) is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
        kwargs.pop("non_blocking", None)
    if name not in _BETWEEN_DEVICES and here:
        strange = [t for t in tensors if not isinstance(t, OnCuda) and t.dim()]
        if strange:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found cuda:0 and cpu! ({func})"
            )
    # an operation inside torch asks for the device that the wrapper has for autograd: the CPU
    there = here or (asked is not None and torch.device(asked).type == "cuda")
    if name in ("copy_", "index_put_"):
        there = isinstance(args[0], OnCuda)
    if kwargs.get("pin_memory"):
        kwargs = kwargs | {"pin_memory": False}
    plain_args, plain_kwargs = tree_map(_inner, (args, kwargs))
    out = _REPLACED.get(func, func)(*plain_args, **plain_kwargs)
    if func._schema.is_mutable:
        return _written(func, args, kwargs)
    if not there or name in _NUMBERS:
        return out
    return tree_map(lambda t: OnCuda(t) if isinstance(t, torch.Tensor) else t, out)


def _inner(t):
    return t.inner if isinstance(t, OnCuda) else t


def _written(func, args, kwargs):
    """What an operation that writes into its arguments returns."""
    found = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[i] if i < len(args) else kwargs.get(argument.name))
    count = len(func._schema.returns)
    return None if not count else found[0] if count == 1 else tuple(found)


# What CUDA's kernels take ------------------------------------------------------------------


def _scaled_mm(a, b, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, fast=False,
               **kwargs):  # fmt: skip
    """The rules of `_scaled_mm_cuda` with one scale for a tensor."""
    if a.dtype == b.dtype == torch.float8_e5m2:
        raise ValueError("Multiplication of two Float8_e5m2 matrices is not supported")
    if a.stride(1) != 1 or b.stride(0) != 1:
        raise RuntimeError("mat_a must be row_major, and mat_b column_major")
    if a.shape[1] % 16 or b.shape[0] % 16 or b.shape[1] % 16:
        raise RuntimeError(
            f"dimensions must be divisible by 16, got {a.shape} and {b.shape}"
        )
    if scale_a.dtype != torch.float32 or scale_b.dtype != torch.float32:
        raise ValueError("both scale_a and scale_b must be float (fp32) tensors.")
    if a.data_ptr() % 16 or b.data_ptr() % 16:
        raise RuntimeError("operands must be aligned to 16 bytes")
    out = (a.float() @ b.float()) * scale_a * scale_b
    return out.to(out_dtype or a.dtype)


def _mm(a, b, out_dtype):
    if out_dtype != torch.float32 or a.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("out_dtype must be float32 for float16 and bfloat16")
    return a.float() @ b.float()


_REPLACED = {
    _aten._scaled_mm.default: _scaled_mm,
    _aten.mm.dtype: _mm,
    _aten._fused_sdp_choice.default: lambda *args, **kwargs: (
        0
    ),  # the composite attention
}


# torch.cuda --------------------------------------------------------------------------------


class _Event:
    def __init__(self, enable_timing=False):
        self.at = 0.0

    def record(self, stream=None):
        self.at = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return max(1e-6, 1e3 * (other.at - self.at))


_NOTHING = """
    _lazy_init set_device synchronize empty_cache reset_peak_memory_stats set_rng_state manual_seed
    manual_seed_all
"""
_CUDA = {
    **dict.fromkeys(_NOTHING.split(), lambda *_, **__: None),
    **dict.fromkeys(
        ("is_available", "is_initialized", "is_bf16_supported"), lambda *_, **__: True
    ),
    **dict.fromkeys(
        ("memory_allocated", "max_memory_allocated"), lambda device=None: 1 << 20
    ),
    "is_current_stream_capturing": lambda: False,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "get_device_name": lambda device=None: NAME,
    "get_device_capability": lambda device=None: (9, 0),
    "get_device_properties": lambda device=None: SimpleNamespace(
        name=NAME, major=9, minor=0, multi_processor_count=132, total_memory=80 << 30
    ),
    "get_rng_state": lambda device=None: torch.get_rng_state(),
    "Event": _Event,
}


class _Autocast(torch.autocast):
    """Autocast on the device: here with the CPU's lists."""

    def __init__(self, device_type, *args, **kwargs):
        super().__init__(
            "cpu" if device_type == "cuda" else device_type, *args, **kwargs
        )


def _on_cpu(function):
    """A function of a device's type that asks the CPU instead."""
    return lambda kind="cuda": function("cpu" if kind == "cuda" else kind)


class _Spelling(TorchFunctionMode):
    """Says which CUDA device "cuda" is, before torch asks the driver."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(_spelled, (args, kwargs or {}))
        if func is torch.Tensor.cuda:
            return args[0].to(_PLACE)
        return func(*args, **kwargs)


def _placed(function):
    """A function that makes a tensor of numbers, on the device where it is asked to."""

    def make(data, *args, device=None, **kwargs):
        made = function(data, *args, **kwargs)
        return made if device is None else made.to(_spelled(device))

    return make


def _spelled(argument):
    if isinstance(argument, str) and argument in ("cuda", "cuda:0"):
        return _PLACE
    if isinstance(argument, torch.device) and argument.type == "cuda":
        return _PLACE
    if isinstance(argument, str) and argument == "cpu":
        return _CPU
    return argument


_compatible = torch._has_compatible_shallow_copy_type


def _of_one_device(input: torch.Tensor, from_: torch.Tensor) -> bool:
    """Whether a parameter can take over a tensor, or must be replaced."""
    return isinstance(input, OnCuda) is isinstance(from_, OnCuda) and _compatible(
        input, from_
    )


@contextlib.contextmanager
def pretended(monkeypatch):
    """In this context `torch.cuda` has a device, and "cuda" is it."""
    import_module("torch._dynamo.polyfills.loader")  # looks at what is replaced below
    for name, value in _CUDA.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    # A torch that is built for CUDA would ask for a driver.
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: None)
    monkeypatch.setattr(torch, "autocast", _Autocast)
    monkeypatch.setattr(torch.amp, "autocast", _Autocast)
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        monkeypatch.setattr(torch, name, _on_cpu(getattr(torch, name)))
    for name in ("tensor", "as_tensor"):
        monkeypatch.setattr(torch, name, _placed(getattr(torch, name)))
    supported = [*_foreach_utils._foreach_supported_types, OnCuda]
    monkeypatch.setattr(optimizer, "_foreach_supported_types", supported)
    monkeypatch.setattr(torch, "_has_compatible_shallow_copy_type", _of_one_device)
    monkeypatch.setattr(mode, "_PLAIN", mode._PLAIN | {OnCuda})  # it has its own memory
    with _Device(), _Spelling():
        yield torch.device("cuda")
