"""Where may a text be cut?  At headings first, between characters last.

Nothing is assumed about the language of a text, or whether it is Markdown, code or prose. Lines are meant as lines if
most of them end before they must: the first word of the next would have fitted. In wrapped prose it would not.

No line of this is quadratic: patterns are possessive and begin where a run begins.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

SECTIONS, BLOCKS, INNER_BLOCKS, ITEMS, LINES, SENTENCES, STOPS, WRAPS, CLAUSES, WORDS, CHARACTERS = range(11)

LINE = re.compile(r"[^\r\n]*+(?:\r\n?|\n)|[^\r\n]++")
FENCE = re.compile(r"^[ \t]*+(```|~~~)[`~]*+([^\r\n]*+)", re.MULTILINE)
HEADING = re.compile(r" {0,3}(#{1,6})(?=\s)")
UNDERLINE = re.compile(r"([=\-~*^\"#+])\1{2,}+\s*+$")
ITEM = re.compile(r"\s*+(?:[-*+•]|\w{1,3}[.)]|\(\w{1,3}\))\s")
INDENTED = re.compile(r"[ \t]")

CLOSERS = "\"'”’»)\\]*_`"
STOP = re.compile(
    rf"(?<![.!?…])[.!?…]++[{CLOSERS}]*+(?:[^\S\r\n]*+(?:\r\n?|\n)|(?=\s))|(?<![。！？｡।۔؟])[。！？｡।۔؟]++[」』）”’»]*+"
)
SHORTENED = re.compile(r"(?:^|\W)(?:\w|Mr|Mrs|Ms|Dr|Prof|St|vs|etc|e\.g|i\.e|cf|Fig|No|Jr|al|ca|bzw|usw|Nr)$")
BREAK = re.compile(r"\r\n?|\n")
CLAUSE = re.compile(r"[,;:](?=\s)|[、，；：]")
WORD = re.compile(r"(?<=\S)(?=\s)")
NEXT = re.compile(r"\s*+(\S)")
NARROW = 40  # characters: prose is hardly ever wrapped so early
CLINGS = 16  # characters that are looked at for one that stands by itself


class Structure:
    """Where a text may be cut, level by level.

    Attributes
    ----------
    headings : where a heading begins → where what it is about begins
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.headings: dict[int, int] = {}
        self.borders: dict[int, list[int]] = {level: [] for level in (SECTIONS, BLOCKS, INNER_BLOCKS, ITEMS, LINES)}
        self._read()
        for each in self.borders.values():
            each.sort()

    def cuts(self, start: int, end: int, level: int) -> Sequence[int]:
        """Where the part from ``start`` to ``end`` may be cut at a level, in order; always somewhere at the last."""
        if level in self.borders:
            places = self.borders[level]
            return places[bisect_right(places, start) : bisect_left(places, end)]
        if level == CHARACTERS:
            return [self._middle(start, end)]
        return [place for place in FOUND[level](self.text, start, end) if start < place < end]

    def _middle(self, start: int, end: int) -> int:
        """Halfway, after characters that cling to the one before."""
        middle = (start + end) // 2
        for place in range(middle, min(end, middle + CLINGS)):
            if not _clings(self.text[place - 1], self.text[place]):
                return place
        return middle

    def _read(self) -> None:
        """Line by line: blocks, and what begins them."""
        fences = _fences(self.text)
        block: list[tuple[int, str]] = []
        fence_end, heading, after_blank = -1, None, True
        for found in LINE.finditer(self.text):
            start, line = found.start(), found.group()
            if not line.strip():
                after_blank = True
                continue
            if heading is not None:
                self.headings[heading], heading = start, None
            indented = bool(INDENTED.match(line))
            if start < fence_end:
                if after_blank:
                    self.borders[INNER_BLOCKS].append(start)
                self.borders[LINES].append(start)
                after_blank = found.end() >= fence_end
                continue
            if start in fences:
                fence_end = fences[start]
                after_blank = True
            is_heading = start not in fences and _is_heading(line, after_blank)
            if after_blank or is_heading:
                self._end(block)
                self.borders[INNER_BLOCKS if indented else BLOCKS].append(start)
            elif ITEM.match(line):
                self.borders[ITEMS].append(start)
            if is_heading:
                self.borders[SECTIONS].append(start)
                heading = start
            elif UNDERLINE.match(line) and _is_title(block, line):
                self.borders[SECTIONS].append(block[0][0])
                heading = block[0][0]
            block.append((start, line))
            after_blank = heading is not None
        if heading is not None:
            self.headings[heading] = len(self.text)
        self._end(block)

    def _end(self, block: list[tuple[int, str]]) -> None:
        """The block is complete: are its lines meant as lines?"""
        if _has_lines([line for _, line in block]):
            self.borders[LINES] += [start for start, _ in block[1:]]
        block.clear()


