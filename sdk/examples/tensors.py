"""Values of a model: tensors as they are, norms of gradients by `watch`, a histogram, a text.

Run: `python tensors.py`
"""

import torch

import chiplog

run = chiplog.init(project="tensors", label="trainer")
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.watch(model, every=5)
for step in range(10):
    loss = model(torch.ones(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log({"train": {"loss": loss.detach(), "lr": 0.1}}, step=step)  # on a GPU this waits for nothing
run.log({"weights": chiplog.Histogram.of(model.weight.detach().numpy()), "sample": "a short text"})
run.finish()
