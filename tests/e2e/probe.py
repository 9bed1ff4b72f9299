#!/usr/bin/env python3
"""The probe's kernel side against truth: an engine that stamps its writes and a client that stamps
what it sends and gets (tests/lib/probe_engine, probe_client), over every shape of answer."""
import contextlib
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403
from harness import BUILD, PATIENCE, ROOT, Process  # noqa: E402

LIB = os.path.join(BUILD, "tests", "lib")
ENGINES = 4  # ports that the engine listens on
LAZY, ABORT, TRUNC, GAP, RETX, EARLY, NONSTREAM, ECHO, CAPPED, ERROR = (1 << n for n in range(10))

# Shape -> flags that its samples have, and whether a first token is seen. None: no sample at all.
STREAMS = ("role", "early", "glued", "coalesced", "split", "pings", "reasoning", "tools", "spaced",
           "completions", "responses", "messages", "unframed", "interim")
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


def library(t, group, urls, *args):
    """probe_samples, attached; skips where BPF is refused."""
    path = t.path("library.samples")
    process = t.start(os.path.join(LIB, "probe_samples"), "--cgroup", group, "--samples", path,
                      *args, *urls)
    eventually(lambda: process.err or not process.alive, 30, "it attaches or refuses")
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


# ---- judgements ----

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


def brackets_hold(run, least, name="library"):
    good, bad = brackets(run, name)
    check(not bad, f"{name}: {len(bad)} of {good} are not in order, such as {bad[:1]}")
    check(good >= least, f"{name}: only {good} unflagged tokens of {len(run.client)} requests")


def counts_hold(run, name="library"):
    for request, sample in run.samples[name]:
        if OUTCOMES[request["shape"]] is None:
            continue
        check(sample, f"{name} missed {request}")
        equal(sample["tx_bytes"], request["tx"], f"bytes sent of {request}")
        if request["end"] != "left":
            equal(sample["rx_bytes"], request["rx"], f"bytes received of {request}")
            equal(sample["status"], request["status"], f"status of {request}")


def outcomes_hold(run, name="library"):
    for request, sample in run.samples[name]:
        wanted = OUTCOMES[request["shape"]]
        if wanted is None:
            check(not sample, f"{name} counted {request}: {sample}")
            continue
        flags, token = wanted
        equal((sample["flags"] & ~RETX, sample["t_tok_ns"] > 0), (flags, token),
              f"{name}, outcome of {request}: {sample}")


RUNS = {}


def the_run(t, uring, host):
    """One of the four big runs; made once, judged by several cases."""
    if host == "::1":
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
            host = "::1"
    key = uring, host
    if key not in RUNS:
        RUNS[key] = play(t, tuple(OUTCOMES), host, uring, requests=len(OUTCOMES) + 3,
                         with_daemon=True, seed=1 + uring + 2 * (host == "::1"))
    return RUNS[key]


def big_runs(t):
    return [the_run(t, uring, host) for uring in (False, True) for host in ("127.0.0.1", "::1")]


# ---- claims ----

