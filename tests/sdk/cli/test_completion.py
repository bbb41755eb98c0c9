"""Completion in a shell: commands, options, runs, keys, labels, columns; within its time, and silent if it cannot."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chiplog_schemas.limits import QUERY_TIMEOUT_S
from tests.support.command_line import ON_ONE_WORKER, environment, on_pipes, one_line
from tests.support.hand_written import hand_written
from tests.support.marks import everyday
from tests.support.media_run import fill_media_run
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

pytestmark = ON_ONE_WORKER


def asked(*words: str) -> dict[str, str]:
    return {
        "_CHIPLOG_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["chiplog", *words]),
        "COMP_CWORD": str(len(words)),
    }


@pytest.fixture
def complete(forking) -> Callable[..., list[str]]:
    """Return a function that returns what bash would offer for the last of these words."""

    def offered(root: Path, *words: str, **more: str) -> list[str]:
        _, text, errors = on_pipes(forking, root, (), **asked(*words), **more)
        assert errors == ""
        return [line.partition(",")[2] for line in text.splitlines() if line]

    return offered


@pytest.mark.parametrize(
    ("words", "found"),
    everyday(
        6,
        [
            (["s"], ["show", "system", "sql", "status", "sync", "store"]),
            (["runs", "--st"], ["--state", "--store"]),
            (["runs", "--state", "f"], ["finished", "failed"]),
            (["runs", "--columns", "run_id,st"], ["run_id,state"]),
            (["runs", "--sort", "summ"], ["summary."]),
            (["runs", "--sparkline", "tr"], ["train/loss"]),
            (["show", "gpt"], ["gpt-20260103-11aa22", "gpt-20260102-7f3a91"]),
            (["show", "l"], ["latest"]),
            (["edit", "l"], []),
            (["logs", "latest", "--label", "rank"], ["rank0", "rank1", "rank2", "rank3"]),
            (["plot", "gpt-20260102", "l"], ["lr"]),
            (["compare", "vit", "v"], ["vit-20260104-0042"]),
            (["sql", "--run", "vi"], ["vit-20260104-0042"]),
            (["completion", ""], ["bash", "zsh", "fish"]),
        ],
    ),
)
def test_each_word_of_a_command_can_be_completed(complete, recorded, words, found):
    assert complete(recorded, *words) == found


def test_keys_of_histograms_texts_and_media_are_offered(complete, tmp_path):
    with hand_written(tmp_path) as database:
        fill_media_run(database)
    assert complete(tmp_path, "media", "media", "") == ["grads", "sample", "weights"]


def test_a_metric_without_a_summary_is_offered_too(complete, tmp_path):
    with hand_written(tmp_path) as database:
        build = RunBuilder(database)
        build.run("r")
        build.ranks("r")
        build.define("hidden", "none")
        build.metrics({"hidden": 2}, seq=1)
    assert complete(tmp_path, "plot", "r", "hi") == ["hidden"]


@proves("completion-is-silent", "a shell gets no message in place of a completion", value="KeyError")
def test_nothing_is_printed_if_there_is_nothing_to_ask(complete, tmp_path):
    assert complete(tmp_path / "nowhere", "show", "gpt") == []
    assert complete(tmp_path, "logs", "x", "--label", "", CHIPLOG_COLLECTOR="nonsense") == []


@proves("completion-is-bounded", "a completion ends in time whatever the collector does")
def test_a_collector_that_does_not_answer_costs_a_second(tmp_path):
    code = (
        "import chiplog_client.client as client; from chiplog_cli import main; "
        f"client.CONNECT_WAIT_S = {10 * WAIT_S}; main()"
    )
    env = environment(tmp_path, CHIPLOG_COLLECTOR=f"ipc://{tmp_path}/missing.sock", **asked("show", "gpt"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=WAIT_S)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_completing_commands_imports_none(recorded):
    code = "import sys; from chiplog_cli import main; main([]); print([n for n in sys.modules if n.startswith('rich')])"
    env = environment(recorded, _CHIPLOG_COMPLETE="bash_complete", COMP_WORDS="chiplog ", COMP_CWORD="1")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stderr == "" and "plain,runs" in done.stdout


def test_the_script_of_each_shell_is_printed(chiplog):
    for shell, part in (
        ("bash", "complete -o nosort -F"),
        ("zsh", "#compdef chiplog"),
        ("fish", "complete --no-files"),
    ):
        code, text, errors = chiplog("completion", shell)
        assert (code, errors) == (0, "")
        assert part in text and "_CHIPLOG_COMPLETE" in text
    assert "'powershell'" in one_line(chiplog("completion", "powershell")[2])


def test_bash_completes_a_run_with_the_script(recorded, tmp_path):
    """The script as users load it, in a real bash."""
    bash = shutil.which("bash")
    assert bash is not None
    program = tmp_path / "chiplog"
    program.write_text(
        f"#!{sys.executable}\nfrom chiplog_cli import completion, main\n"
        f"completion.ANSWER_S = {QUERY_TIMEOUT_S}\nmain()\n"
    )
    program.chmod(0o755)
    script = (
        'eval "$(chiplog completion bash)"; COMP_WORDS=(chiplog show vi); COMP_CWORD=2; _chiplog_completion chiplog; '
        'echo "${COMPREPLY[@]}"'
    )
    env = environment(recorded, PATH=f"{tmp_path}:{os.environ['PATH']}")
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, env=env, timeout=WAIT_S)
    assert (done.stdout, done.stderr) == ("vit-20260104-0042\n", "")
