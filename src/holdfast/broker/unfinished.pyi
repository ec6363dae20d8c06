from holdfast.broker.link import Wire

TOO_MANY: str

class UnfinishedWire(Wire): ...
