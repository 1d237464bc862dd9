"""Several loaders: two at once in training, two after one another in validation."""

import lightning as L
import torch
from base import Classifier
from lightning.pytorch.utilities import CombinedLoader
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def rows(count, seed):
    x = torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, :3]).argmax(1))


class Data(L.LightningDataModule):
    def train_dataloader(self):
        loaders = {
            "labelled": DataLoader(rows(80, 1), batch_size=8, shuffle=True),
            "unlabelled": DataLoader(rows(160, 2), batch_size=32, shuffle=True),
        }
        return CombinedLoader(loaders, "max_size_cycle")

    def val_dataloader(self):
        return [DataLoader(rows(20, 3), batch_size=8), DataLoader(rows(30, 4), batch_size=8)]


class Net(Classifier):
    def training_step(self, batch, batch_idx):
        x, label = batch["labelled"]
        loss = F.cross_entropy(self(x), label)
        sure = self(batch["unlabelled"][0]).softmax(-1)
        entropy = -(sure * sure.log()).sum(-1).mean()
        self.log_dict({"loss": loss, "entropy": entropy}, batch_size=len(x))
        return loss + 0.1 * entropy

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        x, label = batch
        self.log("val_loss", F.cross_entropy(self(x), label))
        self.log("val_all", F.cross_entropy(self(x), label), add_dataloader_idx=False) if not dataloader_idx else None
