"""The policy of Keras against Keras itself, on torch (conftest.py chooses it)."""

import pytest
import torch
from networks import assert_bits, is_low
from torch import nn
from torch.nn import functional as F

from mplab import BF16, FP16, FP32
from mplab.simulation import KERAS_MIXED, explain, simulated

pytestmark = pytest.mark.filterwarnings("ignore")
MIXED = {FP16: "mixed_float16", BF16: "mixed_bfloat16"}
every_format = pytest.mark.parametrize("fmt", MIXED, ids=lambda fmt: fmt.name)


@pytest.fixture(autouse=True, scope="module")
def imported():
    """Where its tests run, and not in every process that collects them: it takes 3 seconds."""
    global keras
    import keras


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def on_cpu(t):
    return t.detach().to("cpu", torch.float32)


class Dense(nn.Module):
    """What a Keras Dense layer computes: a product, then a sum, each rounded."""

    def __init__(self, width, activation):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(n, width)) for n in (width, 1)
        )
        self.activation = activation

    def forward(self, x):
        return self.activation(x @ self.weight + self.bias[0])


@every_format
def test_a_network_of_dense_layers_equals_that_of_keras_bit_for_bit(fmt):
    """Of width two, on a batch of two, so that no sum depends on its order."""
    for trial in range(10):
        torch.manual_seed(trial)
        ours = nn.Sequential(
            Dense(2, torch.tanh), Dense(2, torch.relu), Dense(2, nn.Identity())
        )
        names = ("tanh", "relu", None)
        theirs = [keras.layers.Dense(2, activation=a, dtype=MIXED[fmt]) for a in names]
        for layer, dense in zip(theirs, ours, strict=True):
            layer.build((2, 2))
            layer.kernel.assign(dense.weight.detach())
            layer.bias.assign(dense.bias[0].detach())
        x = torch.randn(2, 2)
        y = torch.randn(2, 2)
        scale = 2.0**trial
        h = x
        for layer in theirs:
            h = layer(h)
        loss = keras.losses.MeanSquaredError()(y, h)
        (loss * scale).backward()
        with simulated(fmt, policy=KERAS_MIXED, model=ours):
            output = ours(x)
            value = F.mse_loss(output, y)
            (value * scale).backward()
        assert_bits(output, on_cpu(h))
        assert value.item() == pytest.approx(loss.item(), rel=1e-6)
        for layer, dense in zip(theirs, ours, strict=True):
            for variable, p in ((layer.kernel, dense.weight), (layer.bias, dense.bias)):
                assert torch.equal(
                    p.grad.view(variable.shape), on_cpu(variable.value.grad)
                ), trial


@every_format
def test_layer_norm_and_embedding_compute_in_fp32_and_give_the_low_format(fmt):
    x = torch.randn(5, 4) * 1e3
    for theirs, ours, given in (
        (
            keras.layers.LayerNormalization(epsilon=1e-5, dtype=MIXED[fmt]),
            nn.LayerNorm(4),
            x,
        ),
        (
            keras.layers.Embedding(7, 4, dtype=MIXED[fmt]),
            nn.Embedding(7, 4),
            torch.arange(5),
        ),
    ):
        theirs.build(tuple(given.shape))
        for variable, p in zip(theirs.weights, ours.parameters(), strict=True):
            variable.assign(p.detach())
        expected = theirs(given)
        expected.backward(torch.ones_like(expected) * 0.3)
        with simulated(fmt, policy=KERAS_MIXED, model=ours):
            actual = ours(given)
            actual.backward(torch.full(actual.shape, 0.3))
        assert_bits(actual, on_cpu(expected))
        assert is_low(actual, fmt)
        for variable, p in zip(theirs.weights, ours.parameters(), strict=True):
            assert_bits(p.grad, on_cpu(variable.value.grad))


@every_format
def test_batch_norm_takes_a_rounded_input_and_keeps_its_variables_in_fp32(fmt):
    theirs = keras.layers.BatchNormalization(dtype=MIXED[fmt])
    ours = nn.BatchNorm1d(4, eps=1e-3)
    x = torch.randn(64, 4) + 60
    expected = on_cpu(theirs(x, training=True))
    with simulated(fmt, policy=KERAS_MIXED, model=ours):
        actual = ours(x)
    assert is_low(actual, fmt)
    assert is_low(expected, fmt)
    assert {w.dtype for w in theirs.weights} == {"float32"}
    assert not is_low(ours.running_mean, fmt)
    spread = (actual - expected).abs().max()
    assert spread <= 4 * 2.0**-fmt.precision, (
        "one unit: the sums are in FP32, in another order"
    )
    unrounded = F.batch_norm(x, None, None, training=True, eps=1e-3)
    assert (actual - unrounded).abs().max() > 2 * spread, "the input was not rounded"


@every_format
@pytest.mark.parametrize("name", ["softmax", "tanh", "sigmoid", "relu", "exponential"])
def test_activations_run_in_the_low_format(name, fmt):
    x = torch.randn(5, 4)
    function = {"exponential": torch.exp, "softmax": lambda t: t.softmax(-1)}.get(
        name, getattr(torch, name, None)
    )

    class Ours(nn.Module):
        def forward(self, x):
            return function(x)

    expected = keras.layers.Activation(name, dtype=MIXED[fmt])(x)
    with simulated(fmt, policy=KERAS_MIXED):
        actual = Ours()(x)
    assert_bits(actual, on_cpu(expected))


def test_a_layer_s_own_dtype_is_a_choice_for_a_layer():
    """Keras' advice for the last layer, `dtype="float32"`, which then takes FP32 inputs."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(1))
    x = torch.randn(3, 4)
    policy = KERAS_MIXED.with_layers({"1": FP32})
    rows = explain(model, x, policy=policy).rows
    assert [row.format for row in rows if row.operation == "_softmax"] == [FP32]


def test_outside_modules_nothing_is_cast():
    x = torch.randn(3, 3)
    with simulated(FP16, policy=KERAS_MIXED):
        assert_bits(x @ x, x @ x.clone())
