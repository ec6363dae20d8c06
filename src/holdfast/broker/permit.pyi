from collections.abc import Callable

class Permit:
    def __init__(self, decide: Callable[[bytes], int]) -> None: ...
