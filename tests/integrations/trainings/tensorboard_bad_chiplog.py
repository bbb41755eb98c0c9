"""What goes wrong around SummaryWriters, chiplog's or torch's beside `sync()`: bad values, closed writers, forks."""

import math
import os
import sys

import torch
from expected import Expected
from torch.utils.tensorboard import SummaryWriter as OfTorch

from chiplog.integrations.tensorboard import SummaryWriter, sync

name = sys.argv[1]
expected = Expected("tensorboard")
BAD = {
    "device": torch.ones((), device="meta"),
    "none": None,
    "vector": torch.ones(3),
    3: 1.5,
    "nan": math.nan,
    "inf": math.inf,
}
OF_ALL = {
    "device": "cannot be read: RuntimeError Tensor.item() cannot be called on meta tensors; log a number or short text",
    "nan": "became nan at step 0; it is kept",
    "inf": "became inf at step 0; it is kept",
}
OF_CHIPLOG = {  # torch's own writer raises an error, as without chiplog
    "none": "is a NoneType, not a number or short text; leave it out, or log float('nan')",
    "group/none": "is a NoneType, not a number or short text; leave it out, or log float('nan')",
    "vector": "is an array of shape (3,); log a scalar such as its mean, or chiplog.Histogram.of(it)",
}
CALLS = [
    "add_image('image', …) is not recorded: ValueError axes don't match array; check its arguments",
    "add_scalar('loss', …) is not recorded: TypeError add_scalar() missing 1 required positional argument: "
    "'scalar_value'; check its arguments",
    "key 3 is not a string; use str() of it",
]
is_own = name == "chiplog"
if not is_own:
    sync()
advice = OF_ALL | OF_CHIPLOG if is_own else OF_ALL
lines = [f"'{place}/{key}' {said}" for place in "ab" for key, said in advice.items()] + CALLS * is_own


def add(method, *given):
    """Call a method of a writer, which may refuse what it is given if it is torch's."""
    try:
        method(*given)
    except Exception:
        assert not is_own


first, second = [(SummaryWriter if is_own else OfTorch)(f"runs/{place}") for place in "ab"]
for place, writer in (("a", first), ("b", second)):
    for key, value in BAD.items():
        add(writer.add_scalar, key, value, 0)
    expected.add(0, {f"{place}/nan": math.nan, f"{place}/inf": math.inf})
    add(writer.add_scalars, "group", {"none": None, "number": 1.5}, 0)
    if is_own:
        expected.add(0, {f"{place}/group/number": 1.5})
    add(writer.add_image, "image", torch.zeros(1, 2, 3, 4, 5), 0)
    add(writer.add_scalar, "loss")
for _ in range(2):
    first.close()
add(first.add_scalar, "closed", 0.5, 1)
child = os.fork()
if child == 0:
    add(second.add_scalar, "forked", 0.25, 2)  # not closed: torch's would wait for its thread, which a fork has not
    os._exit(0)
os.waitpid(child, 0)
add(second.add_scalar, "loss", 0.25, 3)
expected.add(1, {"a/closed": 0.5})
expected.add(2, {"b/forked": 0.25})
expected.add(3, {"b/loss": 0.25})
expected.note(states=None, lines=lines)
expected.write()
