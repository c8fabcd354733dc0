"""Simulate a low format in any torch module, and count the roundings.

`simulated` shows what a format does to training without the hardware for it.
"""

import copy
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary, WeakMethod, WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode,
    _pop_mode,
    _push_mode,
)
from torch.utils._pytree import tree_leaves

from mplab.numbers.checks import quoted
from mplab.numbers.formats import (
    FP16,
    FP32,
    Format,
    FormatLike,
    Overflow,
    Rounding,
    format_of,
)
from mplab.numbers.options import Stream, Tally
from mplab.simulation import autocast
from mplab.simulation.explanation import Explanation, Recorder
from mplab.simulation.mode import Mode
from mplab.simulation.operations import Scope, rules_in
from mplab.simulation.places import Place, this_thread
from mplab.simulation.policies import CUDA_AUTOCAST, Policy, fits, policy_named


class _Layer(NamedTuple):
    """A module's name, and the choice for it: the key that fits it, as text, and the format."""

    name: str
    choice: tuple[str, Format] | None


class simulated(ContextDecorator):
    """Run torch code in a low format, forward and backward, as a policy says.

    Inside the `with` statement, or a function that it decorates, autocast is on, with the lists of
    `policy`: operations on them get inputs of the low dtype or of float32, and all others take
    what comes. The tensors are torch's own, float16 or bfloat16 where they are low: `x.dtype`,
    `.half()`, promotion, `.grad`, hooks, checkpoints, `torch.save`, regions in which the program
    turns autocast off, and errors are what they are under `torch.autocast`. Below autograd the
    simulation computes each operation on low tensors, rounds the result once, and counts what that
    did.

    The default policy is autocast's on CUDA: matrix products and convolutions in `fmt`; torch's
    losses, softmax, norms, exp, log, pow and sums in FP32. On a CPU, too, CUDA's lists are
    followed, and where a program says `torch.autocast("cuda", enabled=False)`, nothing is cast.
    With `policy="as-written"` nothing is cast that the program does not cast: it is simulated as
    it is, after `model.half()`, with `x.bfloat16()`, or within an autocast of its own.

    As under autocast, `backward()` and an optimizer's step cast nothing, though they may stand
    inside: `.grad` of FP32 parameters, loss scaling, clipping and the optimizer stay FP32. A
    weight is cast once for all its uses in a forward pass, so that their gradients are added in
    the low format, and again after a backward pass or a change by torch in this thread.

    A format that torch lacks, or in which it promotes nothing, such as FP8, borrows bfloat16 or
    float16: each operation reads and gives values of `fmt`, and what the program makes by itself
    is rounded when it is read. A layer with a format of its own may borrow the other. A format
    that neither holds, such as TF32, is that of matrix units: the operands of products and
    convolutions are rounded to it, and every result is FP32; attention and recurrent layers, which
    are single operations, stay FP32.

    `torch.amp.custom_fwd(device_type="cuda")` casts no tensors of the CPU, as in torch, and a
    `backward()` in another thread is torch's own. Sparse, nested, complex and float64 tensors get
    what torch gives them. A low operation that torch has no kernel for is computed, but for Fourier
    transforms, which torch refuses before: give them `x.float()`. Casts to float8_e4m3fn saturate,
    as torch's do since 2.12. What `torch.compile` made, before or inside, runs eagerly inside. The
    layers of the last 131,072 autograd nodes are known, for the counts by layer. After a
    KeyboardInterrupt, leave the context: the layer that it hit is not left before.

    Args:
        fmt: the low format, or its name or dtype; it must fit in float32.
        policy: which operation and which layer runs in which format, or its name in `POLICIES`;
            see `mplab.simulation`.
        rounding: the direction; `STOCHASTIC` needs a `stream`.
        overflow: what becomes of values past the largest finite one.
        stream: source of random bits.
        tally: count what each rounding did, at some cost in time.
        model: names the layers; if omitted, the outermost module that is called.
        dtype: what the program writes for `fmt`; if omitted, the format's own where torch computes
            in it, else bfloat16 or float16, whichever holds its values.

    Raises:
        ValueError: `fmt` does not fit in float32, or lacks signs or zero; no dtype is left to hold
            a format; `policy` is no name, or names a layer that `model` lacks.
        TypeError: it decorates a generator or a coroutine.
        RuntimeError: `backward()` is called after the context ended, where torch's own kernels
            would round to another format or in another direction.

    Exactness:
        On the CPU under `CPU_AUTOCAST` or as written, in FP16 and BF16 rounded to nearest, each
        result is that of torch's own low kernel, except matrix products and convolutions, which are
        float32's rounded once: they differ from torch's by the order of their sums, and by more
        where oneDNN has no convolution for the format, as without AVX-512, because torch then adds
        up images and overlapping windows in the format; and except the gradient of `prod` and the
        forward derivatives of layer and group norms, which torch computes by other formulas under
        any mode. There the results are bit-exact with `torch.autocast("cpu")` in all programs of
        tests/simulation/test_autocast.py, and what was lost is counted by one rounding of the
        float32 result.

        Elsewhere, in other formats, roundings and by the rules of CUDA, each result is torch's
        float32 result, correctly rounded, except where a low kernel is known to do otherwise:
        Python numbers are rounded to the format, or refused past its range; tensors of integers
        are converted to the format first; a few operations round between their steps; those that
        draw random numbers, such as `rrelu`, round to nearest; and CUDA's atomic sums round each
        addition, in an order that varies: one is taken. What CUDA's kernels do was read in torch's
        source, not measured; `explain` marks what is known and not simulated.
        tests/simulation/test_kernels.py compares this with torch's half kernels on every code.

        Rounding and casts have the same bits on every machine. Kernels are the machine's: torch
        takes `exp`, `log`, `sin` and the like from a vector library that chooses its code by the
        processor, and adds in an order of its own; without vector units `addcmul` rounds twice
        instead of once, and `randn` draws other numbers; the sign of `relu(-0)` varies. Rounded to
        a low format, two such results differ only beside a tie, in FP32 anywhere.
        `mplab doctor --numbers` says what a machine has.

        With torch's half kernels for products, too, the runs of tests/training/test_training.py
        are bit-exact with `torch.amp`: their formats, casts and the order of operations are the
        same.

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
        self._mode = Mode(
            fmt,
            policy,
            dtype=dtype,
            rounding=rounding,
            overflow=overflow,
            stream=stream,
            tally=tally,
        )
        self._kinds = [] if policy.written else autocast.devices(policy)
        self._kernels = autocast.kernels()
        self._open: ExitStack | None = None
        self._layers = WeakKeyDictionary[nn.Module, _Layer]()
        # The modules that run, and the place and autocast's state around each.
        self._running: list[tuple[nn.Module, Place, autocast.State]] = []
        self._outer: Mode | None = None
        self._stepping = WeakSet[Optimizer]()
        self._seen = False  # whether a module was
        # names that fit no layer so far: they may be misspelt
        self._unmatched = [key for key, _ in policy.layers if isinstance(key, str)]
        if model is not None:
            self._name(model)
            if self._unmatched:
                names = ", ".join(repr(layer.name) for layer in self._layers.values())
                raise ValueError(
                    f"simulated: policy must choose formats for layers that the model has; got "
                    f"{self._unmatched[0]!r}, which fits none of {names}. Correct the name, or "
                    f"leave it out."
                )

    def __call__(self, func: Any) -> Any:
        """Decorate a function."""
        kinds = (
            inspect.isgeneratorfunction,
            inspect.iscoroutinefunction,
            inspect.isasyncgenfunction,
        )
        if any(is_one(func) for is_one in kinds):
            raise TypeError(
                f"simulated: a decorated function must run within its call; got {quoted(func)}, "
                f"a generator or coroutine. Write the with statement in it."
            )
        return super().__call__(func)

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
        if self._open is not None:
            raise RuntimeError(
                "simulated: a context must be left before it is entered again."
            )
        mode.thread = this_thread()
        mode.thread.begin()
        mode.regions = 0  # a context may have been left within a step
        mode.steps.clear()
        self._stepping.clear()
        policy = mode.policy
        with ExitStack() as stack:
            # Hooks on every module take time: only where something hangs on the layer.
            named = mode.tally or mode.observers or policy.layers
            if named or policy.inside is not policy.outside:
                for handle in (
                    register_module_forward_pre_hook(self._before_module),
                    register_module_forward_hook(self._after_module, always_call=True),
                ):
                    stack.callback(handle.remove)
            dynamo = sys.modules.get("torch._dynamo")
            flex = "torch.nn.attention.flex_attention"  # which compiles itself
            mode.compiles = dynamo is not None or flex in sys.modules
            if dynamo is not None:  # torch.compile is loaded: run what it made eagerly
                stack.enter_context(dynamo.set_stance("force_eager"))
            if self._kinds:
                self._kernels.replace(policy)
                handle = register_optimizer_step_pre_hook(self._before_step)
                stack.callback(handle.remove)
                stack.enter_context(self._kernels.layers_in_parts())
                mode.depth = stack.enter_context(
                    autocast.switched_on(self._kinds, mode.dtype)
                )
            self._outer = mode.thread.innermost
            # Modes that look lie above, and see operations as the program runs them.
            with _lifted():
                mode.__enter__()  # type: ignore[no-untyped-call]
            mode.thread.innermost = mode
            mode.leave = WeakMethod(self.__exit__)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._open is None:  # left with the context around it
            return
        mode = self._mode
        within = mode.thread.innermost
        while mode.thread.innermost not in (mode, None):
            leave = mode.thread.innermost.leave()
            leave(kind, error, traceback)
        # Torch removes the mode on top, whichever it is. A watch that was entered within this
        # context and is still open lies there, and stays.
        with _lifted():
            mode.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        mode.thread.innermost = self._outer
        self._open.close()
        self._open = None
        self._running = []
        mode.enter(mode.outside)
        mode.casts.forget()
        self._guard_backward()
        if kind is None and within is not mode:
            raise RuntimeError(
                "simulated: a context must be left before those around it; got one within which "
                "another was open. Both are left now: leave the inner one first."
            )
        if kind is None:
            self._warn_of_choices()
            if mode.switched_off and not mode.has_run:
                warnings.warn(
                    "simulated: nothing was low, because the program turned autocast off by "
                    "CUDA's name, as torch.autocast('cuda') does without a GPU; write the "
                    "tensors' device: torch.autocast(x.device.type).",
                    stacklevel=2,
                )
            if mode.policy.written and not mode.has_run:
                fmt = mode.format_of(torch.empty(0, dtype=mode.dtype))
                warnings.warn(
                    f"simulated: no tensor was {fmt.name} as the program is written; call "
                    f"model.to({mode.dtype}) first, or take another policy.",
                    stacklevel=2,
                )

    def _guard_backward(self) -> None:
        """Make `backward()` through a result that outlives the context raise an error.

        Only where torch's own kernels would round otherwise: a graph that was made here can be
        reached only through such results.
        """
        thread = self._mode.thread
        results = self._mode.results
        alive = list(results.values())
        results.clear()

        def check(_: Tensor) -> None:
            if thread.innermost is None:
                raise RuntimeError(
                    "simulated: backward() must run inside the with statement; got a call after "
                    "it ended, where torch rounds to another format. Indent it."
                )

        for t in alive:
            # A view that torch itself refuses to differentiate.
            with suppress(RuntimeError):
                if t.grad_fn is not None:
                    t.register_hook(check)  # type: ignore[no-untyped-call]

    # An optimizer's step belongs outside autocast; a closure is a training step of its own.

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        mode = self._mode
        if mode.thread is not this_thread() or mode.thread.innermost is not mode:
            return None

        self._end_before_hooks(optimizer)
        mode.steps.append(mode.regions)
        positional = len(args) > 1
        closure = args[1] if positional else kwargs.get("closure")
        if not callable(closure):
            return None

        def simulated_closure() -> Any:
            mode.steps.pop()
            try:
                return closure()
            finally:
                mode.steps.append(mode.regions)

        if positional:
            return (args[0], simulated_closure, *args[2:]), kwargs
        return args, {**kwargs, "closure": simulated_closure}

    def _end_before_hooks(self, optimizer: Optimizer) -> None:
        """End the optimizer's steps before the hooks after them, which may run a model."""
        if optimizer in self._stepping or self._open is None:
            return
        self._stepping.add(optimizer)
        handle = optimizer.register_step_post_hook(self._after_step)
        self._open.callback(handle.remove)
        # The hooks lie in an OrderedDict that only the handle, privately, leads to: torch puts a
        # new one last, where the program's models would have run in FP32 already.
        hooks: Any = handle.hooks_dict_ref()
        hooks.move_to_end(handle.id, last=False)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        mode = self._mode
        if mode.steps and mode.thread is this_thread():
            mode.steps.pop()

    # Layers

    def _before_module(self, module: nn.Module, args: Any) -> None:
        mode = self._mode
        if mode.thread is not this_thread():
            return
        if module not in self._layers:
            self._name(module)
        around = mode.place
        place = self._place(self._layers[module], around)
        before: autocast.State = []
        if place.dtype is not around.dtype:
            before = autocast.state(self._kinds)
            autocast.set_state([(kind, on, place.dtype) for kind, on, _ in before])
        self._running.append((module, around, before))
        mode.enter(place)

    def _after_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._mode.thread is not this_thread():
            return
        last = None
        while self._running and last is not module:  # KeyboardInterrupt skips hooks
            last, around, before = self._running.pop()
            self._mode.enter(around)
            autocast.set_state(before)

    def _place(self, layer: _Layer, around: Place) -> Place:
        """Where a module runs: in the format chosen for it, else in its caller's format."""
        policy = self._mode.policy
        if layer.choice is not None:
            key, fmt = layer.choice
            wide = fmt == FP32
            scope = Scope(policy, True, f"layer choice {key!r}", wide)
            dtype = around.dtype if wide else self._mode.dtypes[fmt]
            return Place(layer.name, rules_in(scope), dtype)
        if around is not self._mode.outside:
            return around._replace(name=layer.name)
        rules = rules_in(Scope(policy, inside=True))
        return Place(layer.name, rules, around.dtype)

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
                self._unmatched = [
                    k for k in self._unmatched if not fits(k, full, module)
                ]

    def _warn_of_choices(self) -> None:
        """Warn of names that fit no layer; without `model=`, such layers may still be called."""
        if self._seen and self._unmatched:
            warnings.warn(
                f"simulated: the policy's names {', '.join(map(repr, self._unmatched))} fitted no "
                f"layer that was called. Give model=, to see its names.",
                stacklevel=3,
            )
            self._unmatched = []


@contextmanager
def _lifted() -> Iterator[None]:
    """Take away torch's modes above the innermost simulation's, or all, and put them back."""
    above = []
    top = _get_current_dispatch_mode()
    while not (top is None or isinstance(top, Mode)):
        above.append(_pop_mode())
        top = _get_current_dispatch_mode()
    yield
    for each in reversed(above):
        _push_mode(each)


def explain(
    model: nn.Module,
    *inputs: Any,
    fmt: FormatLike = FP16,
    policy: Policy | str = CUDA_AUTOCAST,
    loss: Callable[[Any], Tensor] | None = None,
    **named: Any,
) -> Explanation:
    """List the format in which each operation of a training step ran, and why.

    The step really runs, on a copy of the model; torch's random state is restored. Inputs that
    require gradients get them.

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
    within._mode.observers.append(recorder)
    with torch.random.fork_rng(), torch.enable_grad(), within:
        output = model(*inputs, **named)
        if loss is not None:
            output = loss(output)
        leaves = tree_leaves(output)
        ends = [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]
        if ends:
            torch.autograd.backward(ends, [torch.ones_like(t) for t in ends])
    return Explanation(type(model).__name__, fmt, policy, tuple(recorder.rows))