@case
def first_tokens_lie_between_the_engines_write_and_the_clients_receipt(t):
    runs = big_runs(t)
    check(sum(len(run.client) for run in runs) >= 1000, "not 1,000 requests")
    for run in runs:
        for name in ("library", "daemon"):
            brackets_hold(run, len(run.client) // 2, name)


@case
def every_request_is_matched_and_every_byte_counted(t):
    for run in big_runs(t):
        for name in ("library", "daemon"):
            counts_hold(run, name)
        equal(run.counters["drops"], 0, "records dropped")
        equal(run.counters["gaps"], 0, "gaps without loss")


@case
def errors_documents_aborts_and_our_own_requests_give_no_first_token(t):
    for run in big_runs(t):
        for name in ("library", "daemon"):
            outcomes_hold(run, name)
        told = run.counters
        own = [r for r in run.client if r["shape"] == "internal"]
        equal(told["internal"], len(own), "requests marked as internal")
        equal(told["requests"], sum(OUTCOMES[r["shape"]] is not None for r in run.client),
              "requests counted")


@case
def the_rule_of_the_first_event_fails_where_the_role_comes_early(t):
    run = play(t, ("early",), requests=6, probe_args=["--first-event"])
    good, bad = brackets(run)
    check(good == len(run.client) and len(bad) == good,
          f"{len(bad)} of {good} not in order: the test could not tell a wrong rule")


@case
def the_object_for_older_kernels_holds_the_same(t):
    run = play(t, tuple(OUTCOMES), "::1", requests=len(OUTCOMES), probe_args=["--bounded"])
    brackets_hold(run, len(run.client) // 2)
    counts_hold(run)
    outcomes_hold(run)


@contextlib.contextmanager
def namespace():
    """An engine's network of its own, joined to ours by a pair of interfaces."""
    ip, name = need("ip"), f"tw{os.getpid() % 100000}"
    sudo(ip, "netns", "add", name, why="no network namespace can be made here")
    try:
        sudo(ip, "link", "add", f"{name}h", "type", "veth", "peer", "name", f"{name}e", "netns",
             name, why="no veth here")
        sudo(ip, "addr", "add", "10.231.77.1/24", "dev", f"{name}h")
        sudo(ip, "link", "set", f"{name}h", "up")
        for words in (("addr", "add", "10.231.77.2/24", "dev", f"{name}e"),
                      ("link", "set", f"{name}e", "up"), ("link", "set", "lo", "up")):
            sudo(ip, "-n", name, *words)
        yield name, f"{name}h"
    finally:
        subprocess.run([ip, "netns", "del", name], check=False)


def within(name):
    return ["nsenter", f"--net=/run/netns/{name}"]


@case
def an_engine_in_a_network_namespace_is_seen_alike(t):
    with namespace() as (name, _):
        run = play(t, tuple(OUTCOMES), "10.231.77.2", requests=len(OUTCOMES), inside=within(name))
    brackets_hold(run, len(run.client) // 2)
    counts_hold(run)
    outcomes_hold(run)


@case
def an_engine_behind_address_translation_is_seen_alike(t):
    nft, table = need("nft"), f"turnward_test_{os.getpid()}"
    with namespace() as (name, _):
        with contextlib.ExitStack() as stack:
            rules = (f"add table ip {table}\n"
                     f"add chain ip {table} out {{ type nat hook output priority -100; }}\n"
                     f"add rule ip {table} out ip daddr 10.231.78.2 dnat to 10.231.77.2\n")
            sudo(nft, rules, why="no address translation here")
            stack.callback(subprocess.run, [nft, f"delete table ip {table}"], check=False)
            run = play(t, STREAMS, "10.231.78.2", requests=len(STREAMS), inside=within(name),
                       listen=lambda ports: [f"10.231.77.2:{p}" for p in ports])
    brackets_hold(run, len(run.client) // 2)
    counts_hold(run)


@case
def with_three_percent_lost_no_unflagged_token_is_out_of_order(t):
    dropper = os.path.join(LIB, "drop.bpf.o")
    if not os.path.exists(dropper):
        raise Skip("this build has no BPF")
    with namespace() as (name, interface):
        sudo(need("ip"), "link", "set", "dev", interface, "xdpgeneric", "obj", dropper, "sec",
             "xdp", why="packets cannot be dropped here")
        run = play(t, STREAMS, "10.231.77.2", requests=len(STREAMS), inside=within(name),
                   body=20000)
    flagged = sum(bool(s and s["flags"] & GAP) for _, s in run.samples["library"])
    print(f"# {flagged} of {len(run.client)} flagged, {run.counters['gaps']} gaps", flush=True)
    good, bad = brackets(run)
    check(run.counters["gaps"] > 0 and flagged > 0, "nothing was lost")
    check(not bad and good > 10, f"{len(bad)} of {good} are not in order, such as {bad[:1]}")


@case
def no_type_information_of_the_kernel_is_needed(t):
    """Where the kernel's is covered, the probe attaches all the same."""
    with cgroup() as group:
        library(t, group, ["http://127.0.0.1:9"])[0].stop(number=signal.SIGINT)
        script = ("mount -t tmpfs none /sys/kernel/btf && test ! -e /sys/kernel/btf/vmlinux && "
                  'exec "$@"')
        process = t.start(need("unshare"), "--mount", "sh", "-c", script, "-",
                          os.path.join(LIB, "probe_samples"), "--cgroup", group, "--samples",
                          t.path("samples"), "http://127.0.0.1:9")
        eventually(lambda: process.err or not process.alive, 30, "it attaches")
        if process.err and process.err[0].startswith(("mount", "unshare")):
            raise Skip("no mount of our own here: " + process.err[0])
        check(process.err and process.err[0].startswith("attached"), f"{process.err}")
        equal(process.stop(number=signal.SIGINT), 0, "its exit")


@case
def no_record_wakes_its_reader(t):
    found = 0
    for name in os.listdir(os.path.join(ROOT, "bpf")):
        with open(os.path.join(ROOT, "bpf", name), encoding="utf-8") as file:
            for call in re.findall(r"bpf_ringbuf_(?:submit|output|discard)\([^;]*;", file.read()):
                contains(call, "BPF_RB_NO_WAKEUP", name)
                found += 1
    check(found, "no call was found")


main()
