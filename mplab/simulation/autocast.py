"""Policies as torch's own autocast: its switches, with a policy's lists in place of torch's.

Autocast is a layer of torch's dispatcher above autograd. Each listed operation has a kernel there
that casts the inputs and calls the operation again, one layer below. While a simulation is active,
the kernels of the operations that its policy lists are replaced by one that asks the policy. All
else stays torch's: regions in which autocast is off, checkpoints, `custom_fwd`, the dtypes that a
program sees, and the gradients of the casts.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._library.utils import lookup_op
from torch.backends import mha
from torch.utils._python_dispatch import _get_current_dispatch_mode

from mplab.simulation.operations import (
    CAST_WITHIN,
    COMPOSITE,
    Keywords,
    Rule,
    asked_dtype,
    is_composite,
    tensors_in,
)
from mplab.simulation.places import current_node, this_thread
from mplab.simulation.policies import CPU_AUTOCAST, Policy, Run, names_in

_KEYS = {
    "cpu": torch._C.DispatchKey.AutocastCPU,
    "cuda": torch._C.DispatchKey.AutocastCUDA,
    "mps": torch._C._dispatch_key_parse("AutocastMPS"),
}

_OFF = torch._C.DispatchKeySet(_KEYS["cpu"])
for _key in ("cuda", "mps"):
    _OFF = _OFF | torch._C.DispatchKeySet(_KEYS[_key])

# Private parts of torch: a kernel of autocast must call the operation below autocast, and torch
# gives Python no other way. Where a newer torch renames one, the import of this file fails.
_Excluding = torch._C._ExcludeDispatchKeyGuard

transformations = torch._C._functorch.get_interpreter_stack

fake_mode = partial(torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE)

_FLOAT32 = torch.float32


def devices(policy: Policy) -> list[str]:
    """The kinds of devices whose autocast a policy switches on.

    Under CUDA's rules that of CUDA is always among them, so that a program on the CPU may switch it
    off by that name.
    """
    found = ["cpu"]
    if policy.kernels == "cuda" or torch.cuda.is_available():
        found.append("cuda")
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


State = list[tuple[str, bool, torch.dtype]]
"""Of autocast: for each kind of device, whether it is on, and its dtype."""


def state(kinds: list[str]) -> State:
    """What autocast does now."""
    return [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in kinds
    ]


def set_state(wanted: State) -> None:
    """Switch autocast on or off, and set its low dtype."""
    for kind, enabled, dtype in wanted:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


@contextmanager
def switched_on(kinds: list[str], dtype: torch.dtype) -> Iterator[int]:
    """Switch autocast on; give the depth to which its regions are nested."""
    before = state(kinds)
    depth = torch.autocast_increment_nesting()
    set_state([(kind, True, dtype) for kind in kinds])
    try:
        yield depth
    finally:
        set_state(before)
        if not torch.autocast_decrement_nesting():
            torch.clear_autocast_cache()


@contextmanager
def on_below_mode() -> Iterator[None]:
    """Switch autocast on within a mode, where torch switches it off, if the program has it on."""
    with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]
        on = [
            key
            for key in _KEYS.values()
            if not torch._C._dispatch_tls_is_dispatch_key_excluded(key)
        ]
    for key in on:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        for key in on:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, True)


def _depth() -> int:
    """How deep regions of autocast are nested; torch tells it only as it changes it."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


