"""Measurements of tensors for the hooks, which leave the run unchanged."""

import copyreg
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from itertools import islice
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode,
)

from mplab.numbers.checks import quoted
from mplab.numbers.devices import widest
from mplab.numbers.formats import Format

_LOOKED_AT = 1 << 14
"""Up to this many numbers of a tensor are all counted or compared; of more, a sample is."""

_Look = TypeVar("_Look", bound=Callable[..., None])

register_hook = Tensor.register_hook
"""For the hooks of watches. A probe, which may replace the method to count the program's hooks,
does not count these."""


def without_errors(look: _Look) -> _Look:
    """Make a hook whose errors never reach the run, and which `torch.compile` ignores.

    Its class must have `_stopped`, and `_stop`, which is called with the error.
    """

    @wraps(look)
    def hook(self: Any, *args: Any, **kwargs: Any) -> None:
        if torch.compiler.is_compiling() or self._stopped or Watch.repeating:
            return
        try:
            look(self, *args, **kwargs)
        except Exception as error:
            self._stop(error)

    return cast(_Look, hook)


class Watch:
    """Hooks on a run; a class of them catches its errors by `without_errors`.

    Attributes:
        repeating: whether a backward pass is repeated just now; what is seen then is not the run's.
    """

    repeating = False  # of all watches: on CUDA hooks run in another thread
    _stopped = True

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def _require_closed(self) -> None:
        if self._handles:
            name = type(self).__name__
            raise RuntimeError(
                f"{name}: a watch must be closed before it is entered again."
            )

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Make the hooks of a copied or stored model do nothing: a new watch is stopped."""
        return copyreg.__newobj__, (type(self),)  # type: ignore[attr-defined]


def without_modes() -> AbstractContextManager[Any]:
    """Below a simulation around the watch, if there is one."""
    idle = _get_current_dispatch_mode() is None
    return nullcontext() if idle else _disable_current_modes()


class unseen(torch.no_grad):
    """Compute without autograd, autocast or a simulation noticing.

    A class, because each hook enters it, and a generator takes three times as long.
    """

    def __enter__(self) -> None:
        self._modes = without_modes()
        self._modes.__enter__()
        super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._modes.__exit__(*error)


def require_optimizer(function: str, optimizer: Any, model: nn.Module) -> None:
    """Reject an optimizer that updates no parameter of the model.

    An optimizer of parameters of another dtype passes: they may be FP32 master weights.

    Raises:
        TypeError: it is no optimizer.
        ValueError: the optimizer updates none of them.
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"{function}: optimizer must be one optimizer; got {quoted(optimizer)}. Give the one "
            f"that is stepped last."
        )
    trained = {id(p): p.dtype for p in model.parameters() if p.requires_grad}
    updated = {
        id(p): p.dtype for group in optimizer.param_groups for p in group["params"]
    }
    same = set(trained.values()) == set(updated.values())
    if same and not trained.keys() & updated.keys():
        raise ValueError(
            f"{function}: optimizer must update parameters of the model; got "
            f"{type(optimizer).__name__} with {len(updated)} others. Make it from "
            f"model.parameters(), after all that replaces them, such as a copy or fully_shard."
        )


def watched_modules(model: nn.Module) -> list[tuple[str, nn.Module, bool]]:
    """List the modules to watch: name, module, and whether none within it is watched."""
    chosen: list[tuple[str, nn.Module, bool]] = []
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in inside:
            continue
        compiled = (
            "_orig_mod" in module._modules or module._compiled_call_impl is not None
        )
        if compiled:
            inside.update(module.modules())
        chosen.append((name, module, compiled or next(module.children(), None) is None))
    return chosen


def is_readable(t: object) -> bool:
    """Whether the numbers of a tensor can be read: it is dense, and no shape alone."""
    return (
        isinstance(t, Tensor)
        and (t.is_floating_point() or t.is_complex())
        and t.layout is torch.strided
        and not t.is_meta
        and type(t) is not FakeTensor
        and not torch._C._functorch.is_functorch_wrapped_tensor(t)
    )


def version_of(t: Tensor) -> int | None:
    """How often a tensor was written to; None for an inference tensor, which does not count."""
    return None if t.is_inference() else t._version


