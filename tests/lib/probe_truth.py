"""Plays every shape of answer between a client and an engine that stamp what they do
(tests/lib/probe_client, probe_engine), with the probe in between, and brings the three together."""
import collections
import contextlib
import os
import resource
import shutil
import subprocess

from harness import *  # noqa: F403
from harness import BUILD

LIB = os.path.join(BUILD, "tests", "lib")
ENGINES = 4  # ports that the engine listens on
LAZY, ABORT, TRUNC, GAP, RETX, EARLY, NONSTREAM, ECHO, CAPPED, ERROR = (1 << n for n in range(10))

# Shape -> flags that its samples have, and whether a first token is seen. None: no sample at all.
STREAMS = ("role", "early", "glued", "many", "coalesced", "split", "pings", "reasoning", "tools",
           "spaced", "completions", "responses", "messages", "unframed", "interim")
OUTCOMES = {name: (0, True) for name in STREAMS}
OUTCOMES.update(json=(NONSTREAM, False), chunked_json=(NONSTREAM, False),
                busy=(NONSTREAM | ERROR, False), cut=(TRUNC, True), cut_early=(TRUNC, False),
                left=(ABORT, False), echo=(ECHO, True), internal=None, metrics=None)


# ---- places ----

def cgroup_root():
    with open("/proc/mounts", encoding="utf-8") as file:
        for line in file:
            _, place, kind = line.split()[:3]
            if kind == "cgroup2" and os.access(place, os.W_OK):
                return place
    raise Skip("no writable cgroup2 tree is mounted here")


@contextlib.contextmanager
def cgroup():
    place = os.path.join(cgroup_root(), f"turnward-test-{os.getpid()}")
    try:
        os.mkdir(place)
    except OSError as error:
        raise Skip(f"no cgroup can be made here: {error.strerror}") from None
    try:
        yield place
    finally:
        with contextlib.suppress(OSError):  # a case that failed may leave its client in there
            with open(os.path.join(place, "cgroup.kill"), "w", encoding="ascii") as file:
                file.write("1")
        eventually(lambda: not open(os.path.join(place, "cgroup.procs"), encoding="ascii").read(),
                   10, "the cgroup is left")
        os.rmdir(place)


