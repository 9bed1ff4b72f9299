"""Starts real engines for end-to-end cases, and asks them and the agents beside them what they see.

Without the packages that tests/setup installs, a case is skipped and says so.
"""
import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403
from harness import BUILD, ROOT, Process, Test  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.path.join(ROOT, ".venv", "bin", "python")
CLIENTS = os.path.join(HERE, "clients.py")
START_SECONDS = 900  # each of an engine's three processes imports a gigabyte of packages
MODEL = "tiny"
KINDS = ("vllm", "sglang", "llamacpp")
CHAT = "/v1/chat/completions"
PROSE = ("Turnward sends every turn of a session toward the engine where that turn will answer "
         "first. ")
_imports = {}


def need(*modules):
    """Skips the case unless the project's own Python has these modules."""
    for module in modules:
        if module not in _imports:
            _imports[module] = os.path.exists(PYTHON) and subprocess.run(
                [PYTHON, "-c", f"import {module}"], capture_output=True, check=False
            ).returncode == 0
        if not _imports[module]:
            raise Skip(f"no Python package {module} in .venv: tests/setup installs it")


def model_folder(wide=False):
    """The tiny model, or the one whose prefill takes its time; made on first use."""
    folder = os.path.join(BUILD, "tests", "wide-model" if wide else "tiny-model")
    maker = os.path.join(HERE, "tiny_model.py")
    made = os.path.join(folder, "tiny.gguf")
    if not os.path.exists(made) or os.path.getmtime(made) < os.path.getmtime(maker):
        need("numpy", "tokenizers", "safetensors", "gguf")
        subprocess.run([PYTHON, maker, folder, *["--wide"] * wide], check=True,
                       capture_output=True)
    return folder


def llamacpp(t, *options, port=None, wide=False):
    """A llama.cpp server; the process with .port, .address and .url."""
    need("xllamacpp")
    port = port or t.port()
    process = t.start(PYTHON, os.path.join(HERE, "llamacpp_server.py"),
                      os.path.join(model_folder(wide), "tiny.gguf"), port, *options,
                      ready=lambda: up(f"127.0.0.1:{port}"), seconds=60)
    process.port, process.address = port, f"127.0.0.1:{port}"
    process.url = f"http://{process.address}"
    return process


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Running:
    """A vLLM or SGLang that listens; it outlives a case."""

    def __init__(self, url, process=None):
        self.url = url.rstrip("/")
        self.address = self.url.split("//")[-1]
        self.process = process

    def __str__(self):
        return f"ready at {self.url}"

    def children(self, name):
        """Pids of its processes by the name they have given themselves."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                before, _, after = file.read().rpartition(")")
                # They overwrite their environment, but not their session.
                if after.split()[3] == str(self.process.pid) and name in before:
                    yield int(pid)

    def end(self):
        if self.process.alive:
            self.process.child.terminate()
            with contextlib.suppress(Failed):
                self.process.wait(30)
        for pid in self.children(""):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def started(kind, options, more=None, wide=False):
    """Starts vLLM or SGLang by tests/real/start and waits until it is ready."""
    folder, port = model_folder(wide), free_port()
    argv = [os.path.join(HERE, "start"), kind, str(port), folder, *map(str, options)]
    process = Process(kind, ["nice", "-n", "5", *argv], Test.environment(more))
    engine = Running(f"http://127.0.0.1:{port}", process)
    path = "/health" if kind == "vllm" else "/v1/models"
    begun = time.monotonic()
    while not up(engine.address, path):
        late = time.monotonic() - begun > START_SECONDS
        if not process.alive or late:
            engine.end()
            if process.child.returncode == 77:
                raise Skip(" ".join(process.err[-1:]))
            raise Failed(f"{kind} did not start: {process.tail(15)}")
        time.sleep(1)
    return engine


class Fleet:
    """Engines that take minutes to start: each once, when a case first asks for it.
    TEST_REAL_VLLM=URL and TEST_REAL_SGLANG=URL name running ones to use instead."""

    def __init__(self, options, environment=None):
        self.options, self.environment, self.engines = options, environment, {}

    def begin(self, kind):
        """What cannot be started is not tried again."""
        given = os.environ.get("TEST_REAL_" + kind.upper())
        left = signal.alarm(0)  # these minutes are not the case's
        try:
            engine = (Running(given) if given else
                      started(kind, self.options[kind], self.environment))
            if not given:
                atexit.register(engine.end)
        except (Skip, Failed) as reason:
            engine = reason
        signal.alarm(left)
        print(f"# {kind}: {engine}", flush=True)
        return engine

    def engine(self, t, kind):
        if kind == "llamacpp":
            return llamacpp(t)
        if kind not in self.engines:
            self.engines[kind] = self.begin(kind)
        if isinstance(self.engines[kind], Exception):
            raise self.engines[kind]
        return self.engines[kind]


def up(address, path="/health"):
    try:
        return ask(address, "GET", path, seconds=10).status == 200
    except (OSError, Failed):
        return False


def agent(t, name, url, *options):
    return t.start("turnward-agent", "--engine", f"{name}={url}", "--region", t.region, *options)


def router(t, io, engines, *settings, place=None):
    """A router over engines by name, with debug headers; settings as KEY=VALUE. The case's first
    has the agents' region; others have their own unless told a place."""
    given = [word for s in ("debug_headers=on",) + settings for word in ("--set", s)]
    t.routers = getattr(t, "routers", 0) + 1
    place = place or (t.region if t.routers == 1 else t.path(f"region{t.routers}"))
    process = t.router(*(f"{name}={engine.url}" for name, engine in engines.items()),
                       args=("--io", io, *given, "--region", place))
    process.admin = f"unix:{place}/admin.sock"
    return process


