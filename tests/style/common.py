"""What the style checks share: the project's files, and complaints as FILE:LINE: text."""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SKIPPED = {".git", ".venv", "__pycache__"}


def project_files(*endings):
    """Paths below the root, those that git ignores left out; all of them without git."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        listed = []
        for where, folders, names in os.walk(ROOT):
            folders[:] = [f for f in folders if f not in SKIPPED and not f.startswith("build")]
            listed += [os.path.relpath(os.path.join(where, n), ROOT) for n in names]
    return sorted({p for p in listed
                   if p.endswith(endings) and os.path.isfile(os.path.join(ROOT, p))})


def read_lines(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read().split("\n")


class Complaints:
    """Collects findings; finish() prints them and ends the program."""

    def __init__(self):
        self.count = 0

    def add(self, path, line, text):
        self.count += 1
        print(f"{path}:{line}: {text}")

    def finish(self):
        if self.count:
            print(f"{self.count} complaints")
        sys.exit(1 if self.count else 0)
