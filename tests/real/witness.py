"""Stands between a router and a real engine: passes bytes both ways as they are, and keeps them.

Names to `hide` are changed in answers, those that the engine is `deaf` to in requests, their length
kept: so it tells less, whatever flags it was started with.
"""
import contextlib
import queue
import socket
import threading

from harness import Failed, Wire


class Tape:
    """Recorded bytes, read as a socket is."""

    def __init__(self, data):
        self.data = data

    def settimeout(self, _):
        pass

    def recv(self, count):
        part, self.data = self.data[:count], self.data[count:]
        return part


def read_all(read):
    """Messages until the tape ends, the last one perhaps short."""
    found = []
    with contextlib.suppress(Failed, ValueError, IndexError):
        while (message := read()) is not None:
            found.append(message)
    return found


class Witness:
    """An engine's stand-in: .address and .url for the router, .heard() for the case."""

    tape = list  # of what kind a connection's kept parts are
    def __init__(self, engine, hide=(), deaf=()):
        host, _, port = engine.address.rpartition(":")
        self.behind = (host, int(port))
        self.changes = [[(name.encode(), name[:-1].encode() + b"_") for name in names]
                        for names in (deaf, hide)]
        self.talks, self.open, self.errors = [], set(), queue.Queue()
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.url = f"http://{self.address}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                front, _ = self.listener.accept()
            except OSError:
                return
            try:
                back = socket.create_connection(self.behind, 60)
            except OSError:
                front.close()
                continue
            back.settimeout(None)
            for sock in (front, back):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            talk = (self.tape(), self.tape())
            with self.lock:
                self.talks.append(talk)
                self.open |= {front, back}
            for at, (source, sink) in enumerate(((front, back), (back, front))):
                threading.Thread(target=self._pump, args=(source, sink, talk[at],
                                                          self.changes[at]), daemon=True).start()

    def _pump(self, source, sink, kept, changes):
        """The first end that closes ends both: an engine takes a half-closed client for gone."""
        with contextlib.suppress(OSError):
            while part := source.recv(1 << 18):
                for change in changes:
                    part = part.replace(*change)
                kept.append(part)
                sink.sendall(part)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        with self.lock:
            self.open.discard(source)
        source.close()

    def die(self):
        """Ends it; a case's Test does so for what is in its list of engines."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # else the accepting thread goes on with it
        self.listener.close()
        with self.lock:
            for sock in self.open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def heard(self):
        """Each POST and its answer (None where there was none), connection by connection."""
        found = []
        with self.lock:
            talks = [(b"".join(asked), b"".join(told)) for asked, told in self.talks]
        for asked, told in talks:
            requests = read_all(Wire(Tape(asked)).read_request)
            reader = Wire(Tape(told))
            answers = read_all(reader.read_response)
            answers += [None] * (len(requests) - len(answers))
            found += [(r, a) for r, a in zip(requests, answers) if r.method == "POST"]
        return found

    def pieces(self, name=None):
        """Of one request by its id, or of all, pieces and their answers in the order of length."""
        found = [(r, a) for r, a in self.heard()
                 if r.get("x-turnward-internal") == "piece" and
                 (name is None or (r.get("x-request-id") or "").startswith(f"{name}-p"))]
        return sorted(found, key=lambda pair: len(pair[0].body))

    def others(self):
        """What was no piece and no question of the router's own."""
        return [(r, a) for r, a in self.heard() if r.get("x-turnward-internal") is None]
