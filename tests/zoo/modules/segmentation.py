"""A small U-Net over rows seen as images of 4 by 4, with images made in `on_after_batch_transfer`."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.InstanceNorm2d(16), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 2, 1)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        image = batch[0].view(-1, 1, 4, 4)
        if self.training:
            image = torch.where(torch.rand(len(image), 1, 1, 1) < 0.5, image.flip(-1), image)
        return image, (image.squeeze(1) > 0).long()

    def forward(self, image):
        high = self.down(image)
        return self.out(torch.cat([high, self.up(self.deep(high))], 1))

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("iou", (self(batch[0]).argmax(1) & batch[1]).sum() / batch[1].sum())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01, amsgrad=True)
