#!/usr/bin/env python3
"""The units for systemd: nothing is wrong with them, they are shut in, and have no privilege that
is not named. units.py BUILD; exit 77 where there is no systemd."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

BUILD = sys.argv[1]
PROGRAMS = {"turnward-router": "router", "turnward-agent": "agent", "turnward-probe": "bpf"}
# Unit -> capabilities, and the most exposed it may be in systemd's own rating (10 = not shut in).
UNITS = {"turnward-router": (set(), 2.0), "turnward-agent@": (set(), 2.5),
         "turnward-probe": ({"CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"}, 2.5)}


def analyze(*args):
    done = subprocess.run(["systemd-analyze", *args], capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


def ours(name, place):
    """The unit as it would be installed, with the programs that were built."""
    with open(os.path.join(BUILD, "router", "etc", name + ".service"), encoding="ascii") as file:
        text = file.read()
    for program, folder in PROGRAMS.items():
        text = re.sub(rf"ExecStart=\S*/{program}\b",
                      f"ExecStart={os.path.join(BUILD, folder, program)}", text)
    path = os.path.join(place, name.replace("@", "@gpu0") + ".service")
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    return path, text


def main():
    if not shutil.which("systemd-analyze"):
        print("skipped: there is no systemd-analyze")
        return 77
    complaints = []
    with tempfile.TemporaryDirectory() as place:
        for name, (wanted, exposure) in UNITS.items():
            path, text = ours(name, place)
            code, told = analyze("verify", "--man=no", path)
            if code or told:
                complaints.append(f"{name}: {told}")
            code, told = analyze("security", "--offline=true", f"--threshold={exposure * 10:.0f}",
                                 path)
            if code:
                complaints.append(f"{name}: {told.splitlines()[-1]}")
            for key in ("AmbientCapabilities", "CapabilityBoundingSet"):
                found = set(" ".join(re.findall(rf"^{key}=(.*)$", text, re.M)).split())
                if found != wanted:
                    complaints.append(f"{name}: {key} {found}, not {wanted}")
            if "CapabilityBoundingSet=" not in text:
                complaints.append(f"{name}: keeps every capability in its bounding set")
    print("\n".join(complaints))
    return 1 if complaints else 0


sys.exit(main())
