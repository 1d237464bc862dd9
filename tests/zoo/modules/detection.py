"""Boxes: each sample has a list of targets of its own length, from a data module with a collate function."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, at):
        draw = torch.Generator().manual_seed(at)
        count = 1 + at % 3
        boxes = torch.rand(count, 4, generator=draw)
        return torch.randn(3, 8, 8, generator=draw), {"boxes": boxes, "labels": torch.arange(count) % 2}


def collate(samples):
    return tuple(zip(*samples, strict=True))


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Scenes(), batch_size=8, shuffle=True, collate_fn=collate, drop_last=True)

    def val_dataloader(self):
        return DataLoader(Scenes(), batch_size=8, collate_fn=collate)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.boxes, self.scores = nn.Linear(8, 3 * 4), nn.Linear(8, 3 * 2)

    def forward(self, images):
        hidden = self.backbone(torch.stack(list(images)))
        return self.boxes(hidden).view(-1, 3, 4), self.scores(hidden).view(-1, 3, 2)

    def loss(self, batch):
        images, targets = batch
        losses = []
        for boxes, scores, target in zip(*self(images), targets, strict=True):
            count = len(target["labels"])
            losses.append(F.smooth_l1_loss(boxes[:count], target["boxes"]))
            losses.append(F.cross_entropy(scores[:count], target["labels"]))
        return torch.stack(losses).mean()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), batch_size=len(batch[0]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9, nesterov=True)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.MultiStepLR(optimizer, [1])}
