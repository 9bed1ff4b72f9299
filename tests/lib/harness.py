"""Runs end-to-end cases: starts real programs, plays engines and clients, prints TAP.

A case is a function marked @case that takes one argument, the Test; its name is the claim.
Everything a case starts is ended with it, and only that. A crash or a sanitizer's report in any
child fails the case, whatever the case itself thought. tests/README.md has an example.
"""
import contextlib
import itertools
import json
import os
import queue
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("TEST_BUILD_ROOT", os.path.join(ROOT, "build"))
PROGRAMS = {
    "turnward": "router/ctl/turnward",
    "turnward-router": "router/turnward-router",
    "turnward-agent": "agent/turnward-agent",
    "turnward-probe": "bpf/turnward-probe",
    "turnward-engine": "bench/turnward-engine",
    "turnward-bench": "bench/turnward-bench",
}
OPTIONAL = {"turnward-probe"}  # left out by -Dbpf=disabled
LOOPS = ("uring", "epoll")
CASE_SECONDS = 120
MARK = "TURNWARD_TEST_CHILD"  # in each child's environment
COUNTER = itertools.count()
# Sanitizers make everything slower: deadlines are stretched, never shortened.
PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
REPORT = re.compile(r"(ERROR: (Address|Leak|Thread|Memory)Sanitizer|WARNING: ThreadSanitizer|"
                    r"runtime error: |Assertion .* failed|stack smashing detected|"
                    r"buffer overflow detected|double free|Fatal glibc error|"
                    r"worker \d+ was ended by signal (4|6|7|8|11) )")


class Failed(Exception):
    """The claim does not hold."""


class Skip(Exception):
    """The claim cannot be tested here; the text says why."""


def check(condition, text):
    if not condition:
        raise Failed(text)


def equal(got, wanted, text="value"):
    if got != wanted:
        raise Failed(f"{text}: got {got!r}, wanted {wanted!r}")


def contains(got, wanted, text="text"):
    if wanted not in got:
        raise Failed(f"{text}: {wanted!r} is not in {got!r}")


def eventually(condition, seconds=5, text=None, pause=0.01):
    """Waits until condition() is true and returns its value; else the claim fails."""
    end = time.monotonic() + seconds * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failed(f"not within {seconds * PATIENCE:g} s: {text or condition}")
        time.sleep(pause)


# ---- processes ----

