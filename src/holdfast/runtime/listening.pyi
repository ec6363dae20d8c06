from collections.abc import Callable, Collection

from holdfast.broker.link import Wire
from holdfast.runtime.layers import Layers
from holdfast.security.config import Listener

class Listening:
    opener: Callable[..., Wire | None]
    layers: Callable[[], Layers] | None
    names: Collection[str] | None
    config: Listener | None
    local: bool
    strangers: bool
    def __init__(
        self,
        opener: Callable[..., Wire | None],
        layers: Callable[[], Layers] | None = None,
        names: Collection[str] | None = None,
        config: Listener | None = None,
        local: bool = False,
        greeting_ns_max: int = ...,
        strangers: bool = False,
    ) -> None: ...
