"""Reports of numbers past the largest of the format."""

import torch
from replay import CPU_AUTOCAST, report
from torch import nn
from torch.nn import functional as F


@report("NVIDIA/apex#1052", policy=CPU_AUTOCAST, rule="ended-by-exception")
def mask_of_a_billion(run):
    """FP16 has no -1e9 to fill into masked scores.

    loss
    """
    project = nn.Linear(8, 8)
    x = torch.randn(4, 8)
    later = torch.ones(4, 4, dtype=torch.bool).triu(1)

    def loss_of(step):
        with run.autocast():
            scores = project(x) @ x.T
            weights = scores.masked_fill(later, -1e9).softmax(-1)
        return (weights @ x).square().mean()

    return run.train(project, loss_of)


@report("pytorch/pytorch#187429", policy=CPU_AUTOCAST, rule="overflow-forward")
def where_with_a_constant(run):
    """`where` makes -inf of -1e9 without a word, and a row that is masked throughout NaN.

    loss
    """
    project = nn.Linear(8, 8)
    x = torch.randn(4, 8)
    seen = torch.ones(4, 4, dtype=torch.bool).tril(-1)

    def loss_of(step):
        with run.autocast():
            scores = project(x) @ x.T
            out = torch.where(seen, scores, -1e9).softmax(-1) @ x
        return out.float().square().mean()

    return run.train(project, loss_of)


@report("pytorch/pytorch#153187", policy=CPU_AUTOCAST, rule="ended-by-exception")
def bound_of_a_clamp(run):
    """A clamp to 185,208, meant to keep numbers finite, has a bound that FP16 lacks.

    loss
    """
    model = nn.Linear(4, 4)

    def loss_of(step):
        with run.autocast():
            out = model(torch.ones(2, 4)).clamp(max=185_208)
        return out.float().square().mean()

    return run.train(model, loss_of)


@report("huggingface/transformers#17306", rule="overflow-forward")
def smallest_number_as_mask(run):
    """A row is masked throughout with FP16's most negative number; a negative score makes it
    -inf, and softmax has nothing to choose from.

    loss
    """
    scores = nn.Linear(4, 4, bias=False)
    mask = torch.full((4, 4), torch.finfo(run.dtype).min).to(run.dtype)

    def loss_of(step):
        low = scores(torch.full((4, 4), -100.0)).abs().neg().to(run.dtype)
        return (low - 40 + mask).softmax(-1).float().square().mean()

    return run.train(scores, loss_of)


@report("ultralytics/ultralytics#24990", policy=CPU_AUTOCAST, rule="overflow-forward")
def scores_before_their_factor(run):
    """QKᵀ overflows, and only then comes the factor 1/sqrt(d).

    loss
    """
    project = nn.Linear(64, 128, bias=False)
    x = 200 * torch.randn(4, 64)

    def loss_of(step):
        with run.autocast():
            q, k = project(x).chunk(2, -1)
            out = ((q @ k.T) * 64**-0.5).softmax(-1) @ x
        return out.float().square().mean()

    return run.train(project, loss_of, lr=1e-9)


@report("huggingface/transformers#5651", policy=CPU_AUTOCAST, rule="overflow-forward")
def feed_forward_layer(run):
    """The second matrix of a feed-forward block makes 66,000 and more, and the norm NaN of it.

    loss
    """
    block = nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8), nn.LayerNorm(8)
    )
    block[2].weight.data.mul_(10_000.0)
    x = 60 * torch.randn(16, 8)

    def loss_of(step):
        with run.autocast():
            out = block(x)
        return (out.float() - 1).square().mean()

    return run.train(block, loss_of, lr=1e-9)