class Process:
    """A child: its output is collected, its end is judged."""

    def __init__(self, name, argv, env, stdin=None, pass_fds=()):
        self.name = name
        self.argv = argv
        self.expected_signals = set()  # deaths that the case itself caused or wants
        self.out, self.err = [], []    # lines without their ends
        self.started = time.monotonic()
        self.mark = f"{os.getpid()}-{next(COUNTER)}"
        env = dict(env, **{MARK: self.mark})
        self.child = subprocess.Popen(argv, env=env, stdin=stdin or subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      pass_fds=pass_fds, start_new_session=True)
        self.pid = self.child.pid
        self._threads = [self._collect(self.child.stdout, self.out),
                         self._collect(self.child.stderr, self.err)]

    @staticmethod
    def _collect(pipe, lines):
        def run():
            for line in pipe:
                lines.append(line.decode("utf-8", "replace").rstrip("\n"))
            pipe.close()
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    @property
    def alive(self):
        return self.child.poll() is None

    def log(self, ev=None, **fields):
        """Log lines so far, as dicts; of one event and with these fields if given."""
        found = []
        for line in list(self.err):
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and (ev is None or entry.get("ev") == ev) and all(
                        entry.get(k) == v for k, v in fields.items()):
                    found.append(entry)
        return found

    def wait_log(self, ev=None, seconds=5, **fields):
        return eventually(lambda: self.log(ev, **fields) or not self._expect_alive(), seconds,
                          f"{self.name} logs {ev} {fields}")[-1]

    def _expect_alive(self):
        if not self.alive:
            raise Failed(f"{self.name} ended with {self.child.returncode}\n" + self.tail())
        return True

    def wait_line(self, text, seconds=5):
        """Waits for a line on stdout or stderr that contains the text."""
        def found():
            lines = [l for l in list(self.err) + list(self.out) if text in l]
            return lines or not self._expect_alive()
        return eventually(found, seconds, f"{self.name} says {text!r}")[-1]

    def send_signal(self, number):
        if number in (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV):
            self.expected_signals.add(number)
        self.child.send_signal(number)

    def wait(self, seconds=10):
        """The exit status, negative for a signal, as subprocess has it."""
        try:
            code = self.child.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end within {seconds * PATIENCE:g} s") from None
        for thread in self._threads:
            thread.join(2)
        return code

    def stop(self, seconds=10, number=signal.SIGTERM):
        if self.alive:
            self.expected_signals.add(number)
            self.child.send_signal(number)
        return self.wait(seconds)

    def kill(self):
        if self.alive:
            self.send_signal(signal.SIGKILL)
        return self.wait()

    def family(self):
        """Pids of the child and all it has begun, known by the mark that they inherit."""
        mark, found = f"{MARK}={self.mark}".encode(), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                if mark in file.read().split(b"\0") and int(pid) != os.getpid():
                    found.append(int(pid))
        return found

    def kill_orphans(self):
        """Ends what the child left behind."""
        for pid in self.family():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def judge(self):
        """Raises if the child crashed or a sanitizer reported."""
        for line in self.err + self.out:
            if REPORT.search(line):
                raise Failed(f"{self.name} reported: {line}")
        code = self.child.poll()
        if code is not None and code < 0 and -code not in self.expected_signals:
            raise Failed(f"{self.name} died of {signal.Signals(-code).name}")

    def tail(self, lines=40):
        return "\n".join(f"{self.name}: {l}" for l in (self.out[-lines:] + self.err[-lines:]))


