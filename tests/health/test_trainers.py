"""A watch in the trainers of others: same bits, progress, a report at the end."""

import copy
import pickle

import pytest
import torch
from sick_runs import mlp, regression, seeded
from torch import nn
from torch.nn import functional as F

from mplab.health import compare
from mplab.health.trainers import (
    keras_callback,
    lightning_callback,
    transformers_callback,
)

HOW = "needs the extra mplab[trainers]"
# Of the trainers, about processors and workers.
quiet = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def lightning():
    return pytest.importorskip("lightning.pytorch", reason=HOW)


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("accelerate", reason=HOW)
    return pytest.importorskip("transformers", reason=HOW)


def dataset(rows=64):
    return torch.utils.data.TensorDataset(*regression(rows))


def fit(lightning, folder, callbacks, *, rows=64, weight=None, parts=1, **options):
    """The weights after two epochs, and what broke them off."""

    class Module(lightning.LightningModule):
        automatic_optimization = parts == 1

        def __init__(self):
            super().__init__()
            self.net = seeded(mlp)

        def training_step(self, batch, index):
            loss = F.mse_loss(self.net(batch[0]), batch[1])
            if parts > 1:
                self.zero_grad()
                self.manual_backward(loss)
                for optimizer in self.optimizers():
                    optimizer.step()
            return loss

        def validation_step(self, batch, index):
            return F.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            own = list(self.parameters())
            return [torch.optim.AdamW(own[k::parts], 1e-2) for k in range(parts)]

    module = Module()
    if weight is not None:
        nn.init.constant_(module.net[2].weight, weight)
    loader = torch.utils.data.DataLoader(dataset(rows), batch_size=8)
    trainer = lightning.Trainer(
        **{"max_epochs": 2, "callbacks": callbacks, "default_root_dir": folder}
        | options,
        **{"accelerator": "cpu", "logger": False, "enable_checkpointing": False},
        **{"enable_progress_bar": False, "enable_model_summary": False},
    )
    trainer.fit(module, loader, loader)
    return [p.detach().clone() for p in module.parameters()]


@quiet
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, 16),
        ({"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}, 8),
        ({"precision": "bf16-mixed"}, 16),
        ({"parts": 2}, 16),  # the optimizers, all of which are watched
    ],
)
def test_lightning_trains_as_without_the_callback(lightning, tmp_path, options, steps):
    said = []
    callback = lightning_callback(say_every=4, told=said.append)
    watched = fit(lightning, tmp_path, [callback], **options)
    alone = fit(lightning, tmp_path, [], **options)
    assert all(torch.equal(a, b) for a, b in zip(watched, alone, strict=True))
    assert len(callback.report.steps) == steps
    assert callback.report.findings == []
    assert said[0].startswith("health, step 4: loss ")
    assert len(said) == steps // 4 + 1
    assert said[-1] == repr(callback.report)
    step = callback.report.steps[-1]
    assert step.norm_at_optimizer <= options.get("gradient_clip_val", 100) * 1.0001
    assert step.updated == 212


@quiet
@pytest.mark.slow
def test_lightning_s_loss_of_micro_batches_is_their_mean(lightning, tmp_path):
    one = lightning_callback(told=print)
    two = lightning_callback(told=print)
    fit(lightning, tmp_path, [one], rows=16, max_steps=1)
    fit(lightning, tmp_path, [two], rows=16, max_steps=1, accumulate_grad_batches=2)
    whole = F.mse_loss(seeded(mlp)(dataset(16)[:][0]), dataset(16)[:][1])
    assert two.report.steps[0].loss == pytest.approx(float(whole), rel=1e-6)
    assert one.report.steps[0].loss != two.report.steps[0].loss


@quiet
@pytest.mark.slow
def test_in_lightning_an_overflow_is_named(lightning, tmp_path):
    callback = lightning_callback(told=lambda words: None)
    fit(lightning, tmp_path, [callback], weight=1e38)
    assert "overflow-forward" in callback.report.codes
    assert callback.report.steps[0].origins[0].phase == "forward"


