"""Every sentence of the pages that promise something is quoted by a claim, or stands in elsewhere.toml:
with the test that judges it, or among those that explain, advise or name a limit, and promise nothing.
"""

from __future__ import annotations

import tomllib

import pytest

from .sentences import ALSO_QUOTED, HERE, PAGES, ROOT, Quote, functions_of, plain, quotes, sentences_of

ELSEWHERE = tomllib.loads((HERE / "elsewhere.toml").read_text())
JUDGED = [Quote(each["page"], plain(each["sentence"]), each["test"]) for each in ELSEWHERE["judged"]]
EXPLAINS = {page: [plain(each) for each in found] for page, found in ELSEWHERE["explains"].items()}
QUOTED = quotes()


def listed(page: str) -> list[str]:
    told = [quote.sentence for quote in QUOTED + JUDGED if quote.page == page]
    return told + EXPLAINS.get(page, [])


def covers(words: str, sentence: str) -> bool:
    return sentence in words or (words in sentence and len(words) > 20)


@pytest.mark.parametrize("page", PAGES)
def test_every_sentence_is_judged_or_promises_nothing(page: str) -> None:
    known = listed(page)
    unknown = [each for each in sentences_of(page) if not any(covers(words, each) for words in known)]
    assert unknown == [], f"neither quoted by a claim nor in elsewhere.toml: {unknown}"


@pytest.mark.parametrize("page", [*PAGES, *ALSO_QUOTED])
def test_every_quoted_sentence_is_in_its_page(page: str) -> None:
    text = plain((PAGES | ALSO_QUOTED)[page].read_text())
    gone = [words for words in listed(page) if words not in text]
    assert gone == [], f"no longer in {page}: {gone}"


def test_only_known_pages_are_quoted() -> None:
    assert {quote.page for quote in QUOTED + JUDGED} <= set(PAGES | ALSO_QUOTED)


def test_every_test_that_is_named_exists() -> None:
    for quote in JUDGED:
        path, _, name = quote.test.partition("::")
        assert (ROOT / path).exists(), quote
        assert not name or name in functions_of(ROOT / path), quote


def test_every_claim_quotes_a_sentence() -> None:
    claims = {
        f"{path.relative_to(ROOT)}::{name}"
        for path in HERE.glob("test_*.py")
        if path.name != "test_every_sentence.py"
        for name in functions_of(path)
        if name.startswith("test_")
    }
    assert claims == {quote.test for quote in QUOTED}