class Completed:
    """A program that was run to its end."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def json(self):
        return json.loads(self.out)


# ---- HTTP, spoken by hand so that every byte is the case's own ----

class Message:
    """A request or response as it was on the wire."""

    def __init__(self, start, fields, head):
        self.start, self.fields, self.head = start, fields, head
        self.body = b""
        self.complete = False  # its framing ended as announced
        self.times = []        # monotonic time of each piece of the body

    def get(self, name, default=None):
        """The value of the first field of that name."""
        return next((v for n, v in self.fields if n.lower() == name.lower()), default)

    def all(self, name):
        return [v for n, v in self.fields if n.lower() == name.lower()]

    @property
    def status(self):
        return int(self.start.split(" ")[1])

    @property
    def method(self):
        return self.start.split(" ")[0]

    @property
    def target(self):
        return self.start.split(" ")[1]

    def json(self):
        return json.loads(self.body)

    @property
    def events(self):
        """The data of each server-sent event."""
        found = []
        for block in re.split(rb"\r?\n\r?\n", self.body):
            data = [l[5:].lstrip() for l in re.split(rb"\r?\n", block) if l.startswith(b"data:")]
            if data:
                found.append(b"\n".join(data).decode("utf-8", "replace"))
        return found


def parse_head(raw):
    lines = raw.decode("latin-1").split("\r\n")
    fields = []
    for line in lines[1:]:
        if line:
            name, _, value = line.partition(":")
            fields.append((name, value.strip()))
    return Message(lines[0], fields, raw)


class Wire:
    """A connection with a buffer; reads raise Failed when the deadline passes."""

    def __init__(self, sock, seconds=10):
        self.sock = sock
        self.seconds = seconds
        self.buffer = b""
        self.closed = False  # the peer ended it
        self.was_reset = False

    def send(self, data):
        self.sock.settimeout(self.seconds * PATIENCE)
        self.sock.sendall(data if isinstance(data, bytes) else data.encode())

    def more(self, seconds=None):
        """Reads once into the buffer; False at the end or after a reset."""
        if self.closed:
            return False
        self.sock.settimeout((seconds or self.seconds) * PATIENCE)
        try:
            piece = self.sock.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            piece, self.was_reset = b"", True
        except socket.timeout:
            raise Failed(f"nothing came within {(seconds or self.seconds) * PATIENCE:g} s; "
                         f"the buffer holds {self.buffer[:200]!r}") from None
        self.closed = not piece
        self.buffer += piece
        return bool(piece)

    def read_until(self, mark):
        while mark not in self.buffer:
            if not self.more():
                return None
        part, self.buffer = self.buffer.split(mark, 1)
        return part + mark

    def read_exactly(self, count, message=None):
        pieces, have = [], 0  # joined once: a long body must not be copied for each read
        while have + len(self.buffer) < count:
            pieces.append(self.buffer)
            have += len(self.buffer)
            self.buffer = b""
            if not self.more():
                break
        pieces.append(self.buffer[:count - have])
        part, self.buffer = b"".join(pieces), self.buffer[count - have:]
        if message is not None:
            message.body += part
            message.times.append(time.monotonic())
        return part

    def read_head(self):
        """The next message without its body, or None when the peer has ended."""
        raw = self.read_until(b"\r\n\r\n")
        return parse_head(raw) if raw else None

    def read_chunk(self, message):
        """One chunk into the body; False after the last one or when cut."""
        line = self.read_until(b"\r\n")
        if line is None:
            return False
        size = int(line.split(b";")[0], 16)
        if size == 0:
            while True:
                trailer = self.read_until(b"\r\n")
                if trailer in (None, b"\r\n"):
                    break
            message.complete = trailer is not None
            return False
        if len(self.read_exactly(size, message)) < size:
            return False
        return self.read_until(b"\r\n") is not None

    def read_body(self, message, to_end=False):
        length = message.get("content-length")
        if "chunked" in (message.get("transfer-encoding") or "").lower():
            while self.read_chunk(message):
                pass
        elif length is not None:
            self.read_exactly(int(length), message)
            message.complete = len(message.body) == int(length)
        elif to_end:
            while self.more():
                pass
            message.body, self.buffer = self.buffer, b""
            message.complete = not self.was_reset
        else:
            message.complete = True
        return message

    def read_response(self, method="POST"):
        """A whole response; 1xx ones before it are passed over."""
        message = self.read_head()
        while message and message.status < 200:
            message = self.read_head()
        if message is None:
            raise Failed("the connection ended before a response")
        bodiless = method == "HEAD" or message.status in (204, 304)
        if not bodiless:
            self.read_body(message, to_end=True)
        return message

    def read_request(self):
        message = self.read_head()
        if message:
            self.read_body(message)
        return message

    def half_close(self):
        self.sock.shutdown(socket.SHUT_WR)

    def close(self):
        self.sock.close()

    def reset(self):
        """Closes so that the peer gets a RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def wait_closed(self, seconds=5):
        """Waits for the peer's end; returns how long that took."""
        start = time.monotonic()
        while self.more(seconds):
            pass
        return time.monotonic() - start


def dial(address, seconds=10):
    """Connects to (host, port), "host:port" or "unix:PATH"."""
    if isinstance(address, str) and address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(seconds * PATIENCE)
        sock.connect(address[5:])
        return Wire(sock, seconds)
    if isinstance(address, str):
        host, _, port = address.rpartition(":")
        address = (host.strip("[]"), int(port))
    sock = socket.create_connection(address, seconds * PATIENCE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Wire(sock, seconds)


def dial_narrow(address, seconds=30):
    """A client with little room for what it does not read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    host, _, port = address.rpartition(":")
    sock.connect((host, int(port)))
    return Wire(sock, seconds)


def request_bytes(method, target, body=b"", fields=(), host="turnward.test"):
    if isinstance(body, (dict, list)):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode()
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{n}: {v}" for n, v in (fields.items() if isinstance(fields, dict) else fields)]
    if body or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def ask(address, method, target, body=b"", fields=(), seconds=10):
    """One request on a connection of its own; the whole response."""
    wire = dial(address, seconds)
    try:
        wire.send(request_bytes(method, target, body, fields))
        return wire.read_response(method)
    finally:
        wire.close()


# ---- an engine made of bytes ----

def response_bytes(status, body=b"", fields=(), reason="X"):
    if isinstance(body, (dict, list)):
        body = json.dumps(body)
        fields = list(fields) + [("Content-Type", "application/json")]
    if isinstance(body, str):
        body = body.encode()
    lines = [f"HTTP/1.1 {status} {reason}"] + [f"{n}: {v}" for n, v in fields]
    return ("\r\n".join(lines) + f"\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body


STREAM_HEAD = (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
               b"Transfer-Encoding: chunked\r\n\r\n")


def chunk(data):
    data = data if isinstance(data, bytes) else data.encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(data):
    """A chunk that holds one server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data)
    return chunk(f"data: {text}\n\n")


