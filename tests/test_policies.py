"""What the lists of operations say, against torch's own."""

import re
from pathlib import Path

import torch

from mplab import policies


def test_every_operation_on_autocast_s_lists_is_in_ours_or_made_of_others():
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    text = header.read_text().replace("\\\n", " ")

    def theirs(name):
        definition = re.search(rf"#define AT_FORALL_{name}\(_\)(.*)", text)[1]
        return set(re.findall(r"_\((\w+)", definition))

    made_of_others = set(
        """
        conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d prelu matmul
        einsum linalg_vecdot linear chain_matmul linalg_multi_dot lstm_cell gru_cell
        rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention layer_norm group_norm rms_norm
        frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss cosine_embedding_loss
        nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss margin_ranking_loss
        multilabel_margin_loss triplet_margin_loss pdist cdist softmax log_softmax
        linalg_matrix_norm
        """.split()  # noqa: SIM905
    )
    lower, wide = theirs("LOWER_PRECISION_FP"), theirs("FP32") | theirs("FP32_SET_OPT_DTYPE")
    assert {"mm", "addmm"} <= lower
    assert {"exp", "softmax"} <= wide
    assert lower - policies.LOWER <= made_of_others
    assert wide - policies.WIDE <= made_of_others
    assert not made_of_others & (policies.LOWER | policies.WIDE)


def test_every_operation_in_our_lists_exists():
    names = policies.LOWER | policies.WIDE | policies.LIKE_INPUT | policies.EXACT
    known = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    assert {name for name in names if not {name, f"{name}_"} & known} == set()
