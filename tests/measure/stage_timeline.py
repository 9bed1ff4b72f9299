#!/usr/bin/env python3
"""Draws what one engine's clients saw beside a cold prompt, sent whole and in pieces.

    tests/measure/stage_timeline.py [--svg FILE]

A modelled vLLM; a session of 4,000 words gets a turn of +200 every 0.8 s, with 48 tokens of answer;
after the third a cold prompt of 30,000 words comes. Seconds of the model. The pieces' times are
those of a witness between router and engine, all others the clients'.
"""
import argparse
import json
import os
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "lib"), os.path.join(HERE, "..", "real")]
from harness import *  # noqa: E402,F403
from staging import *  # noqa: E402,F403
from witness import Witness  # noqa: E402

SPEED, GAP, TURNS, COLD_AT = 4, 0.8, 18, 2
ARMS = (("off", "sent whole"), ("pieces", "in pieces (stage = pieces)"))
WIDTH, LEFT, ROW, END = 900, 110, 11, 16.0
WAITS, DECODES, COLD, PIECE = "#c8ccd2", "#2f6db3", "#d9822b", "#f2b46d"


class Stamped(list):
    """Parts of a connection's bytes, each with the moment it came."""

    def __init__(self):
        super().__init__()
        self.at = []

    def append(self, part):
        super().append(part)
        self.at.append(time.monotonic())

    def moments_of(self, mark):
        """When the bytes with each occurrence of the mark came."""
        whole, found, at = b"".join(self), [], -1
        while (at := whole.find(mark, at + 1)) >= 0:
            end = 0
            for part, moment in zip(self, self.at):
                end += len(part)
                if at < end:
                    found.append(moment)
                    break
        return found


class Watch(Witness):
    tape = Stamped

    def parts(self):
        """(sent, answered) of each piece."""
        spans = []
        for asked, told in self.talks:
            sent = asked.moments_of(b"POST /")
            pieces = set(asked.moments_of(b"x-turnward-internal: piece"))
            spans += [(a, b) for a, b in zip(sent, told.moments_of(b"HTTP/1.1 ")) if a in pieces]
        return sorted(spans)


def play(router, witness):
    """{turns, cold, pieces}: lists of moments in seconds of the model since the first turn."""
    turns, cold, threads = [], [], []
    talk = chat(4000, "talk", stream=True, max_tokens=48)
    asked(router, talk)

    def keep(kept, body):
        threads.append(threading.Thread(target=lambda: kept.append(asked(router, body))))
        threads[-1].start()
    begun = time.monotonic()
    for turn in range(TURNS):
        talk["messages"] += [{"role": "assistant", "content": "so"},
                             {"role": "user", "content": words(200, f"turn {turn}")}]
        time.sleep(max(0, begun + turn * GAP / SPEED - time.monotonic()))
        keep(turns, json.loads(json.dumps(talk)))
        if turn == COLD_AT:
            keep(cold, chat(30000, "cold", stream=True, max_tokens=48))
    for thread in threads:
        thread.join()

    def model(spans):
        return sorted([(at - begun) * SPEED for at in span] for span in spans)
    return {"turns": model(turns), "cold": model(cold), "pieces": model(witness.parts())}


def measured(t, mode):
    port = t.port()
    t.start("turnward-engine", "--ports", str(port), "--speed", str(SPEED), "--model", "m",
            ready=f":{port}")

    class Engine:
        address = f"127.0.0.1:{port}"
    witness = Watch(Engine)
    t.engines.append(witness)
    t.region = t.path(mode)
    os.mkdir(t.region, 0o750)
    router = staged(t, "auto", witness, mode=mode, step_budget=8192, cold_tokens=8192,
                    args=("--set", f"time_scale={SPEED}"))
    return play(router, witness)


# ---- the picture ----

