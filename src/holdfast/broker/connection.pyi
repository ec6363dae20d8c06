from holdfast.broker.intake import Intake
from holdfast.broker.session import Session

class Connection(Intake):
    def admit(self, session: Session) -> None: ...
