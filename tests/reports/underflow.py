"""Reports of numbers too small for the format: gradients, squares, and the eps of a guard."""

import torch
from replay import CPU_AUTOCAST, report
from torch import nn


@report("engichang1467/Open-Rig3R#35", policy=CPU_AUTOCAST, rule="gradient-underflow")
def no_scaler(run):
    """FP16 autocast without a loss scale: small gradients become 0 on their way back.

    gradients that are 0, of 128
    """
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16))
    x = torch.randn(4096, 8)

    def loss_of(step):
        with run.autocast():
            out = model(x)
        return (1e-3 * out.float()).square().mean()

    run.train(model, loss_of)
    return (model[0].weight.grad == 0).sum()


@report("afiaka87/glide-finetune#5", rule="half-parameters")
def half_model_and_adam(run):
    """`model.half()` with Adam: its eps of 1e-8 is 0 in FP16, and so are small squares.

    weights that are not finite, of 12
    """
    model = nn.Linear(4, 3, bias=False).to(run.dtype)
    x = torch.tensor([1e-4, 1.0, 0.0, 1.0]).to(run.dtype)
    run.train(model, lambda step: model(x).float().sum(), optimizer=torch.optim.Adam)
    return (~model.weight.isfinite()).sum()


class Prompt(nn.Module):
    """Numbers to learn, in the dtype of a model that stays as it is."""

    def __init__(self, start, dtype):
        super().__init__()
        self.weight = nn.Parameter(start.to(dtype))

    def forward(self, factor):
        return (self.weight * factor).float().sum()


@report("matanbt/TROPT#8", rule="nonfinite-weights")
def soft_prompt(run):
    """A soft prompt has its model's FP16, in which the square of a gradient of 1e-4 is 0.

    numbers that are not finite, of 8
    """
    prompt = Prompt(torch.ones(8), run.dtype)
    run.train(prompt, lambda step: prompt(1e-4), optimizer=torch.optim.Adam)
    return (~prompt.weight.isfinite()).sum()


@report("google-deepmind/optax#1754", rule="nonfinite-weights")
def row_without_a_gradient(run):
    """Adam in FP16 divides 0 by 0 wherever a gradient is exactly 0, since eps is 0, too.

    weights that are NaN, of 8
    """
    rows = Prompt(torch.ones(8), run.dtype)
    used = torch.tensor([1.0, 0.0] * 4).to(run.dtype)
    run.train(rows, lambda step: rows(used), optimizer=torch.optim.Adam)
    return rows.weight.isnan().sum()


@report("pytorch/pytorch#32137", rule="overflow-forward")
def normalised_zero(run):
    """`F.normalize` guards with 1e-12, which is 0 in FP16: a vector of zeros becomes NaN.

    loss
    """
    head = nn.Linear(4, 1)
    x = torch.zeros(2, 4).to(run.dtype)

    def loss_of(step):
        return head(nn.functional.normalize(x, dim=-1).float()).square().mean()

    return run.train(head, loss_of)


@report("deepspeedai/DeepSpeed#581", rule="overflow-forward")
def norm_of_padding(run):
    """A norm adds 1e-12 to the variance of a constant row; in FP16 both are 0.

    loss
    """
    head = nn.Linear(4, 1)
    x = torch.full((2, 4), 3.0).to(run.dtype)

    def loss_of(step):
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True) + 1e-12
        return head((centred * variance.rsqrt()).float()).square().mean()

    return run.train(head, loss_of)


@report("rwightman/efficientdet-pytorch#291", rule="overflow-forward")
def logarithm_of_a_width(run):
    """Boxes without a width get 1e-8 before the logarithm, which is 0 in FP16.

    loss
    """
    head = nn.Linear(1, 4)
    widths = torch.tensor([0.0, 0.5, 1.0, 2.0]).to(run.dtype)

    def loss_of(step):
        target = (widths + 1e-8).log()
        return (head(torch.ones(1)) - target.float()).abs().mean()

    return run.train(head, loss_of)


@report("pytorch/pytorch#56440", policy=CPU_AUTOCAST, rule="overflow-forward")
def clamped_divisor(run):
    """A divisor is clamped to 1e-8, which is 0 in FP16.

    loss
    """
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    nn.init.constant_(model[0].bias, -1.0)

    def loss_of(step):
        with run.autocast():
            divisor = model(torch.zeros(2, 4)).clamp(min=1e-8)
        return (1e-9 / divisor).float().mean()

    return run.train(model, loss_of)


@report("zylo117/Yet-Another-EfficientDet-Pytorch#502", rule="overflow-forward")
def probability_of_one(run):
    """A focal loss clamps to 1 - 1e-4, which FP16 rounds to 1, and takes log(1 - p).

    loss
    """
    head = nn.Linear(1, 4)

    def loss_of(step):
        p = (20 + head(torch.ones(1))).sigmoid().to(run.dtype)
        p = p.clamp(1e-4, 1 - 1e-4)
        return -(p**2 * (1 - p).log()).float().mean()

    return run.train(head, loss_of)


