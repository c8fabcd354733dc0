"""Simulate a low format in any torch module: float32 tensors that hold only its values.

`simulated` does by rounding what autocast does with dtypes. It shows what a format does to
training without the hardware for it, and counts the roundings.
"""

import copy
import sys
import warnings
from collections.abc import Callable
from contextlib import ContextDecorator, suppress
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode,
    _pop_mode,
    _push_mode,
)
from torch.utils._pytree import tree_leaves

from mplab.numbers.formats import (
    FP16,
    FP32,
    Format,
    FormatLike,
    Overflow,
    Rounding,
    format_of,
)
from mplab.numbers.rounding import Stream, Tally
from mplab.simulation import regions
from mplab.simulation.dispatch import Mode, rules_in
from mplab.simulation.explanation import Explanation, Recorder
from mplab.simulation.functions import Functions
from mplab.simulation.operations import Scope
from mplab.simulation.policies import CUDA_AUTOCAST, Policy, Run, fits, policy_named
from mplab.simulation.tags import (
    LayerContext,
    Rounder,
    low_rounder,
    next_number,
    this_graph,
)
from mplab.simulation.written import WrittenMode

_OPTIMIZER = "an optimizer of low parameters: widest format of its inputs"


class _Layer(NamedTuple):
    """A module's name, and the choice for it: the key that fits it, as text, and the format."""

    name: str
    choice: tuple[str, Format] | None


