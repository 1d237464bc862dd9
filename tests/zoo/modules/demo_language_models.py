"""Lightning's own language models, without the text that they download."""

from lightning.pytorch.demos import Transformer
from lightning.pytorch.demos.lstm import LightningLSTM, SimpleLSTM
from lightning.pytorch.demos.transformer import LightningTransformer


class Shifted(LightningTransformer):
    def __init__(self):
        super().__init__(vocab_size=50)
        self.model = Transformer(vocab_size=50, ninp=16, nhid=16, nlayers=1)

    def prepare_data(self):
        pass

    def training_step(self, batch, batch_idx):
        loss = super().training_step((batch[0][:, :-1], batch[0][:, 1:].contiguous()), batch_idx)
        self.log("loss", loss)
        return loss


class Recurrent(LightningLSTM):
    def __init__(self):
        super().__init__(vocab_size=50)
        self.model = SimpleLSTM(vocab_size=50, ninp=16, nhid=16, nlayers=2)

    def prepare_data(self):
        pass

    def training_step(self, batch, batch_idx):
        return super().training_step((batch[0][:, :-1], batch[0][:, 1:].contiguous()), batch_idx)
