"""Contracts and deployments for property tests: small numbers, so that equalities and edges happen."""

from hypothesis import strategies as st

from holdfast.contract.model import Contract, Deployment

deployments = st.builds(
    lambda x, pb, bb, edge, cloud: Deployment(
        failover_ns=x,
        publisher_to_broker_ns=pb,
        broker_to_backup_ns=bb,
        broker_to_subscriber_ns={"edge": edge, "cloud": cloud},
    ),
    st.integers(1, 30),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 20),
)


def contracts(name: str = "c") -> st.SearchStrategy[Contract]:
    return st.builds(
        Contract,
        name=st.just(name),
        topics=st.just((f"{name}/+",)),
        period_ns=st.none() | st.integers(1, 40),
        deadline_ns=st.integers(1, 60),
        loss_tolerance=st.none() | st.integers(0, 4),
        retention=st.integers(0, 4),
        destination=st.sampled_from(["edge", "cloud"]),
        count=st.integers(1, 4),
        subscribers=st.integers(1, 3),
    )