class Known:
    """What is known of tensors, each as long as it lives and nobody writes to it.

    Torch's `WeakTensorKeyDictionary` would do the same in four times the time.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Tensor], int | None, Any]] = {}

    def get(self, t: Tensor) -> Any:
        """What was put for this tensor; None where nothing was, or it has changed since."""
        known = self._found.get(id(t))
        if known is None:
            return None
        kept, version, found = known
        # By now the id may be that of another tensor.
        if kept() is not t or version is None or version != version_of(t):
            return None
        return found

    def put(self, t: Tensor, found: Any) -> None:
        """Remember what was found."""
        self._found[id(t)] = weakref.ref(t), version_of(t), found


# Numbers of tensors -----------------------------------------------------------------------
def several_processes() -> bool:
    """Whether several processes train together."""
    dist = torch.distributed
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """The rank of this process; 0 where it trains alone."""
    return torch.distributed.get_rank() if several_processes() else 0


def local(t: Tensor) -> Tensor:
    """This process's part of a tensor that is spread over processes; no process waits.

    Of complex numbers, the real and the imaginary parts.
    """
    shard = getattr(t, "to_local", None)
    part: Tensor = t.detach() if shard is None else shard().detach()
    return torch.view_as_real(part.resolve_conj()) if part.is_complex() else part


def values_of(t: Tensor) -> Tensor:
    """What `local` holds of a tensor: of a sparse one all that is stored; eight bits in float32."""
    t = local(t)
    if t.is_sparse:
        t = t.coalesce().values()
    return t.float() if t.itemsize == 1 else t  # torch computes nothing in eight bits


def sample(t: Tensor, most: int) -> Tensor:
    """Return a view: all of a tensor of at most `most` elements, else about a quarter of `most`.

    A sample consists of whole rows at even distances.

    Examples:
        >>> sample(torch.arange(12).view(6, 2), 11)
        tensor([[ 0,  1],
                [10, 11]])
    """
    if t.numel() <= most:
        return t
    rows = t
    if t.dim() > 1 and t.is_contiguous():
        rows = t.flatten(0, -2)
    if len(rows) == 1:
        rows = rows.squeeze()
    return rows[:: -(-4 * t.numel() // most)]


def largest_of(t: Tensor) -> Tensor:
    """The largest magnitude as a scalar, not finite if an element is not; nothing waits for it.

    Of this process's part, in float32, or in float64 if it is; 0 of an empty tensor.

    Examples:
        >>> (
        ...     largest_of(torch.tensor([1.0, -3.0])),
        ...     largest_of(torch.tensor([1.0, torch.nan])),
        ... )
        (tensor(3.), tensor(nan))
    """
    if not t.numel():
        return torch.zeros((), dtype=torch.float32, device=t.device)
    t = values_of(t)
    low, high = torch.aminmax(t)
    wide = torch.promote_types(t.dtype, torch.float32)
    return torch.maximum(-low, high).to(wide)


def norm_of(t: Tensor) -> Tensor:
    """The Euclidean norm of this process's part, in float32, or in float64 if it is."""
    t = values_of(t)
    dtype = torch.promote_types(t.dtype, torch.float32)
    return torch.linalg.vector_norm(t, dtype=dtype)  # type: ignore[no-any-return]


def total(norms: list[Tensor]) -> float | None:
    """The norm of all parts together, from their norms; None without parts."""
    return float(torch.linalg.vector_norm(together(norms))) if norms else None


def together(parts: list[Tensor]) -> Tensor:
    """Stack tensors of one shape on one device, even if a model spans several."""
    return torch.stack([part.to(parts[0].device) for part in parts])


Row = tuple[str, tuple[Any, ...], Sequence[Tensor] | Tensor]
"""A layer, what is counted, and the counts, which are still on the device. To read each at once
would wait for the device at each layer."""


def read(counted: list[Row]) -> Iterator[tuple[str, Any, list[Any]]]:
    """Read all counts of a step from the device at once."""
    flat = [count for *_, counts in counted for count in counts]
    numbers = iter(together(flat).tolist() if flat else ())
    for name, kind, counts in counted:
        yield name, kind, list(islice(numbers, len(counts)))


def magnitudes_of(
    name: str, t: Tensor, largest: Tensor, fmt: Format, what_if: bool
) -> Row:
    """What `records.magnitudes` takes; all but the largest of a sample of a large tensor."""
    some = sample(values_of(t), _LOOKED_AT)
    nonzero = F.hardshrink(some, fmt.min_subnormal / 2).count_nonzero()
    return name, (fmt.name, what_if, some.numel()), (largest, norm_of(some), nonzero)


def casts_of(x: Tensor, low: Tensor, factor: Tensor, fmt: Format) -> Tensor:
    """Measure what a cast to a format lost: the numbers of `Casts` after the first two.

    Args:
        x: the operand, finite or not, with at least one element.
        low: the operand after the cast, divided by `factor`.
        factor: the scale, or the scale of each number.
        fmt: the format.
    """
    wide = widest(x)
    x = x.detach().float()
    factor = factor.float()
    size = x.abs()
    scaled = (x * factor).abs()
    some = size > 0
    held = x.isfinite() & low.isfinite()
    # Numbers up to this one round down.
    most = fmt.max_finite + 2.0 ** (fmt.emax - fmt.precision)
    parts = [
        factor.min(),
        size.amax(),
        some.sum(),
        ((low == 0) & some).sum(),
        (scaled > most).sum(),
        *(
            t.where(held, 0).square().sum()
            for t in (x.to(wide), x.to(wide) - low.to(wide))
        ),
    ]
    return torch.stack([part.to(wide) for part in parts])


# Updates ----------------------------------------------------------------------------------
class Movement:
    """Samples of the weights before their first update in a step, and which of them should move."""

    def __init__(self) -> None:
        self.rates: list[bool] = []  # whether each learning rate was above 0
        self._before: dict[Tensor, Tensor] = {}
        self._pushed: dict[Tensor, Tensor] = {}

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Sample the weights that an optimizer is about to update at a learning rate above 0."""
        for group in optimizer.param_groups:
            self.rates.append(bool(group.get("lr") != 0))
            if not self.rates[-1]:
                continue
            for p in group["params"]:
                if p.requires_grad and p not in self._before:
                    self._before[p] = sample(local(p), _LOOKED_AT).clone()

    def measure_gradients(self) -> None:
        """Note which weights have a gradient that is finite and not zero."""
        for p, before in self._before.items():
            if p.grad is None or p in self._pushed:
                continue
            gradient = local(p.grad)
            if gradient.layout is torch.strided:
                some = sample(gradient, _LOOKED_AT)
                pushed = some / some == 1  # NaN where it is 0, infinite or NaN
                self._pushed[p] = pushed.to(before.device)

    def count(self) -> tuple[int, int]:
        """How many weights should have moved, and how many of them kept their bits."""
        counts = []
        for p, pushed in self._pushed.items():
            same = sample(local(p), _LOOKED_AT) == self._before[p]
            counts += [pushed.count_nonzero(), (pushed & same).count_nonzero()]
        numbers = together(counts).tolist() if counts else []
        return sum(numbers[::2]), sum(numbers[1::2])
