"""A notebook of Databricks, cell by cell: MNIST on the driver, in one process, and by TorchDistributor in two modes.

Its calls of MLflow and Spark are as such notebooks have them. The data are files, the devices CPUs.
"""

import gzip
import json
import os
import sys
from pathlib import Path

import mlflow
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - as in every notebook
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

DATA, EXPERIMENT, DIRECTORY = (os.environ[name] for name in ("MNIST", "PROJECT", "PYTORCH_DIR"))
DB_HOST, DB_TOKEN = "https://ignored.example", "ignored"
BATCH_SIZE, NUM_EPOCHS, LOG_INTERVAL, IMAGES = 100, 1, 5, 4_000


# -- cell: the data, the model and its training --


def mnist(train: bool) -> TensorDataset:
    """Return the first images of a set, in place of torchvision's."""
    name = "train" if train else "t10k"
    with gzip.open(f"{DATA}/{name}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(16 + IMAGES * 784), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(f"{DATA}/{name}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(8 + IMAGES), np.uint8, offset=8)
    images = (torch.tensor(pixels) / 255 - 0.1307) / 0.3081
    return TensorDataset(images, torch.tensor(labels).long())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = F.relu(self.fc1(x.view(-1, 320)))
        return F.log_softmax(self.fc2(F.dropout(x, training=self.training)), dim=1)


def train_one_epoch(model, device, data_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(data_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % LOG_INTERVAL == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * len(data)}]\tLoss: {loss.item():.6f}")
            if int(os.environ["RANK"]) == 0:
                mlflow.log_metric("train_loss", loss.item())


def save_checkpoint(log_dir, model, optimizer, epoch):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, f"{log_dir}/checkpoint-{epoch}.pth.tar")


def load_checkpoint(log_dir, epoch=NUM_EPOCHS):
    return torch.load(f"{log_dir}/checkpoint-{epoch}.pth.tar")


def create_log_dir(name):
    log_dir = os.path.join(DIRECTORY, name)
    os.makedirs(log_dir)
    return log_dir


def test(log_dir):
    device = torch.device("cpu")
    checkpoint = load_checkpoint(log_dir)
    model = Net().to(device)
    model.load_state_dict({name.removeprefix("module."): value for name, value in checkpoint["model"].items()})
    model.eval()
    test_loss = 0.0
    data_loader = DataLoader(mnist(train=False), batch_size=1000)
    with torch.no_grad():
        for data, target in data_loader:
            test_loss += F.nll_loss(model(data.to(device)), target.to(device)).item()
    test_loss /= len(data_loader)
    print(f"Average test loss: {test_loss}")
    mlflow.log_metric("test_loss", test_loss)


# -- cell: on the driver --


def train(learning_rate, log_dir):
    device = torch.device("cpu")
    model = Net().to(device)
    data_loader = DataLoader(mnist(train=True), batch_size=BATCH_SIZE, shuffle=True)
    optimizer = optim.SGD(model.parameters(), lr=learning_rate, momentum=0.5)
    for epoch in range(1, NUM_EPOCHS + 1):
        train_one_epoch(model, device, data_loader, optimizer, epoch)
        save_checkpoint(log_dir, model, optimizer, epoch)
    return model


# -- cell: on each rank --


def main_fn(directory):
    import mlflow
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data.distributed import DistributedSampler

    os.environ["DATABRICKS_HOST"] = DB_HOST
    os.environ["DATABRICKS_TOKEN"] = DB_TOKEN
    mlflow.set_experiment(EXPERIMENT)

    print("Running distributed training")
    dist.init_process_group("gloo")
    global_rank = int(os.environ["RANK"])
    if global_rank == 0:
        mlflow.log_params({"batch_size": BATCH_SIZE, "epochs": NUM_EPOCHS, "trainer": "TorchDistributor"})

    train_dataset = mnist(train=True)
    sampler = DistributedSampler(dataset=train_dataset)
    data_loader = DataLoader(train_dataset, batch_size=BATCH_SIZE, sampler=sampler)
    ddp_model = DistributedDataParallel(Net())
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.01)
    for epoch in range(1, NUM_EPOCHS + 1):
        train_one_epoch(ddp_model, "cpu", data_loader, optimizer, epoch)
        if global_rank == 0:
            save_checkpoint(directory, ddp_model, optimizer, epoch)
    if global_rank == 0:
        mlflow.pytorch.log_model(ddp_model.module, "model")
        test(directory)
    dist.destroy_process_group()
    return "finished"


def notebook(spark: SparkSession) -> None:
    mlflow.set_experiment(EXPERIMENT)
    os.environ["RANK"] = "0"  # single_node cells have no launcher

    # cell: a training on the driver
    log_dir = create_log_dir("driver")
    with mlflow.start_run(run_name="driver"):
        mlflow.log_param("run_type", "local")
        model = train(0.01, log_dir)
        mlflow.pytorch.log_model(model, "model", serialization_format="pickle")
        test(log_dir)

    # cell: one process of the distributed training, without a launcher
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"])
    with mlflow.start_run(run_name="one process"):
        mlflow.log_param("run_type", "one_process")
        main_fn(create_log_dir("one_process"))
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]

    # cells: two ranks on the driver, and two in tasks of executors
    for name, is_local in (("local", True), ("cluster", False)):
        log_dir = create_log_dir(name)
        with mlflow.start_run(run_name=f"{name} driver"):
            mlflow.log_param("run_type", name)
            output = TorchDistributor(num_processes=2, local_mode=is_local, use_gpu=False).run(main_fn, log_dir)
            assert output == "finished"
            test(log_dir)


if __name__ == "__main__":
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("notebook")
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    for name, value in json.loads(sys.argv[1]).items():
        builder = builder.config(f"spark.executorEnv.{name}", value)
    session = builder.getOrCreate()
    try:
        notebook(session)
    finally:
        session.stop()
    print("STEPS", len(mnist(train=True)) // BATCH_SIZE, Path(DIRECTORY).name)