def sudo(*argv, why=None):
    """Runs a command of the system; where it cannot, the case is skipped for this reason."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Skip(f"{why or argv[0]}: {(done.stderr or done.stdout).strip()[:120]}")


def need(program):
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if not path:
        raise Skip(f"{program} is not installed")
    return path


# ---- one run ----

class Run:
    """What a client did, what its engine did, and what the probes made of it."""

    def __init__(self, client, engine, samples, counters):
        self.client, self.counters = client, counters
        self.engine = {e["id"]: e for e in engine}
        self.samples = samples  # probe's name -> [(request, its sample or None)]

    @classmethod
    def match(cls, client, engine, probes, counters):
        return cls(client, engine, {name: pairs(client, samples)
                                    for name, samples in probes.items()}, counters)


def pairs(client, samples):
    """Requests with their samples: of the same two ports, begun while the request was under way."""
    by_ports, found = {}, []
    for sample in samples:
        by_ports.setdefault((sample["engine"], sample["client_port"]), []).append(sample)
    for request in client:
        here = [s for s in by_ports.get((f"e{request['engine']}", request["client_port"]), [])
                if request["send_ns"] <= s["t0_first_ns"] <= request["end_ns"]]
        check(len(here) < 2, f"two samples for one request: {request} {here}")
        found.append((request, here[0] if here else None))
    return found


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def library(t, group, urls, *args, lib=LIB, path=None):
    """probe_samples, attached; skips where BPF is refused."""
    path = path or t.path("library.samples")
    process = t.start(os.path.join(lib, "probe_samples"), "--cgroup", group, "--samples", path,
                      *args, *urls)
    eventually(lambda: process.err or not process.alive, 30, "it attaches or refuses")
    if not process.alive:
        process.wait()  # until all its words are here
    if not process.err or not process.err[0].startswith("attached"):
        raise Skip("BPF is refused here: " + (process.err or ["no reason given"])[0])
    return process, path


def daemon(t, group, urls):
    path = t.path("daemon.samples")
    args = [a for url in urls for a in ("--engine", url)]
    process = t.start("turnward-probe", "--region", t.region, "--cgroup", group, "--require-bpf",
                      "--samples", path, *args)
    process.wait_log("attached", 30)
    return process, path


def play(t, shapes, host="127.0.0.1", uring=False, conns=16, requests=16, probe_args=(),
         with_daemon=False, listen=None, inside=(), body=200000, seed=1):
    """The shapes, in turn on each connection, seen by the probe's library and, if asked, its daemon
    on the same cgroup. `inside`: what the engine is started by; `listen`: addresses for it."""
    ports = [t.port() for _ in range(ENGINES)]
    at = f"[{host}]" if ":" in host else host
    dials = [f"{at}:{port}" for port in ports]
    truth = t.path("engine.notes")
    program = [*inside, os.path.join(LIB, "probe_engine"), truth,
               *(listen(ports) if listen else dials)]
    engine = t.start(program[0], *program[1:], ready="listening")
    urls = [f"e{i}=http://{dial}" for i, dial in enumerate(dials)]
    with cgroup() as group:
        probe, samples = library(t, group, urls, *probe_args)
        other = daemon(t, group, urls) if with_daemon else None
        notes = t.path("client.notes")
        client = t.start(os.path.join(LIB, "probe_client"), *(["--uring"] if uring else []),
                         "--conns", conns, "--requests", requests, "--body", body, "--seed", seed,
                         "--cgroup", group, notes, ",".join(shapes), *dials)
        code = client.wait(60)
        if code == 4:
            raise Skip("io_uring is refused here")
        equal(code, 0, "the client's exit")
        wanted = sum(OUTCOMES[request["shape"]] is not None for request in lines(notes))
        with contextlib.suppress(Failed):
            eventually(lambda: len(lines(samples)) >= wanted, 5)
        equal(probe.stop(number=signal.SIGINT), 0, "the probe's exit")
        told = {"library": lines(samples)}
        if other:
            equal(other[0].stop(), 0, "the daemon's exit")
            told["daemon"] = lines(other[1])
    engine.stop()
    return Run.match(lines(notes), lines(truth), told, json.loads(probe.out[-1]))


def brackets(run, name="library", ignored=RETX):
    """How many unflagged tokens there were, and the requests whose times are not in order."""
    good, bad = 0, []
    for request, sample in run.samples[name]:
        if not sample or sample["flags"] & ~ignored or not sample["t_tok_ns"]:
            continue
        truth = run.engine[request["id"]]
        in_order = (request["send_ns"] <= sample["t0_first_ns"] <= sample["t0_last_ns"]
                    <= truth["got_ns"] and sample["t0_first_ns"] <= sample["t_hdr_ns"]
                    <= sample["t_tok_ns"] and
                    truth["token_ns"] <= sample["t_tok_ns"] <= request["token_ns"]
                    and sample["t_end_ns"] <= request["end_ns"])
        good += 1
        if not in_order:
            bad.append((request, truth, sample))
    return good, bad


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def errors_us(run):
    """The probe's TTFT and E2E minus the client's, and how long after the engine's write it saw the
    token, in microseconds."""
    ttft, e2e, late = [], [], []
    for request, sample in run.samples["library"]:
        if not sample or sample["flags"] & ~RETX or not sample["t_tok_ns"]:
            continue
        began, asked = sample["t0_first_ns"], request["send_ns"]
        ttft.append((sample["t_tok_ns"] - began - request["token_ns"] + asked) / 1e3)
        e2e.append((sample["t_end_ns"] - began - request["end_ns"] + asked) / 1e3)
        late.append((sample["t_tok_ns"] - run.engine[request["id"]]["token_ns"]) / 1e3)
    return {"TTFT": ttft, "E2E": e2e, "token after the write": late}


# ---- what it costs ----

Load = collections.namedtuple("Load", "rate cpu_us told")  # of one run at saturation


def cpu_s(pid):
    """Seconds that the process has run, and the system for it."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family(pid):
    """The process and its children."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [pid, *map(int, file.read().split())]


def loaded():
    """The probe's programs, this one's and others', by their numbers."""
    done = subprocess.run([need("bpftool"), "-j", "prog", "show"], capture_output=True, check=False)
    return {p["id"]: p for p in json.loads(done.stdout or b"[]")
            if p.get("name", "").startswith("turnward_")}


