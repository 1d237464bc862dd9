"""Vectors of words from a file beside the module."""

from pathlib import Path

import numpy as np
import torch
from base import Classifier
from torch import nn


class Net(Classifier):
    def __init__(self, file: str = "words.csv"):
        super().__init__()
        table = np.loadtxt(Path(__file__).with_name(file), delimiter=",", dtype=np.float32)
        self.net = nn.Sequential(nn.Embedding.from_pretrained(torch.from_numpy(table)), nn.Linear(4, 3))
