"""A data module with hooks on its batches, a state, and a loader that is made anew each epoch."""

import lightning as L
import torch
from base import Classifier
from torch.utils.data import DataLoader, TensorDataset


class Data(L.LightningDataModule):
    def __init__(self):
        super().__init__()
        self.made = 0

    def prepare_data(self):
        torch.save(torch.randn(160, 16, generator=torch.Generator().manual_seed(5)), "rows.pt")

    def setup(self, stage):
        x = torch.load("rows.pt")
        self.rows = TensorDataset(x, x[:, :3].argmax(1))

    def train_dataloader(self):
        self.made += 1
        return DataLoader(self.rows, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(self.made))

    def val_dataloader(self):
        return DataLoader(self.rows, batch_size=32)

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch[0] + 0.01, batch[1]

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return batch[0].to(device), batch[1].to(device)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        x = batch[0] + 0.1 * torch.randn_like(batch[0]) if self.trainer.training else batch[0]
        return x, batch[1]

    def state_dict(self):
        return {"made": self.made}

    def load_state_dict(self, state):
        self.made = state["made"]


class Net(Classifier):
    def on_train_epoch_end(self):
        self.log("made", float(self.trainer.datamodule.made))
