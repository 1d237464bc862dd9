"""Adapters (LoRA) for a language model from Hugging Face: a LightningModule that knows nothing of Trainwright."""

from __future__ import annotations

import math
from pathlib import Path

import lightning as L
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent


class FineTune(L.LightningModule):
    """Predicts each next byte; a batch is {"tokens": uint8 [B, T]} and every loss is in bits per byte.

    Only the adapters learn. The model's own weights come from the folder that the pipeline names (`init_from`); this
    reads its `config.json`.
    """

    def __init__(self, base: str = "base", rank: int = 8, lr: float = 1e-2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(HERE / base))
        adapters = LoraConfig(r=rank, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
        self.model = get_peft_model(model, adapters)

    def bits_per_byte(self, batch: dict[str, Tensor]) -> Tensor:
        """Mean surprise over the batch's bytes, in bits."""
        tokens = batch["tokens"].long()
        return self.model(input_ids=tokens, labels=tokens).loss / math.log(2)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        bits = self.bits_per_byte(batch)
        self.log("train_bits_per_byte", bits)
        return bits

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.log("val_bits_per_byte", self.bits_per_byte(batch), sync_dist=True)

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        bits = self.bits_per_byte(batch)
        with self.model.disable_adapter():
            untouched = self.bits_per_byte(batch)
        self.log("bits_per_byte", bits, sync_dist=True)
        self.log("gain_over_base", untouched - bits, sync_dist=True)

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int = 0) -> Tensor:
        """How likely each byte is after each row's text: logits [B, 256]."""
        return self.model(input_ids=batch["tokens"].long()).logits[:, -1]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW((one for one in self.parameters() if one.requires_grad), lr=self.lr)
