"""A loader with processes of its own, and a loader of the module itself in validation."""

import lightning as L
import torch
from base import Classifier
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, at):
        x = torch.randn(16, generator=torch.Generator().manual_seed(at))
        return x + 0.1 * torch.randn(16), x[:3].argmax()


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Noisy(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)


class Net(Classifier):
    def val_dataloader(self):
        return DataLoader(Noisy(), batch_size=32, num_workers=1)