def token(text="x"):
    """A chunk with one token of a chat answer."""
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


LAST_CHUNK = b"0\r\n\r\n"
DONE = event("[DONE]") + LAST_CHUNK


class FakeEngine:
    """Listens on a port of its own; a script says what each request gets, byte for byte.

    script(wire, request) runs in the connection's thread for every request but those of `answers`;
    returning False closes the connection. Without one, completions get a short answer.
    """

    def __init__(self, script=None, models=("m",), family=socket.AF_INET, path=None):
        self.script = script or self.answer_shortly
        self.answers = {
            "/health": lambda: response_bytes(200),
            "/v1/models": lambda: response_bytes(200, {
                "object": "list", "data": [{"id": m, "object": "model"} for m in models]}),
            "/version": lambda: response_bytes(200, {"version": "0"}),
        }
        self.requests = []     # Messages, in order of arrival
        self.connections = 0
        self.open = set()      # Wires with a request in work or kept alive
        self.errors = queue.Queue()
        self.lock = threading.Lock()
        self.listener = socket.socket(socket.AF_UNIX if path else family)
        if path:
            self.listener.bind(path)
            self.address = self.url = f"unix:{path}"
        else:
            host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.listener.bind((host, 0))
            self.port = self.listener.getsockname()[1]
            shown = f"[{host}]" if ":" in host else host
            self.address = f"{shown}:{self.port}"
            self.url = f"http://{self.address}"
        self.listener.listen(256)
        threading.Thread(target=self._accept, daemon=True).start()

    @staticmethod
    def answer_shortly(wire, request):
        if b'"stream": true' in request.body or b'"stream":true' in request.body:
            wire.send(STREAM_HEAD + token("a") + token("b") + DONE)
        else:
            wire.send(response_bytes(200, {
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "ab"}}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}}))
        return True

    def completions(self):
        """Requests that were not the router's own questions."""
        return [r for r in list(self.requests) if r.target not in self.answers]

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            wire = Wire(sock, 600)
            with self.lock:
                self.connections += 1
                self.open.add(wire)
            threading.Thread(target=self._serve, args=(wire,), daemon=True).start()

    def _serve(self, wire):
        try:
            while True:
                request = wire.read_request()
                if request is None:
                    break
                with self.lock:
                    self.requests.append(request)
                request.wire = wire
                answer = self.answers.get(request.target.split("?")[0])
                if answer and request.method == "GET":
                    wire.send(answer())
                elif self.script(wire, request) is False:
                    break
        except (OSError, ValueError):
            pass  # the peer went away, or the case closed the wire
        except Failed as failure:
            self.errors.put(str(failure))
        finally:
            with self.lock:
                self.open.discard(wire)
            with contextlib.suppress(OSError):
                wire.close()

    def refuse(self):
        """From now on connections are refused; open ones stay."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def die(self):
        """As a killed engine: nothing listens, every connection is reset."""
        self.refuse()
        with self.lock:
            wires = list(self.open)
        for wire in wires:
            with contextlib.suppress(OSError):
                wire.sock.shutdown(socket.SHUT_RDWR)
                wire.reset()


# ---- cases ----

class Test:
    """What a case works with; everything it starts ends with the case."""

    def __init__(self, name):
        self.name = name
        self.dir = tempfile.mkdtemp(prefix="turnward-test-")
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else self.dir
        self.region = tempfile.mkdtemp(prefix="turnward-test-", dir=base)
        os.chmod(self.region, 0o750)
        self.processes, self.engines, self._ports = [], [], set()

    def port(self):
        """A port that was free a moment ago and has not been given out before. None that the
        kernel gives to clients, so that nobody takes it meanwhile."""
        while True:
            port = random.randrange(10000, 30000)
            with contextlib.suppress(OSError), socket.socket() as sock:
                sock.bind(("127.0.0.1", port))
                if port in self._ports:
                    continue
                self._ports.add(port)
                return port

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def write(self, name, text):
        path = self.path(name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    @staticmethod
    def program(name):
        path = os.path.join(BUILD, PROGRAMS.get(name, name))
        if name in PROGRAMS and not os.path.exists(path):
            if name in OPTIONAL:
                raise Skip(f"{name} is not part of this build")
            raise Failed(f"{path} has not been built")
        return path if name in PROGRAMS else name

    @staticmethod
    def environment(more=None):
        env = dict(os.environ, **(more or {}))
        for noise in ("TURNWARD_REGION", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID"):
            if noise not in (more or {}):
                env.pop(noise, None)
        env.setdefault("ASAN_OPTIONS", "abort_on_error=1:detect_leaks=1")
        env.setdefault("UBSAN_OPTIONS", "halt_on_error=1:abort_on_error=1:print_stacktrace=1")
        return env

    def start(self, program, *args, env=None, ready=None, seconds=10, **popen):
        """Starts a program (of PROGRAMS, or a path). `ready`: a text it prints, or a call."""
        argv = [self.program(program)] + [str(a) for a in args]
        process = Process(os.path.basename(program), argv, self.environment(env), **popen)
        self.processes.append(process)
        if callable(ready):
            eventually(lambda: process._expect_alive() and ready(), seconds,
                       f"{process.name} is ready")
        elif ready:
            process.wait_line(ready, seconds)
        return process

    def run(self, program, *args, env=None, seconds=20, code=None, stdin=None):
        """Runs a program to its end; `code` is the exit status it must have."""
        process = self.start(program, *args, env=env, stdin=stdin)
        got = process.wait(seconds)
        done = Completed(got, "\n".join(process.out) + "\n" * bool(process.out),
                         "\n".join(process.err) + "\n" * bool(process.err))
        if code is not None and got != code:
            raise Failed(f"{' '.join(process.argv)} ended with {got}, not {code}\n{process.tail()}")
        return done

    def engine(self, script=None, **how):
        engine = FakeEngine(script, **how)
        self.engines.append(engine)
        return engine

    def router(self, *engines, args=(), seconds=10, env=None, ready=True):
        """A router over these engines (FakeEngines, URLs or NAME=URLs), with region and admin
        socket of the case's own; returns the process with .address and .admin set."""
        port, args = self.port(), list(args)
        region = args[args.index("--region") + 1] if "--region" in args else self.region
        given = []
        for engine in engines:
            given += ["--engine", engine if isinstance(engine, str) else engine.url]
        admin = f"unix:{region}/admin.sock"
        process = self.start("turnward-router", "--listen", f"127.0.0.1:{port}", "--region",
                             region, *given, *args, env=env)
        process.address, process.admin = f"127.0.0.1:{port}", admin
        if ready:
            eventually(lambda: process._expect_alive() and answers(process.address), seconds,
                       "the router answers")
        return process

    def finish(self):
        """Ends and judges everything; returns the first complaint or None."""
        complaint = None
        for process in reversed(self.processes):
            with contextlib.suppress(Failed):
                process.stop(5)
            if process.alive:
                complaint = complaint or f"{process.name} did not end at SIGTERM"
                process.kill()
            process.kill_orphans()
            try:
                process.judge()
            except Failed as failure:
                complaint = complaint or str(failure)
        for engine in self.engines:
            engine.die()
            if not engine.errors.empty() and not complaint:
                complaint = f"engine: {engine.errors.get()}"
        for place in (self.dir, self.region):
            shutil.rmtree(place, ignore_errors=True)
        return complaint


