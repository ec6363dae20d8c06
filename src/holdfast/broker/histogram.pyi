class Histogram:
    counts: list[int]
    sum_ns: int
    def add(self, ns: int) -> None: ...
