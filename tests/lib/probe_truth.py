"""Plays every shape of answer between a client and an engine that stamp what they do
(tests/lib/probe_client, probe_engine), with the probe in between, and brings the three together."""
import collections
import contextlib
import glob
import os
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

def cpu_us(pids):
    """Microseconds that these processes have run, with the interrupts that hit them."""
    total = 0
    for pid in pids:
        for thread in glob.glob(f"/proc/{pid}/task/*/schedstat"):
            with contextlib.suppress(OSError), open(thread, encoding="ascii") as file:
                total += int(file.read().split()[0])
    return total / 1e3


def family(pid):
    """The process and its children."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [pid, *map(int, file.read().split())]


def loaded():
    """The probe's programs, this one's and others', by their numbers."""
    done = subprocess.run([need("bpftool"), "-j", "prog", "show"], capture_output=True, check=False)
    return {p["id"]: p for p in json.loads(done.stdout or b"[]")
            if p.get("name", "").startswith("turnward_")}


class Saturated:
    """Short streams as fast as they go over 16 connections, through a router or not; whoever asks
    the engine is in `group`."""

    def __init__(self, t, group, routed=False, requests=10 ** 9):
        self.t, self.group, self.count = t, group, t.path("count")
        self.url = f"http://127.0.0.1:{t.port()}"
        self.engine = t.start(os.path.join(LIB, "probe_engine"), "-", self.url[7:],
                              ready="listening")
        self.served, at = [self.engine.pid], self.url[7:]
        self.started = [self.engine]
        if routed:
            router = t.router(f"e0={self.url}", args=["--set", "log_level=warn"])
            self.started.append(router)
            self.served += family(router.pid)
            at = router.address
            for pid in self.served[1:]:
                with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
                    file.write(str(pid))
        self.argv = [os.path.join(LIB, "probe_client"), "--conns", 16, "--requests", requests,
                     "--body", 100, "--delay-us", "0:0", "--cgroup", group, "--count", self.count,
                     "-", "many", at]

    def begin(self):
        client = self.t.start(self.argv[0], *self.argv[1:])
        self.served.append(client.pid)
        return client

    def end(self):
        for process in reversed(self.started):
            process.stop()

    def asked(self):
        with open(self.count, "rb") as file:
            return int.from_bytes(file.read(4), "little")

    def span(self, seconds, *others):
        """Requests a second, and CPU time of one, in all who serve it and in `others`."""
        pids = [*self.served, *others]
        requests, began, used = self.asked(), time.monotonic(), cpu_us(pids)
        time.sleep(seconds)
        requests = self.asked() - requests
        return Load(requests / (time.monotonic() - began), (cpu_us(pids) - used) / requests)


Load = collections.namedtuple("Load", "rate cpu_us")


@contextlib.contextmanager
def watched(group, programs):
    """Programs that are loaded, attached to the cgroup for a while."""
    hooks = [(group, f"cgroup_inet_{way}", "id", str(number)) for name, number in programs.items()
             for way in ["egress" if name == "turnward_sent" else "ingress"]]
    for hook in hooks:
        sudo(need("bpftool"), "cgroup", "attach", *hook, "multi")
    yield
    for hook in hooks:
        sudo(need("bpftool"), "cgroup", "detach", *hook)


def alternated(t, routed, pairs, seconds=0.3):
    """Pairs (without, with) of one load under way, to whose cgroup the programs of a daemon, as
    users run it, are attached every other time; who comes first alternates, too."""
    found = []
    with cgroup() as group:
        load = Saturated(t, group, routed)
        os.mkdir(group + "-empty")
        try:
            others = set(loaded())
            probe = t.start("turnward-probe", "--region", t.region, "--cgroup", group + "-empty",
                            "--require-bpf", "--engine", f"e0={load.url}")
            eventually(lambda: probe.log("attached") or not probe.alive, 30, "it attaches")
            if not probe.log("attached"):
                raise Skip("BPF is refused here: " + (probe.err or ["no reason given"])[0])
            own = {p["name"]: i for i, p in loaded().items() if i not in others}
            client = load.begin()
            time.sleep(1)
            for number in range(pairs):
                pair = {}
                for on in (number % 2 > 0, number % 2 == 0):
                    with watched(group, own) if on else contextlib.nullcontext():
                        time.sleep(0.05)
                        pair[on] = load.span(seconds, *([probe.pid] if on else []))
                found.append((pair[False], pair[True]))
            client.kill()
            load.end()
            equal(probe.stop(), 0, "the probe's exit")
        finally:
            os.rmdir(group + "-empty")
    return found, probe.log("counted")[-1]


def load_timed(t, libs=(LIB,)):
    """A load while the kernel keeps its programs' run times: what each build's library says of the
    very same packets, and its programs."""
    switch = "/proc/sys/kernel/bpf_stats_enabled"
    with open(switch, encoding="ascii") as file:
        before = file.read()
    try:
        with open(switch, "w", encoding="ascii") as file:
            file.write("1")
        with cgroup() as group:
            load, probes = Saturated(t, group, requests=2000), []
            for number, lib in enumerate(libs):
                others = set(loaded())
                probe = library(t, group, [load.url], lib=lib, path=t.path(f"{number}.samples"))[0]
                probes.append((probe, set(loaded()) - others))
            equal(load.begin().wait(100), 0, "the client's exit")
            now, told = loaded(), []
            for probe, ids in probes:
                probe.stop(number=signal.SIGINT)
                told.append(dict(json.loads(probe.out[-1]), programs=[now[i] for i in sorted(ids)]))
            load.end()
        return told
    finally:
        with open(switch, "w", encoding="ascii") as file:
            file.write(before)


def run_ns(program):
    """Of one packet."""
    return program.get("run_time_ns", 0) / max(program.get("run_cnt", 0), 1)
