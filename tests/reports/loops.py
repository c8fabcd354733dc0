"""Reports of training loops: the order of the scaler's calls, and what is kept too long."""

import torch
from replay import CPU_AUTOCAST, report
from torch import nn


def regression(run):
    """A model, and a function that gives its loss in a step."""
    model = nn.Linear(8, 1)
    x = torch.randn(64, 8)
    y = x.sum(1, keepdim=True)

    def loss_of(step):
        with run.autocast():
            out = model(x)
        return (out.float() - y).square().mean()

    return model, loss_of


@report(
    "victorchall/EveryDream2trainer#175",
    policy=CPU_AUTOCAST,
    rule="clip-before-unscale",
)
def clipped_while_scaled(run):
    """Gradients are clipped to 1 while they are still 16,384 times too large.

    norm that the optimizer gets
    """
    model, loss_of = regression(run)
    amp = run.scaler(16384.0)

    def update(optimizer):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        amp.step(optimizer)
        amp.update()

    run.train(model, loss_of, scaler=amp, update=update)
    return nn.utils.get_total_norm([p.grad for p in model.parameters()])


@report("PaddlePaddle/Paddle#67895", policy=CPU_AUTOCAST, rule="uncleared-gradients")
def never_cleared(run):
    """No call clears the gradients, so that the infinities of a skipped step stay in them.

    loss scale after 40 steps
    """
    model, loss_of = regression(run)
    amp = run.scaler(2.0**24)
    run.train(model, loss_of, scaler=amp, steps=40, lr=1e-4, clear=False)
    return amp.get_scale()


class Sophia(torch.optim.Optimizer):
    """Divides a gradient by an estimate of the Hessian's diagonal, and clips the quotient."""

    def estimate(self, examples):
        for p in self.param_groups[0]["params"]:
            self.state[p]["hessian"] = examples * p.grad**2

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            step = p.grad / (0.01 * self.state[p]["hessian"] + 1e-15)
            p -= self.param_groups[0]["lr"] * step.clamp(-1, 1)


@report("Liuhong99/Sophia#16", policy=CPU_AUTOCAST, rule="stagnant-weights")
def scaled_hessian(run):
    """The Hessian's diagonal is estimated from gradients that are still scaled.

    largest change of a weight in 20 steps
    """
    model, loss_of = regression(run)
    before = model.weight.detach().clone()
    optimizer = Sophia(model.parameters(), {"lr": 0.01})
    amp = run.scaler(65536.0)
    with run.watch(model, optimizer, amp) as health:
        for step in range(20):
            optimizer.zero_grad()
            loss = loss_of(step)
            amp.scale(loss).backward()
            if step % 10 == 0:
                optimizer.estimate(64)
            amp.step(optimizer)
            amp.update()
            health.step(loss)
    return (model.weight - before).abs().max()


