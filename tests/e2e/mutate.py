#!/usr/bin/env python3
"""Junk from clients and engines at once: valid conversations cut, doubled, flipped and reordered.

Bytes and order of every conversation follow from the seed, so a complaint can be played again:
MUTATE_SEED, MUTATE_CONVERSATIONS and MUTATE_KEYS (more settings) say what else to play. Whatever
is sent, no worker dies, no answer reaches another client, and the books are empty in the end.
"""
import asyncio
import json
import os
import random
import re
import socket
import struct
import sys
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403

SEED = int(os.environ.get("MUTATE_SEED", "1"))
CONVERSATIONS = int(os.environ.get("MUTATE_CONVERSATIONS", "250"))
KEYS = os.environ.get("MUTATE_KEYS", "").split()
AT_ONCE = 24
CLEAN_EVERY = 5  # one conversation in so many is left whole, and so is its answer
LIMITS = {"head_timeout": f"{500 * PATIENCE:g}ms", "body_timeout": "300ms",
          "first_byte_timeout": "400ms", "stream_idle_timeout": "300ms",
          "client_send_timeout": "400ms", "keepalive_timeout": "300ms",
          "engine_idle_timeout": "200ms", "models_period": "300ms", "body_cut_through": "64K",
          "receive_buffer_size": "1K", "receive_buffers": "64"}
LATE = "late"
STATUS = (200, 200, 200, 400, 404, 429, 500, 503)
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
         "/v1/embeddings", "/tokenize", "/v1/responses/resp_1", "/v1/models", "/health", "/nope")


# ---- what is sent ----

def body_of(r, model, token):
    body = {"model": model, "stream": r.random() < 0.5, "user": token,
            "messages": [{"role": "user", "content": "word " * r.choice((1, 50, 5000, 30000))}]}
    if r.random() < 0.2:
        body["previous_response_id"] = "resp_1"
    if r.random() < 0.1:
        body["n"] = r.choice((0, -1, 7, 1 << 70, "x"))
    return json.dumps(body).encode()


def request_of(r, model, token, clean):
    """The pieces of one request: mostly whole lines, so that a cut falls where it hurts."""
    body = body_of(r, model, token)
    method = "POST" if clean else r.choice(("POST", "POST", "POST", "GET", "HEAD", "DELETE"))
    path = PATHS[0] if clean else r.choice(PATHS + PATHS[:2] * 4)
    version = "1.0" if not clean and r.random() < 0.1 else "1.1"
    pieces = [f"{method} {path} HTTP/{version}\r\n", "Host: x\r\n"]
    if r.random() < 0.2:
        pieces.append(f"x-request-id: {r.choice(('same', token))}\r\n")
    if r.random() < 0.2:
        pieces.append(f"x-session-id: s{r.randrange(4)}\r\n")
    if r.random() < 0.2 and not clean:
        pieces.append("Expect: 100-continue\r\n")
    if r.random() < 0.2 and not clean:
        pieces.append(f"Connection: {r.choice(('close', 'keep-alive', 'host'))}\r\n")
    pieces = [p.encode() for p in pieces]
    if r.random() < 0.3:
        pieces.append(b"Transfer-Encoding: chunked\r\n\r\n")
        while body:
            n = r.choice((1, 17, 4096, 40000))
            pieces += [chunk(body[:n])]
            body = body[n:]
        return pieces + [LAST_CHUNK]
    if method != "GET" or r.random() < 0.3:
        pieces.append(b"Content-Length: %d\r\n" % len(body))
    else:
        body = b""
    return pieces + [b"\r\n"] + [body[i:i + 20000] for i in range(0, len(body), 20000)]


def answer_of(r, token, stream, status=(200,)):
    """The pieces of an engine's answer that names the token."""
    if stream:
        return [STREAM_HEAD] + [token_event(token) for _ in range(r.choice((1, 3, 40)))] + \
            [event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}), DONE]
    body = json.dumps({"id": "resp_1", "user": token, "choices": [],
                       "usage": {"prompt_tokens": 9, "completion_tokens": 3}}).encode()
    return [b"HTTP/1.1 %d X\r\n" % r.choice(status),
            b"Content-Type: application/json\r\n", b"Content-Length: %d\r\n" % len(body),
            b"\r\n", body]


def token_event(token):
    return event({"choices": [{"index": 0, "delta": {"content": token}}]})


def flip(r, piece):
    at = r.randrange(len(piece))
    return piece[:at] + bytes([piece[at] ^ 1 << r.randrange(8)]) + piece[at + 1:]