def _fences(text: str) -> dict[int, int]:
    """Where the first line of fenced code begins → where its last line ends."""
    lines = [(found.start(), found.end(), found[1], not found[2].strip()) for found in FENCE.finditer(text)]
    last = {mark: start for start, _, mark, is_bare in lines if is_bare}
    found: dict[int, int] = {}
    opened: tuple[int, str] | None = None
    for start, end, mark, is_bare in lines:
        if opened is None:
            opened = (start, mark) if last.get(mark, -1) > start else None
        elif is_bare and mark == opened[1]:
            found[opened[0]] = end
            opened = None
    return found


def _is_heading(line: str, after_blank: bool) -> bool:
    """A line with one # may be a comment in code, unless it stands after a blank line."""
    found = HEADING.match(line)
    return found is not None and (after_blank or len(found[1]) > 1)


def _is_title(block: Sequence[tuple[int, str]], underline: str) -> bool:
    """Is a line below this block the underline of a title?"""
    lines = [line.strip() for _, line in block]
    if len(lines) == 2 and UNDERLINE.match(lines[0]):
        lines = lines[1:]
    return len(lines) == 1 and not UNDERLINE.match(lines[0]) and len(underline.strip()) >= min(len(lines[0]), 40)


def _has_lines(lines: Sequence[str]) -> bool:
    """Do most lines end though the next word would have fitted, or are they too short for prose?

    Examples
    --------
    >>> _has_lines(["x = 1", "for each in found:", "    print(each + x)", "done()"])
    True
    >>> _has_lines(["Prose is wrapped where the next word does not", "fit into the line, which is as long as most."])
    False
    """
    if len(lines) < 2:
        return False
    lengths = [len(line.rstrip()) for line in lines]
    width = sorted(lengths)[(3 * len(lengths) - 1) // 4]
    words = [line.split(maxsplit=1)[0] for line in lines[1:]]
    early = sum(length + 1 + len(word) <= width for length, word in zip(lengths, words, strict=False))
    return width < NARROW or 2 * early > len(words)


# ---------------------------------------------------------------- inside a block


def _stops(text: str, start: int, end: int) -> Iterator[int]:
    """After every mark that may end a sentence."""
    return (found.end() for found in STOP.finditer(text, start, end))


def _sentences(text: str, start: int, end: int) -> Iterator[int]:
    """After every mark that does: no small letter follows, and it belongs to no abbreviation."""
    for found in STOP.finditer(text, start, end):
        after = NEXT.match(text, found.end())
        is_short = found[0][0] == "." and SHORTENED.search(text[max(0, found.start() - 8) : found.start()])
        if not is_short and not (after and after[1].islower()):
            yield found.end()


def _after(pattern: re.Pattern[str]) -> Callable[[str, int, int], Iterator[int]]:
    return lambda text, start, end: (found.end() for found in pattern.finditer(text, start, end))


FOUND: dict[int, Callable[[str, int, int], Iterator[int]]] = {
    SENTENCES: _sentences,
    STOPS: _stops,
    WRAPS: _after(BREAK),
    CLAUSES: _after(CLAUSE),
    WORDS: _after(WORD),
}


def _clings(before: str, here: str) -> bool:
    """Does a character belong to the one before?"""
    if (before, here) == ("\r", "\n") or "\u200d" in (before, here) or "\U0001f3fb" <= here <= "\U0001f3ff":
        return True
    return unicodedata.category(here) in ("Mn", "Mc", "Me")
