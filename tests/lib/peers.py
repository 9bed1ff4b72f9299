"""HAProxy, nginx and Envoy with the configurations of bench/peers/, as children of a case."""
import os
import re
import shutil
import subprocess

from harness import ROOT, Skip

CONFIGS = os.path.join(ROOT, "bench", "peers")
VENV = os.environ.get("TURNWARD_PEERS", os.path.expanduser("~/.cache/turnward-peers"))
NAMES = ("haproxy", "nginx", "envoy")
FILES = {"haproxy": "haproxy.cfg", "nginx": "nginx.conf", "envoy": "envoy.yaml"}


def binary(name):
    for place in (shutil.which(name), f"/usr/sbin/{name}", f"{VENV}/bin/{name}"):
        if place and os.path.exists(place):
            return place
    raise Skip(f"{name} is not installed")


def version(name):
    path = binary(name)
    flag = {"haproxy": "-v", "nginx": "-v", "envoy": "--version"}[name]
    out = subprocess.run([path, flag], capture_output=True, text=True, check=False)
    found = re.search(r"(\d+\.\d+\.\d+)", out.stdout + out.stderr)
    return found.group(1) if found else "?"


def configure(name, directory, port, engines, limit_s):
    """Writes the peer's configuration for these engines ("host:port"), returns its path."""
    with open(os.path.join(CONFIGS, FILES[name]), encoding="utf-8") as file:
        lines = []
        for line in file.read().split("\n"):
            if not line.startswith("@FOR ENGINES@"):
                lines.append(line)
                continue
            for n, address in enumerate(engines, 1):
                host, _, engine_port = address.rpartition(":")
                lines.append(line[len("@FOR ENGINES@"):].replace("@N@", str(n)).replace(
                    "@ADDRESS@", address).replace("@HOST@", host).replace("@EPORT@", engine_port))
    text = "\n".join(lines)
    for key, value in (("PORT", port), ("DIR", directory), ("LIMIT", limit_s),
                       ("STREAMS", 8000), ("CONNECTIONS", 16000)):
        text = text.replace(f"@{key}@", str(value))
    path = os.path.join(directory, FILES[name])
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def start(test, name, engines, limit_s=600):
    """Starts the peer in front of the engines; the process has .address."""
    port = test.port()
    path = configure(name, test.dir, port, engines, limit_s)
    args = {"haproxy": ["-db", "-f", path], "nginx": ["-c", path],
            "envoy": ["--concurrency", "1", "-l", "error", "--disable-hot-restart", "-c", path]}
    process = test.start(binary(name), *args[name])
    process.address = f"127.0.0.1:{port}"
    return process