# Casts -------------------------------------------------------------------------------------
class Casts:
    """Cast the inputs of operations as autocast does, each weight once until it changes."""

    def __init__(self, convert: Callable[[Tensor, torch.dtype], Tensor]) -> None:
        self._convert = convert
        self._copies: dict[tuple[int, torch.dtype], tuple[Tensor, Any, Tensor]] = {}
        self._memory: set[int] = set()  # of the weights

    def forget(self) -> None:
        """Forget the copies of weights, which may have changed unseen."""
        self._copies.clear()
        self._memory.clear()

    def notice(self, written: Iterable[Tensor]) -> None:
        """Forget the copies if an operation writes to a weight, perhaps through `.data`."""
        if not self._memory:
            return
        for t in written:
            dense = t.layout is torch.strided
            if dense and t.untyped_storage()._cdata in self._memory:
                self.forget()
                return

    def cast(self, value: Any, kind: str, dtype: torch.dtype, scalars: bool) -> Any:
        """Cast a tensor of a kind of device, or those in a list; `scalars`: without dimensions."""
        if not isinstance(value, Tensor):
            if not isinstance(value, list | tuple):
                return value
            return [self.cast(each, kind, dtype, scalars) for each in value]
        if value.dtype is dtype:
            return value
        elsewhere = kind != "cpu" and value.device.type != kind
        if elsewhere or not (scalars or value.dim()):
            return value
        if not value.is_floating_point() or value.dtype is torch.float64:
            return value
        # Torch's autocast keeps copies under the same conditions.
        weight = value.dtype is _FLOAT32 and value.requires_grad and value.is_leaf
        if (
            weight
            and torch.is_grad_enabled()
            and torch.is_autocast_cache_enabled()
            and not transformations()
            and fake_mode() is None
        ):
            return self._copy(value, dtype)
        return self._convert(value, dtype)

    def _copy(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        key = id(weight), dtype
        # A change in place counts up the version, and a new `.data` has another address.
        state = weight._version, weight.data_ptr()
        kept = self._copies.get(key)
        if kept is not None and kept[1] == state:
            return kept[2]
        copy = self._convert(weight, dtype)
        self._copies[key] = weight, state, copy
        self._memory.add(weight.untyped_storage()._cdata)
        return copy


def _call(
    mode: Any, operation: Any, rule: Rule, kind: str, args: Any, kwargs: Keywords
) -> Any:
    """Call an operation as a rule says, below autocast."""
    run = rule.run
    if run is Run.WIDEST and not any(t.dtype is _FLOAT32 for t in tensors_in(args)):
        return operation(*args, **kwargs)
    if run is Run.WIDE and asked_dtype(rule, args, kwargs) is not None:
        return operation(*args, **kwargs)
    low = torch.get_autocast_dtype(kind)
    dtype = low if run is Run.LOWER else _FLOAT32
    cast = mode.casts.cast
    cause = mode.cause
    mode.cause = CAST
    # A policy that lowers without a list would round losses, too: only their results show them.
    may_be_a_loss = run is Run.LOWER and not rule.listed
    try:
        if rule.listed:
            args = [cast(a, kind, dtype, True) for a in args]
            kwargs = {name: cast(a, kind, dtype, True) for name, a in kwargs.items()}
            mode.cause = rule.reason
        else:  # not the statistics and weights of a norm
            args = [
                cast(a, kind, dtype, False) if i in rule.positions else a
                for i, a in enumerate(args)
            ]
            mode.cause = cause
        mode.discards_scalars = may_be_a_loss
        out = operation(*args, **kwargs)
        mode.discards_scalars = False
        if run is Run.OUTPUT:
            mode.cause = CAST
            if isinstance(out, tuple):
                first, *others = out
                return (first.to(low), *others)
            return out.to(low)
        if may_be_a_loss and isinstance(out, Tensor) and not out.dim():
            mode.cause = CAST
            args = [cast(a, kind, _FLOAT32, False) for a in args]
            mode.cause = "a result without dimensions stays FP32"
            return operation(*args, **kwargs)
        return out
    finally:
        mode.cause = cause
        mode.discards_scalars = False


_COMPARING = names_in(
    "conv1d conv2d conv3d prelu bilinear scaled_dot_product_attention"
)
"""Composite operations that compare the dtypes of their inputs before their parts may cast them."""

_REFUSED = ("aten::binary_cross_entropy",)
"""What autocast refuses on CUDA."""

CAST = "cast by the policy"
"""Why a conversion runs that the program did not write."""


# The kernels -------------------------------------------------------------------------------
class Kernels:
    """The kernels that replace autocast's, for as long as somebody holds this object.

    Then torch's own kernels are called directly again, once Python collects garbage: a loop that
    makes a context for each step finds those of the last, which take longer to replace than a small
    network's step takes.
    """

    def __init__(self) -> None:
        self._until_collected = self  # a cycle, which counting references does not end
        self._users = 0
        self._fast = True
        self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        self._replaced: set[Any] = set()
        self._policies: set[Policy] = set()

    @contextmanager
    def layers_in_parts(self) -> Iterator[None]:
        """Switch off, in all threads, torch's way of running a whole layer as one operation."""
        with _lock:
            if not self._users:
                self._fast = mha.get_fastpath_enabled()
            self._users += 1
            mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            with _lock:
                self._users -= 1
                if not self._users:
                    mha.set_fastpath_enabled(self._fast)

    def replace(self, policy: Policy) -> None:
        """Replace the kernels of the operations that a policy casts for."""
        if policy in self._policies:  # a step of training enters here each time
            return
        kinds = devices(CPU_AUTOCAST)
        with _lock, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*may also be overridden")
            for operation in _operations_of(policy):
                if operation in self._replaced:
                    continue
                self._replaced.add(operation)
                for kind in kinds:
                    kernel = _kernel(operation, kind)
                    key = _KEYS[kind].name
                    self._library.impl(operation, kernel, key, with_keyset=True)  # type: ignore[no-untyped-call]
            self._policies.add(policy)


@cache
def _operations_of(policy: Policy) -> list[Any]:
    """The operations whose inputs a policy or torch itself casts, in some layer or in all."""
    every = bool(policy.layers) or Run.LOWER in (policy.inside, policy.outside)
    names = set[str]()
    for _, listed in policy.lists():
        names |= listed
    own = set[str]()
    for kind in devices(CPU_AUTOCAST):
        own |= _with_kernels(kind)
    found = []
    for operation in _functional_operations():
        base = operation._schema.name.removeprefix("aten::")
        named = base in names or operation.name() in own
        lowered = every and (base in _COMPARING or not is_composite(operation))
        if named or lowered:
            found.append(operation)
    return found


_lock = Lock()

_shared = WeakValueDictionary[str, Kernels]()


def kernels() -> Kernels:
    """The replaced kernels, shared by all simulations of the process."""
    with _lock:
        return _shared.get("aten") or _shared.setdefault("aten", Kernels())


@cache
def _kernel(operation: Any, kind: str) -> Callable[..., Any]:
    """A kernel that asks the policy of the calling thread; without one it is torch's own."""
    own = _own_kernel(operation.name(), kind)
    whole = is_composite(operation)
    base = operation._schema.name.partition("::")[2]
    in_parts = whole and base not in _COMPARING
    casts_within = base in CAST_WITHIN
    # Private: with these keys the next kernel runs, as if ours were not there.
    after = torch._C._dispatch_keyset_full_after(_KEYS[kind])
    refused = None
    if operation.name() in _REFUSED:
        refused = _own_kernel(operation.name(), "cuda")

    def untouched(args: Any, kwargs: Keywords) -> Any:
        if whole:  # its parts may be listed
            return operation._op_dk(COMPOSITE, *args, **kwargs)
        with _Excluding(_OFF):
            return operation._op(*args, **kwargs)

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        mode = this_thread().innermost
        if mode is None:  # of a backward pass in a thread of its own
            mode = _get_current_dispatch_mode()
        lists = getattr(mode, "policy", None)
        if lists is None or lists.written:
            if own is not None:
                return own.call_boxed(keys, *args, **kwargs)
            if casts_within:
                return operation.redispatch(keys & after, *args, **kwargs)
            return untouched(args, kwargs)
        rules = mode.place.rules
        if current_node() is not None:
            if _depth() <= mode.depth:  # a backward pass belongs outside autocast
                return untouched(args, kwargs)
            rules = mode.running()[0].rules
        rule = rules[operation]
        alone = not rule.listed and (in_parts or rule.run is Run.WIDEST)
        if alone or _is_off(mode, rule):
            return untouched(args, kwargs)
        if refused is not None and mode.policy.kernels == "cuda":
            refused.call_boxed(keys, *args, **kwargs)  # raises, in torch's words
        with _Excluding(_OFF):
            return _call(mode, operation._op, rule, kind, args, kwargs)

    return run


def _is_off(mode: Any, rule: Rule) -> bool:
    """Whether nothing is cast: in an optimizer's step or a region switched off by CUDA's name.

    And what a program does outside modules without gradients, as it clips them, is lowered only by
    a list.
    """
    if mode.policy.kernels == "cuda" and not torch.is_autocast_enabled("cuda"):
        mode.switched_off = True
        return True
    if mode.steps:
        return True
    outside = mode.place is mode.outside and not torch.is_grad_enabled()
    return outside and not rule.listed


def _own_kernel(name: str, kind: str) -> Any:
    """Torch's own kernel of autocast for an operation, if it has one."""
    if name not in _with_kernels(kind):
        return None
    return torch.library.get_kernel(name, _KEYS[kind].name)


@cache
def _with_kernels(kind: str) -> frozenset[str]:
    """The operations for which torch itself has kernels of autocast."""
    key = _KEYS[kind].name
    return frozenset(torch._C._dispatch_get_registrations_for_dispatch_key(key))


@cache
def _functional_operations() -> list[Any]:
    """Torch's operations that compute new tensors from tensors."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        operation = lookup_op(name)
        schema = operation._schema
        # A schema marks the inputs that are written to, or share memory with a result.
        shared = any(a.alias_info for a in schema.arguments)
        taken, given = (
            any("Tensor" in str(a.type) for a in some)
            for some in (schema.arguments, schema.returns)
        )
        if taken and given and not shared:
            found.append(operation)
    return found
