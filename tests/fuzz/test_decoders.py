"""Hostile bytes before every decoder: the declared error or a sound value; bounded memory and time; nothing silent.

Each batch runs in a child that cannot take more memory than is stated there, and is killed when it hangs.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.fuzz.decoders import DECODERS
from tests.fuzz.machines import MACHINES
from tests.support.rounds import Rounds
from tests.support.safeguard import proves

ROOT = Path(__file__).resolve().parents[2]
BATCH = 1_000  # inputs
SHARE = 4  # `make test` tries this part of the inputs of each target


class Fuzzer:
    """The child; a new one after it died."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def run(self, target: str, seed: int, n: int) -> dict[str, Any]:
        if self._child is not None and self._child.poll() is not None:
            self.close()
        if self._child is None:
            command = [sys.executable, "-m", "tests.fuzz.fuzzer"]
            self._child = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        source, sink = self._pipes()
        sink.write(json.dumps({"target": target, "seed": seed, "n": n}) + "\n")
        sink.flush()
        line = source.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        return {"error": f"the process ended with {self._child.wait()}", "input": "?", "at": -1}  # by its seed alone

    def close(self) -> None:
        if self._child is not None:
            source, sink = self._pipes()
            sink.close()
            source.close()
            self._child.wait()
            self._child = None

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._child is not None and self._child.stdout is not None and self._child.stdin is not None
        return self._child.stdout, self._child.stdin


@pytest.fixture(scope="module")
def fuzzer() -> Iterator[Fuzzer]:
    fuzzer = Fuzzer()
    yield fuzzer
    fuzzer.close()


@proves(
    "one-decode-error",
    "lengths beyond the bytes, extension types and depth are refused with one error type",
    value="(msgpack.UnpackException,)",
)
@proves("message-numbers-bounded", "every number of a message is within its bound", condition=False)
@proves("rows-match-seqs", "the rows of a block are the seqs that it names")
@proves(
    "identity-types-checked", "a peer's map is kept only as far as its types are right", new="if value is not None:"
)
@proves("answer-size-checked", "an answer's sizes are looked at before they are allocated", condition=False)
@pytest.mark.promise(8)
@pytest.mark.soak
@pytest.mark.parametrize("target", [*DECODERS, *MACHINES])
def test_hostile_bytes_get_the_declared_error_or_a_sound_value(target: str, fuzzer: Fuzzer, rounds: Rounds) -> None:
    _, inputs = (DECODERS | MACHINES)[target]
    accepted = 0
    for seed in rounds(-(-inputs // (SHARE * BATCH))):
        answer = fuzzer.run(target, seed, min(inputs, BATCH))
        assert "error" not in answer, (
            f"{target}, seed {seed}, input {answer['at']}: {answer['error']}\n{answer['input']}"
        )
        rounds.count("inputs", min(inputs, BATCH))
        accepted += answer["accepted"]
    rounds.count("accepted", accepted)
    assert accepted, "no input got past the first check: the grammar is wrong"