class Norm(nn.Module):
    """A norm over the last axis, with the mean taken off, written by hand."""

    def __init__(self, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.eps = eps

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.pow(2).mean(-1, keepdim=True)
        return self.weight * (centred / torch.sqrt(variance + self.eps)).float()


@report("facebookresearch/ConvNeXt#80", rule="hidden-infinity")
def variance_by_hand(run):
    """A square overflows in the variance, and x/inf makes zeros of the features.

    features that are 0, of 32
    """
    norm = Norm(1e-6)
    x = (400 * torch.randn(4, 8)).to(run.dtype)
    run.train(norm, lambda step: (norm(x) - 1).square().mean())
    return (norm(x) == 0).sum()


@report("apache/mxnet#11403", rule="hidden-infinity")
def length_of_a_vector(run):
    """The squares under a norm overflow, so that a vector divided by it is 0.

    length of the normalised vector
    """
    head = nn.Linear(5, 1)
    x = torch.full((5,), 256.0).to(run.dtype)

    def unit():
        return (x / (x * x).sum().sqrt()).float()

    run.train(head, lambda step: (head(unit()) - 1).square().mean())
    return unit().norm()


@report("qubvel-org/segmentation_models.pytorch#463", rule="overflow-forward")
def dice_of_an_image(run):
    """The sums of a Dice score over 512 x 512 pixels overflow, and inf/inf is NaN.

    loss
    """
    head = nn.Linear(1, 1)
    pixels = torch.ones(512 * 512, 1)
    target = torch.ones(512 * 512, 1).to(run.dtype)

    def loss_of(step):
        output = head(pixels).sigmoid().to(run.dtype)
        overlap = (output * target).sum()
        return 1 - 2 * overlap / (output.sum() + target.sum())

    return run.train(head, loss_of)


@report("ultralytics/ultralytics#25097", policy=CPU_AUTOCAST, rule="overflow-forward")
def zero_times_a_sum(run):
    """A loss of zero that keeps the graph, `x.sum() * 0`, is NaN where the sum overflows.

    loss
    """
    head = nn.Linear(4, 1000)
    nn.init.ones_(head.weight)
    images = torch.full((64, 4), 2.0)

    def loss_of(step):
        with run.autocast():
            return head(images).sum() * 0

    return run.train(head, loss_of)


@report("chelsea0x3b/dfdx#748", rule="hidden-infinity")
def number_of_elements(run):
    """A mean divides by a number of elements past 65,504, which is inf in FP16: the loss is 0.

    loss
    """
    head = nn.Linear(1, 1)
    x = torch.rand(70_000, 1)

    def loss_of(step):
        errors = (head(x) - 0.1).abs().to(run.dtype) / 16
        return (errors.sum() / torch.tensor(70_000.0).to(run.dtype)).float()

    return run.train(head, loss_of)


@report("chainer/chainer#6702", rule="overflow-forward")
def sum_before_division(run):
    """A mean adds 32,768 errors of about 3 in FP16, and divides their sum later.

    loss
    """
    head = nn.Linear(1, 1)
    x = torch.zeros(32_768, 1)

    def loss_of(step):
        errors = (head(x) - 4).abs().to(run.dtype)
        return errors.sum() / errors.numel()

    return run.train(head, loss_of)


@report("OpenRLHF/OpenRLHF#1335", rule="hidden-infinity")
def clipped_after_exp(run):
    """exp overflows, and a clip hides it from the loss; the gradient 0 * inf is NaN.

    weights that are not finite, of 2
    """
    policy = nn.Linear(1, 1)
    nn.init.constant_(policy.bias, 12.0)

    def loss_of(step):
        ratio = policy(torch.zeros(4, 1)).to(run.dtype)
        return (ratio.exp() - 1 - ratio).clamp(-10, 10).float().mean()

    run.train(policy, loss_of)
    return sum((~p.isfinite()).sum() for p in policy.parameters())


@report("horovod/horovod#1699", rule="nonfinite-weights")
def sum_over_workers(run):
    """Gradients of 256 workers are added in FP16 before they are divided by 256.

    weights that are not finite, of 8
    """
    model = nn.Linear(8, 1, bias=False)

    def update(optimizer):
        message = model.weight.grad.to(run.dtype)
        total = torch.zeros_like(message)
        for _ in range(256):
            total += message
        model.weight.grad.copy_(total / 256)
        optimizer.step()

    def loss_of(step):
        return (model(torch.full((4, 8), 100.0)) - 3.0).square().mean()

    run.train(model, loss_of, lr=1e-6, steps=2, update=update)
    return (~model.weight.isfinite()).sum()


@report("pytorch/pytorch#88474", policy=CPU_AUTOCAST, rule="nonfinite-buffers")
def statistics_of_a_bad_batch(run):
    """The scaler skips the step of a batch that overflowed; BatchNorm's averages keep it.

    running averages that are not finite, of 4
    """
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    scaler = run.scaler(8.0)

    def loss_of(step):
        with run.autocast():
            out = model(torch.randn(16, 2) * (1e6 if step == 1 else 1))
        return out.float().square().mean()

    run.train(model, loss_of, scaler=scaler)
    return (~model[1].running_mean.isfinite()).sum()


@report("Junjue-Wang/FactSeg#6", policy=CPU_AUTOCAST, rule="overflow-forward")
def scale_that_falls_to_nothing(run):
    """The loss is not finite before any scale acts, so that every step is skipped for ever.

    loss scale after 20 steps
    """
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    scaler = run.scaler(65536.0)
    bands = torch.rand(16, 2) * torch.tensor([1.0, 1e5]) + torch.tensor([0.0, 1e5])

    def loss_of(step):
        with run.autocast():
            out = model(bands)
        return F.binary_cross_entropy_with_logits(out.float(), torch.ones(16, 1))

    run.train(model, loss_of, scaler=scaler, steps=20, lr=1e-12)
    return scaler.get_scale()


@report("huggingface/transformers#10674", rule="overflow-forward")
def smoothed_over_a_vocabulary(run):
    """Label smoothing adds the logarithms of 50,000 probabilities, some 600,000 in all.

    loss
    """
    head = nn.Linear(4, 50_000)

    def loss_of(step):
        logarithms = -head(torch.ones(1, 4)).to(run.dtype).log_softmax(-1)
        smoothed = logarithms.sum(-1) / 50_000
        return (0.9 * logarithms[:, 0] + 0.1 * smoothed).float().mean()

    return run.train(head, loss_of)


@report("facebookresearch/fairscale#263", rule="hidden-infinity")
def norm_of_large_gradients(run):
    """The norm to clip by squares gradients of 5,000 in FP16, is infinite, and makes them zero.

    norm that the optimizer gets; 1 was asked for
    """
    model = nn.Linear(8, 1, bias=False)

    def update(optimizer):
        low = model.weight.grad.to(run.dtype)
        norm = low.square().sum().sqrt().float()
        model.weight.grad.mul_(1 / norm)
        optimizer.step()

    run.train(model, lambda step: 5000 * model(torch.ones(4, 8)).mean(), update=update)
    return model.weight.grad.norm()


@report("pytorch/pytorch#69512", rule="hidden-infinity")
def cosine_of_long_vectors(run):
    """A cosine multiplies two squared norms of 512 before the root: 262,144, and x/inf is 0.

    cosine of a vector with itself
    """
    head = nn.Linear(1, 1)
    a = torch.randn(512).to(run.dtype)

    def cosine():
        squares = (a * a).sum()
        return ((a * a).sum() / (squares * squares).sqrt()).float()

    run.train(head, lambda step: (head(cosine()[None]) - 1).square().mean())
    return cosine()


@report("openai/CLIP#530", policy=CPU_AUTOCAST, rule="overflow-forward")
def temperature_without_a_bound(run):
    """A learned temperature grows until its exponential times the similarities overflows.

    loss
    """
    project = nn.Linear(8, 8)
    project.scale = nn.Parameter(torch.tensor(11.5))
    images = torch.randn(4, 8)

    def loss_of(step):
        with run.autocast():
            features = F.normalize(project(images), dim=-1).to(run.dtype)
            scores = project.scale.exp().to(run.dtype) * (features @ features.T)
        return F.cross_entropy(scores.float(), torch.arange(4))

    return run.train(project, loss_of, lr=1e-9)


@report("pytorch/ao#3356", torch.bfloat16, rule="overflow-forward")
def scale_of_a_row_of_zeros(run):
    """The scale of a row is 448 over its largest number; LoRA's second matrix begins at zero.

    loss
    """
    first, second = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
    nn.init.zeros_(second.weight)
    model = nn.Sequential(first, second)

    def cast(t):
        if run.dtype == torch.float32:
            return t
        scale = 448 / t.abs().amax(-1, keepdim=True)
        return (t * scale).to(torch.float8_e4m3fn).float() / scale

    def loss_of(step):
        hidden = F.linear(torch.ones(2, 4), cast(first.weight))
        return (F.linear(hidden, cast(second.weight)) - 1).square().mean()

    return run.train(model, loss_of)


@report("nntrainer/nntrainer#3935", rule="hidden-infinity")
def squares_over_a_width(run):
    """RMSNorm adds the squares of 4,096 numbers of 5 in FP16: the sum is inf, the rows are 0.

    features that are 0, of 8,192
    """
    norm = nn.Linear(1, 1, bias=False)
    x = torch.full((2, 4096), 5.0).to(run.dtype)

    def rows():
        mean = x.square().sum(-1, keepdim=True) / 4096
        return (x * (mean + 1e-6).rsqrt()).float()

    run.train(norm, lambda step: (norm(rows()[:, :1]) - 1).square().mean())
    return (rows() == 0).sum()
