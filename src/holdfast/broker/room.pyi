class Room:
    bytes_max: int
    ample: int
    filters: int
    others: int
    @property
    def taken(self) -> int: ...
    def leaves(self, held: int, paid: int, more: int) -> bool: ...
