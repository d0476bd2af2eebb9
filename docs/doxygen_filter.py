"""doxygen_filter.py HTML_FOLDER FILE: prints a public header or a page as doxygen reads it, line for line.

Headers are written for people: `//` before a declaration or behind it, prose with <, * and [shapes], formulas and tables that are indented. A comment
before a blank line is about the file; one before several functions is about all of them. Pages link as GitHub does: to headings, and to files.
"""

import os
import pathlib
import re
import sys

COMMENT = re.compile(r"^(\s*)//( (.*))?$")
TRAILING = re.compile(r"^(\s*(?!#if|#endif|#include|struct \w+;)[^\s/].*?)\s+// (.*)$")
ROOT = pathlib.Path(__file__).resolve().parent.parent


def escaped(prose):
    """Outside of `code`: characters that doxygen or Markdown would take for markup, and its end of a list."""
    parts = prose.split("`")
    parts[::2] = [re.sub(r'[\\@#<>*&%"]|::|^\.', r"\\\g<0>", part) for part in parts[::2]]
    return "`".join(parts)


def comment(lines, about_file):
    """A comment of whole lines. Indented ones keep their columns, as verbatim text."""
    prose = [COMMENT.match(line)[3] or "" for line in lines]
    kept = [text.startswith("  ") for text in prose] + [False]
    for i, text in enumerate(prose):
        text = text if kept[i] else escaped(text)
        if kept[i + 1] and not kept[i]:
            text += r" \verbatim"
        if kept[i] and not kept[i + 1]:
            text += r" \endverbatim"
        start = "   " if i else r"/** \thisfile " if about_file else "/** "
        yield start + text + (" */" if i + 1 == len(prose) else "")


def functions_below(lines):
    """How many lines below a comment declare functions, if it is about more than one of them; else 0."""
    indent = re.match(r"\s*", lines[0])[0]
    count, length, text = 0, 0, ""
    for i, line in enumerate(lines):
        if line == "" or COMMENT.match(line):
            break
        code = line.split("  //")[0]
        text += code
        if code.endswith((";", "}")) and text.count("{") == text.count("}"):
            if not text.startswith(indent) or "(" not in text or "operator" in text:
                break
            count, length, text = count + 1, i + 1, ""
    return length if count > 1 else 0


def header(lines):
    out = [TRAILING.sub(lambda found: f"{found[1]} ///< {escaped(found[2])}", line) for line in lines]
    at = 0
    while at < len(lines):
        end = at
        while end < len(lines) and COMMENT.match(lines[end]):
            end += 1
        if end > at and lines[at].lstrip().startswith("// ----"):
            out[at:end] = [""] * (end - at)
        elif end > at:
            out[at:end] = comment(lines[at:end], lines[end] in ("", "#pragma once"))
            if lines[end] and (length := functions_below(lines[end:])):
                out[end] = "/**@{*/ " + out[end]
                out[end + length - 1] += " /**@}*/"
        at = max(end, at + 1)
    return out


def anchor(page, heading):
    """Of a heading: doxygen wants names that are unique among all pages."""
    slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    return re.sub(r"\W", "-", f"{page.resolve().relative_to(ROOT)}-{slug}")


def page(path, html):
    def link(found):
        target, _, heading = found[1].partition("#")
        file = (path.parent / target).resolve() if target else path
        if ":" in target:
            return found[0]
        if heading:
            return f"](#{anchor(file, heading)})"
        return found[0] if file.suffix in (".md", ".png") else f"]({os.path.relpath(file, html)})"

    code = False
    for line in path.read_text().splitlines():
        code ^= line.startswith("```")
        if not code:
            line = re.sub(r"\]\(([^)\s]+)\)", link, line)
            line = re.sub(r"^##+ (.*)$", lambda found: f"{found[0]} {{#{anchor(path, found[1])}}}", line)
        yield line


def main():
    path = pathlib.Path(sys.argv[2])
    lines = page(path, sys.argv[1]) if path.suffix == ".md" else header(path.read_text().splitlines())
    print("\n".join(lines))


main()