def settings(io, **keys):
    """A router's options: its loop, and keys of the configuration."""
    return ["--io", io] + [w for k, v in keys.items() for w in ("--set", f"{k}={v}")]


def worker_of(router):
    """The pid of the supervisor's worker."""
    with open(f"/proc/{router.pid}/task/{router.pid}/children", encoding="ascii") as file:
        return int(file.read().split()[0])


def metric(router, name):
    """Of the router's page: the sum over all its labels."""
    page = ask(router.admin, "GET", "/metrics").body.decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.split("\n")
               if line.startswith((f"turnward_{name} ", f"turnward_{name}{{")))


IN_WORK = ("requests_inflight", "engine_inflight_requests", 'memory_blocks{pool="bodies"}')


def at_rest(router, *names):
    """Waits until these metrics, or those of a router without requests, are 0; then every request
    is accounted for."""
    eventually(lambda: all(metric(router, name) == 0 for name in names or IN_WORK), 10,
               "nothing is in flight")
    equal(metric(router, "requests_started_total"), sum(
        metric(router, f"requests_{how}_total") for how in ("completed", "failed", "aborted")),
        "started")


def answers(address):
    """True if something at the address answers GET /health with any status."""
    try:
        return ask(address, "GET", "/health", seconds=2).status > 0
    except (OSError, Failed):
        return False


