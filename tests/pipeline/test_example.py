"""The city of examples/emergencies, whole, on a real cluster of which a worker is killed in the middle."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.lab.standalone import SparkCluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "emergencies"
LINE = re.compile(r"(\$channel/\S+)  (\{.*\})")
SECONDS = 45


@pytest.mark.timeout(300)
def test_the_city_is_told_of_its_emergencies_though_a_worker_dies(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    told: list[tuple[str, dict[str, object]]] = []
    enough, killed_at = threading.Event(), 0
    with SparkCluster(workers=2) as cluster:
        command = [sys.executable, str(EXAMPLE / "run.py"), "--people", "20", "--seconds", str(SECONDS)]
        # How late is measured elsewhere: here everything shares two cores with a cluster.
        command += ["--master", cluster.url, "--late", "60"]
        with errors.open("wb") as output:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True)

        def follow() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if match := LINE.match(line):
                    told.append((match[1], json.loads(match[2])))
                    enough.set()
            enough.set()

        follower = threading.Thread(target=follow)
        follower.start()
        try:
            enough.wait()
            killed_at = len(told)
            cluster.kill_worker(0)
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            follower.join()
            assert process.stdout is not None
            process.stdout.close()
    assert code == 0, errors.read_text()[-4000:]
    assert 0 < killed_at < len(told)
    near = [(topic, row["id"]) for topic, row in told if "/emergencies_near_me/" in topic]
    assert near
    assert len(near) == len(set(near)), "somebody was told of an emergency twice"
    assert all({"kind", "metres", "shelter"} <= row.keys() for topic, row in told if "near_me" in topic)
