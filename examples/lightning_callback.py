"""A callback that gives an unmodified LightningModule's training step to the bridge.

    python examples/lightning_callback.py

``Trainer(callbacks=[Bridge()])`` is all that changes; clipping, schedulers, ``self.log``, validation and checkpoints
stay where they are. The plain Trainer runs beside it. lightning is in requirements/examples.txt.
"""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn

import detente

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", category=UserWarning, module="lightning")  # workers of the loader
warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning's, about itself


class Number:
    """Stands for ``batch_idx``, which a compiled step is not told."""

    def refuse(self, *_):
        raise TypeError("training_step reads batch_idx: the compiled step would keep its first value; log by epoch, or "
                        "put the number into the batch as a tensor")  # fmt: skip

    __bool__ = __int__ = __index__ = __mod__ = __add__ = __eq__ = __lt__ = __gt__ = __le__ = __ge__ = refuse
    __hash__ = None


class Bridge(lightning.Callback):
    """One XLA program takes the place of ``training_step``, backward, clipping and the optimizer's update."""

    def on_fit_start(self, trainer, module):
        if len(trainer.optimizers) != 1 or trainer.accumulate_grad_batches != 1 or trainer.world_size != 1:
            raise ValueError(
                f"{len(trainer.optimizers)} optimizers, accumulate_grad_batches={trainer.accumulate_grad_batches}, "
                f"{trainer.world_size} processes: this callback takes one of each"
            )
        if trainer.precision != "32-true":
            raise ValueError(f"precision={trainer.precision!r}: write torch.autocast inside of training_step")
        self.step = None
        # Lightning calls training_step and nothing around it. It stays so, because trainer.global_step asks for it.
        module.automatic_optimization = False
        module.training_step = lambda batch, batch_idx: self.take(trainer, module, batch)

    def loss(self, module, batch):
        """The value, and what ``self.log`` was given: results of the step beside it."""
        logged = {}
        module.log = lambda name, value, **how: logged.update({name: (torch.as_tensor(value).detach(), how)})
        try:
            found = type(module).training_step(module, batch, Number())
        finally:
            del module.log
        return found["loss"] if isinstance(found, dict) else found, logged

    def take(self, trainer, module, batch):
        if self.step is None:
            limit = {"norm": "clip_norm", "value": "clip_value"}[trainer.gradient_clip_algorithm or "norm"]
            self.step = detente.compile(
                module,
                self.loss,
                trainer.optimizers[0],
                example_batch=batch,
                **{limit: trainer.gradient_clip_val or None},
                quiet=True,
            )
        value, logged = self.step(batch)
        module.optimizers().step()  # finds no gradient and changes nothing; Lightning counts it as a step
        for name, (one, how) in logged.items():
            module.log(name, one, **how)
        self.schedule(trainer, "step", trainer.fit_loop.batch_idx + 1)
        return value

    def on_train_epoch_end(self, trainer, module):
        self.schedule(trainer, "epoch", trainer.current_epoch + 1)

    def schedule(self, trainer, interval, count):
        for config in trainer.lr_scheduler_configs:
            if config.interval == interval and count % config.frequency == 0:
                config.scheduler.step()

    def on_fit_end(self, trainer, module):
        del module.training_step


class Classifier(lightning.LightningModule):
    """As Lightning's users write one: it knows nothing of the bridge."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 4),
        )

    def training_step(self, batch, batch_idx):
        x, labels = batch
        scores = self.net(x)
        loss = nn.functional.cross_entropy(scores, labels)
        self.log("train_loss", loss, on_step=True, on_epoch=False)
        self.log("train_accuracy", (scores.argmax(1) == labels).float().mean(), on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, labels = batch
        self.log("valid_loss", nn.functional.cross_entropy(self.net(x), labels))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def loader(seed, shuffle):
    """Images of 8 x 8 with a bright quarter; the label says which one."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (128,), generator=generator)
    images = torch.randn(128, 1, 8, 8, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 1
    data = torch.utils.data.TensorDataset(images, labels)
    order = torch.Generator().manual_seed(5)
    return torch.utils.data.DataLoader(data, batch_size=16, shuffle=shuffle, generator=order)


def fit(module, *callbacks, checkpoint=None, epochs=3):
    folder = tempfile.mkdtemp()
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=list(callbacks),
        gradient_clip_val=1.0,
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader(1, True), loader(2, False), ckpt_path=checkpoint)
    return trainer


if __name__ == "__main__":
    torch.manual_seed(0)
    module = Classifier()
    beside, again = copy.deepcopy(module), copy.deepcopy(module)

    bridge = Bridge()
    trainer = fit(module, bridge)
    print("steps:", trainer.global_step)
    for name, value in sorted(trainer.callback_metrics.items()):
        print(f"{name}: {value:.4f}")
    print(bridge.step.certificate)

    plain = fit(beside)
    assert trainer.global_step == plain.global_step == 24
    torch.testing.assert_close(
        dict(trainer.callback_metrics), dict(plain.callback_metrics), rtol=2e-3, atol=2e-4
    )
    torch.testing.assert_close(module.state_dict(), beside.state_dict(), rtol=2e-3, atol=2e-4)
    rates = [t.optimizers[0].param_groups[0]["lr"] for t in (trainer, plain)]
    torch.testing.assert_close(*rates)
    print("beside the plain Trainer: weights, buffers, metrics and learning rate equal after 24 steps")

    longer = fit(again, Bridge(), checkpoint=trainer.checkpoint_callback.best_model_path, epochs=4)
    fit(beside, checkpoint=plain.checkpoint_callback.best_model_path, epochs=4)
    torch.testing.assert_close(again.state_dict(), beside.state_dict(), rtol=2e-3, atol=2e-4)
    print(f"went on from its checkpoint to step {longer.global_step}: equal")