@report("fastino-ai/GLiNER2#155", torch.bfloat16, rule="hidden-infinity")
def survival_of_the_certain(run):
    """A clamp to 1 - 1e-6 is one to 1 in BF16; exp hides the -inf, the gradient is NaN.

    weights that are not finite, of 8
    """
    head = nn.Linear(1, 4)

    def loss_of(step):
        p = (20 + head(torch.ones(1))).to(run.dtype).sigmoid()
        survival = torch.log1p(-p.clamp(max=1 - 1e-6)).sum()
        return 1 - survival.exp().float()

    run.train(head, loss_of)
    return sum((~p.isfinite()).sum() for p in head.parameters())


@report("facebookresearch/xformers#96", rule="overflow-forward")
def features_of_favor(run):
    """Attention by random features divides by a sum of exponentials that are 0 in FP16.

    loss
    """
    project = nn.Linear(4, 4)

    def loss_of(step):
        low = project(torch.ones(2, 4)).to(run.dtype)
        features = (low - 20).exp()
        return (features / features.sum(-1, keepdim=True)).float().square().mean()

    return run.train(project, loss_of)


@report("zhuchen03/FreeLB#8", rule="overflow-forward")
def norm_of_a_small_gradient(run):
    """An adversarial step divides a gradient of 1e-5 by its norm, whose squares are 0.

    loss
    """
    model = nn.Linear(8, 1)

    def loss_of(step):
        gradient = torch.full((8,), 1e-5).to(run.dtype)
        away = gradient / gradient.square().sum().sqrt()
        return (model(away.float()) - 1).square().mean()

    return run.train(model, loss_of)


@report("NVIDIA/apex#211", rule="overflow-forward")
def cosine_above_one(run):
    """The squares of numbers near 4e-4 lose digits, and a cosine of 1.2 has no log(1 - c).

    loss
    """
    head = nn.Linear(1, 1)
    a = torch.full((64,), 3.78e-4).to(run.dtype)

    def loss_of(step):
        squares = (a * a).float()
        cosine = 0.999 * a.float().square().sum() / squares.sum()
        return -(1 - cosine).log() + head(torch.ones(1)).square().sum()

    return run.train(head, loss_of)


@report("pytorch/pytorch#41663", rule="overflow-forward")
def noise_of_gumbel(run):
    """Gumbel noise is -log of an exponential number, which may be 0 in FP16.

    loss
    """
    head = nn.Linear(4, 64)

    def loss_of(step):
        draws = torch.rand(2, 64).square().square().square()
        noise = -draws.to(run.dtype).log()
        low = head(torch.ones(2, 4)).to(run.dtype) + noise
        return (low.softmax(-1).float() ** 2).sum()

    return run.train(head, loss_of)


@report("jingyuanli001/RFR-Inpainting#8", policy=CPU_AUTOCAST, rule="overflow-forward")
def holes_of_a_mask(run):
    """A partial convolution divides by the known pixels plus 1e-8, which is 0 in FP16.

    loss
    """
    layer = nn.Linear(8, 4)
    known = torch.tensor([0.0, 3.0])[:, None]

    def loss_of(step):
        with run.autocast():
            out = layer(torch.ones(2, 8))
            ratio = 9 / (known.to(out.dtype) + 1e-8)
            out = out * (ratio * (known > 0))
        return out.float().square().mean()

    return run.train(layer, loss_of)


@report("NVIDIA/apex#654", policy=CPU_AUTOCAST, rule="backward-never-finite")
def penalty_on_a_gradient(run):
    """The gradient of a critic is 0 in FP16; the root in its norm has no slope there.

    loss scale after 20 steps
    """
    critic = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    scaler = run.scaler(65536.0)

    def loss_of(step):
        x = torch.randn(4, 8, requires_grad=True)
        with run.autocast():
            score = 1e-8 * critic(x).sum()
        (slope,) = torch.autograd.grad(score, x, create_graph=True)
        norm = slope.square().sum(1).sqrt()
        return (1e6 * norm - 1).square().mean()

    run.train(critic, loss_of, scaler=scaler, steps=20, lr=1e-9)
    return scaler.get_scale()


@report("openai/CLIP#40", rule="half-parameters")
def pretrained_in_half(run):
    """The loaded model has FP16 weights; one step of Adam makes NaN of them.

    weights that are not finite, of 32
    """
    model = nn.Linear(8, 4, bias=False).to(run.dtype)
    images = torch.zeros(2, 8).to(run.dtype)
    images[:, :4] = 1e-4

    def loss_of(step):
        return model(images).float().square().mean()

    run.train(model, loss_of, optimizer=torch.optim.Adam, steps=2)
    return (~model.weight.isfinite()).sum()
