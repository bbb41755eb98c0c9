"""What goes wrong around chiplog's tracker for Accelerate: bad values, trackers begun and ended twice."""

import math

import torch
from accelerate import Accelerator
from expected import Expected

import chiplog
import chiplog.integrations.accelerate

expected = Expected("accelerate")
BAD = {
    "device": torch.ones((), device="meta"),
    "none": None,
    "word": "x",
    "vector": torch.ones(3),
    "nested": {"none": None, "number": 1.5},
    3: 1.5,
    "nan": math.nan,
    "inf": math.inf,
    "number": torch.tensor(2.5),
}
LINES = [
    "'device' cannot be read: RuntimeError Tensor.item() cannot be called on meta tensors; log a number or short text",
    "'none' is a NoneType, not a number or short text; leave it out, or log float('nan')",
    "'nested/none' is a NoneType, not a number or short text; leave it out, or log float('nan')",
    "'vector' is an array of shape (3,); log a scalar such as its mean, or chiplog.Histogram.of(it)",
    "key 3 is not a string; use str() of it",
    "'nan' became nan at step 0; it is kept",
    "'inf' became inf at step 0; it is kept",
    "step 'x' is not a 64-bit integer; the label's own count is used instead",
    "log() takes a dict, not a NoneType; log {'name': value}",
    "'noise' (Image) is not stored: a value of type NoneType is not an image; "
    "log an array, a tensor, a figure or a path",
]
accelerator = Accelerator(cpu=True, log_with="chiplog")
settings = {"init_kwargs": {"chiplog": {"name": "tiny"}}}
accelerator.init_trackers(None, config={"lr": 0.1}, **settings)
for _ in range(2):  # the second time without a line
    accelerator.log(BAD, step=0)
    expected.add(0, {"nested/number": 1.5, "nan": math.nan, "inf": math.inf, "number": 2.5})
accelerator.init_trackers(None, config={"lr": 0.2, "width": 4}, **settings)
LINES.append(f"init_trackers() was called again for run {chiplog.run.id}; the first tracker records")
accelerator.log({"loss": 0.5}, step=1)
accelerator.log({"loss": 0.25}, step="x")
accelerator.log({"loss": 0.125})
accelerator.log(None, step=3)
accelerator.get_tracker("chiplog").log_images({"noise": [None]}, step=3)
accelerator.end_training()
accelerator.end_training()
accelerator.log({"loss": 0.125}, step=4)
LINES.append(f"log() after finish() of {chiplog.run.id} is not recorded; call init() again")
for step, loss in enumerate((0.5, 0.25, 0.125), start=1):
    expected.add(step, {"loss": loss})
expected.note(config={"width": 4}, name="tiny", texts=["word"], lines=LINES)
expected.write()
