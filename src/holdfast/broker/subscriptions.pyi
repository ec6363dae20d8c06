from holdfast.broker.room import Room
from holdfast.broker.session import Session
from holdfast.contract.requirement import Requirement

NODE_WEIGHT: int

def encode_identifier(identifier: int) -> bytes: ...
def weight_of(filter: bytes, group: str | None) -> int: ...

class Subscription:
    session: Session
    filter: bytes
    group: str | None
    qos: int
    flags: int
    retain_handling: int
    identifier: int
    ids: bytes | None
    requirement: Requirement
    since: int
    owed: int
    @property
    def group_since(self) -> int: ...
    def __init__(
        self,
        session: Session,
        filter: bytes,
        *,
        group: str | None = None,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int = 0,
        requirement: Requirement = ...,
        since: int = 0,
        owed: int = 0,
    ) -> None: ...

class Ended:
    subscription: Subscription
    since: int
    until: int
    own_until: int
    def __init__(self, subscription: Subscription, since: int, until: int, own_until: int) -> None: ...

class SharedGroup:
    name: str
    members: list[Subscription]

class SubscriptionTree:
    count: int
    room: Room
    @property
    def weight(self) -> int: ...
    visited: int
    grown: int
    @property
    def steps(self) -> int: ...
    def __len__(self) -> int: ...
    def add(self, subscription: Subscription) -> bool: ...
    def remove(self, session: Session, filter: bytes, group: str | None = None) -> bool: ...
    def matching(self, topic: bytes) -> list[Subscription | SharedGroup]: ...
