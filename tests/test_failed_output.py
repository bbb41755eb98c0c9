"""The message about a training that failed begins with the errors of its ranks."""

from tests.support.failed_output import ended_with

OUTPUT = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 1, in <module>
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    load()
FileNotFoundError: rank1.json
[rank0]:     loss.backward()
[rank0]: RuntimeError: Connection closed by peer
E0101 00:00:00 api.py:1] failed (exitcode: 1) local_rank: 0
Traceback (most recent call last):
  File "run.py", line 2, in <module>
    main()
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
======
train.py FAILED
"""
ABORTED = """\
terminate called without an active exception
Fatal Python error: Aborted

Current thread 0x1 (most recent call first):
  <no Python frame>
"""


def test_errors_of_ranks_are_first_whatever_launchers_print_afterwards() -> None:
    first, *rest = ended_with(1, OUTPUT).splitlines()
    errors = "FileNotFoundError: rank1.json | [rank0]: RuntimeError: Connection closed by peer"
    assert first == f"exit code 1: {errors}"
    assert rest == [*(line for line in OUTPUT.splitlines() if "[rank0]" in line), "-- output --", *OUTPUT.splitlines()]


def test_an_abort_and_what_prints_nothing_are_named() -> None:
    assert ended_with(-6, ABORTED).splitlines()[0] == "exit code -6: Fatal Python error: Aborted"
    assert ended_with(None, "").splitlines()[0] == "has not ended"
    assert ended_with(3, "no\n").splitlines()[0] == "exit code 3"