@quiet
@pytest.mark.slow
def test_lightning_ends_at_a_loss_that_is_not_finite_if_told_to(lightning, tmp_path):
    """The digests of the steps before are in their file."""
    path = tmp_path / "run.json"
    callback = lightning_callback(
        told=str, on_nonfinite="raise", digest=path, trace_every=1
    )
    with pytest.raises(
        FloatingPointError, match=r"^health: the loss of step 0 is (inf|nan): .* made"
    ):
        fit(lightning, tmp_path, [callback], weight=1e38, precision="32")
    assert compare(path, path).steps == [0]
    with pytest.raises(
        ValueError, match=r"^lightning_callback: on_nonfinite must be one of report"
    ):
        lightning_callback(on_nonfinite="ignore")


@quiet
@pytest.mark.slow
def test_after_an_error_in_the_run_nothing_of_the_watch_is_left(lightning, tmp_path):
    class Break(lightning.Callback):
        def on_train_batch_end(self, trainer, *rest):
            raise InterruptedError("by the user")

    callback = lightning_callback(told=lambda words: None)
    with pytest.raises(InterruptedError):
        fit(lightning, tmp_path, [callback, Break()])
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert not any(m._forward_hooks for m in callback.health.model.modules())
    told = [f.observed for f in callback.report.findings]
    assert told == [
        "The run ended by an exception in step 1: InterruptedError: by the user"
    ]


@quiet
@pytest.mark.slow
def test_an_error_of_a_logger_does_not_reach_lightning(lightning, tmp_path):
    def broken(words):
        raise OSError("no space left")

    callback = lightning_callback(say_every=2, told=broken)
    watched = fit(lightning, tmp_path, [callback])
    assert all(map(torch.equal, watched, fit(lightning, tmp_path, [])))
    assert "OSError: no space left" in callback.report.evidence.error


@quiet
@pytest.mark.slow
def test_callbacks_are_sent_to_other_processes_as_new_ones(lightning):
    callback = lightning_callback(every=10)
    for twin in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        assert twin.again.keywords == {"every": 10}
        assert isinstance(twin, lightning.Callback)