def on_each_engine(function, kinds=KINDS):
    """A case of each kind that needs real engines: it takes the kind's name."""
    for kind in kinds:
        def on_one(t, kind=kind):
            function(t, kind)
        on_one.__name__ = f"{function.__name__}_on_{kind}"
        real(on_one)
    return function


def metric_of(engine, name):
    """The sum of all samples of that name on an engine's own page."""
    page = ask(engine.address, "GET", "/metrics").body.decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.split("\n")
               if line.startswith((f"{name} ", f"{name}{{")))


def seen(t, name):
    """What an engine's agent has published, as `turnward status` tells it; {} before it has."""
    done = t.run("turnward", "status", "--region", t.region, "--json")
    engines = json.loads(done.out)["engines"] if done.out.startswith("{") else []
    return next((e["agent"] or {} for e in engines if e["name"] == name), {})


def until(t, name, condition, text, seconds=10):
    """Waits until what the agent has published meets the condition, and returns it."""
    def look():
        now = seen(t, name)
        return now if now and condition(now) else None
    return eventually(look, seconds, f"the agent of {name}: {text}", pause=0.05)


JSON = {"Content-Type": "application/json"}  # vLLM takes nothing else


def post(address, path, body, fields=None, seconds=30):
    """One request with a JSON body on a connection of its own; the whole response."""
    return ask(address, "POST", path, body, {**JSON, **(fields or {})}, seconds)


def slots(engine):
    return ask(engine.address, "GET", "/slots").json()


def user(text):
    return {"role": "user", "content": text}


def greedy(*messages, tokens=8, **more):
    """The body of a chat request whose answer is the same every time and everywhere."""
    return {"model": MODEL, "messages": list(messages), "max_tokens": tokens, "temperature": 0,
            **more}


def said(answer):
    """The text of a chat answer, streamed or not."""
    if "event-stream" not in (answer.get("content-type") or ""):
        return answer.json()["choices"][0]["message"]["content"]
    events = [json.loads(e) for e in answer.events if e != "[DONE]"]
    return "".join((c.get("delta") or {}).get("content") or ""
                   for e in events for c in e.get("choices", ()))


def usage(answer):
    """Of an answer, streamed or not; None where there is none."""
    if "event-stream" not in (answer.get("content-type") or ""):
        return answer.json().get("usage")
    found = [json.loads(e).get("usage") for e in answer.events if e != "[DONE]"]
    return next((u for u in reversed(found) if u), None)


def cached(answer):
    """Prompt tokens that the engine says it did not have to compute."""
    details = (usage(answer) or {}).get("prompt_tokens_details") or {}
    return details.get("cached_tokens") or 0


def untouched(kind, engine, body):
    """The body as one of which the engine has nothing cached, whatever it was sent before."""
    if kind == "sglang":
        equal(post(engine.address, "/flush_cache", {}).status, 200, "flushing its cache")
    return dict(body, **{"vllm": {"cache_salt": "another"}, "llamacpp": {"cache_prompt": False}}
                .get(kind, {}))


def together(*calls):
    """Runs the calls at once, each in a thread; their results, or the first one's failure."""
    results = [None] * len(calls)

    def run(at):
        try:
            results[at] = (True, calls[at]())
        except Exception as failure:  # pylint: disable=broad-except
            results[at] = (False, failure)
    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for good, value in results:
        if not good:
            raise value
    return [value for _, value in results]


def metric(router, name):
    """The sum of all samples of that name; labels may be part of it."""
    page = ask(router.admin, "GET", "/metrics").body.decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.split("\n")
               if line.startswith((f"turnward_{name} ", f"turnward_{name}{{")))


def settled(router):
    """Waits until nothing is in flight, then holds the counts to their sum."""
    eventually(lambda: metric(router, "requests_inflight") == 0 and
               metric(router, "engine_inflight_requests") == 0, 10, "nothing is in flight")
    equal(metric(router, "requests_started_total"),
          metric(router, "requests_completed_total") + metric(router, "requests_failed_total") +
          metric(router, "requests_aborted_total"), "started")


def on_both_loops(function):
    for io in ("uring", "epoll"):
        def on_one(t, io=io):
            function(t, io)
        on_one.__name__ = f"{function.__name__}_on_{io}"
        case(on_one)
    return function
