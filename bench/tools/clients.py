"""The load tools: where each lies, its command line, and how its own report is read.

Times are seconds. `printed` holds what the tool itself says of a whole run, {"mean", "p50", "p90",
"p99"} of "ttft_s", "e2e_s" and "tpot_s"; `requests` what it says of each: {"id" or None, "start",
"ttft_s", "e2e_s"}.
"""
import glob
import json
import os
import time

HOME = os.path.expanduser("~")
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.join(HOME, ".cache")
QUANTILES = ("p50", "p90", "p99")
TIMES = ("ttft_s", "e2e_s", "tpot_s")
STREAMED = ("ttft_s", "tpot_s")  # what an answer in one piece has none of


class Report:
    """What a tool says of a run."""

    def __init__(self, requests, errors, printed, cancelled=0):
        self.requests, self.errors, self.printed = requests, errors, printed
        self.cancelled = cancelled  # by the tool itself, on purpose


class Tool:
    """What the tools have in common. `options` are those of bench/tools/run."""

    name = program = None
    apis = {}        # the names here -> the tool's own
    streams_only = False
    environment = {}

    def __init__(self, place=None):
        self.place = place or self.default_place()

    def default_place(self):
        place = os.environ.get("TURNWARD_TOOLS") or os.path.join(HOME, ".cache/turnward-tools")
        return os.path.join(place, self.name)

    def path(self, program):
        return os.path.join(self.place, "bin", program)

    @property
    def installed(self):
        return os.access(self.path(self.program), os.X_OK)


class Aiperf(Tool):
    """NVIDIA's aiperf: several processes, one record a request, x-request-id on each."""

    name = program = "aiperf"
    apis = {"chat": "chat", "completions": "completions"}
    # A local tokenizer is refused with HF_HUB_OFFLINE, so what it would fetch is fetched nowhere.
    environment = {"HF_HUB_DISABLE_TELEMETRY": "1"}

    def argv(self, options, place):
        pace = (["--request-rate", options.rate] if options.rate
                else ["--concurrency", options.concurrency])
        return [
            self.path("aiperf"), "profile", "--model", options.model, "--url", place.url,
            "--endpoint-type", self.apis[options.api], *["--streaming"] * options.stream,
            "--tokenizer", place.tokenizer, "--use-server-token-count", *pace,
            "--request-count", options.requests,
            "--synthetic-input-tokens-mean", options.input_tokens,
            "--output-tokens-mean", options.output_tokens,
            "--server-metrics", f"http://127.0.0.1:{place.admin}/metrics",
            "--no-gpu-telemetry", "--artifact-dir", place.artefacts, "--ui", "none"]

    def read(self, options, folder):
        found = glob.glob(os.path.join(folder, "**", "profile_export.jsonl"), recursive=True)
        summary = os.path.join(os.path.dirname(found[0]), "profile_export_aiperf.json")
        with open(summary, encoding="utf-8") as file:
            told = json.load(file)
        requests, errors, cancelled = [], 0, 0
        with open(found[0], encoding="utf-8") as file:
            for record in map(json.loads, file):
                if record["metadata"].get("benchmark_phase", "profiling") != "profiling":
                    continue
                if record["metadata"].get("was_cancelled"):
                    cancelled += 1
                elif record.get("error"):
                    errors += 1
                else:
                    requests.append(self.request(record))
        names = {"ttft_s": "time_to_first_token", "e2e_s": "request_latency",
                 "tpot_s": "inter_token_latency"}
        printed = {ours: {"mean": told[its]["avg"] / 1e3,
                          **{q: told[its][q] / 1e3 for q in QUANTILES}}
                   for ours, its in names.items() if told.get(its)}
        return Report(requests, errors, printed, cancelled)

    @staticmethod
    def request(record):
        def seconds(name):
            metric = record["metrics"].get(name)
            return metric["value"] / {"ms": 1e3, "us": 1e6, "ns": 1e9}.get(metric["unit"], 1) \
                if metric else None
        about = record["metadata"]
        return {"id": about.get("x_request_id"), "start": about["request_start_ns"] * 1e-9,
                "ttft_s": seconds("time_to_first_token"), "e2e_s": seconds("request_latency")}


