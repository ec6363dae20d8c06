"""The password file and the command that writes it."""

import stat
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.errors import ConfigError
from holdfast.security.users import NOBODYS_HASH, change_users, hash_password, load_users, verify
from holdfast.security.verified import Verified

PASSWORD = "correct horse"


def run(*arguments: str, stdin: str = "") -> tuple[int, str]:
    result = CliRunner().invoke(app, ["user", *arguments], input=stdin)
    said = result.output
    if isinstance(result.exception, ConfigError):
        return 2, said + str(result.exception)
    return result.exit_code, said


def test_users_are_added_checked_listed_and_removed(tmp_path: Path) -> None:
    file = str(tmp_path / "users")
    for name in ("bob", "alice"):
        assert run("add", "--file", file, name, stdin=f"{PASSWORD} of {name}\n")[0] == 0
    assert run("list", "--file", file) == (0, "alice\nbob\n")
    assert run("check", "--file", file, "alice", stdin=f"{PASSWORD} of alice\n")[0] == 0
    for name, given in (("alice", f"{PASSWORD} of bob"), ("nobody", PASSWORD)):
        code, said = run("check", "--file", file, name, stdin=f"{given}\n")
        assert (code, said) == (1, "the user name or the password is wrong\n")
    assert run("add", "--file", file, "alice", stdin="another\n")[1].startswith("changed")
    assert run("check", "--file", file, "alice", stdin="another\n")[0] == 0
    assert run("remove", "--file", file, "bob")[0] == 0
    assert run("remove", "--file", file, "bob")[0] == 2
    assert run("list", "--file", file) == (0, "alice\n")


def test_only_its_owner_reads_the_file_and_no_password_stands_in_it(tmp_path: Path) -> None:
    file = tmp_path / "users"
    run("add", "--file", str(file), "alice", stdin=f"{PASSWORD}\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    content = file.read_text()
    assert content.startswith("alice:$argon2id$")
    assert PASSWORD not in content


@pytest.mark.parametrize("name", ["", "a:b", "a/b", "a+", "#a", "$a", " a", "x" * 201, "a\nb"])
def test_a_name_that_could_mean_something_else_is_refused(tmp_path: Path, name: str) -> None:
    code, said = run("add", "--file", str(tmp_path / "users"), "--", name, stdin="p\n")
    assert code == 2
    assert "a name has" in said
    assert not (tmp_path / "users").exists()


@pytest.mark.parametrize("stdin", ["\n", "", "x" * 1025])
def test_a_password_has_a_length(tmp_path: Path, stdin: str) -> None:
    assert run("add", "--file", str(tmp_path / "users"), "alice", stdin=stdin)[0] == 2


def test_a_broken_file_is_told_line_by_line_without_quoting_it(tmp_path: Path) -> None:
    good = hash_password(b"p")
    (tmp_path / "users").write_text(
        f"alice:{good}\nbob:hunter2\n# a remark\n\nalice:{good}\nno colon at all\n"
    )
    with pytest.raises(ConfigError) as error:
        load_users(tmp_path / "users")
    assert [problem.path for problem in error.value.problems] == ["line 2", "line 5", "line 6"]
    assert "hunter2" not in str(error.value)


def test_two_changes_at_once_do_not_undo_each_other(tmp_path: Path) -> None:
    file, good = tmp_path / "users", hash_password(b"p")

    def add(name: str) -> None:
        with change_users(file) as users:
            users[name] = good

    threads = [threading.Thread(target=add, args=(f"user-{number}",)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(load_users(file)) == 20


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "users"
    with change_users(file) as users:
        users["alice"] = hash_password(b"p")
    before = file.read_text()
    change = change_users(file)
    change.__enter__().clear()
    assert not change.__exit__(RuntimeError, RuntimeError(), None)
    assert file.read_text() == before


def test_nobodys_hash_is_of_the_same_cost_and_of_no_password() -> None:
    """So an unknown user takes the time of a wrong password."""
    assert hash_password(b"p").rsplit("$", 2)[0] == NOBODYS_HASH.rsplit("$", 2)[0]
    assert not verify(None, b"")
    assert not verify(None, b"p")


# Passwords that were right


def test_what_is_kept_of_a_password_is_of_that_user_line_and_key_alone() -> None:
    kept = Verified(b"k" * 32)
    kept.add("alice", "hash", b"secret")
    assert kept.knows("alice", "hash", b"secret")
    for user, stored, password in (
        ("alice", "hash", b"other"),
        ("alice", "new hash", b"secret"),
        ("bob", "hash", b"secret"),
        ("alicehash", "", b"secret"),
    ):
        assert not kept.knows(user, stored, password)
    assert b"secret" not in repr(vars(kept)).encode()
    kept.use((b"n" * 32, b"k" * 32))
    assert kept.knows("alice", "hash", b"secret"), "by the older key"
    kept.use((b"n" * 32,))
    assert kept.knows("alice", "hash", b"secret"), "by the newer one, under which it was kept then"
    kept.use((b"m" * 32,))
    assert not kept.knows("alice", "hash", b"secret")
    other_key = Verified(b"l" * 32)
    other_key.learn(kept.everything())
    assert not other_key.knows("alice", "hash", b"secret")


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    kept = Verified(b"k" * 32, kept_max=2)
    for name in ("a", "b"):
        kept.add(name, "h", b"p")
    assert kept.knows("a", "h", b"p")
    kept.add("c", "h", b"p")
    assert [kept.knows(name, "h", b"p") for name in "abc"] == [True, False, True]
