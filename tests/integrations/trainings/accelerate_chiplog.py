"""chiplog's tracker for Accelerate on two ranks: its main process logs by it, and each rank by `chiplog.log()`."""

import json
from pathlib import Path

import torch
from accelerate import Accelerator
from expected import Expected

import chiplog
import chiplog.integrations.accelerate

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, log_with="chiplog")
chiplog.init(name="tiny", tags=["tiny"])  # on each rank: without it the main process alone has a run
config = {"lr": 0.1, "layers": [4, 1]}
accelerator.init_trackers("of the script", config=config)
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=config["lr"])
data = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)
layer, optimizer, data = accelerator.prepare(layer, optimizer, data)
rows = []
for step, batch in enumerate(data):
    loss = layer(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    mean = accelerator.gather(loss.detach()).mean().item()
    accelerator.log({"loss": mean, "lr": config["lr"]}, step=step)
    chiplog.log({"rank/loss": loss}, step=step)
    rows += [[step, "rank/loss", loss.item()]]
    if accelerator.is_main_process:
        rows += [[step, "loss", mean], [step, "lr", config["lr"]]]
Path(f"rank{accelerator.process_index}.json").write_text(json.dumps(rows), "utf-8")
accelerator.wait_for_everyone()  # the main process reads what each rank has written
if accelerator.is_main_process:
    tracker = accelerator.get_tracker("chiplog")
    tracker.log_images({"noise": [torch.rand(8, 8, 3).numpy()]}, step=step)
    tracker.log_table("predictions", columns=["x", "y"], data=[[1, 2.0], [2, 4.0]], step=step)
accelerator.end_training()
assert not chiplog.run._finished, "the script opened it"
if accelerator.is_main_process:
    expected = Expected("accelerate")
    for rank in range(accelerator.num_processes):
        for step, key, value in json.loads(Path(f"rank{rank}.json").read_text("utf-8")):
            expected.add(step, {key: value})
    expected.note(config=config, name="tiny", tags=["tiny"], media=["noise", "predictions"])
    expected.write()
