"""A whole small world for end-to-end cases: modelled engines, agents, a router and a storm of
clients."""
import json
import os
import random

from harness import *  # noqa: F401,F403
from harness import Failed, PROGRAMS, ask, check, contains, equal, eventually

PROGRAMS["storm"] = "tests/lib/storm"
MODEL = "m"


def engine_at(t, port, *args):
    """A modelled engine on that port; the process, or None when the port is taken."""
    process = t.start("turnward-engine", "--ports", port, "--model", MODEL, *args)
    eventually(lambda: process.log("listening") or not process.alive, 10, "it listens")
    if not process.log("listening"):
        contains(process.tail(), "Address already in use")
        return None
    process.port, process.address = port, f"127.0.0.1:{port}"
    process.url = f"http://127.0.0.1:{port}"
    return process


def engine_new(t, *args):
    for _ in range(20):
        # Below the ephemeral range: a port that some client left in TIME_WAIT cannot be bound.
        process = engine_at(t, random.randrange(12000, 30000), *args)
        if process:
            return process
    raise Failed("no free port")


def agent_new(t, name, engine, *args):
    return t.start("turnward-agent", "--engine", f"{name}={engine.url}", "--region", t.region,
                   *args)


class World:
    """Engines e0, e1, ... each with its agent, and a router before them."""

    def __init__(self, t, io, engines=4, speed=1000, heads=("vllm",), settings=(), engine_args=(),
                 agents=True):
        self.t = t
        self.engine_args = ["--speed", speed, *engine_args]
        self.heads = [heads[i % len(heads)] for i in range(engines)]
        self.engines = [engine_new(t, "--head", head, *self.engine_args) for head in self.heads]
        self.agents = [agent_new(t, f"e{i}", e)
                       for i, e in enumerate(self.engines)] if agents else []
        pairs = [word for setting in settings for word in ("--set", setting)]
        self.router = t.router(*[f"e{i}={e.url}" for i, e in enumerate(self.engines)],
                               args=("--io", io, *pairs))
        eventually(lambda: self.metric("agent_attached") == len(self.agents), 10,
                   "every agent is seen")
        eventually(lambda: self.metric("engine_models_known") == engines, 10, "models are known")

    def again(self, index):
        """The engine of that index once more, on its old port."""
        old = self.engines[index]
        self.engines[index] = eventually(
            lambda: engine_at(self.t, old.port, "--head", self.heads[index], *self.engine_args),
            10, "the port is free again")
        return self.engines[index]

    def metrics(self):
        """Every sample of the router's page: name with labels -> value."""
        page = ask(self.router.admin, "GET", "/metrics").body.decode()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
                for line in page.split("\n") if line.startswith("turnward_")}

    def metric(self, name, **labels):
        """The sum over the samples of that name with these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(value for key, value in self.metrics().items()
                   if key.split("{")[0] == "turnward_" + name and all(w in key for w in wanted))

    def status(self):
        return json.loads(self.t.run("turnward", "status", "--region", self.t.region,
                                     "--json").out)

    def engine_status(self, index):
        return next(e for e in self.status()["engines"] if e["name"] == f"e{index}")

    def worker(self):
        """The worker's pid, or None while there is none."""
        path = f"/proc/{self.router.pid}/task/{self.router.pid}/children"
        with open(path, encoding="ascii") as file:
            children = file.read().split()
        return int(children[0]) if children else None

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.worker()}/fd"))

    def storm(self, *args):
        """Starts clients; wait for them with `told`."""
        return self.t.start("storm", "--address", self.router.address, "--model", MODEL, *args)

    def told(self, storm, seconds=100):
        equal(storm.wait(seconds), 0, "the storm's exit")
        return json.loads(storm.out[-1])


def running_at(engine):
    """Requests that run or wait on a modelled engine, by its own account."""
    page = ask(engine.address, "GET", "/metrics").body.decode()
    total = 0.0
    for line in page.split("\n"):
        name = line.split("{")[0].split(" ")[0]
        if name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                    "sglang:num_running_reqs", "sglang:num_queue_reqs",
                    "llamacpp:requests_processing", "llamacpp:requests_deferred"):
            total += float(line.rsplit(" ", 1)[1])
    return total


def conserved(world):
    """Started = completed + failed + aborted, now that nothing is in flight."""
    told = world.metrics()
    equal(told["turnward_requests_started_total"],
          sum(told[f"turnward_requests_{end}_total"] for end in ("completed", "failed", "aborted")),
          "requests started")


def at_rest(world, descriptors=None):
    """Nothing is left of what was: books, pools, descriptors, and the engines' own work."""
    def books():
        told = world.metrics()
        return sum(value for key, value in told.items() if key.split("{")[0] in (
            "turnward_requests_inflight", "turnward_engine_inflight_requests",
            "turnward_engine_waiting_requests", "turnward_engine_pending_prefill_tokens",
            "turnward_engine_decoding_sequences", "turnward_engine_links")) == 0
    eventually(books, 15, "the books are empty")
    conserved(world)
    told = world.metrics()
    pools = {pool: told[f'turnward_memory_blocks{{pool="{pool}"}}']
             for pool in ("bodies", "heads", "outs", "exchanges", "scans", "routes", "asked")}
    # The question itself is an exchange and its head.
    equal(pools, {"bodies": 0, "heads": 1, "outs": 0, "exchanges": 1, "scans": 0, "routes": 0,
                  "asked": 0}, "blocks in use")
    for engine in world.engines:
        eventually(lambda e=engine: running_at(e) == 0, 15, f"{engine.address} has nothing to do")

    def ledgers():
        books = [e["ledger"] for e in world.status()["engines"]]
        return all(book["dispatched_total"] == book["finished_total"] and not any(
            book[name] for name in ("waiting_requests", "waiting_tokens", "decoding",
                                    "decode_context_tokens", "staged_rest_tokens", "pieces",
                                    "cold_prompts", "held", "held_tokens")) for book in books)
    eventually(ledgers, 10, "the ledgers in the region are empty", pause=0.2)
    if descriptors is not None:
        eventually(lambda: world.descriptors() <= descriptors, 10, "descriptors are given back")


def clean(told, allowed=()):
    """A storm's sums without cross-talk and without errors but the allowed kinds."""
    equal(told["cross_talk"], 0, "cross_talk")
    strange = {kind: n for kind, n in told["errors"].items() if kind not in allowed}
    check(not strange, f"errors: {told}")
    equal(told["sent"], told["completed"] + told["aborted"] + sum(told["errors"].values()), "sent")
