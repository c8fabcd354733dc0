"""Which layers of a model are converted, which are left, and what is told of both."""

import itertools
import logging

import pytest
import torch
from torch import nn

from mplab import FP8_E4M3
from mplab.simulation import SCALINGS, Fp8Linear, conversion, convert_linears
from mplab.training import TASKS


def deviates(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Shared(nn.Module):
    """A layer under two names, a hook, and an attention block."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.again = self.first
        self.calls = []
        self.first.register_forward_hook(lambda *_: self.calls.append(1))
        self.attention = nn.MultiheadAttention(8, 2)
        self.head = nn.Sequential(nn.Linear(8, 2))

    def forward(self, x):
        x = self.again(self.first(x))
        return self.head(self.attention(x, x, x)[0])


def test_conversion_keeps_parameters_hooks_modes_and_shared_layers():
    model = Shared().eval()
    parameters = list(model.parameters())
    assert convert_linears(model) is model
    assert isinstance(model.head[0], Fp8Linear)
    assert model.first is model.again
    assert not model.first.training
    assert list(map(id, model.parameters())) == list(map(id, parameters))
    assert type(model.attention.out_proj) is not Fp8Linear
    model(deviates(3, 8))
    assert len(model.calls) == 2
    converted = model.first
    assert convert_linears(model).first is converted  # again changes nothing


@pytest.mark.parametrize("options", [
    {"scaling": "nvfp4", "filter": lambda *_: True}, {"scaling": "delayed", "amax_history_len": 3},
    {"backward_format": FP8_E4M3}, {"real": True},
], ids=["nvfp4", "delayed", "E4M3 backward", "real"])  # fmt: skip
def test_another_way_than_before_converts_anew_and_the_same_changes_nothing(options):
    """What was converted once kept its first scaling, and nothing said so."""
    model = Shared()
    fresh = Shared()
    parameters = list(model.parameters())
    convert_linears(model, amax_history_len=5)
    before = model.first
    convert_linears(model, **options)
    now = model.first
    assert now is model.again and now is not before
    assert conversion(model) == conversion(convert_linears(fresh, **options))
    assert list(map(id, model.parameters())) == list(map(id, parameters))
    model(deviates(3, 8))
    assert len(model.calls) == 2
    assert convert_linears(model, **options).first is now
    longer = convert_linears(model, **{**options, "amax_history_len": 9}).first
    assert (longer is now) == (options.get("scaling") != "delayed")
    fresh.load_state_dict(model.state_dict())
    x = deviates(3, 8)
    outputs = []
    for one in (model, fresh):
        torch.manual_seed(0)
        outputs.append(one.first(x))
    assert torch.equal(*outputs)


def test_a_filter_chooses_by_name_and_layer_also_of_the_ends_and_of_a_single_layer():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(4, 2))
    how = {
        "scaling": "nvfp4",
        "filter": lambda name, layer: name != "0" or layer.in_features < 8,
    }
    convert_linears(model, **how)
    assert (
        conversion(model)
        == "FP4_E2M1/FP4_E2M1, nvfp4 scaling, simulated: 1, 2; Linear: 0"
    )
    for name in SCALINGS:
        layer = convert_linears(model[1], scaling=name, filter=lambda *_: True)
        assert (layer.how.name, layer.weight is model[1].weight) == (name, True)
        assert conversion(layer).endswith(f"{name} scaling, simulated: model")
        assert f"{name} scaling" in repr(layer)
    assert conversion(nn.ReLU()) == ""


class Own(nn.Linear):
    """A subclass, which may compute otherwise."""


def test_a_conversion_that_would_convert_nothing_is_refused():
    ends = "without a filter 'nvfp4' keeps the first and the last layer"
    for model, options, found in (
        (nn.ReLU(), {}, r"got model \(ReLU\)"),
        (nn.Sequential(Own(2, 2)), {}, r"0 \(Own\)\. Subclasses stay"),
        (nn.Linear(2, 2), {"filter": lambda *_: False}, r"got model \(Linear\)"),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), {"scaling": "nvfp4"}, ends),
    ):
        with pytest.raises(
            ValueError, match=f"convert_linears: model must have .*{found}"
        ):
            convert_linears(model, **options)


# The ends ------------------------------------------------------------------------------


def test_nvfp4_keeps_the_first_and_the_last_layer_wide():
    for task, wide in {
        "regression": "Linear: 0, 4",
        "digits-autoencoder": "Linear: 0, 10",
        "digits-cnn": "Linear: 9",  # the first layer is a convolution
    }.items():
        model = convert_linears(TASKS[task].model(), scaling="nvfp4")
        assert conversion(model).partition("; ")[2] == wide


# The report ----------------------------------------------------------------------------


def test_what_was_converted_and_what_was_left_is_told_and_logged(caplog):
    model = Shared()
    with caplog.at_level(logging.INFO, "mplab"):
        convert_linears(
            model, scaling="mxfp8", filter=lambda name, layer: name != "head.0"
        )
        convert_linears(
            model, scaling="mxfp4", filter=lambda name, layer: name == "head.0"
        )
    told = (
        "FP8_E4M3/FP8_E4M3, mxfp8 scaling, simulated: first, again; Linear: head.0; "
        "NonDynamicallyQuantizableLinear: attention.out_proj"
    )
    both = (
        "FP4_E2M1/FP4_E2M1, mxfp4 scaling, simulated: head.0; "
        "FP8_E4M3/FP8_E4M3, mxfp8 scaling, simulated: first, again; "
        "NonDynamicallyQuantizableLinear: attention.out_proj"
    )
    assert caplog.messages == [told, both]
    assert conversion(model) == both
    # a filter that asks for another name once left a head in FP8, unseen
    model = convert_linears(Shared(), filter=lambda name, layer: name != "model.head.0")
    assert "simulated: first, again, head.0;" in conversion(model)


def encoder(*, norm_first=False):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        8, 2, 8, 0.0, batch_first=True, norm_first=norm_first
    )
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)


ENCODERS = {
    "one layer": lambda: encoder().layers[0],
    "an encoder": encoder,
    "norm first": lambda: encoder(norm_first=True),
    "an encoder of a converted layer": lambda: nn.TransformerEncoder(
        convert_linears(encoder().layers[0], scaling="mxfp8"),
        2,
        enable_nested_tensor=False,
    ),
    "a layer of two": lambda: convert_linears(
        encoder(), scaling="mxfp8", filter=lambda name, _: name == "layers.1.linear2"
    ),
}


@pytest.mark.parametrize("make", ENCODERS.values(), ids=ENCODERS)
def test_a_converted_encoder_is_so_in_evaluation_too(make):
    model = make()
    x = deviates(3, 5, 8)
    called = []
    if not any(isinstance(layer, Fp8Linear) for layer in model.modules()):
        convert_linears(model, scaling="mxfp8")
    for name, layer in model.named_modules():
        if isinstance(layer, Fp8Linear):
            forward = layer.forward
            layer.forward = lambda x, name=name, forward=forward: (
                called.append(name) or forward(x)
            )
    mask = torch.arange(5).expand(3, 5) >= torch.tensor([[5], [3], [2]])
    for padding, grad in itertools.product((mask, None), (False, True)):
        expected = model.train()(x, src_key_padding_mask=padding)
        names = called[:]
        called[:] = []
        with torch.set_grad_enabled(grad):
            actual = model.eval()(x, src_key_padding_mask=padding)
        assert names and called == names
        called.clear()
        # attention alone may take torch's fast path, whose sums are in another order
        torch.testing.assert_close(actual, expected)


def test_an_encoder_without_a_converted_layer_keeps_the_fast_path():
    model = nn.Sequential(encoder(), nn.Linear(8, 2))
    convert_linears(model, filter=lambda name, _: name == "1")
    assert model[0].use_nested_tensor
    assert all(layer.activation_relu_or_gelu for layer in model[0].layers)


class Turned(nn.Module):
    """A linear layer as GPT-2 has it: no nn.Linear, and its weight of shape (in, out)."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 8))


def test_a_matrix_that_is_no_linear_layer_is_told_as_left():
    others = (
        nn.Embedding(4, 4),
        nn.LayerNorm((2, 4)),
        nn.Conv1d(2, 2, 3),
        nn.PReLU(),
        nn.GRU(2, 2),
    )
    model = nn.Sequential(nn.Linear(4, 4), Turned(), *others, nn.LazyConv1d(2, 3))
    assert conversion(model) == "Linear: 0; Turned: 1"
    assert conversion(convert_linears(model, scaling="mxfp8")).endswith(
        "simulated: 0; Turned: 1"
    )


@pytest.mark.slow  # to import them takes seconds
@pytest.mark.parametrize(
    ("kind", "config", "left"),
    [
        ("GPT2LMHeadModel", "GPT2Config", {"Conv1D"}),
        ("LlamaForCausalLM", "LlamaConfig", set()),
        ("BertModel", "BertConfig", set()),
    ],
)
def test_of_real_language_models_every_matrix_but_embeddings_is_told(
    kind, config, left
):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": 32}
    sizes |= {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 8,
    }
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes, **ends))
    told = dict(part.split(": ") for part in conversion(model).split("; "))
    assert set(told) == {"Linear"} | left
    named = {name for names in told.values() for name in names.split(", ")}
    assert named == {
        name.removesuffix(".weight")
        for name, p in model.named_parameters(remove_duplicate=False)
        if p.ndim == 2
        and not isinstance(
            model.get_submodule(name.removesuffix(".weight")), nn.Embedding
        )
    }
