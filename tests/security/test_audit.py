"""Lines about logins and changes of rights: by user, and none is left out because of others."""

import io
import os
import signal
from contextlib import redirect_stderr
from pathlib import Path

from tests.security.guarded import known

from holdfast.runtime import log
from holdfast.security.audit import changes
from security.test_serving import HASHES, RULES, answer, enter, write
from support.brokers import START_S_MAX, StartBroker, wait_until


def test_every_users_login_has_its_line_however_many_come_at_once() -> None:
    log._last.clear()
    said = io.StringIO()
    with redirect_stderr(said):
        for number in range(5000):
            for _ in range(3):
                log.log_event("login", {"user": f"u{number}", "client": "c"})
            log.log_event("refused", {"reason": "0x86", "why": "", "user": f"u{number}"})
    lines = said.getvalue().splitlines()
    assert {line.partition("user=")[2].split()[0] for line in lines if "event=login" in line} == {
        f"u{number}" for number in range(5000)
    }
    assert sum("event=refused" in line for line in lines) < 100


def test_what_changed_is_told_by_user() -> None:
    before = known(
        '[[rule]]\nusers = ["alice", "bob"]\npublish = ["a"]',
        'users = "users"',
        {"gone": "1", "changed": "2", "same": "3"},
    )
    after = known(
        '[[rule]]\nusers = ["alice"]\npublish = ["a"]\n[[rule]]\nusers = ["carol"]\npublish = ["b"]',
        'users = "users"\nanonymous = "never"\n[limits]\nconnections_max = 3',
        {"changed": "x", "same": "3", "new": "4"},
    )
    assert [tuple(change) for change in changes(before, after)] == [
        ("*", "anonymous = never"),
        ("*", "limits"),
        ("bob", "rules"),
        ("carol", "rules"),
        ("changed", "password"),
        ("gone", "removed"),
        ("new", "added"),
    ]
    assert list(changes(before, before)) == []
    everyone = known('[[rule]]\neveryone = true\npublish = ["a"]', 'users = "users"', before.users)
    told = [tuple(change) for change in changes(before, everyone)]
    assert told == [("*", "rules")]  # alice and bob have what they had


def test_a_running_broker_tells_logins_and_changes(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("--security", str(write(tmp_path, rules=RULES)), kind="holdfast")
    for name in HASHES:
        with enter(broker.port, name) as peer:
            assert answer(peer) == 0
    (tmp_path / "rules.toml").write_text(RULES.replace("alice", "bob"))
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: "event=reloaded" in broker.stderr, "reloaded", START_S_MAX)
    for line in (
        "event=login user=alice client=c-alice address=127.0.0.1 by=password",
        "event=login user=bob client=c-bob address=127.0.0.1 by=password",
        'event="rights changed" user=alice what=rules',
        'event="rights changed" user=bob what=rules',
    ):
        assert line in broker.stderr, line