class Guidellm(Tool):
    """guidellm: several processes; it names no request, so requests are paired by their start."""

    name = program = "guidellm"
    apis = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
    environment = {"HF_HUB_OFFLINE": "1"}

    def argv(self, options, place):
        pace = (f"kind=poisson,rate={options.rate}" if options.rate
                else f"kind=concurrent,streams={options.concurrency}")
        server = (f"kind=openai_http,target={place.url},model={options.model},"
                  f"request_format={self.apis[options.api]},"
                  f"stream={'true' if options.stream else 'false'}")
        return [
            self.path("guidellm"), "run", "--backend", server,  # tidy: its own option
            "--profile", pace, "--constraint", f"kind=max_requests,count={options.requests}",
            "--tokenizer", f"kind=hf_auto,model={place.tokenizer}",
            "--data", f"kind=synthetic_text,prompt_tokens={options.input_tokens},"
                      f"output_tokens={options.output_tokens}",
            "--output", f"kind=json,path={place.artefacts}/guidellm.json", "--output",
            "kind=console", "--disable-progress"]

    def read(self, options, folder):
        with open(os.path.join(folder, "guidellm.json"), encoding="utf-8") as file:
            told = json.load(file)["benchmarks"][0]
        requests = [{
            "id": None, "start": r["request_start_time"], "e2e_s": r["request_latency"],
            "ttft_s": r["time_to_first_token_ms"] and r["time_to_first_token_ms"] / 1e3,
        } for r in told["requests"]["successful"]]
        errors, cancelled = (len(told["requests"][n]) for n in ("errored", "incomplete"))
        names = {"ttft_s": ("time_to_first_token_ms", 1e3), "e2e_s": ("request_latency", 1),
                 "tpot_s": ("inter_token_latency_ms", 1e3)}
        printed = {}
        for ours, (its, unit) in names.items():
            of = (told["metrics"].get(its) or {}).get("successful")
            if of and of["count"] and (options.stream or ours not in STREAMED):
                printed[ours] = {"mean": of["mean"] / unit,
                                 **{q: of["percentiles"][q] / unit for q in QUANTILES}}
        return Report(requests, errors, printed, cancelled)


class VllmBench(Tool):
    """`vllm bench serve`: one process; streams only. TTFT is to the first event, be it empty."""

    name = program = "vllm"
    apis = {"chat": ("openai-chat", "/v1/chat/completions"),
            "completions": ("openai", "/v1/completions")}
    streams_only = True
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    PREFIX = "bench-"  # of the x-request-id; behind it the request's number

    def default_place(self):
        return os.path.join(os.environ.get("TURNWARD_REAL") or
                            os.path.join(CACHE, "turnward-real"), "vllm")

    def argv(self, options, place):
        kind, endpoint = self.apis[options.api]
        pace = (["--request-rate", options.rate] if options.rate
                else ["--max-concurrency", options.concurrency])
        return [
            self.path("vllm"), "bench", "serve", "--backend", kind,  # tidy: its own option
            "--base-url", place.url, "--endpoint", endpoint, "--model", options.model,
            "--tokenizer", place.tokenizer, "--dataset-name", "random", *pace,
            "--random-input-len", options.input_tokens,
            "--random-output-len", options.output_tokens, "--num-prompts", options.requests,
            "--ignore-eos", "--percentile-metrics", "ttft,tpot,itl,e2el",
            "--metric-percentiles", "50,90,99", "--request-id-prefix", self.PREFIX,
            "--save-result", "--save-detailed", "--result-dir", place.artefacts,
            "--result-filename", "vllm.json", "--disable-tqdm"]

    def read(self, options, folder):
        with open(os.path.join(folder, "vllm.json"), encoding="utf-8") as file:
            told = json.load(file)
        epoch = time.time() - time.perf_counter()  # its starts are of the monotonic clock
        requests = [
            {"id": f"{self.PREFIX}{number}", "start": epoch + start, "ttft_s": ttft,
             "e2e_s": ttft + sum(gaps)}
            for number, (start, ttft, gaps, error) in enumerate(zip(
                told["start_times"], told["ttfts"], told["itls"], told["errors"])) if not error]
        names = {"ttft_s": "ttft", "e2e_s": "e2el", "tpot_s": "tpot"}
        printed = {ours: {"mean": told[f"mean_{its}_ms"] / 1e3,
                          **{q: told[f"{q}_{its}_ms"] / 1e3 for q in QUANTILES}}
                   for ours, its in names.items()}
        return Report(requests, told["failed"], printed)


TOOLS = {tool.name: tool for tool in (Aiperf, Guidellm, VllmBench)}
