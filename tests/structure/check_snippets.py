"""check_snippets.py ROOT: each block of code in docs/*.md stands, line by line, in the file that the link before it names.

A line `...` skips lines. Blocks of sh are not looked at, nor of python, which python/tests run."""

import pathlib
import re
import sys

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)\)")


def missing_line(snippet, source):
    """The first line of the snippet that does not follow the ones before it, or None."""
    at, anywhere = 0, True
    for line in (line.strip() for line in snippet.splitlines() if line.strip()):
        if line == "...":
            anywhere = True
            continue
        try:
            found = source.index(line, at)
        except ValueError:
            return line
        if not anywhere and found != at:
            return line
        at, anywhere = found + 1, False
    return None


def complaints(page):
    text = page.read_text()
    for block in BLOCK.finditer(text):
        if block[1] in ("sh", "python"):
            continue
        line = text.count("\n", 0, block.start()) + 1
        links = LINK.findall(text[: block.start()].rsplit("\n```\n", 1)[-1])
        if not links:
            yield f"{page}:{line}: no link before this block says where its code is compiled"
            continue
        source = [stripped for stripped in map(str.strip, (page.parent / links[-1]).read_text().splitlines()) if stripped]
        if (missing := missing_line(block[2], source)) is not None:
            yield f"{page}:{line}: {links[-1]} has no such line there: {missing}"


def main():
    pages = sorted((pathlib.Path(sys.argv[1]) / "docs").glob("*.md"))
    found = [complaint for page in pages for complaint in complaints(page)]
    print("\n".join(found))
    if not pages:
        print("no pages in docs/")
    return 1 if found or not pages else 0


sys.exit(main())
