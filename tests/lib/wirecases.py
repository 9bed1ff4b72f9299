"""Plays conformance cases, which are data (tests/e2e/http/README.md), against any HTTP proxy.

A request case sends bytes to the proxy and judges what an engine behind it received and what the
client was answered; a response case has the engine send bytes and judges what reached the client.
One proxy, one recording engine, one case at a time; after each case a fence request shows that the
proxy lives and that whatever it forwarded has arrived.
"""
import codecs
import contextlib
import os
import re
import socket
import threading

from harness import Failed, Wire, check, dial, eventually, parse_head, response_bytes

HEALTHY = {"/health": b"", "/version": b'{"version":"0"}', "/metrics": b"", "/load": b"{}",
           "/v1/models": b'{"object":"list","data":[{"id":"m","object":"model"}]}',
           "/v1/loads": b"{}", "/props": b"{}", "/slots": b"[]", "/get_model_info": b"{}",
           "/get_server_info": b"{}", "/server_info": b"{}", "/model_info": b"{}"}
FENCE = "/v1/fence"
PAUSE_S = 0.05  # between pieces that must arrive apart


class Case:
    """One case as its file has it."""

    def __init__(self, name, rfc, where):
        self.name, self.rfc, self.where = name, rfc, where
        self.outcome = []  # alternatives, each a list of words
        self.pieces = []   # bytes, or an action as text
        self.wanted = []   # (key, text)
        self.tags = set()

    def values(self, key):
        return [v for k, v in self.wanted if k == key]

    def value(self, key, default=None):
        return (self.values(key) or [default])[-1]


def unescape(text, macros):
    """Text with macros {NAME}, repetitions {TEXT*N} and Python's escapes, as bytes (latin-1)."""
    def expand(match):
        word = match.group(1)
        if word in macros:
            return macros[word]
        times = re.fullmatch(r"(.+)\*(\d+)", word, re.S)
        if times:
            return times.group(1) * int(times.group(2))
        return match.group(0)
    while True:
        longer = re.sub(r"\{([A-Z_0-9]+|[^{}\n]+\*\d+)\}", expand, text)
        if longer == text:
            break
        text = longer
    return codecs.decode(text.encode("latin-1"), "unicode_escape").encode("latin-1")


def read_cases(path):
    """The cases of one file. Its form is told in tests/e2e/http/README.md."""
    macros, cases, rfc, lines = {}, [], None, []

    def flush():
        for action, text in lines:
            if action == ">":
                cases[-1].pieces.append(unescape(text, macros))
            elif cases[-1].pieces and isinstance(cases[-1].pieces[-1], bytes) and action == "":
                cases[-1].pieces[-1] += unescape(text, macros)
            else:
                cases[-1].pieces.append(unescape(text, macros) if action == "" else text)
        lines.clear()

    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            where = f"{os.path.basename(path)}:{number}"
            if not line.strip() or line.startswith("#"):
                continue
            if line.startswith("=="):
                rfc = line[2:].strip()
            elif re.match(r"[A-Z_0-9]+ = ", line):
                name, _, text = line.partition(" = ")
                macros[name] = text
            elif line.startswith("\t= "):
                key, _, text = line[3:].partition(" ")
                cases[-1].wanted.append((key, text))
            elif line.startswith("\t! "):
                lines.append(("!", line[3:]))
            elif line.startswith("\t> "):
                lines.append((">", line[3:]))
            elif line.startswith("\t"):
                lines.append(("", line[1:]))
            else:
                if cases:
                    flush()
                name, _, outcome = line.partition(":")
                case = Case(name.strip(), rfc, where)
                words, _, tags = outcome.partition("[")
                case.tags = set(tags.rstrip("]").split())
                case.outcome = [w.split() for w in words.split("|")]
                if not rfc or not outcome.strip():
                    raise ValueError(f"{where}: no section or no outcome")
                cases.append(case)
    if cases:
        flush()
    return cases


# ---- the engine ----