CASES = []


def case(function):
    CASES.append(function)
    return function


def on_both_loops(function):
    """A case of each event loop: it takes the loop's name as `io`."""
    for io in LOOPS:
        def on_one(t, io=io):
            function(t, io)
        on_one.__name__ = f"{function.__name__}_on_{io}"
        case(on_one)


def slow(function):
    """A case for `tests/run --long` only."""
    function.slow = True
    return case(function)


def real(function):
    """A case that needs real engines: `tests/run --real` only."""
    function.real = True
    return case(function)


def _too_long(*_):
    raise Failed(f"the case took more than {CASE_SECONDS * PATIENCE:g} s")


def run_case(function):
    """None when the claim holds, else ("not ok" or "skip", text)."""
    if getattr(function, "slow", False) and not os.environ.get("TEST_LONG"):
        return "skip", "a long test: tests/run --long"
    if getattr(function, "real", False) and not os.environ.get("TEST_REAL"):
        return "skip", "needs real engines: tests/run --real"
    test = Test(function.__name__)
    verdict = None
    signal.alarm(int(CASE_SECONDS * PATIENCE))
    try:
        function(test)
    except Skip as reason:
        verdict = "skip", str(reason)
    except Failed as failure:
        where = traceback.extract_tb(failure.__traceback__)
        lines = [f"{os.path.basename(f.filename)}:{f.lineno}" for f in where[1:]]
        verdict = "not ok", f"{failure} ({' > '.join(lines)})"
    except Exception:  # pylint: disable=broad-except
        verdict = "not ok", traceback.format_exc()
    finally:
        signal.alarm(0)
    complaint = test.finish()
    if complaint and (verdict is None or verdict[0] == "skip"):
        verdict = "not ok", complaint
    if verdict and verdict[0] == "not ok":
        verdict = "not ok", "\n".join([verdict[1]] + [p.tail() for p in test.processes])
    return verdict


def main():
    """Runs the file's cases, or those named on the command line."""
    wanted = [f for f in CASES if len(sys.argv) < 2 or f.__name__ in sys.argv[1:]]
    signal.signal(signal.SIGALRM, _too_long)
    print(f"1..{len(wanted)}", flush=True)
    failed = 0
    for number, function in enumerate(wanted, 1):
        verdict = run_case(function)
        if verdict is None:
            print(f"ok {number} - {function.__name__}", flush=True)
        elif verdict[0] == "skip":
            print(f"ok {number} - {function.__name__} # SKIP {verdict[1]}", flush=True)
        else:
            failed += 1
            print(f"not ok {number} - {function.__name__}")
            for line in verdict[1].split("\n"):
                print(f"# {line}")
            sys.stdout.flush()
    sys.exit(1 if failed else 0)
