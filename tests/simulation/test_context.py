"""The context around a training step: what it leaves alone, refuses, restores and counts."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from networks import (
    Within,
    assert_all_bits,
    assert_bits,
    assert_same_gradients,
    loss,
    mlp,
    round_to,
)
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.optim.optimizer import (
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
)
from torch.utils.checkpoint import checkpoint

import mplab
from mplab import BF16, FP8_E5M2, FP16, FP32, Rounding, Tally
from mplab.simulation import (
    CPU_AUTOCAST,
    CUDA_AUTOCAST,
    EVERYTHING,
    KERAS_MIXED,
    Fp8Linear,
    simulated,
)


def test_forward_and_backward_may_run_in_two_contexts():
    plain = mlp(6, 5, 3)
    x = torch.randn(4, 6)
    split = copy.deepcopy(plain)
    with simulated(FP16):
        loss(plain(x)).backward()
    sim = simulated(FP16)
    with sim:
        value = loss(split(x))
    torch.randn(3, requires_grad=True).sum().backward()
    with sim:
        value.backward()
    assert_same_gradients(plain, split)


def test_the_innermost_of_nested_contexts_decides():
    x = torch.randn(4, 4)
    w = torch.randn(4, 4)
    with simulated(FP16) as outer:
        before = x.mm(w)
        with simulated(BF16) as inner:
            within = x.mm(w)
            both = within + before
        after = x.mm(w)
    assert_bits(before, after)
    assert_bits(within, round_to(round_to(x, BF16) @ round_to(w, BF16), BF16))
    assert both.dtype is torch.float32  # two low formats meet in FP32
    assert_bits(both, within.float() + before.float())
    assert outer.by_operation["mm"].total == 32
    assert inner.by_operation["mm"].total == 16


def test_an_exception_leaves_no_trace():
    model = mlp(6, 5, 3)
    x = torch.randn(4, 6)
    expected = model(x)
    fast = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(ZeroDivisionError), simulated(FP16):
        model(x)
        raise ZeroDivisionError
    with pytest.raises(RuntimeError), simulated(FP16):
        model(torch.randn(4, 7))
    nothing_is_left(x.mm(x.T))
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert not _global_optimizer_pre_hooks
    assert_bits(model(x), expected)


def nothing_is_left(x):
    assert x.mm(x).dtype is torch.float32
    assert not torch.is_autocast_enabled("cpu")
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0
    assert not nn.modules.module._global_forward_hooks


def test_a_context_takes_with_it_those_that_are_open_within_it_and_says_so():
    x = torch.randn(4, 4)
    outer = simulated(FP16)
    inner = simulated(BF16)
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match="leave the inner one first"):
        outer.__exit__(None, None, None)
    nothing_is_left(x)
    inner.__exit__(None, None, None)
    nothing_is_left(x)


def test_an_error_beside_an_open_generator_is_the_program_s_and_leaves_nothing():
    def steps():
        with simulated(BF16):
            yield

    running = steps()
    with pytest.raises(ZeroDivisionError), simulated(FP16):
        next(running)
        raise ZeroDivisionError
    nothing_is_left(torch.randn(4, 4))
    running.close()
    nothing_is_left(torch.randn(4, 4))


@pytest.mark.parametrize("policy", [CPU_AUTOCAST, CUDA_AUTOCAST])
def test_a_sum_into_an_out_of_float32_is_one_in_the_dtype_of_its_terms(policy):
    x = torch.rand(9).half()
    expected = torch.add(x, x[0], out=torch.empty(9))
    with simulated(FP16, policy=policy):
        assert_bits(torch.add(x, x[0], out=torch.empty(9)), expected)


class Told(torch.optim.SGD):
    def step(self, epoch):
        self.told = epoch


def test_an_optimizer_may_take_something_else_than_a_closure():
    optimizer = Told(mlp(6, 5, 3).parameters())
    with simulated(FP16):
        optimizer.step(3)
    assert optimizer.told == 3


class Catches(nn.Module):
    """A module that catches what its layer raises."""

    def __init__(self):
        super().__init__()
        self.broken = Within(self.interrupt)

    def interrupt(self, x):
        raise KeyboardInterrupt

    def forward(self, x):
        with pytest.raises(KeyboardInterrupt):
            self.broken(x)
        return x


def test_after_an_interrupt_that_a_model_catches_its_layer_does_not_go_on():
    x = torch.randn(4, 4)
    model = Catches()
    policy = CPU_AUTOCAST.with_layers({"broken": FP32})
    with simulated(FP16, policy=policy, model=model) as sim:
        model(x)
        assert x.mm(x).dtype is torch.float16
    assert sorted(sim.by_layer) == ["outside modules"]


class Breaks(torch.optim.SGD):
    def step(self, closure=None):
        raise KeyboardInterrupt


def test_after_a_broken_optimizer_step_what_follows_is_simulated():
    model = mlp(6, 5, 3)
    x = torch.randn(4, 6)
    expected = model(x)
    optimizer = Breaks(model.parameters())
    with simulated(FP16):
        loss(model(x)).backward()
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        assert F.linear(x, x).dtype is torch.float16
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0
    assert_bits(model(x), expected)


def test_after_a_context_that_was_left_within_a_closure_the_next_is_no_step():
    x = torch.randn(4, 4)
    sim = simulated(FP16)
    sim.__enter__()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    optimizer.step(lambda: sim.__exit__(None, None, None))
    with sim:
        assert F.linear(x, x).dtype is torch.float16


@pytest.mark.parametrize("tally", [True, False])
def test_a_hook_after_a_step_may_run_a_model(tally):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    seen = []

    def run(*_):
        seen.append(model(torch.ones(1, 2)).dtype)

    handle = register_optimizer_step_post_hook(run)  # before the simulation's own
    own = optimizer.register_step_post_hook(run)
    with simulated(FP16, tally=tally):
        optimizer.step()
        optimizer.step(run)
    handle.remove()
    own.remove()
    assert seen == [torch.float16] * 5
    assert not optimizer._optimizer_step_post_hooks


def test_a_step_in_another_thread_does_not_end_ours():
    weight = torch.eye(2, requires_grad=True)
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    seen = []

    class Waits(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            thread = threading.Thread(target=other.step)
            thread.start()
            thread.join()
            seen.append((weight @ weight).dtype)

    with simulated(FP16):
        Waits([weight]).step()
    assert seen == [torch.float32]


class Squares(torch.autograd.Function):
    """The sum of squares, with nothing kept that would keep its input alive."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return (x * x).sum().reshape(1)

    @staticmethod
    def backward(ctx, grad):
        return grad.expand(ctx.shape)