class Recorder:
    """An engine that keeps every byte it receives and answers as it is told."""

    def __init__(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(64)
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.lock = threading.Lock()
        self.answer = None  # what the next request that is no question gets: a response case
        self.seen = []      # of this case: (connection number, Message or raw junk)
        self.connections = 0
        self.wires = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.connections += 1
                number = self.connections
                wire = Wire(sock, 600)
                self.wires.add(wire)
            threading.Thread(target=self._serve, args=(wire, number), daemon=True).start()

    def _serve(self, wire, number):
        try:
            while self._one(wire, number):
                pass
        except (OSError, ValueError, Failed):
            pass
        finally:
            with self.lock:
                self.wires.discard(wire)
            wire.close()

    def _one(self, wire, number):
        raw = wire.read_until(b"\r\n\r\n")
        if raw is None:
            if wire.buffer:
                self._note(number, wire.buffer)
            return False
        request = parse_head(raw)
        path = request.start.split(" ")[1].split("?")[0] if " " in request.start else ""
        question = request.start.startswith("GET ") and path in HEALTHY
        if not question:
            self._note(number, request)
        wire.read_body(request)
        if question:
            wire.send(response_bytes(200, HEALTHY[path]))
            return True
        if path == FENCE:
            wire.send(response_bytes(200, b"{}"))
            return True
        with self.lock:
            answer, self.answer = self.answer, None
        if answer is None:
            body = b"" if request.start.startswith("HEAD ") else b"{}"
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                      b"Content-Length: 2\r\n\r\n" + body)
            return True
        return self._play(wire, answer)

    def _note(self, number, what):
        with self.lock:
            self.seen.append((number, what))

    @staticmethod
    def _play(wire, answer):
        """False: the connection ends."""
        for piece in answer:
            if isinstance(piece, bytes):
                if piece:
                    wire.send(piece)
                threading.Event().wait(PAUSE_S if len(answer) > 2 else 0)
            elif piece == "close":
                return False
            elif piece == "half-close":
                wire.half_close()
                with contextlib.suppress(OSError, Failed):
                    wire.wait_closed(60)
                return False
            elif piece == "reset":
                wire.reset()
                return False
            elif piece == "hold":
                with contextlib.suppress(OSError, Failed):
                    wire.wait_closed(60)
                return False
            elif piece == "next":
                return True
            else:
                raise ValueError(piece)
        return True

    def drop_idle(self):
        """Ends every connection, so that the next request comes on a fresh one."""
        with self.lock:
            wires = list(self.wires)
        for wire in wires:
            with contextlib.suppress(OSError):
                wire.sock.shutdown(socket.SHUT_RDWR)
        eventually(lambda: not self.wires, 5, "idle connections end")
        threading.Event().wait(PAUSE_S)

    def clear(self):
        with self.lock:
            self.seen = []
            self.answer = None

    def stop(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            wires = list(self.wires)
        for wire in wires:
            with contextlib.suppress(OSError):
                wire.sock.shutdown(socket.SHUT_RDWR)


# ---- playing ----

class Answer:
    """What the client received."""

    def __init__(self):
        self.messages = []  # whole ones, and the last one as far as it came
        self.interim = []   # statuses of 1xx heads
        self.rest = b""     # what followed the last whole message
        self.closed = False


def read_answers(wire, count, methods, answer):
    """Reads until `count` final answers are whole or the connection ended. The last of the methods
    is that of all further requests."""
    while len(answer.messages) < count:
        head = wire.read_head()
        if head is None:
            answer.rest, answer.closed = wire.buffer, True
            return
        if not re.fullmatch(r"HTTP/1\.[01] \d\d\d( .*)?", head.start):
            raise Failed(f"no status line: {head.start!r}")
        if 100 <= head.status < 200:
            answer.interim.append(head.status)
            continue
        answer.messages.append(head)
        method = methods[min(len(answer.messages), len(methods)) - 1]
        if method == "HEAD" or head.status in (204, 304):
            head.complete = True
        else:
            wire.read_body(head, to_end=True)
            if not head.complete or (head.get("content-length") is None and
                                     head.get("transfer-encoding") is None):
                answer.closed = True
                return


class Stage:
    """A proxy under test and the engine behind it."""

    def __init__(self, address, recorder, strict=True):
        self.address, self.recorder = address, recorder
        self.strict = strict  # else: begun and broken off is as good as not begun, any 4xx as 400
        self.fences = 0

    def fence(self):
        self.fences += 1
        target = f"{FENCE}?n={self.fences}"
        wire = dial(self.address)
        wire.send(f"POST {target} HTTP/1.1\r\nHost: fence\r\nConnection: close\r\n"
                  "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        answer = wire.read_response()
        wire.close()
        if answer.status != 200:
            raise Failed(f"the proxy does not serve the next client: {answer.start}")
        return next((n for n, m in list(self.recorder.seen)
                     if not isinstance(m, bytes) and f" {target} " in m.start), None)

    def forwarded(self):
        return [m for _, m in list(self.recorder.seen)
                if isinstance(m, bytes) or (FENCE not in m.start and
                                            (self.strict or m.complete))]

    def answered(self, statuses, wanted):
        """The first answer is one of wanted ("400/413"), or of that kind where that is enough."""
        if not statuses:
            return False
        found, texts = str(statuses[0]), wanted.split("/")
        return found in texts or (not self.strict and found[0] in "45" and
                                  any(text[0] in "45" for text in texts))

    def play_request(self, case):
        """None, or why the case's outcome did not come true."""
        self.recorder.clear()
        wire = dial(self.address, 5)
        answer = Answer()
        methods = case.value("method", "POST").split()
        count = int(case.value("answers", "1"))
        try:
            for piece in case.pieces:
                with contextlib.suppress(OSError):
                    if piece == "half-close":
                        wire.half_close()
                    elif isinstance(piece, bytes):
                        wire.send(piece)
                        if len(case.pieces) > 1:
                            threading.Event().wait(PAUSE_S)
            read_answers(wire, count, methods, answer)
            refused = case.outcome[0][0] == "refuse"
            ask_again = case.value("then") or (refused and answer.messages and
                                               answer.messages[-1].status >= 400)
            reuse = self._reusable(wire, answer) if ask_again else None
        except Failed as failure:
            return str(failure)
        finally:
            wire.close()
        try:
            self.fence()
        except (Failed, OSError) as failure:
            return f"after it: {failure}"
        complaints = []
        for outcome in case.outcome:
            try:
                self._judge_request(case, outcome, answer, reuse)
                return None
            except Failed as failure:
                complaints.append(str(failure))
        return " or ".join(complaints)

    def play_followed(self, case, share):
        """Another request comes right behind the case's, both cut at that share of their bytes:
        it is served as it is, or not at all. None, or what became of it instead."""
        self.recorder.clear()
        self.fences += 1
        body = b'{"model":"m","n":%d}' % self.fences
        data = b"".join(case.pieces) + (
            b"POST %s HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: %d"
            b"\r\n\r\n%s" % (FENCE.encode(), len(body), body))
        wire, answer = dial(self.address, 5), Answer()
        count = int(case.value("answers", "1"))
        with contextlib.suppress(OSError):
            wire.send(data[:int(share * len(data))])
            threading.Event().wait(0.003)
            wire.send(data[int(share * len(data)):])
        read_answers(wire, count, case.value("method", "POST").split(), answer)
        if not answer.closed:
            read_answers(wire, count + 1, ["POST"], answer)
        wire.close()
        seen = [m.body for _, m in list(self.recorder.seen)
                if not isinstance(m, bytes) and FENCE in m.start]
        served = len(answer.messages) > count and answer.messages[-1].status == 200
        if seen == ([body] if served else []):
            return None
        return f"answered {[m.status for m in answer.messages]}, the engine got {seen}"

    def _reusable(self, wire, answer):
        """The connection takes another request."""
        if answer.closed:
            return False
        try:
            wire.send("POST /v1/fence?again HTTP/1.1\r\nHost: fence\r\n"
                      "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
            return wire.read_response().status == 200
        except (OSError, Failed):
            return False

    def _judge_request(self, case, outcome, answer, reuse):
        forwarded = self.forwarded()
        statuses = [m.status for m in answer.messages]
        kind, words = outcome[0], outcome[1:]
        if kind == "refuse":
            check(not forwarded, f"reached the engine: {summary(forwarded)}")
            check(len(statuses) == 1 and self.answered(statuses, words[0]),
                  f"answered {statuses or 'nothing'}, wanted one of {words[0]}")
            check(answer.messages[0].complete, "the answer is cut")
        elif kind == "drop":  # closed without an answer
            check(not forwarded, f"reached the engine: {summary(forwarded)}")
            check(not statuses and answer.closed, f"answered {statuses}")
        elif kind == "pass":
            wanted = int(case.value("passes", "1"))
            check(len(forwarded) == wanted,
                  f"{len(forwarded)} requests reached the engine, wanted {wanted}: "
                  f"{summary(forwarded)}; the client was answered {statuses}")
            check(not any(isinstance(m, bytes) for m in forwarded), "junk reached the engine")
            check(statuses[:wanted] == [200] * wanted, f"answered {statuses}")
            check(all(m.complete for m in answer.messages), "an answer is cut")
            self._judge_forwarded(case, forwarded)
            if len(words) and words[0] == "then":
                check(statuses[wanted:] and str(statuses[wanted]) in words[1].split("/"),
                      f"then answered {statuses[wanted:]}, wanted {words[1]}")
        elif kind == "own":  # the proxy's own answer
            check(not forwarded, f"reached the engine: {summary(forwarded)}")
            check(self.answered(statuses, words[0]), f"answered {statuses}")
        else:
            raise ValueError(outcome)
        for status in case.values("interim"):
            check(int(status) in answer.interim, f"no {status} came first: {answer.interim}")
        if case.value("no-interim") is not None:
            check(not answer.interim, f"came first: {answer.interim}")
        wanted = case.value("then") or ("closed" if kind == "refuse" else None)
        if reuse is not None and wanted:
            check(reuse == (wanted == "open"),
                  f"the connection is {'open' if reuse else 'closed'} after it")

    @staticmethod
    def _judge_forwarded(case, forwarded):
        first = forwarded[0]
        for text in case.values("target"):
            check(first.target == text, f"target {first.target!r}, wanted {text!r}")
        for text in case.values("method-is"):
            check(first.method == text, f"method {first.method!r}, wanted {text!r}")
        for text in case.values("body"):
            wanted = unescape(text, {})
            check(first.body == wanted, f"body {first.body[:80]!r}, wanted {wanted[:80]!r}")
        for text in case.values("length"):
            check(len(first.body) == int(text), f"a body of {len(first.body)}, wanted {text}")
        for text in case.values("has"):
            name, _, value = text.partition(": ")
            wanted = unescape(value, {}).decode("latin-1")
            check(wanted in first.all(name), f"{name}: {first.all(name)}, wanted {wanted!r}")
        for text in case.values("lacks"):
            check(not first.all(text), f"the engine got {text}: {first.all(text)}")
        for text in case.values("once"):
            check(len(first.all(text)) == 1, f"{text} came {len(first.all(text))} times")
        for m in forwarded:
            lengths, codings = m.all("content-length"), m.all("transfer-encoding")
            check(len(lengths) + len(codings) <= 1, f"two framings: {lengths} {codings}")
            check(m.start.endswith(" HTTP/1.1"), f"spoke {m.start!r} to the engine")

    def play_response(self, case):
        self.recorder.clear()
        if case.value("fresh") is not None:
            self.recorder.drop_idle()
        self.recorder.answer = case.pieces
        wire = dial(self.address, 8)
        answer, failure = Answer(), None
        kind = case.value("request", "plain")
        method = kind if kind in ("HEAD", "GET") else "POST"
        try:
            wire.send(asks(kind))
            read_answers(wire, 1, [method], answer)
            reuse = self._reusable(wire, answer) if case.value("then") else None
        except Failed as complaint:
            failure = str(complaint)
        finally:
            wire.close()
        if failure:
            return failure
        seen = [n for n, m in list(self.recorder.seen)
                if isinstance(m, bytes) or FENCE not in m.start]
        try:
            again = self.fence()
        except (Failed, OSError) as complaint:
            return f"after it: {complaint}"
        complaints = []
        for outcome in case.outcome:
            try:
                self._judge_response(case, outcome, answer)
                if case.value("engine") and seen:
                    kept = again == seen[-1]
                    check(kept == (case.value("engine") == "kept"),
                          f"the engine's connection was {'kept' if kept else 'dropped'}")
                if case.value("sent"):
                    check(len(seen) == int(case.value("sent")), f"sent {len(seen)} times")
                if reuse is not None:
                    check(reuse == (case.value("then") == "open"),
                          f"the client's connection is {'open' if reuse else 'closed'} after it")
                return None
            except Failed as complaint:
                complaints.append(str(complaint))
        return " or ".join(complaints)

    def _judge_response(self, case, outcome, answer):
        kind, words = outcome[0], outcome[1:]
        statuses = [m.status for m in answer.messages]
        message = answer.messages[0] if answer.messages else None
        if kind == "bad":  # the proxy's own answer in place of it
            wanted = words[0] if words else "502"
            check(self.answered(statuses, wanted), f"answered {statuses}, wanted {wanted}")
            check(message.complete, "its own answer is cut")
            for text in case.values("interim"):
                check(int(text) in answer.interim, f"no {text} came first: {answer.interim}")
            return
        if kind == "cut":
            if message is None:
                return
            check(not message.complete or words, f"passed for whole: {message.head!r} "
                  f"{message.body[:80]!r}")
            for text in case.values("body"):
                wanted = unescape(text, {})
                check(wanted.startswith(message.body), f"body {message.body[:80]!r}")
            return
        check(kind == "whole", f"unknown outcome {kind}")
        check(statuses and str(statuses[0]) in (words or ["200"])[0].split("/"),
              f"answered {statuses}")
        check(message.complete, "the answer is cut")
        for text in case.values("body"):
            wanted = unescape(text, {})
            check(message.body == wanted, f"body {message.body[:80]!r}, wanted {wanted[:80]!r}")
        for text in case.values("length"):
            check(len(message.body) == int(text), f"a body of {len(message.body)}")
        for text in case.values("has"):
            name, _, value = text.partition(": ")
            check(unescape(value, {}).decode("latin-1") in message.all(name),
                  f"{name}: {message.all(name)}")
        for text in case.values("lacks"):
            check(not message.all(text), f"the client got {text}: {message.all(text)}")
        for text in case.values("once"):
            check(len(message.all(text)) == 1, f"{text} came {len(message.all(text))} times")
        for text in case.values("interim"):
            check(int(text) in answer.interim, f"no {text} came first: {answer.interim}")
        if case.value("no-interim") is not None:
            check(not answer.interim, f"came first: {answer.interim}")
        lengths, codings = message.all("content-length"), message.all("transfer-encoding")
        check(len(lengths) + len(codings) <= 1, f"two framings: {lengths} {codings}")


def asks(kind):
    """The request in front of a response case."""
    head = "Host: turnward.test\r\n"
    if kind == "HEAD" or kind == "GET":
        return f"{kind} /v1/things HTTP/1.1\r\n{head}\r\n"
    body = '{"model":"m","stream":true}' if kind == "stream" else '{"model":"m"}'
    version = "1.0" if kind == "1.0" else "1.1"
    return (f"POST /v1/chat/completions HTTP/{version}\r\n{head}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}")


def summary(messages):
    return [m[:60] if isinstance(m, bytes) else f"{m.start} ({len(m.body)} bytes)"
            for m in messages[:3]]


__all__ = ["Case", "Recorder", "Stage", "read_cases"]
