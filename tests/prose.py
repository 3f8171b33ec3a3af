"""Counts of the English in documentation pages: sentence lengths, semicolons, openings, words.

``python -m tests.prose docs`` prints them, and ``python -m tests.prose NAME=FOLDER ...`` a table of
several projects, from the `.md`, `.mdx` and `.rst` files of each folder.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LONG_SENTENCE = 30
OPENINGS = ("what", "where", "who", "whose")

SYNONYMS = {
    "beside": "next to, compared with, in addition to",
    "all the same": "identical, or nevertheless",
    "alike": "identical, equal",
    "mend": "fix",
    "mended": "fixed",
    "mends": "fixes",
    "anew": "again",
    r"held(?! out)": "kept, or checked",
    "restless": "noisy",
    "core seconds": "core-seconds",
    "best-so-far": "incumbent",
}
"""Words not to use, and the glossary's term or plainer English for them."""

_IRREGULAR = (
    "built|bound|broken|brought|bought|chosen|cut|done|drawn|driven|fed|found|given|gone|held|hidden"
    "|kept|known|laid|left|lent|lost|made|meant|met|overwritten|paid|put|read|rewritten|run|said|seen"
    "|sent|set|shown|shut|split|spent|stored|sought|taken|taught|thrown|told|understood|won|written"
)
_PASSIVE = re.compile(
    r"\b(?:is|are|was|were|be|been|being)"
    r"(?: (?:not|never|also|then|only|thus|first|always|often|still|now|again|already|\w+ly))*"
    rf" (?:\w+ed|{_IRREGULAR})\b",
    re.I,
)
_NO_PROSE = {"release", "_templates", "commands", "placers", "python-names.md", "catalogue.md"}
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.M | re.S)
_NOT_PROSE = re.compile(r"^\s*(?:#|\||:::|:[\w-]+:|<!--|!\[|\([\w-]+\)=|---\s*$|\[[^\]]+\]:)")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_ABBREVIATION = re.compile(
    r"\b(et al|e\.g|i\.e|vs|cf|approx|resp|p|pp|Fig|Eq|No)\.(?=\s+[a-z0-9(])"
)
_END = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+(?=[\"'(*_\[`]*[A-Z0-9`])")


@dataclass(frozen=True)
class Prose:
    """The sentences of one page, or of several, and the listed words in them."""

    sentences: tuple[str, ...]

    @property
    def mean_words(self) -> float:
        return sum(map(words, self.sentences)) / max(1, len(self.sentences))

    @property
    def long(self) -> float:
        """Share of sentences above 30 words."""
        return self._share(lambda sentence: words(sentence) > LONG_SENTENCE)

    @property
    def semicolons(self) -> float:
        """Share of sentences with a semicolon; one that ends an item of a list is none."""
        return self._share(lambda sentence: ";" in sentence[:-1])

    @property
    def addressed(self) -> float:
        """Share of sentences with "you" in them."""
        return self._share(
            lambda sentence: re.search(r"\byou(r|rs)?\b", sentence, re.I) is not None
        )

    @property
    def passive(self) -> float:
        """Share of sentences with a form of "be" before a participle."""
        return self._share(lambda sentence: _PASSIVE.search(sentence) is not None)

    @property
    def openings(self) -> tuple[str, ...]:
        """Sentences, but for questions, that begin with What, Where, Who or Whose."""
        return tuple(
            sentence
            for sentence in self.sentences
            if not sentence.endswith("?")
            and re.split(r"\W+", sentence.lstrip("*_\"'( "), maxsplit=1)[0].lower() in OPENINGS
        )

    @property
    def figures(self) -> tuple[str, ...]:
        """Sentences with something that may have been measured; "2 GiB each:" begins an example."""
        told = (sentence for sentence in self.sentences if not sentence.endswith(":"))
        return tuple(sentence for sentence in told if FIGURE.search(sentence))

    @property
    def synonyms(self) -> Counter[str]:
        text = "\n".join(self.sentences).lower()
        counts = {word: len(re.findall(rf"\b{word}\b", text)) for word in SYNONYMS}
        return Counter({word: count for word, count in counts.items() if count})

    def _share(self, matches: Callable[[str], bool]) -> float:
        return sum(map(matches, self.sentences)) / max(1, len(self.sentences))


_NUMBER = r"\b\d[\d,.]*"
_FACTOR = r"(?:\d|\b(?:half|twice|two|three|four|five|ten))(?: times)?"
FIGURE = re.compile(
    rf"{_NUMBER}\s?(?:ms|µs|us|ns|s|×|%|percent|seconds|minutes|hours|core-seconds|min|h)(?!\w)"
    rf"|{_NUMBER}\s?(?:[KMG]i?B)\b"
    rf"|{_FACTOR} as (?:fast|long|slow|much)\b|\btimes (?:faster|slower|longer)\b"
    rf"|\b(?:factor|gap)s? of {_NUMBER}",
    re.I,
)
"""A time, a share, a size, a factor or a gap."""


def words(sentence: str) -> int:
    return sum(any(character.isalnum() for character in word) for word in sentence.split())


def prose_of(texts: Iterable[str]) -> Prose:
    """The sentences of Markdown pages without headings, tables, code and the targets of links."""
    return Prose(tuple(sentence for text in texts for sentence in _sentences(text)))


def _sentences(text: str) -> list[str]:
    return [
        sentence.strip()
        for block in _blocks(text)
        for sentence in _END.split(_ABBREVIATION.sub(r"\1", block))
        if words(sentence) > 1
    ]


def _blocks(text: str) -> list[str]:
    """Paragraphs and items of lists, each as one line of plain text."""
    text = _FENCE.sub("\n\n", text)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`+[^`]+`+", "`code`", text)
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if not line.strip() or _NOT_PROSE.match(line):
            blocks.append([])
        elif _ITEM.match(line):
            blocks.append([_ITEM.sub("", line)])
        else:
            blocks[-1].append(line.strip())
    return [" ".join(block) for block in blocks if block]


def pages_of(folder: Path) -> list[str]:
    """Texts of the pages in a folder, without release notes and generated pages."""
    pages = (path for path in sorted(folder.rglob("*")) if path.suffix in (".md", ".mdx", ".rst"))
    return [
        _markdown_of(path.read_text()) if path.suffix == ".rst" else path.read_text()
        for path in pages
        if not _NO_PROSE & {*path.relative_to(folder).parts}
    ]


def _markdown_of(text: str) -> str:
    """Paragraphs and items of a page in reStructuredText, with blank lines between them."""
    from docutils.core import publish_doctree
    from docutils.nodes import Text, literal_block, paragraph

    plain = re.sub(r":[\w:+-]+:`[^`]*`", "``code``", text)
    settings = {"report_level": 5, "halt_level": 5, "file_insertion_enabled": False}
    tree = publish_doctree(plain, settings_overrides=settings)
    for block in list(tree.findall(literal_block)):
        block.parent.remove(block)
    blocks = (
        "".join(str(part) for part in block.findall(Text)) for block in tree.findall(paragraph)
    )
    return "\n\n".join(" ".join(block.split()) for block in blocks)


def table_of(projects: Mapping[str, Prose]) -> str:
    """A table in Markdown with a column for each project."""
    rows: dict[str, Callable[[Prose], str]] = {
        "words per sentence, mean": lambda prose: f"{prose.mean_words:.1f}",
        "sentences above 30 words": lambda prose: f"{prose.long:.1%}",
        "sentences with a semicolon": lambda prose: f"{prose.semicolons:.1%}",
        "sentences in the passive": lambda prose: f"{prose.passive:.1%}",
        "openings with what, where, who": lambda prose: (
            f"{len(prose.openings) / len(prose.sentences):.1%}"
        ),
        'sentences with "you"': lambda prose: f"{prose.addressed:.1%}",
        "sentences": lambda prose: f"{len(prose.sentences):,}",
    }
    lines = [f"| | {' | '.join(projects)} |", f"| --- |{' ---: |' * len(projects)}"]
    lines += [
        f"| {name} | {' | '.join(map(text, projects.values()))} |".replace("%", " %")
        for name, text in rows.items()
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Print the counts of a folder, or of projects given as NAME=FOLDER."""
    named = [argument.rpartition("=") for argument in arguments]
    projects = {name or folder: prose_of(pages_of(Path(folder))) for name, _, folder in named}
    sys.stdout.write(f"{table_of(projects)}\n")
    for name, prose in projects.items():
        if words := dict(prose.synonyms):
            sys.stdout.write(f"{name} has words that are not to be used: {words}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
