"""`chiplog keys`: makes, allows, revokes and lists; every refusal is one line with a remedy and exit code 2."""

import json
import os
import stat
from pathlib import Path

import pytest
import zmq

from chiplog_cli.root import main
from chiplog_schemas.security.key_files import AllowList, Keys, host_key_name, read_permit
from chiplog_schemas.security.permissions import Role
from tests.support.safeguard import proves

Captured = pytest.CaptureFixture[str]
COMMAND = "sdk/chiplog_cli/commands/care/keys.py"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHIPLOG_DIR", str(tmp_path / "chiplog"))
    monkeypatch.delenv("CHIPLOG_KEYS", raising=False)
    return tmp_path / "chiplog" / "keys"


def refusal(capsys: Captured, *arguments: str) -> str:
    """Run a command that is refused, and return its line."""
    capsys.readouterr()
    assert main(["keys", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def public_key() -> str:
    return zmq.curve_keypair()[0].decode()


def test_an_administrator_is_a_reader_with_another_role(directory: Path, capsys: Captured) -> None:
    assert "'admin' is not one of" in refusal(capsys, "new", "admin")
    written = [public_key(), "--name", "me", "--role", "admin"]
    assert "give --role reader --role admin" in refusal(capsys, "allow", *written)
    assert main(["keys", "allow", *written, "--role", "reader"]) == 0
    assert "me may connect as admin, reader" in capsys.readouterr().out


@proves("key-never-overwritten", "a key is never written over another", part=", over=False")
@proves("secret-key-private", "a secret key can be read by its user alone", part="0o600", new="0o644")
@pytest.mark.parametrize("role", [role for role in Role if role is not Role.ADMIN])
def test_new_makes_a_key_and_says_what_is_next(directory: Path, role: Role, capsys: Captured) -> None:
    assert main(["keys", "new", str(role)]) == 0
    captured = capsys.readouterr()
    assert str(directory / f"{role}.pub") in captured.out
    assert "next:" in captured.err
    pair = Keys(directory).pair(role)
    assert pair is not None and pair.name.startswith(host_key_name()[:50])
    assert pair.secret not in captured.out + captured.err
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / f"{role}.key").stat().st_mode) == 0o600
    before = (directory / f"{role}.key").read_bytes()
    assert "remove it first" in refusal(capsys, "new", str(role))
    assert (directory / f"{role}.key").read_bytes() == before


