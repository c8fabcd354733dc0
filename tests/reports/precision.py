"""Reports of digits that the format lacks: updates, averages, positions, running sums."""

import torch
from replay import CPU_AUTOCAST, report
from torch import nn
from underflow import Prompt

BF16 = torch.bfloat16


@report("workofart/ml-by-hand#85", BF16, rule="stagnant-weights")
def weights_of_one(run):
    """Adam's updates of 6e-4 are less than half a unit in the last place of BF16 weights of 1.

    weights that moved, of 768
    """
    model = Prompt(torch.ones(768), run.dtype)
    run.train(model, lambda step: model(0.1), optimizer=torch.optim.Adam, lr=6e-4)
    return (model.weight != 1).sum()


@report("d8ahazard/sd_dreambooth_extension#1417")
def average_of_weights(run):
    """An average with decay 0.999 in FP16 adds thousandths that are rounded away.

    way of the average to the weights, after 100 steps
    """
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    average = torch.ones(1, 1).to(run.dtype)

    def loss_of(step):
        difference = average - model.weight.detach().to(run.dtype)
        average.sub_(0.001 * difference)
        return (model(torch.ones(1)) - 1.4).square().sum()

    run.train(model, loss_of, lr=0.015, steps=100)
    return (average - 1) / (model.weight - 1)


def embedded(places):
    """Sines of places, as models take them."""
    return torch.stack([places.sin(), places.cos()], -1)


@report("modelscope/DiffSynth-Studio#562", BF16, rule="rounded-integers")
def time_steps(run):
    """Time steps are put into the model's BF16 before they are embedded.

    different time steps, of 1000
    """
    model = nn.Linear(2, 1)

    def steps():
        return torch.arange(1000).to(run.dtype).float()

    run.train(model, lambda step: model(embedded(steps())).square().mean())
    return len(steps().unique())


@report("modelscope/DiffSynth-Studio#1501", BF16, rule="ended-by-exception")
def last_time_step(run):
    """Time step 999 is 1000 in BF16, and the table ends at 999.

    share of the signal at the last step
    """
    model = nn.Linear(1, 1)
    signal = torch.linspace(1, 0.001, 1000)

    def loss_of(step):
        last = torch.tensor([999.0]).to(run.dtype)
        return (model(torch.ones(1)) - signal[int(last)]).square().sum()

    run.train(model, loss_of)
    return signal[999]


@report("huggingface/diffusers#9405", BF16, rule="rounded-integers")
def divided_by_a_thousand(run):
    """Time steps are cast to BF16, and then divided by 1000.

    largest error of a time
    """
    model = nn.Linear(1, 1)
    steps = torch.arange(1000.0)

    def times():
        return (steps.to(run.dtype) / 1000).float()

    run.train(model, lambda step: model(times()[:, None]).square().mean())
    return (times() - steps / 1000).abs().max()


@report("Tencent-Hunyuan/UniRL#438", BF16, rule="rounded-angles")
def noise_level_times_a_thousand(run):
    """A noise level is cast to BF16, and then multiplied by 1000.

    time step for a level of 0.97826
    """
    model = nn.Linear(2, 1)

    def time():
        return (torch.tensor([0.97826087]).to(run.dtype) * 1000).float()

    run.train(model, lambda step: model(embedded(time())).square().mean())
    return time()


@report("EleutherAI/gpt-neox#1003", rule="rounded-angles")
def rotary_table(run):
    """Angles of up to 2047 are in FP16, whose gaps are 1 there.

    largest error of a cosine
    """
    model = nn.Linear(16, 1)
    inverse = 1 / 10_000 ** (torch.arange(16) / 16)
    places = torch.arange(2048.0)

    def table():
        angles = places.to(run.dtype)[:, None] * inverse.to(run.dtype)
        return angles.float().cos()

    run.train(model, lambda step: model(table()).square().mean())
    return (table() - (places[:, None] * inverse).cos()).abs().max()


@report("NVIDIA/Megatron-LM#535", rule="rounded-integers")
def long_sequence(run):
    """Positions up to 32,768 take the dtype of the frequencies, FP16.

    different positions, of 32,768
    """
    model = nn.Linear(1, 1)
    frequency = torch.ones(1).to(run.dtype)

    def angles():
        return (torch.arange(32_768).type_as(frequency) * frequency).float()

    run.train(model, lambda step: model(angles()[:, None].cos()).square().mean())
    return len(angles().unique())


@report(
    "huggingface/transformers#29285", BF16, policy=CPU_AUTOCAST, rule="rounded-integers"
)
def rotary_product(run):
    """Autocast puts the product of positions and frequencies into BF16.

    different angles, of 64
    """
    model = nn.Linear(1, 1)
    places = torch.arange(8000.0, 8064.0)[:, None]

    def angles():
        with run.autocast():
            return places @ torch.ones(1, 1)

    run.train(model, lambda step: model(angles().float().cos()).square().mean())
    return len(angles().unique())


