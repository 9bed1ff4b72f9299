"""What cases of staging share: long prompts, and played engines with a prefix cache or a queue."""
import json
import random
import select
import threading
import time

from harness import *  # noqa: F403

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
STEP, PIECE = 1024, 960  # of a step, a sixteenth is left to those that decode


def reason(router, name):
    return metric(router, f'staged_decisions_total{{reason="{name}"}}')


def idle(router):
    """Nothing is left in any book."""
    at_rest(router, *IN_WORK, "engine_pieces", "engine_cold_prompts", "engine_staged_rest_tokens",
            "engine_held_requests", "engine_pending_prefill_tokens", "cold_waiting",
            'memory_blocks{pool="stagings"}')


def words(number, seed):
    draw = random.Random(seed)
    return " ".join("".join(draw.choice("abcdefgh") for _ in range(4)) for _ in range(number))


def chat(number=4000, seed=1, parts=8, **more):
    """A talk of so many words; the last message is a user's."""
    roles = ["user", "assistant"] * parts
    messages = [{"role": "system", "content": "be brief"}]
    messages += [{"role": roles[i], "content": words(number // parts, f"{seed}/{i}")}
                 for i in range(parts - 1)]
    if messages[-1]["role"] == "user":
        messages.append({"role": "assistant", "content": "well"})
    messages.append({"role": "user", "content": words(number // parts, f"{seed}/end")})
    return {"model": "m", "messages": messages, "max_tokens": 8, **more}


class Caching:
    """An engine's side of it: one id a word, a prefix cache of blocks, and what it was asked."""

    def __init__(self, details=True, hits=True, tokenises=True, renders=False, delay=0.0,
                 rate=0):
        self.details, self.hits, self.tokenises, self.delay = details, hits, tokenises, delay
        self.renders = renders
        self.rate = rate  # tokens a second that it computes, 0 = in no time
        self.kept = set()
        self.lock = threading.Lock()
        self.pieces, self.requests, self.asked, self.rendered = [], [], 0, []
        self.hook = None  # called with the number of pieces so far, before one is answered

    @staticmethod
    def ids(body):
        text = [json.dumps(body[k]) for k in ("tools", "system", "instructions") if k in body]
        messages = body.get("messages", body.get("input", []))
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        for message in messages:
            text += [message.get("role", "item"), json.dumps(message.get("content",
                                                                         message.get("output")))]
        return [hash(word) % 100000 for word in " ".join(text).split()]

    def prefill(self, ids, computed=False):
        """Cached tokens of it, in blocks of 16; from now on all of it is."""
        cached = 0
        with self.lock:
            for end in range(16, len(ids) + 1, 16):
                key = hash(tuple(ids[:end]))
                if key in self.kept and self.hits and cached == end - 16:
                    cached = end
                self.kept.add(key)
        cached = min(cached, len(ids) - 1)
        if self.rate and not computed:
            time.sleep((len(ids) - cached) / self.rate)
        return cached

    def usage(self, ids):
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1}
        cached = self.prefill(ids)
        if self.details:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return usage

    def render(self, wire, request):
        """The ids of a body as it is, as newer vLLMs tell them for three of the four paths."""
        if self.renders:
            self.rendered.append(request)
            wire.send(response_bytes(200, {"request_id": "r", "token_ids": self.ids(request.json()),
                                           "sampling_params": {"stop": ["]"]}}))
        else:
            wire.send(response_bytes(403, {"error": {"message": "disabled"}}))
        return True

    def __call__(self, wire, request):
        if request.target.endswith("/render"):
            return self.render(wire, request)
        body = request.json()
        if request.target == "/tokenize":
            self.asked += 1
            if not self.tokenises:
                wire.send(response_bytes(404, {"detail": "Not Found"}))
                return True
            ids = self.ids(body)
            wire.send(response_bytes(200, {"count": len(ids), "max_model_len": 9, "tokens": ids}))
            return True
        ids = body["prompt"] if request.target == "/v1/completions" else self.ids(body)
        if request.get("x-turnward-internal") == "piece":
            with self.lock:
                self.pieces.append((request, ids))
                number = len(self.pieces)
            time.sleep(self.delay)
            if self.hook and self.hook(number, wire) is False:
                return False
            wire.send(response_bytes(200, {"choices": [{"text": "x"}], "usage": self.usage(ids)}))
            return True
        self.requests.append((request, ids))
        usage = self.usage(ids)
        if body.get("stream"):
            wire.send(STREAM_HEAD + token("a") + event({"choices": [], "usage": usage}) + DONE)
        else:
            wire.send(response_bytes(200, {"choices": [{"message": {"content": "ab"}}],
                                           "usage": usage}))
        return True


def staged(t, io, *engines, kind="vllm", mode="pieces", alone="0", args=(), **settings):
    """A router that stages on these engines."""
    settings = {"step_budget": STEP, "cold_tokens": 2000, **settings}
    lines = ["[router]", f"io = {io}", "[stage]", f"stage = {mode}", f"stage_alone = {alone}"]
    lines += [f"{key} = {value}" for key, value in settings.items()]
    for i, engine in enumerate(engines):
        lines += [f"[engine e{i}]", f"url = {engine.url}", f"kind = {kind}"]
    router = t.router(args=("-c", t.write("staged.conf", "\n".join(lines) + "\n"), *args))
    eventually(lambda: metric(router, "engine_models_known") == len(engines), 5, "lists are known")
    return router


def asked(router, body):
    """When it was sent, when its first token came, when it ended."""
    wire, start = dial(router.address), time.monotonic()
    wire.send(request_bytes("POST", CHAT, json.dumps(body)))
    answer = wire.read_response()
    wire.close()
    equal((answer.status, answer.complete), (200, True))
    return start, answer.times[0], answer.times[-1]


def leave(router, number_of, talk, most_s):
    """So many clients, four at a time, each leaving at a random moment, closing or resetting."""
    draw, left, lock = random.Random(8), list(range(number_of)), threading.Lock()

    def client():
        while True:
            with lock:
                if not left:
                    return
                number = left.pop()
            wire = dial(router.address)
            wire.send(request_bytes("POST", CHAT, json.dumps(talk(number))))
            time.sleep(draw.random() * most_s)
            wire.reset() if number % 2 else wire.close()
    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Queueing(Caching):
    """vLLM's other half: the head comes at once, prompts are computed one after the other, and a
    close ends a long one and keeps half of it. `go`: long prompts are computed."""

    def __init__(self, keeps=True, **how):
        super().__init__(**how)
        self.keeps, self.go = keeps, threading.Event()
        self.inside, self.order, self.colds = 0, [], []

    def left(self, wire, seconds=15):
        """True when the peer closes before `go`."""
        until = time.monotonic() + seconds
        while not self.go.is_set() and time.monotonic() < until:
            if select.select([wire.sock], [], [], 0.005)[0]:
                return not wire.more()
        return False

    def __call__(self, wire, request):
        body = request.json()
        if request.get("x-turnward-internal"):
            return super().__call__(wire, request)
        ids = self.ids(body)
        if len(ids) < 2000:
            until = time.monotonic() + 10
            while self.inside and time.monotonic() < until:
                time.sleep(0.005)
            self.order.append("short")
            return super().__call__(wire, request)
        with self.lock:
            self.inside += 1
            self.order.append("cold")
            self.colds.append(request)
        if body.get("stream"):
            wire.send(STREAM_HEAD)
        gone = self.left(wire)
        if gone and self.keeps:
            self.prefill(ids[:len(ids) // 2], computed=True)
        with self.lock:
            self.inside -= 1
            self.order += ["close"] if gone else []
        if gone:
            return False
        self.requests.append((request, ids))
        usage = self.usage(ids)
        if body.get("stream"):
            wire.send(token("a") + event({"choices": [], "usage": usage}) + DONE)
        else:
            wire.send(response_bytes(200, {"choices": [{"message": {"content": "ab"}}],
                                           "usage": usage}))
        return True
