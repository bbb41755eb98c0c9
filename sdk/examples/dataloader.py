"""DataLoader workers: nothing is doubled. A worker that logs has its own label in the run.

Run: `python dataloader.py`
"""

import torch
from torch.utils.data import DataLoader, Dataset

import chiplog


class Numbers(Dataset[torch.Tensor]):
    """Sixteen numbers."""

    def __len__(self) -> int:
        """Return the number of items."""
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return one item; a worker calls this."""
        chiplog.log({"worker/index": index})
        return torch.tensor(float(index))


if __name__ == "__main__":
    with chiplog.init(project="dataloader", label="trainer") as run:
        for step, batch in enumerate(DataLoader(Numbers(), batch_size=4, num_workers=2)):
            run.log({"train/mean": batch.mean()}, step=step)
