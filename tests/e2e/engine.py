#!/usr/bin/env python3
"""turnward-engine: shapes on the wire, the model's times, hits, aborts and faults."""
import base64
import json
import os
import random
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403

MODEL = "tiny"
PROSE = ("Turnward sends every turn of a session toward the engine where that turn will answer "
         "first. ")


def engine(t, *args, ports=1, head="vllm"):
    """Modelled engines on ports in a row, the process with the first one's .address."""
    for _ in range(20):
        # Below the ephemeral range: a port that some client left in TIME_WAIT cannot be bound.
        first = random.randrange(12000, 30000)
        process = t.start("turnward-engine", "--ports", f"{first}-{first + ports - 1}" if ports > 1
                          else first, "--head", head, "--model", MODEL, *args)
        eventually(lambda: process.log("listening") or not process.alive, 10, "it listens")
        if process.log("listening"):
            process.address = f"127.0.0.1:{first}"
            return process
        contains(process.tail(), "Address already in use")
    raise Failed("no free ports in a row")


def post(address, path, seconds=20, **body):
    return ask(address, "POST", path, {"model": MODEL, **body}, seconds=seconds)


def user(text):
    return [{"role": "user", "content": text}]


def metric(address, name):
    """The sum of all samples of that name."""
    page = ask(address, "GET", "/metrics").body.decode()
    values = [float(l.rsplit(" ", 1)[1]) for l in page.split("\n")
              if l.split("{")[0].split(" ")[0] == name]
    check(values, f"{name} is on the page")
    return sum(values)


def words_of(text):
    """What the answer to this last user message begins with: FNV-1a 64, 12 bits a word."""
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 & (1 << 64) - 1
    found = []
    for i in range(4):
        word = value >> 12 * i & 4095
        found.append("w" + "".join(chr(97 + (word >> s & 15)) for s in (8, 4, 0)))
    return found


def stream(address, path, seconds=20, **body):
    """Sends a streamed request; returns the wire and the time it went out."""
    wire = dial(address, seconds)
    wire.send(request_bytes("POST", path, {"model": MODEL, "stream": True, **body}))
    return wire


