"""SummaryWriters of torch and tensorboardX beside `sync()`, and chiplog's own: the values of the event files.

Event files hold float32, the log float64: the files must have the rounded values.
"""

import os
import sys

import numpy
from expected import Expected
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboardX import SummaryWriter as OfTensorboardX
from torch.utils.tensorboard import SummaryWriter as OfTorch

from chiplog.integrations.tensorboard import SummaryWriter, sync

name = sys.argv[1]
expected = Expected("tensorboardX" if name == "tensorboardX" else "tensorboard")
rank, n_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
N_STEPS = 20
values = numpy.random.default_rng(0).random(N_STEPS)
directory = f"events-{rank}"


def report(writer):
    for step, value in enumerate(values):
        writer.add_scalar("loss", value, step)
    writer.add_histogram("weights", values, 0)
    writer.add_image("image", numpy.zeros((3, 4, 4)), 0)
    writer.add_text("note", "a text", 0)
    writer.add_pr_curve("curve", values > 0.5, values, 0)
    writer.close()


if name == "chiplog":
    report(SummaryWriter(directory))
    report(OfTorch(directory))  # for the comparison: without sync() only in its file
else:
    sync()
    report({"torch": OfTorch, "tensorboardX": OfTensorboardX}[name](directory))

found = EventAccumulator(directory, size_guidance={"scalars": 0}).Reload().Scalars("loss")
assert len(found) == N_STEPS
for event in found:
    assert numpy.float32(values[event.step]) == numpy.float32(event.value)
    for _ in range(n_ranks):
        expected.add(event.step, {"loss": values[event.step]})
expected.note(media=["image", "curve"], texts=["note"])
if rank == 0:
    expected.write()
