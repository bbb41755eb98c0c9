"""Daemons that behave as a test needs: a `sitecustomize` in front of theirs changes one thing before they begin."""

import os
from pathlib import Path

import pytest

# The agent receives and forwards, and never acknowledges to a rank.
NEVER_ACKNOWLEDGES = """
import sys
if "chiplog_agent" in " ".join(sys.orig_argv):
    from chiplog_schemas.protocol.receiver import ReceiverProtocol
    ReceiverProtocol.acknowledge = lambda self, sender, next_number: []
"""
LEAVES_AT_ONCE = """
import chiplog_schemas.limits
chiplog_schemas.limits.IDLE_EXIT_S = {idle_exit_s}
"""
# A sampler looks at GPUs five times as often, and soon again after a failure.
LOOKS_OFTEN = """
import sys
if "chiplog_agent.stats" in sys.orig_argv:
    from chiplog_agent.stats.gpu import threads as gpu_threads
    from chiplog_agent.stats.rank import process_tree
    for name in ("CHECK_INTERVAL_S", "RETRY_MIN_S", "RETRY_MAX_S", "HOLDERS_INTERVAL_S", "_STOP_WAIT_S"):
        setattr(gpu_threads, name, getattr(gpu_threads, name) / 5)
    from chiplog_agent.stats.gpu import events as gpu_events
    gpu_events.WAIT_MS //= 5
    gpu_threads.RETRY_BESIDE_MAX_S = process_tree._SETTLED_S = 1.0
"""
TAKES_OVER_SOON = """
import chiplog_schemas.process.log_owner
chiplog_schemas.process.log_owner.WATCH_S = 3.0
"""
SLOW_COLLECTOR = """
import sys, time
if "chiplog_collector" in sys.orig_argv:
    time.sleep(1.5)
"""
# The next release: its blocks are of version 2, with the layout of version 1, and it reads both.
READS_NEWER_BLOCKS = """
import sys
if "chiplog_collector.index" in " ".join(sys.orig_argv):
    import chiplog_schemas.model.block_format as block_format
    block_format.BLOCK_VERSION = 2
    import chiplog_schemas.model.block_decoder as block_decoder
    decode = block_decoder.decode_block
    block_decoder.decode_block = lambda data, **how: decode(bytes(data[:4]) + b"\\2\\0" + bytes(data[6:]), **how)
"""


def patch_daemons(monkeypatch: pytest.MonkeyPatch, directory: Path, code: str) -> None:
    """Let every Python process that the test starts from now on run this first; '' ends it."""
    directory.mkdir(exist_ok=True)
    (directory / "sitecustomize.py").write_text(code, encoding="utf-8")
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if str(directory) not in entries:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(directory), *entries]))