@proves("keys-option-wins", "the option wins over the variable", value='environ.get("CHIPLOG_KEYS") or argument')
def test_the_directory_is_named_by_the_option_else_the_variable(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIPLOG_KEYS", str(tmp_path / "a"))
    assert main(["keys", "new", "reader"]) == 0
    assert main(["keys", "--keys", str(tmp_path / "b"), "new", "reader"]) == 0
    assert (tmp_path / "a" / "reader.key").exists() and (tmp_path / "b" / "reader.key").exists()
    assert not directory.exists()


@proves("agent-key-names-node", "an agent's key speaks for the node of its name", condition=False)
def test_an_agents_key_speaks_for_the_node_of_its_name_unless_told_otherwise(directory: Path, tmp_path: Path) -> None:
    assert main(["keys", "--keys", str(tmp_path / "far"), "new", "agent", "--name", "gpu-7"]) == 0
    file = str(tmp_path / "far" / "agent.pub")
    assert main(["keys", "allow", file]) == 0
    assert read_permit(directory / "allowed" / "gpu-7.pub").nodes == ("gpu-7",)
    assert (
        main(["keys", "allow", file, "--node", "gpu-*", "--node", "login", "--role", "agent", "--role", "reader"]) == 0
    )
    permit = read_permit(directory / "allowed" / "gpu-7.pub")
    assert (permit.nodes, permit.roles) == (("gpu-*", "login"), frozenset({"agent", "reader"}))


@proves("revoked-key-removed", "a key that is revoked is on the list no more", new="path.stat()")
def test_a_key_may_be_written_out_and_revoked_by_its_name(directory: Path, capsys: Captured) -> None:
    key = public_key()
    assert main(["keys", "allow", key, "--name", "eve", "--role", "reader"]) == 0
    assert AllowList(directory / "allowed").find(key, 0.0) is not None
    assert main(["keys", "revoke", "eve"]) == 0
    assert AllowList(directory / "allowed").find(key, 0.0) is None
    assert "'eve'" in refusal(capsys, "revoke", "eve")


@proves("key-name-checked", "a name that is none becomes no file", condition=False)
def test_bad_input_is_refused_in_one_line_with_the_remedy(directory: Path, tmp_path: Path, capsys: Captured) -> None:
    key = public_key()
    bad = tmp_path / "bad.pub"
    bad.write_text("no toml")
    assert "neither a file nor a public key" in refusal(capsys, "allow", "nowhere.pub")
    assert "--name and --role" in refusal(capsys, "allow", key)
    assert str(bad) in refusal(capsys, "allow", str(bad))
    assert "'a/b'" in refusal(capsys, "allow", key, "--name", "a/b", "--role", "reader")
    assert "'../x'" in refusal(capsys, "revoke", "../x")
    assert "node" in refusal(capsys, "allow", key, "--name", "a", "--role", "agent", "--node", "a b")
    assert "once for each" in refusal(capsys, "allow", key, "--name", "a", "--role", "agent", "--node", "a,b")
    assert "king" in refusal(capsys, "new", "king")
    assert "'a b'" in refusal(capsys, "new", "agent", "--name", "a b")
    assert not (directory / "allowed").exists()


@proves("collector-key-not-allowed", "a collector's key is not allowed to connect", condition=False)
def test_a_collectors_key_is_nobody_who_connects(directory: Path, capsys: Captured) -> None:
    assert main(["keys", "new", "collector"]) == 0
    assert str(directory) in refusal(capsys, "allow", str(directory / "collector.pub"))


@proves("one-key-per-name", "a name is given to one key", condition=False)
@proves("one-name-per-key", "a key is allowed under one name", condition=False)
def test_a_name_is_one_key_and_a_key_one_name(directory: Path, capsys: Captured) -> None:
    one = public_key()
    assert main(["keys", "allow", one, "--name", "a", "--role", "reader"]) == 0
    assert "revoke a if" in refusal(capsys, "allow", public_key(), "--name", "a", "--role", "reader")
    assert "revoke a first" in refusal(capsys, "allow", one, "--name", "b", "--role", "reader")


@proves("writable-directory-refused", "no key is written where others can write", condition=False)
def test_a_directory_that_others_can_write_is_refused(directory: Path, capsys: Captured) -> None:
    directory.mkdir(parents=True)
    os.chmod(directory, 0o777)
    capsys.readouterr()
    for arguments in (["new", "agent"], ["allow", public_key(), "--name", "a", "--role", "reader"]):
        assert main(["keys", *arguments]) in (1, 2)
        [line] = capsys.readouterr().err.splitlines()
        assert f"{directory} is writable by others; chmod go-w it" in line
    assert list(directory.iterdir()) == []


@proves("list-shows-no-secret", "a list shows no secret", part="key.public", new="getattr(key, 'secret', '')")
@proves(
    "key-shown-as-text",
    "a key is shown as it is, not as markup",
    part="plain_cell",
    new="__import__('rich.text').text.Text.from_markup",
)
def test_list_shows_own_keys_servers_and_who_may_connect(directory: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["keys", "list"]) == 0
    assert "no keys" in capsys.readouterr().err
    assert main(["keys", "--keys", str(tmp_path / "far"), "new", "collector", "--name", "far"]) == 0
    assert main(["keys", "new", "agent", "--name", "here"]) == 0
    (directory / "collector.pub").write_bytes((tmp_path / "far" / "collector.pub").read_bytes())
    like_markup = "[/K9i/sPebTd{ya!i-]" + "x" * 21
    assert main(["keys", "allow", like_markup, "--name", "eve", "--role", "rank"]) == 0
    (directory / "allowed" / "bad.pub").write_text("no toml")
    capsys.readouterr()
    assert main(["keys", "list", "--format", "json"]) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert [(row["name"], row["is"], row["roles"]) for row in rows] == [
        ("far", "server", ["collector"]),
        ("here", "own", ["agent"]),
        ("eve", "allowed", ["rank"]),
    ]
    assert "bad.pub" in captured.err
    secret = Keys(directory).pair(Role.AGENT)
    for form in ("table", "csv"):
        assert main(["keys", "list", "--format", form]) == 0
        shown = capsys.readouterr().out
        assert "eve" in shown and "here" in shown and like_markup in shown
        assert secret is not None and secret.secret not in shown


@pytest.mark.parametrize("key", ["-" + "0" * 39, "-0h" + "0" * 37], ids=["digits", "with an h"])
def test_a_key_may_begin_with_a_hyphen(directory: Path, capsys: Captured, key: str) -> None:
    assert main(["keys", "allow", key, "--name", "odd", "--role", "reader"]) == 0
    assert "odd may connect as reader" in capsys.readouterr().out
