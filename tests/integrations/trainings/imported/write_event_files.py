"""Write a log directory with every kind of value: `write_event_files.py MODULE DIRECTORY`, with one of both writers."""

import sys
from importlib import import_module

import numpy as np

module, directory = sys.argv[1:]
SummaryWriter = import_module(module).SummaryWriter
with SummaryWriter(directory) as writer:
    for step in range(200):
        writer.add_scalar("train/loss", 1 / (step + 1), step)
        writer.add_scalar("train/accuracy", step / 200, step, walltime=1.7e9 + step / 8)
    writer.add_scalar("without a step", 1.5)
    writer.add_scalar("negative step", -1.5, -3)
    for step, value in enumerate((float("nan"), float("inf"), float("-inf"), 1e-40)):
        writer.add_scalar("odd", value, step)
    if module != "tensorboardX":
        writer.add_scalar("as tensor", 2.5, 3, new_style=True)
        writer.add_scalar("as double tensor", 0.1, 3, new_style=True, double_precision=True)
        writer.add_audio("sound", np.sin(np.arange(1000) / 7), 1, sample_rate=8000)
    writer.add_scalars("several", {"a": 1.0, "b": 2.0}, 4)
    writer.add_text("note", "hello **world** ü", 2)
    for step in range(3):
        writer.add_histogram("weights", np.random.default_rng(step).normal(size=500), step)
    writer.add_histogram("zeros", np.zeros(10), 2)
    writer.add_image("image", np.full((3, 8, 8), 99, np.uint8), 1)
    writer.add_images("images", np.zeros((2, 3, 8, 8), np.uint8), 1)
    writer.add_pr_curve("curve", np.array([0, 1, 1, 0]), np.array([0.1, 0.9, 0.4, 0.3]), 1)
    writer.add_custom_scalars({"x": {"y": ["Multiline", ["train/loss"]]}})
    writer.add_hparams({"lr": 0.1, "optimizer": "adam", "nesterov": True}, {"hparam/accuracy": 0.9})
with SummaryWriter(directory, purge_step=150, filename_suffix=".again") as writer:
    for step in range(150, 250):
        writer.add_scalar("train/loss", 10 + step, step)
