"""Models of others under the simulation and under torch's autocast, kernel by kernel.

They are made from small configurations, so nothing is downloaded. Forward and backward, each
kernel has to have the same name, the same format of its result, and the same formats of its
inputs where the result is low. The models differ in where they ask for dtypes.
"""

import pytest
import torch
from kernels import Observer, kernels_in
from torch.utils._pytree import tree_leaves

from mplab import BF16, FP16
from mplab.simulation import CPU_AUTOCAST, simulated
from mplab.simulation.explanation import Recorder

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]

SMALL = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
NO_DROPOUT = """
    attention_dropout hidden_dropout_prob attention_probs_dropout_prob resid_pdrop embd_pdrop
    attn_pdrop dropout hidden_dropout feat_proj_dropout layerdrop activation_dropout mask_time_prob
    drop_path_rate dropout_rate
""".split()  # noqa: SIM905
TEXT = SMALL | dict.fromkeys(NO_DROPOUT, 0.0)
GROUPED = TEXT | {"num_key_value_heads": 1}
BOTH = TEXT | {
    "encoder_layers": 1, "decoder_layers": 1, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "decoder_start_token_id": 1,
}  # fmt: skip


def read():
    return {"input_ids": torch.arange(3, 9).view(1, 6)}


def answer():
    return read() | {"decoder_input_ids": torch.arange(3, 7).view(1, 4)}


def hear():
    words = torch.arange(3, 7).view(1, 4)
    return {"input_features": torch.rand(1, 8, 16), "decoder_input_ids": words}


T5 = {
    "vocab_size": 32,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 1,
    "num_heads": 2,
}
T5["dropout_rate"] = 0.0
MEL = {"num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 16}
MODELS = {
    "t5": (T5, answer),
    "mamba": (TEXT | {"state_size": 4}, read),
    "whisper": (BOTH | MEL, hear),
    "mixtral": (GROUPED | {"num_local_experts": 2}, read),
    "gemma2": (GROUPED | {"head_dim": 8}, read),
    "deberta-v2": (TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, read),
    "gpt2": (TEXT, read),
    "bloom": (TEXT, read),
}  # fmt: skip
"""transformers' names of models that ask for dtypes differently: norms and softmaxes in FP32 by
hand, clamps and masks by the limits of a dtype, scans, routers, biases of attention. How small they
are made, and what they are called with."""


def made(name):
    """A model in training, and what it is called with."""
    torch.manual_seed(0)
    transformers = pytest.importorskip(
        "transformers", reason="pip install 'mplab[zoo]'"
    )
    configuration, inputs = MODELS[name]
    config = transformers.AutoConfig.for_model(name, **configuration)
    return transformers.AutoModel.from_config(config).train(), inputs()


def ends(output):
    """The tensors that a backward pass starts from."""
    leaves = [
        t for t in tree_leaves(tuple(output.values())) if isinstance(t, torch.Tensor)
    ]
    return [t for t in leaves if t.requires_grad and t.dim()]


def of_autocast(name, fmt):
    """The dtypes of the outputs, and the kernels, forward and backward."""
    observer = Observer()
    with torch.autocast("cpu", dtype=fmt.torch_dtype):
        model, inputs = made(name)
        with observer:
            last = ends(model(**inputs))
    forward = observer.seen
    observer.seen = []
    with observer:
        torch.autograd.backward(last, [torch.full_like(t, 0.7) for t in last])
    return [t.dtype for t in last], forward, observer.seen


def of_simulation(name, fmt):
    """The same."""
    model, inputs = made(name)
    within = simulated(fmt, policy=CPU_AUTOCAST)
    taken = Recorder(within._mode)
    within._mode.observers.append(taken)
    with within:
        last = ends(model(**inputs))
        dtypes = [t.dtype for t in last]
        forward = kernels_in(taken.rows, fmt)
        taken.rows.clear()
        torch.autograd.backward(last, [torch.full_like(t, 0.7) for t in last])
    return dtypes, forward, kernels_in(taken.rows, fmt)


@pytest.mark.parametrize("fmt", [FP16, BF16])
@pytest.mark.parametrize("name", MODELS)
def test_each_kernel_of_a_model_runs_in_the_formats_of_the_real_autocast(
    name, fmt, record_property
):
    (dtypes, forward, backward), actual = (
        of_autocast(name, fmt),
        of_simulation(name, fmt),
    )
    assert actual == (dtypes, forward, backward)
    assert forward
    record_property("kernels compared", len(forward) + len(backward))
