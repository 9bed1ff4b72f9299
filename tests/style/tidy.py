#!/usr/bin/env python3
"""Checks what clang-format does not: lengths, banned calls, opening sentences, words."""
import re

from common import Complaints, project_files, read_lines

LINES_MAX = 70  # of a function
COLUMNS_MAX = 100
README_MAX = 60

C_FILES = (".c", ".h")
SCRIPTS = (".py", ".sh", "meson.build", "tests/run", "tests/setup", "tests/lib/tap", ".ci/run",
           "bench/demo")
PROSE = (".md", ".conf", ".service", ".socket", ".1", ".5", ".7")

# Calls that overrun, that start a shell, that allocate out of sight, or that hide an error.
BANNED = re.compile(
    r"\b(strcpy|strcat|sprintf|vsprintf|gets|alloca|system|popen|strncpy|strncat|atoi|atol|atof|"
    r"tmpnam|mktemp|rand|srand|vfork|gethostbyname|inet_ntoa|inet_addr)\s*\(")
BANNED_IN_TESTS = re.compile(r"\b(gets|alloca|system|popen|tmpnam|mktemp|vfork)\s*\(")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")  # tidy: the list itself
# One word per thing: an LLM server is an engine.
SYNONYM = re.compile(r"\b(?<!for )(instance|backend)s?\b", re.I)  # tidy: the list itself
# Paths of somebody's machine, and numbers of somebody's tracker, say nothing to a reader.
PRIVATE = re.compile(
    r"(?<![\w.*$}])/(work|home|root|mnt|workspace)/|\b(issue|ticket|PR) ?#?\d", re.I)
WAIVER = "tidy: "
TYPEDEF = re.compile(r"\s*typedef\s+(struct|union|enum)\b(?!.*\()")


def columns(line):
    return len(line.expandtabs(8))


def check_functions(path, lines, found):
    """A function's body lies between a `{` and a `}` in the first column."""
    start = None
    for number, line in enumerate(lines, 1):
        if line.startswith("{"):
            start = number
        elif line.startswith("}") and start:
            if number - start + 1 > LINES_MAX:
                found.add(path, start, f"function of {number - start + 1} lines, not {LINES_MAX}")
            start = None


def opening_sentence(lines):
    """The first comment's text up to its first full stop, or None."""
    text = " ".join(l.strip().removeprefix("/*").strip(" */") for l in lines[:8])
    first = lines[0].startswith("/*") if lines else False
    return text if first and re.match(r"\S[^.]*[.:]", text.strip()) else None


def check_c(path, lines, found):
    check_functions(path, lines, found)
    if opening_sentence(lines) is None:
        found.add(path, 1, "the file does not open with a sentence saying what it is for")
    for number, line in enumerate(lines, 1):
        code = re.sub(r'"(\\.|[^"\\])*"', '""', line)
        code = re.sub(r"/\*.*?\*/", "", code)
        if re.match(r"\s*\*", code):
            continue
        match = (BANNED_IN_TESTS if path.startswith("tests/") else BANNED).search(code)
        if match and WAIVER not in line:
            found.add(path, number, f"{match.group(1)}() is banned")
        if TYPEDEF.match(code):
            found.add(path, number, "no typedef for structs, unions and enums")
        if re.match(r" {8}", line):
            found.add(path, number, "indented by spaces")


def check_script(path, lines, found):
    body = lines[1:] if lines[0].startswith("#!") else lines
    first = next((l for l in body if l.strip()), "")
    if not path.endswith("meson.build") and not first.startswith(("#", '"""')):
        found.add(path, 1, "the file does not open with a sentence saying what it is for")


def check_text(path, lines, found):
    for number, line in enumerate(lines, 1):
        if WAIVER in line:
            continue
        if line != line.rstrip():
            found.add(path, number, "space at the end")
        for pattern, text in ((UNFINISHED, "unfinished: {}"), (SYNONYM, "say engine, not {}"),
                              (PRIVATE, "a place or number of somebody's own: {}")):
            match = pattern.search(line)
            if match:
                found.add(path, number, text.format(match.group(0)))


def check_columns(path, lines, found):
    for number, line in enumerate(lines, 1):
        if columns(line) > COLUMNS_MAX and WAIVER not in line and len(line.split()) > 1:
            found.add(path, number, f"{columns(line)} columns, {COLUMNS_MAX} at most")


def main():
    found = Complaints()
    for path in project_files(*C_FILES, *SCRIPTS, *PROSE):
        lines = read_lines(path)
        check_text(path, lines, found)
        if lines[-1] != "" or (len(lines) > 1 and lines[-2] == ""):
            found.add(path, len(lines), "ends with exactly one newline")
        if path.endswith(C_FILES):
            check_c(path, lines, found)
        elif path.endswith(SCRIPTS):
            check_script(path, lines, found)
        if not path.endswith(PROSE + ("meson.build",)):
            check_columns(path, lines, found)
        if path.endswith("README.md") and path != "README.md" and len(lines) - 1 > README_MAX:
            found.add(path, README_MAX, f"{len(lines) - 1} lines, {README_MAX} at most")
    found.finish()


main()
