"""Full-text search over chunks with SQLite's FTS5, which is part of Python: by stems, and by words with a similar
meaning. Used if vectors are not available, and for Chinese, which the embedding model does not know. Chinese has no
spaces, so it is indexed by pairs of characters."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from itertools import pairwise
from threading import Lock

from course_assistant.chunks import Chunk
from course_assistant.related_words import related_to

_RELATED_COUNTS = 0.5
"""What a word with a similar meaning counts, beside the word itself."""

_RUN = re.compile(r"[a-z0-9]+|[\u3400-\u9fff]+")
_CHINESE = re.compile(r"[\u3400-\u9fff]")

_FILLERS = """
a about all also an and any are as at be both by can could course courses cover covered covers did do does each for from
get give has have how i in into is it its keep know lesson lessons make me more my need of on or our out please should
show so teach teaches tell than thanks that the their them there these they this to topic topics us use want was we were
what when where which who why will with you your
什么 么是 是什 怎么 么样 如何 哪些 哪个 请问 介绍 一下 告诉 诉我 关于 有关 可以 吗 呢 的 课程
这门 门课 程中 是否 有没 没有
"""
SAYS_NOTHING = frozenset(_FILLERS.split())


def is_chinese(text: str) -> bool:
    return _CHINESE.search(text) is not None


def terms(text: str) -> list[str]:
    """The words of a text; for Chinese, every pair of adjacent characters."""
    found: list[str] = []
    for run in _RUN.findall(text.casefold()):
        if is_chinese(run) and len(run) > 1:
            found += [a + b for a, b in pairwise(run)]
        else:
            found.append(run)
    return found


def key_terms(text: str) -> list[str]:
    """The words that describe what is searched, without filler words and duplicates."""
    return [term for term in dict.fromkeys(terms(text)) if term not in SAYS_NOTHING]


class FullTextIndex:
    """`search` returns the numbers of chunks, the best first."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        # Usable from other threads: the agent's tools may run on the loop of another thread.
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._turn = Lock()
        self._database.execute(
            "create virtual table chunks using fts5(words, course unindexed, lesson unindexed, tokenize='porter')"
        )
        self._database.executemany(
            "insert into chunks(rowid, words, course, lesson) values (?, ?, ?, ?)",
            [
                (number, " ".join(terms(chunk.searched)), chunk.course.title, chunk.lesson and chunk.lesson.number)
                for number, chunk in enumerate(chunks)
            ],
        )

    def search(self, query: str, course: str | None, lesson: int | None, limit: int) -> list[int]:
        wanted = key_terms(query)
        if not wanted:
            return []
        scores: dict[int, float] = {}
        for word in wanted:
            exact, related = (self._ranked(words, course, lesson) for words in ([word], related_to([word])))
            for number in exact.keys() | related.keys():
                nearest = max(exact.get(number, 0.0), _RELATED_COUNTS * related.get(number, 0.0))
                scores[number] = scores.get(number, 0.0) + nearest
        return sorted(scores, key=lambda number: (-scores[number], number))[:limit]

    def _ranked(self, words: Sequence[str], course: str | None, lesson: int | None) -> dict[int, float]:
        """How well each chunk that has one of the words fits."""
        if not words:
            return {}
        with self._turn:
            rows = self._database.execute(
                "select rowid, -rank from chunks where words match ?1 and (?2 is null or course = ?2) "
                "and (?3 is null or lesson = ?3)",
                (" OR ".join(f'"{word}"' for word in words), course, lesson),
            ).fetchall()
        return dict(rows)

    def close(self) -> None:
        self._database.close()
