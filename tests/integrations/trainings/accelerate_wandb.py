"""Accelerate's tracker for W&B, on two ranks: its main process logs."""

import os

import torch
from accelerate import Accelerator
from expected import Expected

expected = Expected("accelerate")
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, log_with="wandb")
config = {"lr": 0.1, "layers": [4, 1]}
accelerator.init_trackers(
    os.environ["WANDB_PROJECT"], config=config, init_kwargs={"wandb": {"tags": ["tiny"], "notes": "two ranks"}}
)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
data = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for step, batch in enumerate(data):
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    values = {"loss": loss.item(), "lr": config["lr"]}
    accelerator.log(values, step=step)
    expected.add(step, values)
if accelerator.is_main_process:
    tracker = accelerator.get_tracker("wandb")
    tracker.log_images({"noise": [255 * torch.rand(3, 8, 8).numpy().transpose(1, 2, 0)]}, step=step)
    tracker.log_table("predictions", columns=["x", "y"], data=[[1, 2.0], [2, 4.0]], step=step)
accelerator.end_training()
if accelerator.is_main_process:
    expected.note(config=config, tags=["tiny"], media=["noise", "predictions"])
    expected.write()
