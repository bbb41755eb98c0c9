"""Train a small model and log it by one library: `one_training.py LIBRARY PROJECT`, into the current directory."""

import sys
from collections.abc import Iterator

import torch


def trained() -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the values of each step; they are float32, so that every library keeps them."""
    torch.manual_seed(20)
    inputs = torch.randn(256, 8)
    targets = (inputs.sum(dim=1, keepdim=True) > 0).float()
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(100):
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets)
        loss.backward()
        optimizer.step()
        accuracy = ((outputs > 0).float() == targets).float().mean()
        yield step, {"train/loss": loss.item(), "train/accuracy": accuracy.item()}


library, project = sys.argv[1:]
match library:
    case "chiplog":
        import chiplog

        with chiplog.init(project=project) as run:
            for step, values in trained():
                run.log(values, step=step)
    case "wandb":
        import chiplog.integrations.wandb as wandb

        with wandb.init(project=project) as run:
            for step, values in trained():
                run.log(values, step=step)
    case "mlflow":
        import mlflow  # its URI is in MLFLOW_TRACKING_URI

        mlflow.set_experiment(project)
        with mlflow.start_run():
            for step, values in trained():
                mlflow.log_metrics(values, step=step)
    case "trackio":
        import trackio

        trackio.init(project=project, auto_log_gpu=False)
        for step, values in trained():
            trackio.log(values, step=step)
        trackio.finish()
    case "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(project) as writer:
            for step, values in trained():
                for key, value in values.items():
                    writer.add_scalar(key, value, step)
