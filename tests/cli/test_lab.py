"""`holdfast lab`: the options reach the campaign; wrong ones and what is missing are told in words."""

import builtins
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.lab.analysis import found
from holdfast.lab.analysis.found import Analysis
from holdfast.lab.model import Trial

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


class Lab:
    """The command in a folder of its own, with trials that take no time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], at: Path) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.trials: list[Trial] = []
        self.fail = False
        self.analysed: list[tuple[Path, str]] = []
        self.out = at / "results"
        monkeypatch.chdir(at)
        monkeypatch.setenv("HOLDFAST_EXPERIMENTS", str(EXPERIMENTS))
        self._module("holdfast.lab.run", run_trial=self._run_trial)

    def _module(self, name: str, **content: object) -> None:
        module = ModuleType(name)
        for key, value in content.items():
            setattr(module, key, value)
        self._monkeypatch.setitem(sys.modules, name, module)

    def _run_trial(self, trial: Trial, folder: Path) -> None:
        self.trials.append(trial)
        if self.fail:
            raise OSError("no room")
        (folder / "outcome.json").write_text("{}")

    def with_analysis(self) -> None:
        def analyse(results: Path, master: str) -> Analysis:
            self.analysed.append((results, master))
            name = json.loads((results / "experiment.json").read_bytes())["name"]
            return Analysis(experiment={"name": name}, rows=[])

        self._module("holdfast.lab.analysis", analyse=analyse, found=found)
        self._module("holdfast.lab.report.page", write_report=lambda analysis, out: out / "index.html")
        self._module("holdfast.lab.report.results", as_json=lambda analysis: analysis.experiment)
        self._module("holdfast.lab.report")

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["holdfast", "lab", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = self._capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Lab:
    return Lab(monkeypatch, capsys, tmp_path)


def test_list_shows_every_experiment(lab: Lab) -> None:
    code, out, _ = lab("list")
    assert code == 0
    for path in EXPERIMENTS.glob("*.toml"):
        assert path.stem in out


def test_list_tells_of_a_wrong_file_and_shows_the_others(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.toml").write_text((EXPERIMENTS / "ftrtes-depth.toml").read_text())
    (tmp_path / "bad.toml").write_text("title = 5")
    monkeypatch.setenv("HOLDFAST_EXPERIMENTS", str(tmp_path))
    code, out, err = lab("list")
    assert code == 2
    assert "good" in out
    assert "bad.toml: title: found 5" in err


def test_list_without_experiments(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_EXPERIMENTS", str(tmp_path / "none"))
    code, _, err = lab("list")
    assert code == 1
    assert "there are no experiments in" in err


def test_run_runs_the_trials_and_says_where_the_results_are(lab: Lab) -> None:
    code, out, err = lab("run", "ftrtes-overhead")
    assert (code, len(lab.trials)) == (0, 12)
    assert "trial 12 done (3), 0 s left" in err
    assert "12 trials done, 0 failed: results/ftrtes-overhead" in out
    record = json.loads((lab.out / "ftrtes-overhead" / "experiment.json").read_bytes())
    assert record["command"] == "holdfast lab run ftrtes-overhead"
    code, out, _ = lab("run", "ftrtes-overhead")
    assert "0 trials done, 12 before, 0 failed" in out


def test_options_reach_the_trials(lab: Lab) -> None:
    code, _, _ = lab(
        *("run", "frame-table4", "--only", "configuration=FRAME", "--only", "topics=13525"),
        *(
            "--only",
            "topics=1525",
            "--repetitions",
            "2",
            "--set",
            "warm_up=35s",
            "--set",
            "load.payload_bytes=64",
        ),
    )
    assert code == 0
    assert [(each.labels["topics"], each.repetition) for each in lab.trials] == [
        ("1525", 0), ("13525", 0), ("1525", 1), ("13525", 1),
    ]  # fmt: skip
    assert {(each.plan.warm_up_ns, each.plan.load.payload_bytes) for each in lab.trials} == {(35 * 10**9, 64)}


def test_what_is_dropped_is_said(lab: Lab) -> None:
    code, _, err = lab("run", "ftrtes-depth", "--quick")
    assert code == 0
    assert "dropped 4, 3 members, 1 client: requested load.depth = 4, brokers.count = 3" in err
    code, _, err = lab("run", "ftrtes-depth", "--quick", "--only", "depth=4", "--only", "members=2 members")
    assert code == 2
    assert "there is no trial to run; dropped: 4, 3 members, 1 client: requested" in err


def test_quick_is_the_twin(lab: Lab) -> None:
    code, out, _ = lab("run", "frame-table4", "--quick", "--results", "elsewhere")
    assert (code, len(lab.trials)) == (0, 4)
    assert "elsewhere/frame-table4-quick" in out


def test_a_failed_trial_is_exit_code_1(lab: Lab) -> None:
    lab.fail = True
    code, out, err = lab("run", "frame-cloud-latency", "--quick")
    assert code == 1
    assert "0 trials done, 1 failed" in out
    assert "trial 1 (FRAME, 7525) failed: OSError: no room" in err


def test_an_interruption_says_how_to_go_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(trial: Trial, folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["holdfast.lab.run"], "run_trial", stop)
    code, _, err = lab("run", "frame-cloud-latency")
    assert code == 1
    assert "the same command runs what is left" in err


def test_fresh_starts_again(lab: Lab) -> None:
    lab("run", "frame-cloud-latency", "--quick")
    code, _, err = lab("run", "frame-cloud-latency", "--quick", "--set", "measure=30s")
    assert code == 2
    assert "--fresh" in err
    code, _, _ = lab("run", "frame-cloud-latency", "--quick", "--set", "measure=30s", "--fresh")
    assert (code, len(lab.trials)) == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("frame-table6",), "there is no experiment of that name"),
        (("frame-table4", "--only", "topics"), '--only: "topics" is not a name and a value'),
        (("frame-table4", "--only", "topics=7"), 'topics: there is no "7"'),
        (("frame-table4", "--set", "measure"), '--set: "measure" is not a name and a value'),
        (("frame-table4", "--set", "mesure=5s"), "did you mean measure?"),
        (("frame-table4", "--repetitions", "1000"), "20000 trials are more than 9999"),
        (("missing.toml",), "there is no such file"),
    ],
)
def test_wrong_options_are_told(lab: Lab, arguments: tuple[str, ...], words: str) -> None:
    code, _, err = lab("run", *arguments)
    assert code == 2
    assert words in err


def test_report_without_results_says_what_to_do_first(lab: Lab) -> None:
    code, _, err = lab("report", "frame-table4", "--quick")
    assert code == 1
    assert "first holdfast lab run frame-table4 --quick" in err


def test_report_writes_a_page_or_prints_json(lab: Lab) -> None:
    lab.with_analysis()
    lab("run", "ftrtes-overhead", "--quick")
    code, out, _ = lab("report", "ftrtes-overhead", "--quick", "--master", "local[1]")
    assert (code, out) == (0, "the report is results/ftrtes-overhead-quick/report/index.html\n")
    assert lab.analysed == [(Path("results/ftrtes-overhead-quick"), "local[1]")]
    code, out, _ = lab("report", "ftrtes-overhead", "--quick", "--json")
    assert json.loads(out) == {"name": "ftrtes-overhead"}
    code, out, _ = lab("report", "ftrtes-overhead", "--quick", "--out", "docs")
    assert out == "the report is docs/index.html\n"


def test_report_fails_when_something_that_is_expected_was_not_seen(lab: Lab) -> None:
    lab.with_analysis()
    lab("run", "frame-table5", "--quick")
    code, out, _ = lab("report", "frame-table5", "--quick")
    assert code == 1
    assert "does not hold: FRAME and FRAME+ meet their deadlines" in out
    assert "not measured" in out


def test_a_missing_library_is_one_sentence(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab("run", "frame-cloud-latency", "--quick")
    found = builtins.__import__

    def without_spark(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "holdfast.lab.analysis":
            raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql")
        return found(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without_spark)
    code, _, err = lab("report", "frame-cloud-latency", "--quick")
    assert code == 1
    assert "needs pyspark, which is not installed: run make lab, or pip install 'holdfast[lab]'" in err