def penalty(model, x):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(model(leaf).sum(), leaf, create_graph=True)[0]


def beside(model, x):
    value = loss(model(x))
    assert model(x).softmax(1).requires_grad  # with a graph of its own, and gone
    return value


ENDS = {
    "cross entropy": lambda model, x: F.cross_entropy(
        model(x), torch.tensor([0, 1, 2, 0])
    ),
    "another result after the loss": beside,
    "output alone": lambda model, x: model(x),
    "one of several views": lambda model, x: model(x).unbind()[1],
    "one of several results": lambda model, x: model(x).topk(2)[0],
    "changed in place": lambda model, x: model(x).mul_(2),
    "a function of one's own": lambda model, x: Squares.apply(model(x)),
    "a checkpoint": lambda model, x: checkpoint(
        model, x.clone().requires_grad_(), use_reentrant=True
    ),
    "a layer in FP8": lambda model, x: Fp8Linear(3, 2)(model(x)),
    "a gradient of a gradient": penalty,
}


@pytest.mark.parametrize("further", [False, True], ids=["as it is", "computed with"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_backward_pass_after_the_context_is_refused_where_torch_rounds_otherwise(
    end, further
):
    model = mlp(6, 5, 3)
    x = torch.randn(4, 6)
    with simulated(FP8_E5M2):
        value = end(model, x)
        if not further:
            value = value if not value.dim() else value.sum()
    if further:
        value = 2 * value.sum()
    with pytest.raises(
        RuntimeError, match=r"backward\(\) must run inside the with statement"
    ):
        value.backward()
    with simulated(FP8_E5M2):  # which is the way out
        end(model, x).sum().backward()


def test_a_backward_pass_after_the_context_is_torch_s_own_where_that_rounds_alike():
    model = mlp(6, 5, 3)
    x = torch.randn(4, 6)
    found = []
    for context in (simulated(BF16), torch.autocast("cpu", torch.bfloat16)):
        model.zero_grad()
        with context:
            value = loss(model(x))
        value.backward()
        found.append([p.grad.clone() for p in model.parameters()])
    assert_all_bits(*found)


def test_many_results_in_one_context_are_not_all_remembered():
    model = mlp(3, 3)
    sim = simulated(FP8_E5M2)
    with sim:
        early = model(torch.randn(2, 3)).sum()
        for _ in range(400):
            loss(model(torch.randn(2, 3))).backward()
        assert len(sim._mode.results) < 2000
    with pytest.raises(RuntimeError, match="must run inside the with statement"):
        early.backward()


def test_what_only_looks_like_a_backward_pass_after_the_context_goes_on():
    """Evaluation, a loss of another model, accumulation, and a graph through detached values."""
    model = mlp(6, 5, 3)
    other = nn.Linear(6, 3)
    x = torch.randn(4, 6)
    sim = simulated(FP16)
    for _ in range(2):
        with sim:
            output = model(x)
            loss(output).backward()
            value = loss(model(x))
            value.backward()
        assert value.item() > 0
        loss(other(x)).backward()
        F.mse_loss(other(x), output.detach()).backward()
        sum(p.pow(2).sum() for p in model.parameters()).backward()
    with torch.no_grad(), sim:
        evaluated = model(x)
    F.mse_loss(other(x), evaluated).backward()
    with sim:
        value = loss(model(x))
    with simulated(BF16):  # another context: it decides, as always
        value.backward()


def test_a_view_that_torch_refuses_to_differentiate_does_not_end_the_context():
    x = torch.randn(3, 4, requires_grad=True)
    with simulated(FP16):
        whole = x * 1
        parts = whole.unbind()
        whole.mul_(2)
    assert len(parts) == 3


def test_a_format_that_float32_cannot_hold_and_random_bits_from_nowhere_are_refused():
    wide = mplab.Format("wide", exponent_bits=11, precision=20)
    for how in (
        {"fmt": mplab.FP8_E8M0},
        {"fmt": wide},
        {"rounding": Rounding.STOCHASTIC},
    ):
        with pytest.raises(ValueError, match=r"simulated: (fmt|stream) must "):
            simulated(**{"fmt": FP16, **how})


def test_a_context_may_be_entered_again_but_not_twice_at_once():
    sim = simulated(FP16)
    silent = simulated(FP16, tally=False)
    x = torch.randn(3, 3)
    for _ in range(3):
        with (
            sim,
            pytest.raises(
                RuntimeError, match="must be left before it is entered again"
            ),
        ):
            x.mm(x)
            sim.__enter__()
        with silent:
            x.mm(x)
    assert sim.by_operation["mm"].total == 27
    assert silent.by_operation == silent.by_layer == {}


def test_a_decorated_function_that_would_run_after_the_context_is_refused():
    def generator():
        yield

    async def coroutine():
        pass

    for later in (generator, coroutine):
        with pytest.raises(TypeError, match="must run within its call; got"):
            simulated(FP16)(later)


def test_tallies_count_what_was_rounded_by_operation_and_by_layer():
    model = mlp(6, 5, 3)
    x = torch.randn(4, 6)
    y = torch.randn(4, 3)
    with simulated(FP16, model=model) as sim:
        F.mse_loss(model(x), y).backward()
    totals = {name: tally.total for name, tally in sim.by_operation.items()}
    assert totals == {
        "cast": (4 * 6 + 5 * 6 + 5) + (3 * 5 + 3), "addmm": 4 * 5 + 4 * 3, "sigmoid": 4 * 5,
        "cast backward": 4 * 3, "mm backward": 3 * 5 + 4 * 5 + 5 * 6, "sum backward": 3 + 5,
        "sigmoid backward": 4 * 5,
    }  # fmt: skip
    backward = {f"{name} backward" for name in ("0", "1", "2", "outside modules")}
    assert set(sim.by_layer) == {*"012"} | backward
    assert sum(sim.by_layer.values(), Tally()) == sum(
        sim.by_operation.values(), Tally()
    )
    rounded = mplab.tally((round_to(x) @ round_to(x).T).numpy(), FP16)
    with simulated(FP16) as sim:
        h = x.mm(x.t())
        (h * 2.0**-30).relu_()
    assert sim.by_operation["mm"] == rounded
    assert sim.by_operation["mul"].flushed == torch.count_nonzero(
        h * 2.0**-30 < 2.0**-25 + 1
    )
    assert "relu" not in sim.by_operation
    with simulated(FP16) as sim:
        torch.randn(2, 4, 3) @ torch.randn(3, 5)
    assert list(sim.by_operation) == ["cast", "mm"]


@pytest.mark.parametrize("policy", [KERAS_MIXED, EVERYTHING], ids=repr)
def test_a_sum_that_is_computed_again_in_fp32_counts_no_rounding(policy):
    x = torch.randn(4, 4)
    with simulated(FP16, policy=policy) as sim:
        Within(torch.sum)(x)
        Within(lambda x: x.sum(0))(x)
    assert sim.by_operation["sum"].total == 4


def test_layers_have_the_names_of_the_given_model_and_of_those_that_are_found():
    first = mlp(3, 3)
    second = nn.Sequential(nn.Linear(3, 3))
    whole = nn.ModuleDict({"encoder": first, "decoder": nn.Linear(3, 3)})
    x = torch.randn(2, 3)
    with simulated(FP16) as found:
        second(first(x))
        with pytest.raises(RuntimeError):
            first(x.t())
        x.mm(x.t())
    with simulated(FP16, model=whole) as given:
        whole["decoder"](first(x))
    assert list(found.by_layer) == ["0", "Sequential 2: 0", "outside modules"]
    assert list(given.by_layer) == ["encoder.0", "decoder"]


@pytest.mark.slow
def test_the_memory_of_models_that_are_gone_is_given_back():
    seen = []

    def alive():
        gc.collect()
        return sum(weight() is not None for weight in seen)

    with simulated(FP16):
        for _ in range(5):
            model = nn.Linear(4, 4)
            seen.append(weakref.ref(model.weight))
            model(torch.randn(3, 4)).sum().backward()
        assert alive() == 1
    del model
    assert alive() == 0


def test_torch_export_and_fake_tensors_inside_give_shapes_and_change_nothing():
    model = nn.Linear(4, 4)
    x = torch.randn(3, 4)
    with simulated(FP16):
        before = model(x)
        exported = torch.export.export(model, (x,)).module()  # ended the process
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert (torch.ones(3, 4) @ model.weight).shape == (3, 4)
        assert_bits(model(x), before)
        assert_bits(exported(x), before)


def test_a_format_may_be_given_by_its_name_or_dtype():
    model = nn.Linear(2, 2)
    x = torch.randn(1, 2)
    for named in ("bf16", torch.bfloat16, "bfloat16"):
        with simulated(named):
            assert model(x).dtype is torch.bfloat16
        assert mplab.simulation.explain(model, x, fmt=named).fmt is BF16
    with pytest.raises(ValueError, match=r"^simulated: fmt must be a Format, or the"):
        simulated("bf17")


INFERRED = {
    "lstm": nn.LSTM(4, 4),
    "attention": nn.MultiheadAttention(4, 2, batch_first=True).eval(),
}


@pytest.mark.parametrize("name", INFERRED)
def test_in_inference_mode_what_arrives_whole_is_cast_as_autocast_casts_it(name):
    x = torch.randn(4, 4)
    call = INFERRED[name]
    args = (x[None],) * (3 if name == "attention" else 1)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.inference_mode():
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                real = call(*args)
        except RuntimeError as error:  # an LSTM, where oneDNN has no low one
            torch.backends.mha.set_fastpath_enabled(fast)
            pytest.skip(str(error))
        with simulated(BF16, policy=CPU_AUTOCAST):
            ours = call(*args)
    torch.backends.mha.set_fastpath_enabled(fast)
    real, ours = (t[0] if isinstance(t, tuple) else t for t in (real, ours))
    assert ours.dtype is real.dtype is torch.bfloat16
    assert_bits(ours, real)


def test_an_optimizer_s_step_leaves_a_region_without_autocast_as_it_is():
    model, x = mlp(4, 3), torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with simulated(FP16):
        loss(model(x)).backward()
        with torch.autocast("cuda", enabled=False):
            optimizer.step()
            assert model(x).dtype is torch.float32
        assert model(x).dtype is torch.float16


def test_a_program_that_asks_for_autocast_by_cuda_s_name_alone_is_told_that_it_is_off():
    with (
        pytest.warns(UserWarning, match="CUDA is not available"),
        pytest.warns(UserWarning, match="turned autocast off by CUDA's name"),
        simulated(FP16),
        torch.autocast("cuda", dtype=torch.float16),
    ):
        mlp(4, 3)(torch.randn(2, 4))