def service(t, group, url):
    """The daemon as users run it: it publishes, and writes no samples."""
    process = t.start("turnward-probe", "--region", t.region, "--cgroup", group, "--require-bpf",
                      "--engine", f"e0={url}")
    eventually(lambda: process.log("attached") or not process.alive, 30, "it attaches or refuses")
    if not process.log("attached"):
        raise Skip("BPF is refused here: " + (process.err or ["no reason given"])[0])
    return process


def load(t, probes, routed=False, requests=1000):
    """Short streams as fast as they go over 16 connections, with the probes that `probes` starts,
    each of (group, url). cpu_us: of a request, in client, router, engine and probes, with the
    interrupts that hit them. told: of each probe its programs, and its last words."""
    url = f"http://127.0.0.1:{t.port()}"
    engine = t.start(os.path.join(LIB, "probe_engine"), "-", url[7:], ready="listening")
    router = t.router(f"e0={url}", args=["--set", "log_level=warn"]) if routed else None
    served = family(router.pid) if router else []
    with cgroup() as group:
        for pid in served:
            with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
                file.write(str(pid))
        started, told = [], []
        for start in probes:
            others = set(loaded())
            started.append(start(group, url))
            told.append({"ids": set(loaded()) - others})
        served += [engine.pid] + [probe.pid for probe in started]
        before = sum(map(cpu_s, served))
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        client = t.start(os.path.join(LIB, "probe_client"), "--conns", 16, "--requests", requests,
                         "--body", 100, "--delay-us", "0:0", "--cgroup", group, "-", "many",
                         router.address if router else url[7:])
        equal(client.wait(100), 0, "the client's exit")
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        took_s = (ended.ru_utime + ended.ru_stime - children.ru_utime - children.ru_stime
                  + sum(map(cpu_s, served)) - before)
        now = loaded()
        for probe, words in zip(started, told):
            words["programs"] = [now[i] for i in sorted(words.pop("ids"))]
            probe.stop(number=signal.SIGINT)
            words.update(probe.log("counted")[-1] if probe.log("counted") else
                         json.loads(probe.out[-1]))
        if router:
            router.stop()
    engine.stop()
    return Load(float(client.out[-1]), took_s * 1e6 / (16 * requests), told)


def pair(t, with_first, routed, requests=1000):
    """Loads without the probe and with it; in turn (off, on, on, off, or the reverse), so that what
    slowly changes meets both alike."""
    runs = {False: [], True: []}
    for probed in (False, True, True, False):
        probed ^= with_first
        starts = [lambda group, url: service(t, group, url)] if probed else []
        runs[probed].append(load(t, starts, routed, requests))

    def both(loads):
        a, b = loads
        return Load(2 / (1 / a.rate + 1 / b.rate), (a.cpu_us + b.cpu_us) / 2, a.told + b.told)
    return both(runs[False]), both(runs[True])


def load_timed(t, libs=(LIB,)):
    """A load while the kernel keeps its programs' run times; of each build's programs on the very
    same packets."""
    switch = "/proc/sys/kernel/bpf_stats_enabled"
    starts = [lambda group, url, n=n, lib=lib: library(t, group, [url], lib=lib,
                                                       path=t.path(f"{n}.samples"))[0]
              for n, lib in enumerate(libs)]
    with open(switch, encoding="ascii") as file:
        before = file.read()
    try:
        with open(switch, "w", encoding="ascii") as file:
            file.write("1")
        return load(t, starts, requests=2000)
    finally:
        with open(switch, "w", encoding="ascii") as file:
            file.write(before)


def run_ns(program):
    """Of one packet."""
    return program.get("run_time_ns", 0) / max(program.get("run_cnt", 0), 1)