@case
def a_chat_stream_has_the_shape_of_vllms(t):
    e = engine(t, "--speed", "5")
    wire = stream(e.address, "/v1/chat/completions", messages=user("Hello"), max_tokens=3,
                  stream_options={"include_usage": True})
    answer = wire.read_response()

    check(answer.complete, "the last chunk came")
    equal(answer.get("content-type"), "text/event-stream; charset=utf-8")
    events = answer.events
    equal(events[-1], "[DONE]")
    chunks = [json.loads(x) for x in events[:-1]]
    equal(len(chunks), 5, "role, three tokens, usage")
    equal(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
    equal([c["choices"][0]["finish_reason"] for c in chunks[:4]], [None, None, None, "length"])
    equal(chunks[4]["choices"], [])
    equal(chunks[4]["usage"]["completion_tokens"], 3)
    equal(len({c["id"] for c in chunks}), 1, "one id")
    equal([c["choices"][0]["delta"]["content"].strip() for c in chunks[1:4]],
          words_of("Hello")[:3])


@case
def every_endpoint_answers_without_a_stream(t):
    e = engine(t, "--speed", "10")
    chat = post(e.address, "/v1/chat/completions", messages=user("Hi"), max_tokens=4, n=2).json()
    equal([c["index"] for c in chat["choices"]], [0, 1])
    equal(chat["usage"]["completion_tokens"], 8)
    check(chat["choices"][0]["message"]["content"].split() == words_of("Hi"), "whose answer")
    text = post(e.address, "/v1/completions", prompt=["one", "two"], max_tokens=5).json()
    equal([c["text"].split()[:4] for c in text["choices"]], [words_of("one"), words_of("two")])
    message = post(e.address, "/v1/messages", messages=user("Hi"), max_tokens=4).json()
    equal(message["content"][0]["text"].split(), words_of("Hi"))
    equal(message["stop_reason"], "max_tokens")
    embedding = post(e.address, "/v1/embeddings", input="text").json()
    packed = post(e.address, "/v1/embeddings", input="text", encoding_format="base64").json()
    equal(len(base64.b64decode(packed["data"][0]["embedding"])),
          4 * len(embedding["data"][0]["embedding"]))
    equal(ask(e.address, "GET", "/v1/models").json()["data"][0]["id"], MODEL)
    equal(ask(e.address, "GET", "/version").status, 200)
    equal(ask(e.address, "GET", "/health").status, 200)
    equal(post(e.address, "/v1/chat/completions", messages=user("Hi")).json()
          ["usage"]["completion_tokens"], 128, "nobody set a length")


@case
def messages_and_responses_stream_their_own_events(t):
    for head in ("vllm", "sglang", "llamacpp"):
        e = engine(t, "--speed", "10", head=head)
        answer = stream(e.address, "/v1/messages", messages=user("x"), max_tokens=2).read_response()
        kinds = [json.loads(x)["type"] for x in answer.events]
        equal(kinds, ["message_start", "content_block_start"] + 2 * ["content_block_delta"] +
              ["content_block_stop", "message_delta", "message_stop"], head)
        answer = stream(e.address, "/v1/responses", input="x", max_output_tokens=2).read_response()
        kinds = [json.loads(x)["type"] for x in answer.events]
        equal(kinds[:2] + kinds[4:6], ["response.created", "response.in_progress"] +
              2 * ["response.output_text.delta"], head)
        check(answer.complete, head)
        e.stop()


@case
def errors_are_told_in_the_engines_own_form(t):
    e = engine(t, "--context", "100")
    missing = ask(e.address, "POST", "/v1/chat/completions", {"model": MODEL})
    equal((missing.status, missing.json()["error"]["param"]), (400, "body.messages"))
    equal(ask(e.address, "POST", "/v1/completions", "{").status, 400)
    equal(ask(e.address, "POST", "/v1/completions", {"model": "no", "prompt": "x"}).status, 404)
    equal(post(e.address, "/v1/completions", prompt="1" * 100).status, 400)
    equal(post(e.address, "/v1/completions", prompt="x", max_tokens=0).status, 400)
    equal(ask(e.address, "GET", "/v1/completions").status, 405)
    equal(ask(e.address, "GET", "/nope").json(), {"detail": "Not Found"})
    equal(post(e.address, "/v1/responses", input="x", previous_response_id="resp_no").status, 404)


@case
def ids_are_the_same_on_every_path(t):
    e = engine(t, "--speed", "10")
    messages = [{"role": "system", "content": PROSE * 20}] + user("What now?")
    ids = post(e.address, "/tokenize", messages=messages).json()
    first = post(e.address, "/v1/completions", prompt=ids["tokens"][:320], max_tokens=1).json()
    equal(first["usage"]["prompt_tokens"], 320)
    chat = post(e.address, "/v1/chat/completions", messages=messages, max_tokens=1).json()
    equal(chat["usage"]["prompt_tokens"], ids["count"])
    equal(chat["usage"]["prompt_tokens_details"]["cached_tokens"], 320, "pieces hit")
    anthropic = post(e.address, "/v1/messages", system=PROSE * 20, messages=user("What now?"),
                     max_tokens=1).json()
    check(anthropic["usage"]["cache_read_input_tokens"] >= ids["count"] // 16 * 16 - 16,
          f"the same prompt by another API: {anthropic['usage']}")
    text = post(e.address, "/tokenize", prompt=PROSE).json()["tokens"]
    equal(post(e.address, "/detokenize", tokens=text).json()["prompt"], PROSE)


@case
def escapes_are_decoded_before_tokens_are_counted(t):
    e = engine(t)
    text = 'caf\u00e9 \U0001f600 "quoted" back\\slash\n\ttab / \x07 end'
    ids = []
    for ascii_only in (True, False):
        body = json.dumps({"model": MODEL, "prompt": text}, ensure_ascii=ascii_only).encode()
        ids.append(ask(e.address, "POST", "/tokenize", body).json()["tokens"])
    ids.append(ask(e.address, "POST", "/tokenize", body.replace(b" /", b" \\/")).json()["tokens"])
    equal(ids[0], ids[1], "escaped and plain")
    equal(ids[2], ids[1], "an escaped slash")
    equal(post(e.address, "/detokenize", tokens=ids[0]).json()["prompt"], text)
    lone = ask(e.address, "POST", "/tokenize",
               b'{"model": "tiny", "prompt": "\\ud83d x"}').json()["tokens"]
    equal(post(e.address, "/detokenize", tokens=lone).json()["prompt"], "\ufffd x")


@case
def the_second_turn_hits_the_first_and_its_answer(t):
    e = engine(t, "--speed", "10")
    messages = [{"role": "system", "content": PROSE * 30}] + user("first")
    one = post(e.address, "/v1/chat/completions", messages=messages, max_tokens=100).json()
    answer = one["choices"][0]["message"]["content"]
    check(one["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "cold")
    messages += [{"role": "assistant", "content": answer}] + user("second")
    two = post(e.address, "/v1/chat/completions", messages=messages, max_tokens=1).json()
    known = one["usage"]["prompt_tokens"] + 99  # the last token was never computed
    equal(two["usage"]["prompt_tokens_details"]["cached_tokens"], known // 16 * 16)
    equal(metric(e.address, "vllm:prefix_cache_hits_total"), known // 16 * 16)
    equal(metric(e.address, "vllm:prefix_cache_queries_total"),
          one["usage"]["prompt_tokens"] + two["usage"]["prompt_tokens"])


@case
def a_response_is_continued_from_its_id(t):
    e = engine(t, "--speed", "10")
    one = post(e.address, "/v1/responses", input=PROSE * 30, max_output_tokens=50).json()
    two = post(e.address, "/v1/responses", input="go on", max_output_tokens=1,
               previous_response_id=one["id"]).json()
    known = one["usage"]["input_tokens"] + 49
    equal(two["usage"]["input_tokens_details"]["cached_tokens"], known // 16 * 16)
    equal(ask(e.address, "GET", "/v1/responses/" + one["id"]).json()["id"], one["id"])
    equal(ask(e.address, "GET", "/v1/responses/resp_unknown").status, 404)


def first_token_s(address, prompt, max_tokens=1):
    wire = dial(address, 30)
    body = request_bytes("POST", "/v1/completions",
                         {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens,
                          "stream": True})
    start = time.monotonic()
    wire.send(body)
    wire.read_until(b"data: ")
    taken = time.monotonic() - start
    wire.read_until(b"0\r\n\r\n")
    return taken


@case
def an_idle_engines_first_token_comes_when_the_model_says(t):
    e = engine(t)
    tokens = post(e.address, "/tokenize", prompt=PROSE * 60).json()["count"]
    wanted = tokens * 2.03e-4 + 2.05e-9 * tokens ** 2 + 1e-3
    # Another prompt each time: a hit would be faster. Noise only adds, so the best counts.
    best = min(first_token_s(e.address, str(i) + PROSE * 60) for i in range(3))
    check(wanted <= best + 2e-3, f"{best:.4f} s, too early for {wanted:.4f} s")
    check(best < wanted + 0.02 * PATIENCE, f"{best:.4f} s, the model says {wanted:.4f} s")


@case
def speed_divides_every_time(t):
    e = engine(t, "--speed", "8")
    tokens = post(e.address, "/tokenize", prompt=PROSE * 200).json()["count"]
    wanted = (tokens * 2.03e-4 + 2.05e-9 * tokens ** 2 + 1e-3) / 8
    best = min(first_token_s(e.address, str(i) + PROSE * 200) for i in range(3))
    check(wanted <= best + 2e-3 and best < wanted + 0.02 * PATIENCE,
          f"{best:.4f} s, the model says {wanted:.4f} s")
    shown = metric(e.address, "vllm:time_to_first_token_seconds_sum") / 3
    check(abs(shown - wanted) < 0.01 * PATIENCE, f"the page says {shown:.4f} s")


@case
def heads_come_when_each_engine_sends_them(t):
    for head, waits in (("vllm", False), ("sglang", True), ("llamacpp", False)):
        e = engine(t, head=head)
        wire = stream(e.address, "/v1/chat/completions", messages=user(PROSE * 150), max_tokens=1)
        start = time.monotonic()
        wire.read_until(b"\r\n\r\n")
        at_head = time.monotonic() - start
        wire.read_until(b"data: ")
        at_token = time.monotonic() - start
        check((at_head > at_token / 2) == waits,
              f"{head}: head after {at_head:.3f} s, token after {at_token:.3f} s")
        wire.close()
        e.stop()


@case
def a_client_that_leaves_frees_its_work(t):
    e = engine(t, "--sequences", "1")
    busy = stream(e.address, "/v1/chat/completions", messages=user("a"), max_tokens=5000)
    busy.read_until(b"data: ")
    queued = stream(e.address, "/v1/chat/completions", messages=user("b"), max_tokens=5)
    plain = dial(e.address)
    plain.send(request_bytes("POST", "/v1/completions", {"model": MODEL, "prompt": "c"}))
    eventually(lambda: metric(e.address, "vllm:num_requests_waiting") == 2, text="two wait")
    queued.close()
    eventually(lambda: metric(e.address, "vllm:num_requests_waiting") == 1, text="one waits")
    plain.reset()
    eventually(lambda: metric(e.address, "vllm:num_requests_waiting") == 0, text="none waits")
    busy.half_close()
    eventually(lambda: metric(e.address, "vllm:num_requests_running") == 0, text="none runs")
    equal(metric(e.address, "vllm:kv_cache_usage_perc"), 0)
    check(busy.wait_closed() < 2, "a half-close ends the stream")


@case
def an_abort_in_mid_prefill_keeps_what_was_computed(t):
    e = engine(t)
    text = PROSE * 2000  # about 40,000 tokens: five steps of 2 to 3 s
    wire = stream(e.address, "/v1/completions", prompt=text, max_tokens=1)
    eventually(lambda: metric(e.address, "vllm:num_requests_running") == 1, text="one step is over")
    wire.close()
    eventually(lambda: metric(e.address, "vllm:num_requests_running") == 0, text="none runs")
    again = post(e.address, "/v1/completions", prompt=text[:len(text) // 4], max_tokens=1).json()
    check(again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 8192,
          f"hits what the aborted one computed: {again['usage']}")


@case
def a_llamacpp_engine_runs_what_its_client_left(t):
    e = engine(t, "--speed", "4", head="llamacpp")
    wire = dial(e.address)
    wire.send(request_bytes("POST", "/v1/completions",
                            {"model": MODEL, "prompt": "x", "max_tokens": 150}))
    eventually(lambda: metric(e.address, "llamacpp:requests_processing") == 1, text="it runs")
    wire.close()
    time.sleep(0.2)
    equal(metric(e.address, "llamacpp:requests_processing"), 1)
    eventually(lambda: metric(e.address, "llamacpp:requests_processing") == 0, text="it ended")
    equal(metric(e.address, "llamacpp:tokens_predicted_total"), 150)
    slots = ask(e.address, "GET", "/slots").json()
    equal([s["is_processing"] for s in slots], 4 * [False])


@case
def a_llamacpp_engine_keeps_a_queued_stream_until_its_slot(t):
    e = engine(t, "--sequences", "1", head="llamacpp")
    busy = stream(e.address, "/v1/completions", prompt="a", max_tokens=3000)
    busy.read_until(b"data: ")
    queued = stream(e.address, "/v1/completions", prompt="b", max_tokens=3000)
    eventually(lambda: metric(e.address, "llamacpp:requests_deferred") == 1, text="one waits")
    queued.close()
    time.sleep(0.3)
    equal(metric(e.address, "llamacpp:requests_deferred"), 1)
    busy.close()
    eventually(lambda: metric(e.address, "llamacpp:requests_deferred") == 0, text="none waits")
    eventually(lambda: metric(e.address, "llamacpp:requests_processing") == 0, text="none runs")


@case
def an_sglang_engine_notices_late_that_a_client_left(t):
    e = engine(t, "--speed", "4", head="sglang")

    def running():
        return ask(e.address, "GET", "/v1/loads").json()["loads"][0]["num_running_reqs"]
    wire = dial(e.address)
    wire.send(request_bytes("POST", "/v1/completions",
                            {"model": MODEL, "prompt": "x", "max_tokens": 100000}))
    eventually(lambda: running() == 1, text="it runs")
    left = time.monotonic()
    wire.close()
    eventually(lambda: running() == 0, text="it was aborted")
    check(time.monotonic() - left > 0.4, "two seconds of the model's")
    wire = stream(e.address, "/v1/completions", prompt="y", max_tokens=100000)
    wire.read_until(b"data: ")
    wire.close()
    eventually(lambda: running() == 0, text="the stream was aborted")


@case
def an_sglang_engine_tells_its_waiting_tokens(t):
    e = engine(t, "--sequences", "1", head="sglang")
    busy = stream(e.address, "/v1/chat/completions", messages=user("a"), max_tokens=3000)
    busy.read_until(b"data: ")
    waiting = stream(e.address, "/v1/completions", prompt="1" * 500, max_tokens=5)

    def loads():
        return ask(e.address, "GET", "/v1/loads").json()["loads"][0]
    eventually(lambda: loads()["num_waiting_reqs"] == 1, text="one waits")
    equal(loads()["num_waiting_uncached_tokens"], 500)
    equal(loads()["num_running_reqs"], 1)
    busy.close()
    waiting.close()


@case
def answers_never_cross(t):
    e = engine(t, "--speed", "20", ports=4)
    port = int(e.address.split(":")[1])
    wrong = []

    def client(number):
        for turn in range(6):
            text = f"client {number} turn {turn}"
            address = f"127.0.0.1:{port + (number + turn) % 4}"
            answer = stream(address, "/v1/chat/completions", messages=user(text),
                            max_tokens=12).read_response()
            got = "".join(c["choices"][0]["delta"].get("content") or "" for c in
                          (json.loads(x) for x in answer.events[:-1]))
            if got.split()[:4] != words_of(text) or len(got.split()) != 12:
                wrong.append((text, got))
    threads = [threading.Thread(target=client, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(wrong, [])


@case
def the_metrics_page_is_vllms_and_true(t):
    e = engine(t, "--speed", "10")
    post(e.address, "/v1/chat/completions", messages=user(PROSE * 10), max_tokens=20)
    page = ask(e.address, "GET", "/metrics")
    check(len(page.body) > 40000, f"{len(page.body)} bytes")
    check(page.body.count(b"\n") > 560, "as many lines as vLLM's")
    check(page.body.endswith(b"\n"), "it ends with a line")
    equal(metric(e.address, "vllm:generation_tokens_total"), 20)
    equal(metric(e.address, "vllm:request_success_total"), 1)
    equal(metric(e.address, "vllm:inter_token_latency_seconds_count"), 19)
    equal(metric(e.address, "vllm:request_prefill_kv_computed_tokens_sum"),
          metric(e.address, "vllm:prompt_tokens_total"))
    contains(page.body.decode(), 'num_gpu_blocks="28375"')
    buckets = [float(l.rsplit(" ", 1)[1]) for l in page.body.decode().split("\n")
               if l.startswith("vllm:inter_token_latency_seconds_bucket")]
    equal(buckets, sorted(buckets), "cumulative")
    equal(buckets[-1], 19)


@case
def steps_can_be_slowed_down_and_back_while_it_runs(t):
    e = engine(t, "--speed", "100")

    def busy(factor):
        told = ask(e.address, "POST", "/turnward/slowdown", str(factor)).json()
        equal(told, {"slowdown": factor}, "the factor in force")
        ask(e.address, "POST", "/turnward/lateness")
        post(e.address, "/v1/completions", prompt="x", max_tokens=50)
        return ask(e.address, "GET", "/turnward/lateness").json()["busy_s"]
    normal, slow, again = busy(1), busy(5), busy(1)
    check(4.9 < slow / normal < 5.1 and 0.9 < again / normal < 1.1, f"{normal} {slow} {again}")
    equal(ask(e.address, "POST", "/turnward/slowdown", "none").status, 400, "status")


@case
def lateness_is_told_and_reset(t):
    e = engine(t, "--speed", "2")
    post(e.address, "/v1/completions", prompt="x", max_tokens=50)
    told = ask(e.address, "POST", "/turnward/lateness").json()
    equal(told["speed"], 2)
    equal(told["steps"], 50)
    busy = 50 * (12.2e-3 + 1e-3) / 2
    check(abs(told["busy_s"] - busy) < 0.002, f"busy {told['busy_s']} s, by hand {busy} s")
    check(0 <= told["late_p99_s"] <= 2 * told["late_max_s"] + 1e-6, f"{told}")
    equal(ask(e.address, "GET", "/turnward/lateness").json()["steps"], 0)


@case
def connections_are_kept_and_closed_as_asked(t):
    e = engine(t, "--idle-close", "0.3", "--speed", "10")
    wire = dial(e.address)
    wire.send(request_bytes("GET", "/health") + request_bytes("GET", "/version"))
    equal(wire.read_response().status, 200)
    equal(wire.read_response().json(), {"version": "0.32.0"}, "pipelined")
    check(0.2 < wire.wait_closed() < 2, "closed when idle")
    wire = dial(e.address)
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 1})
    wire.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
              "Expect: 100-continue\r\nConnection: close\r\n\r\n")
    equal(wire.read_head().status, 100)
    wire.send(chunk(body[:10]) + chunk(body[10:]) + LAST_CHUNK)
    equal(wire.read_response().status, 200)
    check(wire.wait_closed() < 1, "closed after Connection: close")


@case
def faults_are_played_on_request(t):
    e = engine(t, "--fail-head", "2", "--cut-after", "3", "--speed", "10")
    answer = stream(e.address, "/v1/completions", prompt="x", max_tokens=9).read_response()
    equal((len(answer.events), answer.complete), (3, False), "cut after three tokens")
    wire = stream(e.address, "/v1/completions", prompt="x", max_tokens=9)
    check(wire.read_head() is None, "the second request is closed unanswered")
    eventually(lambda: metric(e.address, "vllm:num_requests_running") == 0)
    full = engine(t, "--max-queued", "1", "--refuse-after", "2")
    busy = stream(full.address, "/v1/completions", prompt="x", max_tokens=500)
    busy.read_until(b"data: ")
    refused = post(full.address, "/v1/completions", prompt="y")
    equal((refused.status, refused.json()["error"]["type"]), (503, "Service Unavailable"))

    def closed():
        try:
            dial(full.address).close()
        except OSError:
            return True
        return False
    eventually(closed, text="nothing listens after two requests")
    check(busy.read_until(b"data: "), "what runs goes on")
    busy.close()


@case
def a_body_of_many_megabytes_is_taken(t):
    e = engine(t, "--context", "4000000", "--kv-tokens", "8000000", "--speed", "1000")
    filler = "word " * (2 * 1024 * 1024)
    answer = ask(e.address, "POST", "/tokenize", {"model": MODEL, "prompt": filler}, seconds=60)
    equal(answer.json()["count"], 2 * 1024 * 1024 + 1, "tokens of 10 MiB")
    wire = dial(e.address)
    wire.send(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {65 << 20}\r\n\r\n")
    equal(wire.read_response().status, 413)


@case
def an_agent_reads_each_kind(t):
    for kind in ("vllm", "sglang", "llamacpp"):
        e = engine(t, head=kind)
        agent = t.start("turnward-agent", "--engine", f"e-{kind}=http://{e.address}",
                        "--region", t.region, "--period", "50")
        agent.wait_log("engine", kind=kind, health="up")
        agent.stop()
        e.stop()


if __name__ == "__main__":
    main()