class simulated(ContextDecorator):
    """Run torch code in a low format, forward and backward, as a policy says.

    Inside the `with` statement, or a function that it decorates, the tensors stay float32.
    Operations that `policy` puts into the low format take rounded inputs and give rounded results.
    The default is autocast's policy on CUDA: matrix products and convolutions in `fmt`; torch's
    losses, softmax, norms, exp, log, pow and sums in FP32; everything else in the widest format of
    its inputs, where scalars count only if all inputs are scalars. Backward, each operation runs in
    the format of its forward operation. `.grad`, loss scaling, clipping and the optimizer stay
    FP32, except for parameters that the program itself made low: they have a low `.grad`, and an
    optimizer that holds such parameters steps each in its format. `backward()` belongs inside, too.

    Where the program turns autocast off, with `torch.autocast(…, enabled=False)`, nothing is cast,
    and tensors may be of any dtype: FFT and float64 run there as they are. `.float()`,
    `.to(torch.float32)` and `softmax(x, dtype=torch.float32)` widen, as under autocast. On CUDA,
    torch's `cross_entropy` asks for the `log_softmax` in the dtype of the logits, and autocast
    allows it: for low logits the `log_softmax` is low there, and FP32 here.

    `x.dtype` is the dtype of the format that `x` holds, so that a program branches on it as under
    autocast. `.half()`, `.to(x.dtype)` and `zeros(n, dtype=x.dtype)` give tensors of that format;
    only formats of this simulation can be asked for. The stored dtype is float32; `x.dtype` shows
    it for gradients, for formats that torch lacks, in layers in FP32, in the backward pass, within
    the transformations of `torch.func`, in torch's own code, and after the context. So do NumPy and
    `element_size()`. `clone` and `copy.deepcopy` keep the format; `pickle` and `torch.save` keep
    only the numbers, and a loaded tensor is FP32. `torch.is_autocast_enabled()` stays False,
    because torch does not tell modes of the call: a program that branches on it takes the branch
    without autocast. `torch.amp.custom_fwd(cast_inputs=…)` casts on the device of
    `policy.kernels`.

    With `policy="as-written"` nothing of that: the tensors are of the dtypes that the program
    writes, as after `model.half()`, `x.bfloat16()` or within `torch.autocast("cpu")`; parameters,
    gradients and the optimizer's states included. Torch itself does promotion, casts, `.grad`,
    `torch.save`, checkpoints and errors; the simulation computes and counts. On the CPU in FP16 and
    BF16, rounded to nearest, each result is that of torch's own low kernel, except matrix products
    and convolutions, which are float32's rounded once; what was lost is counted by one rounding of
    the float32 result. A format that torch lacks borrows a dtype, `dtype`: each operation reads and
    gives values of `fmt`, and what the program makes by itself is rounded when it is read. Casts to
    float8_e4m3fn saturate, as torch's do since 2.12. An operation that torch has no kernel for,
    such as a sum in FP8, is computed. Sparse tensors are torch's own.

    The formats of 131,072 to 262,144 operations are remembered, some 70 MB at most. `backward()`
    through older operations raises an error.

    Args:
        fmt: the low format, or its name or dtype; it must fit in float32.
        policy: which operation and which layer runs in which format, or its name in `POLICIES`;
            see `mplab.simulation`.
        rounding: the direction; `STOCHASTIC` needs a `stream`.
        overflow: what becomes of values past the largest finite one.
        stream: source of random bits.
        tally: count what each rounding did, at some cost in time.
        model: names the layers; if omitted, the outermost module that is called.
        dtype: under `policy="as-written"`, what the program writes for `fmt`; if omitted, the
            format's own, else bfloat16 or float16, whichever holds its values.

    Raises:
        ValueError: `fmt` does not fit in float32, or lacks signs or zero; no dtype of a program
            holds its values; `policy` is no name, or names a layer that `model` lacks; inside, but
            not as written, a tensor that is neither dense float32, nor integer, nor a scalar, as an
            active `torch.autocast` makes.
        RuntimeError: `backward()` is called after the context of its forward pass ended; tensors
            of two formats where torch accepts only one, as in `z[mask] = low`.

    Exactness:
        Each result is torch's float32 result, correctly rounded, except where a low kernel is known
        to do otherwise and the simulation follows it: Python numbers are rounded to the format, or
        refused past its range; tensors of integers are converted to the format first; running sums
        that are kept low are rounded after each addition, in the order of one thread; a few
        operations round between their steps. Attention and `log_softmax` on the CPU in FP16 and
        BF16, rounded to nearest, are torch's own low kernels. What the CPU's kernels
        do was measured, what CUDA's do was read in torch's source; `policy.kernels` says which. The
        results are bit-exact with torch's half kernels for the CPU on the operations and data of
        tests/simulation/test_dispatch.py, tests/simulation/test_kernels.py,
        tests/simulation/test_low_kernels.py and tests/simulation/test_autocast.py, except for a few
        gradients of norms that are named there.

        Rounding and casts have the same bits on every machine. The float32 result is the machine's:
        torch takes `exp`, `log`, `sin` and the like from a vector library that chooses its code by
        the processor, and adds in an order of its own; without vector units `addcmul` rounds twice
        instead of once, and `randn` draws other numbers; the sign of `relu(-0)` varies.
        Rounded to a low format, two such results differ only beside a tie, in FP32 anywhere.
        `mplab doctor --numbers` says what a machine has.

        Known to differ, and marked by `explain`: other operations that round between their steps,
        such as `sigmoid_backward`, `logit_backward`, `x // y`, `matrix_exp`, `xlogy` and `renorm`;
        running sums of `embedding_bag`, `index_reduce` and `segment_reduce`; `erf` near 0, `gelu`
        in FP16 at one code in 160, and, without vector units, `rsqrt` and `special.i0e`; on the
        CPU, what depends on the place in memory: products with an `alpha` or by the frequency of an
        embedding, `x**-0.5` in BF16, and remainders of quotients past FP32's range; scalars past
        the range that torch refuses in `x[mask] = scalar`; operations outside torch's own library,
        whose result is rounded once.

        Known to differ without a mark: sums in another order, such as matrix products near
        `max_finite`; the backward pass of `elu`, `hardtanh` and the like at NaN; operations that
        torch lacks in the format, which are computed here; operations in a hook of the backward
        pass, which run in the format of its gradient even after `.float()`: read it by `.numpy()`.
        Functions of two numbers may differ that nobody has compared.

        With torch's half kernels in place of the rounded float32 results, the runs of
        tests/training/test_training.py are bit-exact with `torch.amp`: their formats, their casts
        and the order of their operations are the same.

    Source:
        `Policy.source` of each policy.

    Examples:
        >>> import torch
        >>> layer = torch.nn.Linear(2, 2)
        >>> with simulated(FP16) as sim:
        ...     layer(torch.ones(1, 2)).sum().backward()
        >>> sorted(sim.by_operation)
        ['addmm', 'cast', 'cast backward', 'mm backward', 'sum backward']
        >>> with simulated(BF16, policy="as-written"):
        ...     low = layer.bfloat16()(torch.ones(1, 2).bfloat16())
        ...     low.sum().backward()
        >>> low.dtype, layer.weight.grad.dtype
        (torch.bfloat16, torch.bfloat16)
        >>> with simulated(FP8_E5M2, policy="as-written", dtype=torch.bfloat16):
        ...     torch.tensor([1.1, 3.3]).bfloat16() * 1  # what if bfloat16 were E5M2
        tensor([1.0000, 3.5000], dtype=torch.bfloat16)
    """

    def __init__(
        self,
        fmt: FormatLike,
        *,
        policy: Policy | str = CUDA_AUTOCAST,
        rounding: Rounding = Rounding.TIES_TO_EVEN,
        overflow: Overflow = Overflow.IEEE,
        stream: Stream | None = None,
        tally: bool = True,
        model: nn.Module | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        fmt = format_of(fmt, function="simulated")
        policy = policy_named("simulated", policy)
        self._rounders = {  # by the format of a layer
            each: Rounder(each, rounding, overflow, stream)
            for each in dict.fromkeys((fmt, *(own for _, own in policy.layers)))
        }
        self._mode: Mode | WrittenMode
        if policy.written:
            self._mode = WrittenMode(
                fmt,
                policy,
                dtype=dtype,
                rounding=rounding,
                overflow=overflow,
                stream=stream,
                tally=tally,
            )
        elif dtype is None:
            self._mode = Mode(self._rounders[fmt], policy, tally=tally)
            self._mode.functions = Functions(self._mode, self._rounders)
        else:
            raise ValueError(
                f"simulated: dtype must be None unless policy is 'as-written'; got {dtype}. Leave "
                f"it out."
            )
        self._layers = WeakKeyDictionary[nn.Module, _Layer]()
        # the caller's, and the module's own
        self._places = WeakKeyDictionary[nn.Module, tuple[LayerContext, LayerContext]]()
        self._stepping: list[tuple[Optimizer, Callable[[], None]]] = []
        self._handles: list[Any] = []
        self._outer: Mode | None = None
        self._fastpath = True
        self._stance: Any = None  # torch.compile's
        self._seen = False  # whether a module was
        # names that fit no layer so far: they may be misspelt
        self._unfit = [key for key, _ in policy.layers if isinstance(key, str)]
        if model is not None:
            self._name(model)
            if self._unfit:
                names = ", ".join(repr(layer.name) for layer in self._layers.values())
                raise ValueError(
                    f"simulated: policy must choose formats for layers that the model has; got "
                    f"{self._unfit[0]!r}, which fits none of {names}. Correct the name, or leave "
                    f"it out."
                )

    @property
    def by_operation(self) -> dict[str, Tally]:
        """Counts of the roundings by operation; those of the backward pass as "… backward"."""
        return self._tallies(by_layer=False)

    @property
    def by_layer(self) -> dict[str, Tally]:
        """Counts of the roundings by module; those of the backward pass as "… backward"."""
        return self._tallies(by_layer=True)

    def _tallies(self, *, by_layer: bool) -> dict[str, Tally]:
        sums: dict[str, Tally] = {}
        for (operation, layer, backward), counter in self._mode.counters.items():
            name = layer if by_layer else operation
            if backward and not by_layer:
                name = operation.partition("_backward")[0]
            if backward:
                name += " backward"
            sums[name] = sums.get(name, Tally()) + counter.result()
        return sums

    def __enter__(self) -> Self:
        mode = self._mode
        if self._handles:
            raise RuntimeError(
                "simulated: a context must be left before it is entered again."
            )
        mode.graph = graph = this_graph()
        policy = mode.policy
        graph.next = next_number()  # leave out the nodes made outside
        self._outer = graph.innermost
        graph.innermost = mode
        mode.epoch += 1
        written = isinstance(mode, WrittenMode)
        if not written:
            self._handles = [
                register_optimizer_step_pre_hook(self._before_step),
                register_optimizer_step_post_hook(self._after_step),
            ]
        if mode.tally or policy.layers or policy.inside is not policy.outside:
            self._handles += [
                register_module_forward_pre_hook(self._before_module),
                register_module_forward_hook(self._after_module, always_call=True),
            ]
        self._fastpath = mha.get_fastpath_enabled()
        if not written:  # it runs a whole layer at once; autocast refuses it
            mha.set_fastpath_enabled(False)
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None:  # torch.compile is loaded: run what it made eagerly
            self._stance = dynamo.set_stance("force_eager")
        if not written:
            regions.watch()
        self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        mode = self._mode
        if self._stepping:  # an optimizer's step was broken off
            self._stepping[-1][1]()
        self._leave(kind, error, traceback)
        mode.graph.innermost = self._outer
        mha.set_fastpath_enabled(self._fastpath)
        if self._stance is not None:
            self._stance.__exit__(kind, error, traceback)
            self._stance = None
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._stepping = []
        mode.entered = []
        mode.move(mode.outside)
        if isinstance(mode, Mode):
            regions.forget()
        self._guard_backward()
        if kind is None:
            self._warn_of_choices()
            if isinstance(mode, WrittenMode) and not mode.has_run:
                warnings.warn(
                    f"simulated: no tensor was {mode.outside.into.fmt.name} as the program is "
                    f"written; call model.to({mode.dtype}) first, or take another policy.",
                    stacklevel=2,
                )

    def _enter(self) -> None:
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        if isinstance(self._mode, Mode):
            self._mode.functions.__enter__()  # type: ignore[no-untyped-call]

    def _leave(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(self._mode, Mode):
            self._mode.functions.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        # Torch removes the mode on top, whichever it is. A watch that was entered within this
        # context and is still open lies there, and stays.
        above = []
        while _get_current_dispatch_mode() not in (self._mode, None):
            above.append(_pop_mode())
        self._mode.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            _push_mode(mode)

    def _guard_backward(self) -> None:
        """Make `backward()` through a result that outlives the context raise an error.

        A graph that was made here can be reached only through such results.
        """
        graph = self._mode.graph
        results = self._mode.results
        alive = {id(t): t for t in (result() for result in results) if t is not None}
        results.clear()
        if self._outer is None and all(t.grad_fn is None for t in alive.values()):
            graph.nodes.clear()

        def check(_: Tensor) -> None:
            if graph.innermost is None:
                raise RuntimeError(
                    "simulated: backward() must run inside the with statement; got a call after "
                    "it ended, where gradients would be plain FP32. Indent it."
                )

        for t in alive.values():
            # A view that torch itself refuses to differentiate.
            with suppress(RuntimeError):
                if t.grad_fn is not None:
                    t.register_hook(check)  # type: ignore[no-untyped-call]

    # An optimizer works in FP32: the mode leaves the stack, so that operations cost nothing extra.
    # Below another mode it stays, but lets them pass. A closure is a training step of its own.
    # An optimizer that holds low parameters works in their format, so the mode stays.

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        mode = self._mode
        assert isinstance(mode, Mode)  # of others steps are not watched
        functions = mode.functions
        if any(optimizer is other for other, _ in self._stepping):
            raise RuntimeError(
                "simulated: an optimizer's step must end before its next one; got an exception in "
                "the last one. Leave the with statement and enter it again."
            )
        if mode.graph is not this_graph() or mode.graph.innermost is not mode:
            return None
        if self._has_low_parameters(optimizer):
            scope = Scope(mode.policy, False, _OPTIMIZER, Run.WIDEST)
            mode.enter(mode.outside._replace(rules=rules_in(scope)))
            self._stepping.append((optimizer, mode.leave))
            return None
        around = torch.overrides._get_current_function_mode()  # type: ignore[no-untyped-call]
        on_top = _get_current_dispatch_mode() is mode and around is functions

        def pause() -> None:
            if on_top:
                self._leave(None, None, None)
            mode.graph.innermost = optimizer

        def resume() -> None:
            if on_top:
                self._enter()
            mode.graph.innermost = mode

        self._stepping.append((optimizer, resume))
        pause()
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return None

        def simulated_closure() -> Any:
            resume()
            mode.epoch += 1
            try:
                return closure()
            finally:
                pause()

        return (args[0],), {**kwargs, "closure": simulated_closure}

    def _has_low_parameters(self, optimizer: Optimizer) -> bool:
        """Whether a step works on low parameters; one kernel for all of them is refused."""
        low = False
        for group in optimizer.param_groups:
            found = any(low_rounder(p) is not None for p in group["params"])
            for option in ("foreach", "fused"):
                if found and group.get(option):
                    raise ValueError(
                        f"simulated: an optimizer of low parameters must step one by one; got "
                        f"{option}=True. Leave it out, or keep the parameters in FP32."
                    )
            low = low or found
        return low

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._stepping and self._stepping[-1][0] is optimizer:
            _, resume = self._stepping.pop()
            resume()
            self._mode.epoch += 1  # weights may have changed through .data, unseen

    # Layers

    def _before_module(self, module: nn.Module, args: Any) -> None:
        mode = self._mode
        if mode.graph is not this_graph():
            return
        around = mode.place
        known = self._places.get(module)
        if known is None or known[0] is not around:
            if module not in self._layers:
                self._name(module)
            known = self._places[module] = around, self._place(module, around)
        mode.enter(known[1])

    def _after_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._mode.graph is this_graph():
            self._mode.leave()

    def _place(self, module: nn.Module, around: LayerContext) -> LayerContext:
        """Where a module runs: in the format chosen for it, else in its caller's format."""
        layer = self._layers[module]
        policy = self._mode.policy
        if layer.choice is None:
            scope: Scope = around.rules.scope
            scope = scope if scope.inside else Scope(policy, inside=True)
            return LayerContext(layer.name, rules_in(scope), around.into)
        key, fmt = layer.choice
        wide = fmt == FP32
        choice = f"layer choice {key!r}" + (": FP32" if wide else "")
        scope = Scope(policy, True, choice, Run.WIDE if wide else None)
        return LayerContext(layer.name, rules_in(scope), self._rounders[fmt])

    def _name(self, root: nn.Module) -> None:
        """Name the modules in `root`, and find the choice for each: its own, or an outer one's.

        A second model's names begin with its class.
        """
        self._seen = True
        taken = {layer.name for layer in self._layers.values()}
        prefix = ""
        number = 1
        names = dict(root.named_modules())
        while any(prefix + name in taken for name in names):
            number += 1
            prefix = f"{type(root).__name__} {number}: "
        for name, module in names.items():
            if module not in self._layers:
                full = name or type(root).__name__
                choice = self._mode.policy.choice(full, module)
                if choice is None and name:
                    around = names[name.rpartition(".")[0]]
                    choice = self._layers[around].choice
                self._layers[module] = _Layer(prefix + full, choice)
                self._unfit = [k for k in self._unfit if not fits(k, full, module)]

    def _warn_of_choices(self) -> None:
        """Warn of names that fit no layer; without `model=`, such layers may still be called."""
        if self._seen and self._unfit:
            warnings.warn(
                f"simulated: the policy's names {', '.join(map(repr, self._unfit))} fitted no "
                f"layer that was called. Give model=, to see its names.",
                stacklevel=3,
            )
            self._unfit = []


def explain(
    model: nn.Module,
    *inputs: Any,
    fmt: FormatLike = FP16,
    policy: Policy | str = CUDA_AUTOCAST,
    loss: Callable[[Any], Tensor] | None = None,
    **named: Any,
) -> Explanation:
    """List the format in which each operation of a training step ran, and why.

    The step really runs, on a copy of the model; torch's random state is restored.

    Args:
        model: any module that can be copied.
        inputs: the model's positional arguments.
        fmt: the low format.
        policy: which operation and which layer runs in which format.
        loss: a function of the output; if omitted, the backward pass starts from ones.
        named: the model's keyword arguments, such as `input_ids=…, labels=…`.

    Returns:
        The operations, to print, to show in Jupyter, or for `mplab.pictures.precision_map`.

    Raises:
        ValueError: as in `simulated`.

    Exactness:
        Recorded where the operation ran, by the same code that ran it.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softmax(1))
        >>> found = explain(model, torch.ones(1, 2))
        >>> [(row.module, row.operation, row.format.name) for row in found.rows[:3]]
        [('0', 'addmm', 'FP16'), ('1', '_softmax', 'FP32'), ('1', '_softmax_backward_data', 'FP32')]
        >>> found.rows[0].cast, found.rows[1].rule
        (3, 'listed: softmax runs in FP32')
    """
    fmt = format_of(fmt, function="explain")
    policy = policy_named("explain", policy)
    model = copy.deepcopy(model)
    within = simulated(fmt, policy=policy, model=model)
    recorder = Recorder(within._mode)
    within._mode.record = recorder
    with torch.random.fork_rng(), torch.enable_grad(), within:
        output = model(*inputs, **named)
        if loss is not None:
            output = loss(output)
        leaves = tree_leaves(output)
        ends = [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]
        if ends:
            # else as stored: t.dtype is that of its format
            wide = None if policy.written else torch.float32
            ones = [
                torch.ones(t.shape, dtype=wide or t.dtype, device=t.device)
                for t in ends
            ]
            torch.autograd.backward(ends, ones)
    return Explanation(type(model).__name__, fmt, policy, tuple(recorder.rows))