def bar(start, end, y, colour, height=ROW - 3):
    x = LEFT + start * (WIDTH - LEFT - 20) / END
    width = max(1.0, (min(end, END) - start) * (WIDTH - LEFT - 20) / END)
    return (f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" '
            f'fill="{colour}"/>')


def text(x, y, words_, more=""):
    return f'<text x="{x}" y="{y}" {more}>{words_}</text>'


def waited(run):
    return [turn[1] - turn[0] for turn in run["turns"]]


def panel(run, title, y):
    """One arm's marks, and the y below it."""
    waits, (sent, first, end) = waited(run), run["cold"][0]
    marks = [text(10, y, title, 'font-weight="bold"'),
             text(WIDTH - 10, y, f"turns' TTFT mean {sum(waits) / len(waits):.2f} s, longest "
                  f"{max(waits):.2f} s; cold prompt's {first - sent:.2f} s",
                  'text-anchor="end"')]
    y += 10
    marks += [text(LEFT - 8, y + 9, "cold prompt", 'text-anchor="end"'),
              bar(sent, first, y, WAITS if run["pieces"] else COLD),
              bar(first, end, y, DECODES)]
    for number, (a, b) in enumerate(run["pieces"]):
        marks.append(bar(a, b, y, (COLD, PIECE)[number % 2]))
    if run["pieces"]:
        last = (COLD, PIECE)[len(run["pieces"]) % 2]  # the request itself
        marks.append(bar(run["pieces"][-1][1], first, y, last))
    y += ROW + 4
    marks.append(text(LEFT - 8, y + 9, "its turns", 'text-anchor="end"'))
    for sent, first, end in run["turns"]:
        marks += [bar(sent, first, y, WAITS), bar(first, end, y, DECODES)]
        y += ROW
    return marks, y


def picture(runs):
    marks, y = [], 24
    for (_, title), run in zip(ARMS, runs):
        drawn, y = panel(run, title, y)
        marks += drawn
        y += 26
    bottom = y - 22
    lines = []
    for second in range(0, int(END) + 1, 2):
        x = LEFT + second * (WIDTH - LEFT - 20) / END
        lines += [f'<line x1="{x:.1f}" x2="{x:.1f}" y1="30" y2="{bottom}" stroke="#e6e8eb"/>',
                  text(f"{x:.1f}", bottom + 14, f"{second} s", 'text-anchor="middle"')]
    x, y = LEFT, bottom + 34
    for colour, meaning in ((COLD, "prefill of the cold prompt, piece by piece"),
                            (WAITS, "waiting for the first token"), (DECODES, "decoding")):
        lines += [f'<rect x="{x}" y="{y - 9}" width="12" height="9" fill="{colour}"/>',
                  text(x + 17, y, meaning)]
        x += 60 + 6 * len(meaning)
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 12}" '
         f'font-family="sans-serif" font-size="11" fill="#222">',
         f'<rect width="{WIDTH}" height="{y + 12}" fill="#fff"/>'] + lines + marks +
        ["</svg>", ""])


def main_(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--svg", default="stage_timeline.svg")
    options, runs = parser.parse_args(argv), []
    for mode, title in ARMS:
        test = Test(mode)
        try:
            runs.append(measured(test, mode))
        finally:
            complaint = test.finish()
        check(not complaint, complaint)
        waits, cold = sorted(waited(runs[-1])), runs[-1]["cold"][0]
        ends = [turn[2] - turn[0] for turn in runs[-1]["turns"]]
        print(f"{title}: {len(waits)} turns, TTFT mean {sum(waits) / len(waits):.2f} s, longest "
              f"{waits[-1]:.2f}, end mean {sum(ends) / len(ends):.2f}; cold prompt's TTFT "
              f"{cold[1] - cold[0]:.2f}; {len(runs[-1]['pieces'])} pieces")
    with open(options.svg, "w", encoding="utf-8") as file:
        file.write(picture(runs))


if __name__ == "__main__":
    main_(sys.argv[1:])