def mutate(r, pieces):
    pieces = [p for p in pieces if p]
    for _ in range(r.choice((0, 1, 1, 2, 5))):
        at, how = r.randrange(len(pieces)), r.randrange(7)
        piece = pieces[at]
        if how == 0:
            pieces[at] = flip(r, piece)
        elif how == 1:
            pieces.insert(at, piece)
        elif how == 2 and len(pieces) > 1:
            del pieces[at]
        elif how == 3:
            other = r.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], piece
        elif how == 4:
            pieces[at] = piece[:r.randrange(len(piece)) + 1]
        elif how == 5:
            pieces.insert(at, r.choice((b"\r\n", b"\0", b"\xff" * 9, b"HTTP/1.1 100 X\r\n\r\n",
                                        b"0\r\n\r\n", b"x: y\r\n", b"A" * 40000, b"-1\r\n")))
        else:
            del pieces[at + 1:]
    return pieces


# ---- the two sides ----

def reset(writer):
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


async def play(r, writer, pieces, wild):
    """Sends the pieces, sometimes cut and with pauses; False when it left in between."""
    data = b"".join(pieces) if r.random() < 0.4 else None
    for piece in ([data] if data else pieces):
        while wild and len(piece) > 2 and r.random() < 0.2:
            at = r.randrange(1, len(piece))
            writer.write(piece[:at])
            piece = piece[at:]
            await asyncio.sleep(r.choice((0, 0.001, 0.01)))
        writer.write(piece)
        await writer.drain()
        if wild and r.random() < 0.02:
            await asyncio.sleep(r.choice((0.01, 0.1, 0.5)))
        if wild and r.random() < 0.02:
            return False
    return True


def token_of(seed):
    """A flipped bit does not make one of it that belongs to another."""
    return f"t{seed}-{zlib.crc32(b'%d' % seed):08x}"


def tokens_in(raw):
    found = re.findall(rb"t(\d+)-([0-9a-f]{8})", raw)
    return {token_of(int(n)) for n, crc in found if token_of(int(n)).endswith(crc.decode())}


def token_in(raw):
    at = raw.find(b'"user": "')
    return raw[at + 9:raw.find(b'"', at + 9)].decode("latin-1") if at >= 0 else ""


def whole(raw):
    """Length of a request without tricks that lies at the start of raw, or 0."""
    end = raw.find(b"\r\n\r\n") + 4
    if end < 4:
        return 0
    message = parse_head(raw[:end])
    end += int(message.get("content-length") or 0)
    return end if len(raw) >= end else 0


class Engine:
    """Answers each request of a connection with mutated bytes, or with clean ones."""

    def __init__(self, seed, model, wild):
        self.r, self.model, self.wild, self.models_asked = random.Random(seed), model, wild, 0

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=256)
        self.url = "http://127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]

    def answer(self, raw):
        if raw.startswith(b"GET /v1/models"):
            self.models_asked += 1
            pieces = [response_bytes(200, {"data": [{"id": self.model}]})]
            if not self.wild or self.models_asked < 3 or self.r.random() < 0.5:
                return pieces, False
            return mutate(self.r, pieces), True
        stream = b'"stream": true' in raw
        if not self.wild or b'"model": "clean"' in raw:
            r = random.Random(0)
            return answer_of(r, token_in(raw), stream), False
        return mutate(self.r, answer_of(self.r, token_in(raw), stream, STATUS)), True

    async def serve(self, reader, writer):
        try:
            await self.talk(reader, writer)
        except (OSError, ValueError, asyncio.TimeoutError, asyncio.CancelledError):
            pass
        writer.close()

    async def talk(self, reader, writer):
        raw = b""
        while True:
            size = whole(raw)
            if self.wild and not size and raw and b'"clean"' not in raw and self.r.random() < 0.01:
                size = len(raw)  # an answer before its request is complete
            if not size:
                piece = await asyncio.wait_for(reader.read(65536), 5)
                if not piece:
                    return
                raw += piece
                continue
            pieces, wild = self.answer(raw[:size])
            raw = raw[size:]
            if wild and self.r.random() < 0.05:
                await asyncio.sleep(self.r.choice((0.05, 0.6)))
            if not await play(self.r, writer, pieces, wild) or (wild and self.r.random() < 0.2):
                if self.r.random() < 0.5:
                    reset(writer)
                return


