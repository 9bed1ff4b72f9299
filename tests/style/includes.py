#!/usr/bin/env python3
"""Holds the table of permitted arrows: which folder may include which."""
import re

from common import Complaints, project_files, read_lines, ROOT
import os

# The longest prefix that matches names a file's area.
AREAS = {
    "shm/base/": "base",
    "shm/loop/": "loop",
    "shm/state.h": "state",
    "shm/": "shm",
    "router/limits.h": "limits",
    "router/settings.": "settings",
    "router/http/": "pure",
    "router/chat/": "pure",
    "router/tokens/": "pure",
    "router/prefix/": "pure",
    "router/session/": "pure",
    "router/policy/": "policy",
    "router/stage/": "pure",
    "router/admit/": "pure",
    "router/health/": "pure",
    "router/ledger/": "pure",
    "router/view/": "pure",
    "router/journal/": "pure",
    "router/status/": "status",
    "router/stats/": "pure",
    "router/ctl/": "ctl",
    "router/": "router",
    "agent/engine.h": "pure",
    "agent/metrics.": "pure",
    "agent/rate.": "pure",
    "agent/speeds.": "pure",
    "agent/": "agent",
    "bpf/open.": "pure",
    "bpf/collect.": "pure",
    "bpf/record.h": "pure",
    "bpf/": "probe",
    "bench/model/": "pure",
    "bench/": "bench",
    "tests/": "tests",
}

FLOOR = {"base", "state", "shm", "limits"}
PURE = {"pure", "policy"}
ARROWS = {
    "base": {"base"},
    "state": set(),
    "limits": set(),
    "loop": {"base", "loop"},
    "shm": {"base", "state", "shm"},
    "policy": {"policy", "state", "limits"},
    "pure": FLOOR | PURE,
    "settings": FLOOR | PURE | {"settings"},
    "status": FLOOR | PURE | {"status"},
    "router": FLOOR | PURE | {"loop", "settings", "status", "router"},
    "ctl": FLOOR | PURE | {"loop", "settings", "status", "ctl"},
    "agent": FLOOR | PURE | {"loop", "agent"},
    "probe": FLOOR | PURE | {"loop", "probe"},
    "bench": FLOOR | PURE | {"loop", "settings", "bench"},
}

# Of the floor, what does input or output or reads a clock: not for pure code.
IMPURE_FLOOR = {"shm/base/log.h", "shm/base/clock.h", "shm/base/opt.h", "shm/region.h"}
IMPURE_SYSTEM = {
    "fcntl.h", "liburing.h", "netdb.h", "poll.h", "pthread.h", "signal.h", "sys/epoll.h",
    "sys/mman.h", "sys/socket.h", "sys/stat.h", "sys/wait.h", "threads.h", "time.h", "unistd.h",
}
POLICY_SYSTEM = {
    "assert.h", "float.h", "inttypes.h", "limits.h", "math.h", "stdalign.h", "stdbool.h",
    "stddef.h", "stdint.h", "string.h",
}
INCLUDE = re.compile(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
GENERATED = {"bpf/tables.h", "bpf/tables_first_event.h", "shm/base/version.h"}


def area_of(path):
    best = max((p for p in AREAS if path.startswith(p)), key=len, default=None)
    return AREAS[best] if best else None


def check_system(path, area, name):
    if area == "policy" and name not in POLICY_SYSTEM:
        return f"policy is arithmetic only and may not include <{name}>"
    if area == "pure" and name in IMPURE_SYSTEM:
        return f"pure code may not include <{name}>"
    return None


def check_own(path, area, name):
    target = area_of(name)
    generated = name in GENERATED or name.endswith(".skel.h")
    if target is None and not generated:
        return f'"{name}" does not name its module from the root'
    if not generated and not os.path.exists(os.path.join(ROOT, name)):
        return f'"{name}" does not exist'
    if area == "tests":
        return None
    if target == "tests":
        return "nothing includes tests"
    if target not in ARROWS[area] and not generated:
        return f'{area} may not include "{name}" ({target})'
    if area in PURE and name in IMPURE_FLOOR:
        return f'pure code may not include "{name}"'
    return None


def main():
    found = Complaints()
    for path in project_files(".c", ".h"):
        area = area_of(path)
        if area is None:
            found.add(path, 1, "belongs to no area: add its folder to the table")
            continue
        for number, line in enumerate(read_lines(path), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            own, system = match.groups()
            text = check_own(path, area, own) if own else check_system(path, area, system)
            if text:
                found.add(path, number, text)
    found.finish()


main()
