"""Where the pipeline keeps what it keeps, all in one folder.

data/
    feeds/NAME/            the journal of a feed, HEAD, and consumers/
    datasets/NAME/         Parquet files of a dataset
    results/NAME/          Arrow files of a channel, one for each execution that found something
    manifest.sqlite        which files of datasets count, and up to which offset of its feed each dataset is
    results.sqlite         executions of channels, their files, how far each channel is delivered
    pipeline.lock          held by the one process that runs the pipeline
    spark/                 what Spark writes while it runs; swept at each start
"""

from __future__ import annotations

from pathlib import Path


class Layout:
    def __init__(self, data: str | Path) -> None:
        self.data = Path(data)

    @property
    def feeds(self) -> Path:
        return self.data / "feeds"

    def feed(self, name: str) -> Path:
        return self.feeds / name

    def dataset(self, name: str) -> Path:
        return self.data / "datasets" / name

    def results(self, channel: str) -> Path:
        return self.data / "results" / channel

    @property
    def manifest(self) -> Path:
        return self.data / "manifest.sqlite"

    @property
    def executions(self) -> Path:
        return self.data / "results.sqlite"

    @property
    def lock(self) -> Path:
        return self.data / "pipeline.lock"

    @property
    def spark(self) -> Path:
        return self.data / "spark"