@report("huggingface/transformers#8561", BF16, rule="low-precision-loss")
def sum_of_losses(run):
    """The trainer adds losses in BF16, whose gaps grow with the sum until it stops.

    mean of 120 losses of 2.4
    """
    model = nn.Linear(1, 1)
    total = torch.zeros(()).to(run.dtype)

    def loss_of(step):
        loss = (2.4 + 0.001 * model(torch.ones(1))).sum().to(run.dtype)
        total.add_(loss.detach())
        return loss

    run.train(model, loss_of, steps=120)
    return total.float() / 120


@report("pytorch/ao#4915", BF16)
def counted_steps(run):
    """Adam counts its steps in BF16 and remains at 256, and so does its bias correction.

    factor of the correction after 1000 steps
    """
    model = nn.Linear(1, 1)
    count = torch.zeros(()).to(run.dtype)
    run.train(model, lambda step: model(torch.ones(1)).square().sum())
    for _ in range(1000):
        count += 1
    return (1 - 0.999 ** float(count)) ** 0.5


class LowAdam(torch.optim.Optimizer):
    """Adam with its constants in the dtype of the weights."""

    def __init__(self, weights, lr):
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            b1, b2 = torch.tensor([0.9, 0.999]).to(p.dtype)
            state = self.state[p]
            m = b1 * state.get("m", 0) + (1 - b1) * p.grad
            v = b2 * state.get("v", 0) + (1 - b2) * p.grad.square()
            state.update(m=m, v=v)
            p -= self.param_groups[0]["lr"] * m / (v.sqrt() + 1e-8)


@report("FluxML/Optimisers.jl#215", BF16)
def constants_of_adam(run):
    """Adam's 0.999 is 1 in BF16: the mean of squares stays 0, and updates divide by eps.

    size of the weights after 24 steps
    """
    model = Prompt(torch.ones(4), run.dtype)
    run.train(model, lambda step: model(0.1) ** 2, optimizer=LowAdam, steps=24)
    return model.weight.detach().float().norm()


@report("deepspeedai/DeepSpeed#2768", BF16, rule="low-precision-sum")
def accumulated_gradients(run):
    """Gradients of 300 micro-batches are added in BF16, and the sum stops at 256 of them.

    the sum, over what it should be
    """
    model = Prompt(torch.ones(8), run.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with run.watch(model, optimizer) as health:
        for _ in range(300):
            loss = model(1.0)
            loss.backward()
        optimizer.step()
        health.step(loss)
    return model.weight.grad.float().mean() / 300


@report("rusty1s/pytorch_scatter#269")
def mean_by_scatter(run):
    """A mean over a graph's edges is a running sum in FP16, as in `index_add`.

    the mean of 10,000 numbers of 0.5
    """
    model = nn.Linear(1, 1)
    edges, node = torch.full((10_000,), 0.5).to(run.dtype), torch.zeros(10_000).long()

    def mean():
        total = torch.zeros(1).to(run.dtype).index_add(0, node, edges)
        return total.float() / 10_000

    run.train(model, lambda step: (model(mean()) - 1).square().sum())
    return mean()


@report("tenstorrent/tt-metal#53386", BF16, rule="low-precision-sum")
def gradient_of_a_frequent_word(run):
    """The gradients of a word that stands 1,000 times in a batch are added in BF16.

    the sum, over what it should be
    """
    model = nn.Linear(1, 1)

    def row():
        table = torch.zeros(4, 1).to(run.dtype)
        for _ in range(1000):
            table[2] += torch.ones(1).to(run.dtype)
        return table[2].float() / 1000

    run.train(model, lambda step: model(row()).square().mean(), steps=1)
    return row()


@report("jax-ml/ml_dtypes#63", BF16, rule="low-precision-sum")
def mean_of_activations(run):
    """The mean of activations is a running sum in BF16, which stops at 256.

    the mean of 2,000 numbers of 0.5
    """
    model = nn.Linear(1, 1)

    def mean():
        total = torch.zeros(1).to(run.dtype)
        for _ in range(2000):
            total += torch.full((1,), 0.5).to(run.dtype)
        return total.float() / 2000

    run.train(model, lambda step: (model(mean()) - 1).square().sum(), steps=1)
    return mean()


@report("jax-ml/jax#29323", BF16)
def counted_tokens(run):
    """A count of tokens in BF16 stays at a million, whose neighbour is 8,192 away.

    tokens counted in 10 steps of 2,032
    """
    model = nn.Linear(1, 1)
    tokens = torch.tensor(1048576.0).to(run.dtype)

    def loss_of(step):
        tokens.add_(2032.0)
        return model(torch.ones(1)).square().sum()

    run.train(model, loss_of, steps=10)
    return tokens.float() - 1048576


@report("linkedin/Liger-Kernel#830", BF16, rule="low-precision-sum")
def gradient_in_chunks(run):
    """A loss in chunks adds the gradients of 512 parts to a weight's in BF16.

    the sum, over what it should be
    """
    head = nn.Linear(4, 4, bias=False)
    sums = []

    def loss_of(step):
        total = torch.zeros(4, 4).to(run.dtype)
        for _ in range(512):
            total += torch.full((4, 4), 1.0).to(run.dtype)
        sums.append(total.float().mean() / 512)
        return (head(torch.ones(1, 4)) * total.float().mean(0)).mean()

    run.train(head, loss_of, steps=1)
    return sums[0]
