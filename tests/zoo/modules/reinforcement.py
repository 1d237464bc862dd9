"""A deep Q network: an endless loader that plays a game with the module's own policy."""

from collections import deque

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset


class Replay(IterableDataset):
    def __init__(self, memory, play):
        self.memory, self.play = memory, play

    def __iter__(self):
        while True:
            self.play()
            at = np.random.randint(len(self.memory))
            yield self.memory[at]


class Net(L.LightningModule):
    def __init__(self, epsilon: float = 0.3):
        super().__init__()
        self.save_hyperparameters()
        self.q = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.target = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.memory, self.state, self.reward = deque(maxlen=100), np.zeros(4, np.float32), 0.0

    def forward(self, x):
        return self.q(x)

    @torch.no_grad()
    def play(self):
        explores = np.random.random() < self.hparams.epsilon
        action = int(np.random.randint(2)) if explores else int(self(torch.from_numpy(self.state)).argmax())
        after = (0.8 * self.state + np.random.normal(size=4) + (2 * action - 1) * 0.1).astype(np.float32)
        reward = float(-np.abs(after).sum())
        self.memory.append((self.state, action, reward, after))
        self.state, self.reward = after, self.reward + reward

    def training_step(self, batch, batch_idx):
        before, action, reward, after = batch
        now = self(before).gather(1, action.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            wanted = reward.float() + 0.9 * self.target(after).max(1).values
        loss = F.smooth_l1_loss(now, wanted)
        if self.global_step % 5 == 0:
            self.target.load_state_dict(self.q.state_dict())
        self.log("loss", loss)
        self.log("reward", self.reward)
        return loss

    def train_dataloader(self):
        return DataLoader(Replay(self.memory, self.play), batch_size=8)

    def configure_optimizers(self):
        return torch.optim.Adam(self.q.parameters(), lr=0.01)


class Data(L.LightningDataModule):
    """Asks the module for its loader."""

    def train_dataloader(self):
        return self.trainer.lightning_module.train_dataloader()