def train(
    transformers, folder, callbacks, *, returns_loss=True, broken=False, **options
):
    """The weights after six steps, and the trainer's own log."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        **{"vocab_size": 64, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2},
        **{"bos_token_id": 0, "eos_token_id": 0, "use_cache": False},
    )
    model = transformers.GPT2LMHeadModel(config)
    tokens = torch.randint(0, 64, (32, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in tokens]

    class Trainer(transformers.Trainer):
        def compute_loss(self, model, inputs, *rest, **more):
            if broken:
                raise RuntimeError("of the program")
            if returns_loss:
                return super().compute_loss(model, inputs, *rest, **more)
            logits = model(inputs["input_ids"]).logits
            return F.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten())

    arguments = transformers.TrainingArguments(
        str(folder),
        **{"max_steps": 6, "per_device_train_batch_size": 4, "logging_steps": 1},
        **{
            "use_cpu": True,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
        },
        **options,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=data,
        eval_dataset=data,
        callbacks=callbacks,
    )
    trainer.train()
    losses = [
        float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry
    ]
    return [p.detach().clone() for p in model.parameters()], losses


@quiet
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 3},
        {"bf16": True},
    ],
)
def test_transformers_trains_as_without_the_callback(transformers, tmp_path, options):
    said = []
    callback = transformers_callback(say_every=3, told=said.append)
    watched, losses = train(transformers, tmp_path, [callback], **options)
    alone, _ = train(transformers, tmp_path, [], **options)
    assert all(torch.equal(a, b) for a, b in zip(watched, alone, strict=True))
    assert [step.loss for step in callback.report.steps] == pytest.approx(
        losses, rel=1e-4
    )
    assert callback.report.codes == []
    assert len(said) == 3
    assert said[-1] == repr(callback.report)
    assert callback.report.steps[-1].updated > 0
    assert not callback.health.model._forward_hooks


@quiet
@pytest.mark.slow
def test_transformers_ends_at_a_loss_that_is_not_finite_if_told_to(
    transformers, tmp_path
):
    said = []
    callback = transformers_callback(
        told=said.append, on_nonfinite="raise", trace_every=1
    )
    with pytest.raises(
        FloatingPointError, match=r"^health: the loss of step \d is (inf|nan): "
    ):
        train(transformers, tmp_path, [callback], learning_rate=1e30, warmup_steps=0)
    assert said[0].startswith("health, overflow-forward: The unscaled loss was")
    assert said[-1] == repr(callback.report)
    assert "overflow-forward" in callback.report.codes
    assert callback.close() is None
    assert (
        not callback.health.model._forward_hooks and 1 <= len(callback.report.steps) < 6
    )
    with pytest.raises(RuntimeError):
        try:
            train(transformers, tmp_path, [callback], broken=True)
        finally:
            callback.close()
    assert [f.code for f in callback.report.findings] == ["ended-by-exception"]


@quiet
@pytest.mark.slow
def test_the_loss_of_a_model_that_returns_none_is_known_too(transformers, tmp_path):
    """It is where the backward pass began."""
    callback = transformers_callback(told=lambda words: None)
    _, losses = train(transformers, tmp_path, [callback], returns_loss=False)
    seen = [step.loss for step in callback.report.steps]
    assert seen == pytest.approx(losses, rel=1e-4)
    assert callback.report.codes == []


def keras_fit(policy, callbacks, *, size=1.0, start="glorot_uniform"):
    """The weights after two epochs with validation, and the mean losses."""
    import keras

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    try:
        model = keras.Sequential(
            [
                keras.layers.Dense(32, "relu", kernel_initializer=start),
                keras.layers.Dense(4, dtype="float32"),
            ]
        )
        model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
        x, y = (t.numpy() for t in regression())
        log = model.fit(
            size * x,
            y,
            batch_size=16,
            epochs=2,
            verbose=0,
            shuffle=False,
            validation_data=(x, y),
            callbacks=callbacks,
        )
    finally:
        keras.config.set_dtype_policy("float32")
    return model.get_weights(), log.history["loss"]


@quiet
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_keras_trains_as_without_the_callback_and_its_layers_are_measured(policy):
    pytest.importorskip("keras", reason=HOW)
    said = []
    callback = keras_callback(say_every=4, told=said.append)
    watched, losses = keras_fit(policy, [callback])
    alone, _ = keras_fit(policy, [])
    assert all((a == b).all() for a, b in zip(watched, alone, strict=True))
    report = callback.report
    assert (len(report.steps), report.codes, report.evidence.error) == (8, [], "")
    for k, loss in enumerate(losses):
        seen = [step.loss for step in report.steps[4 * k : 4 * k + 4]]
        assert sum(seen) / 4 == pytest.approx(loss, rel=1e-3)
    step = report.steps[-1]
    fmt = {"float32": "FP16", "mixed_bfloat16": "BF16", "mixed_float16": "FP16"}[policy]
    found = [
        s.fmt for name, s in step.outputs.items() if name.endswith("dense (Dense)")
    ]
    assert found in ([fmt], []) and len(step.outputs) == 2
    assert step.norm_at_optimizer == pytest.approx(step.gradient_norm, rel=1e-6)
    assert step.updated > 0
    assert said[0].startswith("health, step 4: loss ") and said[-1] == repr(report)
    assert "call" not in vars(callback.model.layers[0])
    assert "apply" not in vars(callback.model.optimizer)


@quiet
@pytest.mark.slow
def test_in_keras_an_overflow_is_named_with_its_layer_and_skipped_steps_are_known():
    pytest.importorskip("keras", reason=HOW)
    callback = keras_callback(told=lambda words: None)
    keras_fit("mixed_float16", [callback], size=2e4, start="ones")
    assert callback.report.codes == ["overflow-forward"]
    assert all(step.skipped for step in callback.report.steps)
    assert "(Dense)" in str(callback.report.steps[0].origins[0])


def test_a_trainer_that_is_not_there_is_named_with_the_command_that_installs_it(
    monkeypatch,
):
    monkeypatch.setattr("mplab.common.installation.find_spec", lambda package: None)
    with pytest.raises(
        ModuleNotFoundError, match="lightning_callback needs lightning, which"
    ):
        lightning_callback()
    with pytest.raises(
        ModuleNotFoundError, match="transformers_callback needs transformers"
    ):
        transformers_callback()
    with pytest.raises(ModuleNotFoundError, match="keras_callback needs keras"):
        keras_callback()
