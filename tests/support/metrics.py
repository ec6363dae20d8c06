"""Which metrics the documentation and the Grafana file speak of, and which a scrape has."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana" / "holdfast.json"
PAGE = ROOT / "docs" / "metrics.md"
NAME = re.compile(r"\b(?:holdfast|process)_[a-z_]+")
PIPELINE = "holdfast_pipeline_"


def told(scrape: str) -> dict[str, tuple[str, str]]:
    """Kind and meaning of every metric in a scrape, by the name that its samples have."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", scrape, re.MULTILINE))
    return {
        name: (kinds[name], words) for name, words in re.findall(r"^# HELP (\S+) (.*)$", scrape, re.MULTILINE)
    }


def documented(pipeline: bool) -> dict[str, tuple[str, str]]:
    """The same as the page has it, of a broker or of a pipeline."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| [^|]* \| (.*?) \|$", PAGE.read_text(), re.MULTILINE)
    return {name: (kind, words) for name, kind, words in rows if name.startswith(PIPELINE) == pipeline}


def drawn(pipeline: bool) -> set[str]:
    """What the Grafana file asks for."""
    text = json.dumps(json.loads(GRAFANA.read_text()))
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in NAME.findall(text)}
    return {name for name in names if name.startswith(PIPELINE) == pipeline}
