"""Hugging Face's Trainer with its training step replaced: one XLA program instead of forward, backward and update.

    python examples/hf_trainer.py

Everything around the step stays the Trainer's: data, scheduler, logging, evaluation, checkpoints, resuming. The plain
Trainer runs beside it. accelerate is in requirements/examples.txt.
"""

from __future__ import annotations

import copy
import os
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import detente


class BridgeTrainer(Trainer):
    """``training_step`` takes the whole step. The Trainer's ``optimizer.step()`` after it finds no gradient and changes
    nothing."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.args.gradient_accumulation_steps != 1 or self.args.n_gpu > 1:
            raise ValueError(
                f"gradient_accumulation_steps={self.args.gradient_accumulation_steps}, n_gpu={self.args.n_gpu}: the "
                "bridge takes a step for each batch. Give per_device_train_batch_size the size of a whole step and "
                "detente.compile accumulate="
            )
        if self.args.fp16 or self.args.bf16:
            raise ValueError("fp16/bf16 puts autocast around the step: write it inside of compute_loss")
        self.args.logging_nan_inf_filter = False  # it would read every loss, and Python would wait for each
        self.compiled = None

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        batch = {"inputs": self._prepare_inputs(inputs), "items": num_items_in_batch}
        if self.compiled is None:
            self.compiled = detente.compile(
                model,
                lambda model, batch: self.compute_loss(
                    model, batch["inputs"], num_items_in_batch=batch["items"]
                ),
                self.optimizer.optimizer,  # what accelerate has wrapped
                example_batch=batch,
                clip_norm=self.args.max_grad_norm or None,
                quiet=True,
            )
        return self.compiled(batch).detach()

    def _clip_grad_norm(self, model):
        return None  # clip_norm above

    def _get_grad_norm(self, model, grad_norm=None):
        return None  # no gradient leaves the program


class Counting(torch.utils.data.Dataset):
    """Counting by three modulo 19, from every start."""

    def __len__(self):
        return 160

    def __getitem__(self, index):
        ids = (index + 3 * torch.arange(16)) % 19
        return {"input_ids": ids, "labels": ids}


def trainer(kind, model, folder, steps):
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=16,
        max_steps=steps,
        learning_rate=1e-2,
        warmup_steps=5,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr": 1e-3},
        logging_steps=1,
        save_steps=15,
        eval_strategy="steps",
        eval_steps=15,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=7,
    )
    return kind(model=model, args=arguments, train_dataset=Counting(), eval_dataset=Counting())


def history(trainer, key):
    return [row[key] for row in trainer.state.log_history if key in row]


if __name__ == "__main__":
    set_seed(0)
    config = GPT2Config(
        vocab_size=19,
        n_positions=16,
        n_embd=48,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,  # no dropout: the numbers can be compared with the plain Trainer's
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    beside, again = copy.deepcopy(model), copy.deepcopy(model)

    folder = tempfile.mkdtemp()
    bridged = trainer(BridgeTrainer, model, folder, 30)
    bridged.train()
    losses = history(bridged, "loss")
    for number in (0, 14, 29):
        print(f"step {number}: loss {losses[number]:.4f}")
    print(bridged.compiled.certificate)

    plain = trainer(Trainer, beside, tempfile.mkdtemp(), 30)
    plain.train()
    for key in ("loss", "learning_rate", "eval_loss"):
        torch.testing.assert_close(history(bridged, key), history(plain, key), rtol=2e-3, atol=2e-4)
    print("beside the plain Trainer: loss, learning rate and evaluation equal for 30 steps")

    resumed = trainer(BridgeTrainer, again, folder, 30)
    resumed.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-15"))
    torch.testing.assert_close(history(resumed, "loss"), losses, rtol=2e-3, atol=2e-4)
    print("resumed at step 15: equal to the end")
