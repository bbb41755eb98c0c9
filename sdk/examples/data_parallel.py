"""DataParallel: one process feeds all GPUs of a node, so there is one label. Without GPUs it runs on the CPU.

Run: `python data_parallel.py`
"""

import torch

import chiplog

run = chiplog.init(project="data_parallel", config={"devices": max(1, torch.cuda.device_count())})
model = torch.nn.DataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    loss = model(torch.ones(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log({"train/loss": loss.detach()}, step=step)
run.finish()
