"""Write events whose values do not fit their plugins, and one that does: `write_odd_events.py DIRECTORY`."""

import sys

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

PLUGINS = ("scalars", "histograms", "text", "images", "audio", "pr_curves", "hparams", "unknown", "")
TENSORS = (np.zeros((2, 2)), np.zeros(3), np.array([b"\xff", b"x"]), np.zeros(0))

writer = EventFileWriter(sys.argv[1])
for plugin in PLUGINS:
    for number, tensor in enumerate(TENSORS):
        data = SummaryMetadata.PluginData(plugin_name=plugin, content=b"\xff\xff")
        value = Summary.Value(tag=f"{plugin}/{number}", metadata=SummaryMetadata(plugin_data=data))
        value.tensor.CopyFrom(make_tensor_proto(tensor))
        writer.add_event(Event(wall_time=1.7e9, step=number, summary=Summary(value=[value])))
for number, time in enumerate((float("nan"), float("inf"), -1e300, 1e300)):
    value = Summary.Value(tag="odd time", simple_value=number)
    writer.add_event(Event(wall_time=time, step=number, summary=Summary(value=[value])))
writer.close()
