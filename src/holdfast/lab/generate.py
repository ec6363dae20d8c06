"""All combinations of what varies become trials, except those that cannot be.

Laws:
- the plan of a trial is the experiment's plan and the settings of its labels, nothing else
- a combination is dropped only with a reason: what it requested, and what is offered
- all combinations come once before one comes again, so that a part of the trials is a result already; more
  repetitions leave the numbers and the seeds of the earlier ones as they are
- the same experiment always becomes the same trials

The load check is the one that a broker makes of its contract file. An experiment that overloads on purpose
states a capacity that its brokers do not have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import msgspec

from holdfast.config import convert
from holdfast.contract.admission import admit
from holdfast.contract.load import check_load
from holdfast.errors import ConfigError, Problem
from holdfast.lab.model import Experiment, Plan, Trial, label_of
from holdfast.lab.paths import with_value
from holdfast.readers import INT_MAX
from holdfast.units import S, format_duration

TRIALS_MAX = 9999
OVERHEAD_S = 5.0


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """A combination that cannot be a trial; `why` says what it requested and what is offered."""

    labels: dict[str, str]
    why: str


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    trials: tuple[Trial, ...]
    dropped: tuple[Dropped, ...]

    @property
    def seconds(self) -> float:
        """About how long the trials take, one after another."""
        return sum(seconds_of(trial.plan) for trial in self.trials)


def seconds_of(plan: Plan) -> float:
    return (plan.warm_up_ns + plan.measure_ns) / S + OVERHEAD_S


def generate(experiment: Experiment, quick: bool = False) -> Generated:
    """Every combination times every repetition, or what its twin of reduced size has of them."""
    if quick:
        experiment = experiment.twin()
    _check_size(experiment)
    plans: list[tuple[dict[str, str], Plan]] = []
    dropped: list[Dropped] = []
    for options in product(*(vary.options for vary in experiment.vary)):
        labels = {vary.name: each.label for vary, each in zip(experiment.vary, options, strict=True)}
        settings = {path: value for each in options for path, value in each.settings.items()}
        found = plan_with(experiment.plan, settings)
        if isinstance(found, Plan):
            plans.append((labels, found))
        else:
            dropped.append(Dropped(labels=labels, why=found))
    return Generated(trials=tuple(_numbered(experiment, plans)), dropped=tuple(dropped))


def _check_size(experiment: Experiment) -> None:
    trials = experiment.repetitions * prod(len(vary.options) for vary in experiment.vary)
    if trials > TRIALS_MAX:
        message = f"{trials} trials are more than {TRIALS_MAX}: let less vary, or lower repetitions"
        raise ConfigError(experiment.name, [Problem("vary", message)])


def _numbered(experiment: Experiment, plans: Sequence[tuple[dict[str, str], Plan]]) -> Iterator[Trial]:
    for repetition in range(experiment.repetitions):
        for index, (labels, plan) in enumerate(plans, start=1):
            yield Trial(
                experiment=experiment.name,
                number=repetition * len(plans) + index,
                labels=labels,
                repetition=repetition,
                seed=_seed(experiment.seed, labels, repetition),
                plan=plan,
            )


def _seed(seed: int, labels: dict[str, str], repetition: int) -> int:
    drawn = hashlib.blake2b(json.dumps([seed, labels, repetition]).encode(), digest_size=8)
    return int.from_bytes(drawn.digest()) % INT_MAX


def plan_with(table: dict[str, Any], settings: dict[str, Any]) -> Plan | str:
    """The plan with these settings, or why there can be none."""
    for path, value in settings.items():
        table = with_value(table, path, value)
    try:
        plan: Plan = convert(table, Plan, "plan")
    except ConfigError as error:
        requested = ", ".join(f"{path} = {label_of(value)}" for path, value in settings.items())
        return f"requested {requested or 'the plan as it is'}; " + "; ".join(map(str, error.problems))
    return "; ".join(_refusals(plan)) or plan


def _refusals(plan: Plan) -> Iterator[str]:
    book = plan.book()
    for contract in book.contracts:
        admission = admit(contract, book.deployment)
        if not admission.admitted:
            tolerance = "unlimited" if contract.loss_tolerance is None else contract.loss_tolerance
            yield (
                f"category {contract.name!r} requested deadline {format_duration(contract.deadline_ns)}, "
                f"loss tolerance {tolerance} and retention {contract.retention}; {admission.reason}"
            )
    for refusal in check_load(book.contracts, book.deployment, book.capacity).refusals:
        yield f"category {refusal.name!r} requested {refusal.topics} topics; {refusal.reason}"