async def conversation(seed, host, port, admin):
    """One client's connection; returns a complaint or None."""
    r = random.Random(seed)
    clean = seed % CLEAN_EVERY == 0
    token = token_of(seed)
    if not clean and r.random() < 0.03:
        reader, writer = await asyncio.open_unix_connection(admin)
    else:
        reader, writer = await asyncio.open_connection(host, port)
    got = b""
    try:
        if clean:
            pieces = request_of(random.Random(seed), "clean", token, True)
            await play(r, writer, pieces, False)
        else:
            pieces = []
            for _ in range(r.choice((1, 1, 1, 2, 5))):
                pieces += request_of(r, r.choice(("junk", "junk", "other")), token, False)
            if not await play(r, writer, mutate(r, pieces), True):
                reset(writer) if r.random() < 0.5 else writer.close()
                return None
            if r.random() < 0.1:
                writer.write_eof()
            if r.random() < 0.05:
                await asyncio.sleep(0.6)
        while True:
            piece = await asyncio.wait_for(reader.read(65536), 20 * PATIENCE)
            got += piece
            if not piece or (clean and finished(got)):
                break
    except OSError:
        pass
    except asyncio.TimeoutError:
        return f"conversation {seed}: neither answer nor end, {got[:100]!r}"
    finally:
        reset(writer) if r.random() < 0.3 else writer.close()
    return judge(clean, token, got)


def finished(got):
    return got.endswith(LAST_CHUNK) or (b"content-length" in got.lower() and whole(got))


def judge(clean, token, got):
    if tokens_in(got) - {token}:
        return f"{token} got an answer of {tokens_in(got)}"
    if clean and any("memory" in k or "connections" in k for k in KEYS):
        return None  # so little of either that some are refused
    if clean and (not got or b"_timeout" in got):
        return LATE  # the limits are short, and the machine may be busy
    if clean and not got.startswith(b"HTTP/1.1 200"):
        return f"{token}: {got[:300]!r}"
    if clean and token.encode() not in got:
        return f"{token} is not in its answer {got[-300:]!r}"
    return None


async def storm(t, io):
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # resets are the point
    engines = [Engine(SEED, "clean", False), Engine(SEED + 1, "junk", True),
               Engine(SEED + 2, "junk", True)]
    for engine in engines:
        await engine.start()
    loop = asyncio.get_running_loop()
    settings = [x for k, v in LIMITS.items() for x in ("--set", f"{k}={v}")]
    settings += [x for k in KEYS for x in ("--set", k)]
    router = await loop.run_in_executor(None, lambda: t.router(
        *[e.url for e in engines], args=["--io", io, "--max-body", "1M"] + settings))
    host, port = router.address.split(":")
    await asyncio.sleep(0.2)
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(seed):
        async with gate:
            return await conversation(seed, host, int(port), router.admin[5:])
    first = SEED * 100000
    told = await asyncio.gather(*[one(first + i) for i in range(CONVERSATIONS)])
    await loop.run_in_executor(None, lambda: settled(router))
    for engine in engines:
        engine.server.close()
    late = told.count(LATE)
    check(late * CLEAN_EVERY * 4 < CONVERSATIONS, f"{late} whole conversations came too late")
    check(not set(told) - {None, LATE}, next((x for x in told if x not in (None, LATE)), ""))


# ---- afterwards ----

def metrics(router):
    found = {}
    for line in ask(router.admin, "GET", "/metrics").body.decode().split("\n"):
        if line and line[0] != "#":
            name, value = line.rsplit(" ", 1)
            name = name.replace("turnward_", "").split("{engine=")[0]
            found[name] = found.get(name, 0) + float(value)
    return found


def settled(router):
    """Nothing is left of it: no request, no block, no connection but the one that asks."""
    state = {}

    def nothing_left():
        state.clear()
        state.update(metrics(router))
        pools = {p: state[f'memory_blocks{{pool="{p}"}}']
                 for p in ("bodies", "scans", "routes", "asked", "heads", "exchanges", "outs")}
        return state["requests_inflight"] == 0 and state["engine_inflight_requests"] == 0 and \
            state["engine_decoding_sequences"] == 0 and state["connections"] <= 1 and \
            pools.pop("exchanges") <= 1 and pools.pop("heads") <= 1 and not any(pools.values())
    try:
        eventually(nothing_left, 15, pause=0.03)
    except Failed:
        raise Failed("left: " + ", ".join(
            f"{k}={v:g}" for k, v in state.items()
            if v and k.startswith(("memory_blocks", "requests_", "engine_inf", "connections")))
        ) from None
    equal(state["worker_starts_total"], 1, "workers")
    equal(state["requests_started_total"], state["requests_completed_total"] +
          state["requests_failed_total"] + state["requests_aborted_total"], "started")


def on_loop(io):
    def no_junk_ends_a_worker_or_stays_in_its_books(t):
        asyncio.run(storm(t, io))
    no_junk_ends_a_worker_or_stays_in_its_books.__name__ += f"_on_{io}"
    case(no_junk_ends_a_worker_or_stays_in_its_books)


for name in ("uring", "epoll"):
    on_loop(name)
main()