@report(
    "microsoft/Swin-Transformer#311", policy=CPU_AUTOCAST, rule="ended-by-exception"
)
def unscaled_for_each_part(run):
    """unscale_ is called for each of two micro-batches, and update only after both.

    norm of the gradients
    """
    model, loss_of = regression(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    amp = run.scaler(1024.0)
    with run.watch(model, optimizer, amp) as health:
        for part in range(4):
            loss = loss_of(0) / 2
            amp.scale(loss).backward()
            amp.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            if part % 2:
                amp.step(optimizer)
                amp.update()
                optimizer.zero_grad()
                health.step(loss)
    return norm


@report("Haian-Jin/LVSM#19", policy=CPU_AUTOCAST, rule="ended-by-exception")
def skipped_by_hand(run):
    """A step is left out because its gradients are large, and so is the scaler's update.

    norm of the gradients
    """
    model, loss_of = regression(run)
    amp = run.scaler(1024.0)
    norms = []

    def update(optimizer):
        amp.unscale_(optimizer)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        if norms[-1] < 2:
            amp.step(optimizer)
            amp.update()

    run.train(model, loss_of, scaler=amp, update=update)
    return norms[-1]


@report("Azure/MS-AMP#45", policy=CPU_AUTOCAST, rule="ended-by-exception")
def no_update(run):
    """scaler.step is called without scaler.update after it.

    loss
    """
    model, loss_of = regression(run)
    amp = run.scaler(1024.0)

    def update(optimizer):
        amp.step(optimizer)

    return run.train(model, loss_of, scaler=amp, update=update)


@report("IAHispano/Applio#860", policy=CPU_AUTOCAST, rule="step-beside-scaler")
def second_step(run):
    """optimizer.step() stands beside scaler.step(optimizer), and does what that one skipped.

    weights that are not finite, of 9
    """
    model, loss_of = regression(run)
    amp = run.scaler(1024.0)

    def update(optimizer):
        optimizer.step()
        amp.step(optimizer)
        amp.update()

    def spiked(step):
        return loss_of(step) * (1e5 if step == 3 else 1)

    run.train(model, spiked, scaler=amp, update=update, steps=6)
    return sum((~p.isfinite()).sum() for p in model.parameters())


@report("huggingface/accelerate#439", policy=CPU_AUTOCAST)
def updated_between_two(run):
    """Two optimizers share a scaler, which is updated after each: where the first one skips,
    the second divides by a scale that is not its own.

    gradient of the second model, over what it should be
    """
    first, loss_of = regression(run)
    second, other = regression(run)
    pair = nn.ModuleList([first, second])
    one, two = (torch.optim.SGD(m.parameters(), lr=1e-3) for m in pair)
    amp = run.scaler(1024.0)
    with run.watch(pair, two, amp) as health:
        pair.zero_grad()
        loss = 1e5 * loss_of(0) + other(0)
        amp.scale(loss).backward()
        wanted = second.weight.grad / amp.get_scale()
        for optimizer in (one, two):
            amp.step(optimizer)
            amp.update()
        health.step(other(0))
    return (second.weight.grad / wanted).mean()


@report("Lightning-AI/pytorch-lightning#18828", policy=CPU_AUTOCAST)
def schedule_of_skipped_steps(run):
    """The warm-up counts steps that the scaler skipped.

    learning rate of the first update, of a warm-up from 0.001
    """
    model, loss_of = regression(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=20)
    amp = run.scaler(2.0**40)
    rates = []
    optimizer.register_step_pre_hook(lambda *_: rates.append(warm_up.get_last_lr()[0]))
    with run.watch(model, optimizer, amp) as health:
        for _ in range(30):
            optimizer.zero_grad()
            loss = loss_of(0)
            amp.scale(loss).backward()
            amp.step(optimizer)
            amp.update()
            warm_up.step()
            health.step(loss)
    return rates[0]


@report("PolymathicAI/the_well#77", policy=CPU_AUTOCAST, rule="scale-finds-its-level")
def scale_not_saved(run):
    """A checkpoint lacks the scaler, so that a resumed run begins with the first scale again.

    steps skipped after resuming, of 10
    """
    model, loss_of = regression(run)
    for _ in range(2):
        run.train(model, loss_of, scaler=run.scaler(2.0**24), steps=10, lr=1e-3)
    return sum(step.skipped for step in run.health.steps)


@report("mlnomadpy/flaxchat#6", rule="replaced-gradients")
def zeros_for_bad_gradients(run):
    """Gradients that are not finite are replaced by zeros, and the optimizer steps all the
    same: momentum and weight decay move the weights.

    way of the weights in a step whose gradients are not finite
    """
    model, _ = regression(run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with run.watch(model, optimizer) as health:
        for step in range(3):
            optimizer.zero_grad()
            before = model.weight.detach().clone()
            out = model(torch.ones(4, 8)) * (1e8 if step == 2 else 1)
            loss = out.to(run.dtype).float().square().mean()
            loss.backward()
            bad = not loss.isfinite()
            for p in model.parameters():
                p.grad.nan_to_num_(0.0, 0.0, 0.0)
            optimizer.step()
            health.step(loss)
    return bad * (model.weight - before).norm()


@report(
    "pytorch/pytorch#120376", torch.bfloat16, policy=CPU_AUTOCAST, rule="stale-casts"
)
def autocast_around_the_loop(run):
    """Autocast stands around the whole loop, and keeps its first copies of the weights.

    different losses in 8 steps
    """
    model, loss_of = regression(run)
    losses = []

    def recorded(step):
        losses.append(loss_of(step))
        return losses[-1]

    with run.autocast():
        run.train(model, recorded, steps=8, lr=0.1)
    return len({loss.item() for loss in losses})


@report(
    "X-GenGroup/Flow-Factory#186",
    torch.bfloat16,
    policy=CPU_AUTOCAST,
    rule="stale-casts",
)
def weights_swapped_in_a_block(run):
    """Reference weights are put in place inside one autocast block, which uses the old copies.

    1 if policy and reference differ, else 0
    """
    policy = nn.Linear(8, 1, bias=False)
    reference = torch.zeros(1, 8)
    x = torch.randn(16, 8)

    def loss_of(step):
        with run.autocast():
            new = policy(x)
            kept = policy.weight.data.clone()
            with torch.no_grad():
                policy.weight.data.copy_(reference)
                old = policy(x)
                policy.weight.data.copy_(kept)
        return (new.float() - old.float()).square().mean()

    return run.train(policy, loss_of) > 0


@report("pytorch/pytorch#74739", rule="half-parameters")
def half_model_with_scaler(run):
    """A model in FP16 is trained with a scaler, which refuses FP16 gradients.

    loss
    """
    model = nn.Linear(8, 1).to(run.dtype)
    x = torch.ones(4, 8).to(run.dtype)

    def loss_of(step):
        return model(x).float().square().mean()

    return run.train(model, loss_of, scaler=run.scaler(16.0))


class Given(torch.autograd.Function):
    """Brings a gradient of its own, whatever comes from the loss."""

    @staticmethod
    def forward(ctx, x, gradient):
        ctx.save_for_backward(gradient)
        return x.new_ones(())

    @staticmethod
    def backward(ctx, scale):
        return ctx.saved_tensors[0], None


@report("ashawkey/stable-dreamfusion#158", policy=CPU_AUTOCAST)
def gradient_without_the_scale(run):
    """A function brings its own gradient and ignores the loss scale, by which it is divided.

    norm that the optimizer gets, over what it should be
    """
    model, _ = regression(run)
    amp = run.scaler(1024.0)
    x = torch.ones(4, 8)
    given = torch.ones(4, 1)

    def loss_of(step):
        with run.autocast():
            out = model(x)
        return Given.apply(out.float(), given)

    run.train(model, loss_of, scaler=amp)
    return model.bias.grad.norm() / 4


@report(
    "nerfstudio-project/nerfacc#307", policy=CPU_AUTOCAST, rule="step-beside-scaler"
)
def scaled_and_never_divided(run):
    """The loss is scaled, and optimizer.step() takes the gradients as they are.

    norm that the optimizer gets, over what it should be
    """
    model, loss_of = regression(run)
    amp = run.scaler(1024.0)

    def update(optimizer):
        optimizer.step()

    run.train(model, loss_of, scaler=amp, update=update, lr=1e-9)
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    model.zero_grad()
    loss_of(0).backward()
    return norm / nn.utils.get_total_norm([p.grad for p in model.parameters()])


@report("facebookresearch/fairchem#617", policy=CPU_AUTOCAST)
def divided_by_the_next_scale(run):
    """The log divides the scaled loss by the scale after the update, which a skip has halved.

    largest loss in the log, over the true one
    """
    model, loss_of = regression(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    amp = run.scaler(2.0**40)
    ratios = []
    with run.watch(model, optimizer, amp) as health:
        for _ in range(6):
            optimizer.zero_grad()
            loss = loss_of(0)
            scaled = amp.scale(loss)
            scaled.backward()
            amp.step(optimizer)
            amp.update()
            logged = scaled / amp.get_scale()
            ratios.append(logged / loss)
            health.step(logged)
    return max(ratios)
