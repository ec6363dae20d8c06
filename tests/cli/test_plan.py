"""`holdfast plan`: the published table; exit code 1 if a contract is refused, 2 if the file is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["holdfast", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


def test_json_is_the_published_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, "plan", str(EXAMPLES / "frame.toml"), "--json")
    plan = json.loads(out)
    assert code == 0
    assert [
        (row["name"], row["dispatch_deadline_ms"], row["replication_deadline_ms"], row["replicate"])
        for row in plan["contracts"]
    ] == [
        ("0", 49, 49.95, False),
        ("1", 49, 99.95, False),
        ("2", 99, 49.95, True),
        ("3", 99, 249.95, False),
        ("4", 99, None, False),
        ("5", 480, 449.95, True),
    ]
    assert [row["retention_min"] for row in plan["contracts"]] == [2, 0, 1, 0, 0, 1]
    assert all(row["admitted"] and row["reason"] for row in plan["contracts"])
    assert " ".join(plan["order"]) == (
        "D_d(0) D_d(1) D_r(0) D_r(2) D_d(2) D_d(3) D_d(4) D_r(1) D_r(3) D_r(5) D_d(5)"
    )
    assert plan["replicated_fraction"] == pytest.approx(505 / 1525)


def test_frame_plus_replicates_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, "plan", str(EXAMPLES / "frame-plus.toml"), "--json")
    plan = json.loads(out)
    assert (code, plan["replicated_fraction"]) == (0, 0)
    assert not any(row["replicate"] for row in plan["contracts"])


def test_the_table_shows_every_contract(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, "plan", str(EXAMPLES / "frame.toml"))
    assert code == 0
    for category in range(6):
        assert f"plant/cat{category}/+" in out
    assert "249.95ms" in out
    assert "6 of 6 contracts admitted; 33.1% of topics replicated; 4.1% of a core needed" in out


def test_a_refused_contract_exits_with_1_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "refused.toml"
    file.write_text((EXAMPLES / "frame.toml").read_text().replace("retention = 2", "retention = 1"))
    code, out, _ = run(monkeypatch, capsys, "plan", str(file), "--json")
    first = json.loads(out)["contracts"][0]
    assert code == 1
    assert (first["admitted"], first["replicate"], first["retention_min"]) == (False, False, 2)
    assert "retention of at least 2 would do" in first["reason"]
    code, out, _ = run(monkeypatch, capsys, "plan", str(file))
    assert code == 1
    assert "1 REFUSED, 5 of 6 contracts admitted" in out


def test_too_much_load_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "heavy.toml"
    file.write_text((EXAMPLES / "frame.toml").read_text().replace("count = 500", "count = 20_000"))
    code, out, _ = run(monkeypatch, capsys, "plan", str(file), "--json")
    plan = json.loads(out)
    assert code == 1
    refused = [row for row in plan["contracts"] if not row["admitted"]]
    assert [row["name"] for row in refused] == ["2", "4"]
    assert all("too much load" in row["reason"] and not row["replicate"] for row in refused)
    assert plan["utilisation"] > plan["utilisation_max"]


def test_a_broken_file_exits_with_2_and_all_problems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "broken.toml"
    file.write_text('[limits]\ntopics_max = 0\n[deploymnt]\nfailover = "1ms"\n')
    code, out, err = run(monkeypatch, capsys, "plan", str(file), "--json")
    assert (code, out) == (2, "")
    assert "limits.topics_max: found 0" in err
    assert "deploymnt: unknown name; did you mean deployment?" in err
    code, _, err = run(monkeypatch, capsys, "plan", str(tmp_path / "missing.toml"))
    assert code == 2
    assert "there is no such file" in err


def test_what_a_file_does_not_say_of_its_deployment_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    contract = (
        '[[contract]]\nname = "a"\ntopics = ["a"]\ndeadline = "1s"\nloss_tolerance = 0\nretention = 2\n'
    )
    file = tmp_path / "short.toml"
    file.write_text(contract)
    code, out, _ = run(monkeypatch, capsys, "plan", str(file))
    assert code == 0
    assert (
        'assumed, since [deployment] does not say it: failover = "50ms", publisher_to_broker = "0ms", '
        'broker_to_backup = "0.05ms", broker_to_subscriber = { edge = "0ms" }'
    ) in out.splitlines()
    file.write_text(contract + '[deployment]\nfailover = "20ms"\npublisher_to_broker = "1ms"\n')
    _, out, _ = run(monkeypatch, capsys, "plan", str(file), "--json")
    assert json.loads(out)["assumed"] == {
        "broker_to_backup": '"0.05ms"',
        "broker_to_subscriber": '{ edge = "0ms" }',
    }
    _, out, _ = run(monkeypatch, capsys, "plan", str(EXAMPLES / "frame.toml"))
    assert "assumed" not in out


def test_the_command_line_starts_without_rich() -> None:
    script = "import sys, holdfast.cli.main; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
