#!/usr/bin/env python3
"""Cases of turnward-bench report: its pages are well-formed, stand alone, and say what the files
say. Pages are XHTML as well as HTML, so that one parser sees every tag of text and pictures."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import *  # noqa: E402,F403

NASTY = "</text><script>alert('x')</script>&\"\u0001 \u00e9\u20ac"
SEEN = NASTY.replace("\u0001", "\ufffd")
PAGE_MAX = 2_000_000
TAGS = {"html", "head", "meta", "title", "style", "body", "header", "section", "nav", "h1", "h2",
        "h3", "h4", "p", "a", "ol", "ul", "li", "dl", "div", "dt", "dd", "code", "strong", "em",
        "span", "data", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure",
        "figcaption", "svg", "defs", "pattern", "path", "text"}
LETTER = 5.0  # px of an axis label's letter, at least


def stands_alone(text, root):
    """Nothing is fetched and nothing runs."""
    for element in root.iter():
        check(element.tag in TAGS, f"an element {element.tag!r}")
        for name, value in element.attrib.items():
            check(name != "src" and not name.startswith("on"), f"{element.tag} has {name}")
            if name.endswith("href"):
                check(value.startswith("#"), f"a link to {value!r}")
    check("http" not in root.find("head").find("style").text, "styles refer to something")
    for place in re.findall(r"url\(([^)]*)\)|@import", text):
        equal(place, "#hatch", "what styles refer to")


def links_lead_somewhere(root):
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    equal(len(ids), len(set(ids)), "ids that are there once")
    for link in root.iter("a"):
        check(link.get("href")[1:] in ids, f"{link.get('href')} leads nowhere")


def pictures_are_sound(root):
    """Numbers are numbers, marks lie within, labels of an axis do not touch."""
    for svg in root.iter("svg"):
        if not svg.get("viewBox"):
            continue
        width, height = (float(v) for v in svg.get("viewBox").split()[2:])
        rows = {}
        for path in svg.iter("path"):
            check(re.fullmatch(r"[-MmLlHhVvAaCcZz0-9. ]+", path.get("d")), path.get("d")[:80])
        for label in svg.iter("text"):
            x, y = float(label.get("x")), float(label.get("y"))
            check(0 <= x <= width and 0 <= y <= height, f"{label.text} at {x}, {y} of {height}")
            if label.get("class") == "a" and label.get("text-anchor") == "middle":
                rows.setdefault(y, []).append((x, len(label.text)))
        for row in rows.values():
            row.sort()
            for (x, n), (x_next, n_next) in zip(row, row[1:]):
                check(x + n * LETTER / 2 <= x_next - n_next * LETTER / 2, f"labels touch: {row}")


def report(t, *files, args=()):
    out = t.path("page.html")
    t.run("turnward-bench", "report", *files, "-o", out, *args, code=0, seconds=60)
    with open(out, encoding="utf-8") as file:
        text = file.read()
    check(text.startswith("<!DOCTYPE html>\n"), "no doctype")
    check(len(text) < PAGE_MAX, f"a page of {len(text)} bytes")
    root = xml.fromstring(text.split("\n", 1)[1])
    stands_alone(text, root)
    links_lead_somewhere(root)
    pictures_are_sound(root)
    return root


def rows_of(root):
    """Rows of all tables: the first cell's text, and the exact numbers behind it."""
    return [("".join(row[0].itertext()), [float(d.get("value")) for d in row.iter("data")])
            for body in root.iter("tbody") for row in body.iter("tr")]


def words(root):
    return " ".join(root.itertext())


def live_arm(name, factor):
    def times():
        return {"ttft_s": {"mean": 1.5 * factor, "p50": factor, "p90": 3 * factor, "p99": 9},
                "tpot_s": {"mean": .02, "p50": .02, "p90": .04 * factor, "p99": .09},
                "e2e_s": {"mean": 5, "p50": 4 * factor, "p90": 9, "p99": 12}, "hit_ratio": .81}
    return {"name": name, "planned": 40, "requests": 40, "errors": 1, "completed": 39, **times(),
            "warm": times(), "medium": times(), "heavy": times(), "heavy_turn_2": times(),
            "errors_by_kind": {"cut": 1, "refused": 0}, "migrations": None, "late_ratio": .011}


def write(t, name, value):
    return t.write(name, json.dumps(value))


@case
def a_replay_becomes_a_page_with_its_own_numbers(t):
    path = t.path("replay.json")
    t.run("turnward-bench", "replay", "--requests", 150, "--rate", 2, "--seeds", 2, "--engines", 4,
          "--arms", "linear,eft,A,sticky", "--json", path, code=0, seconds=60)
    with open(path, encoding="utf-8") as file:
        figures = json.load(file)
    root = report(t, path)
    rows = dict(reversed(rows_of(root)))  # the first table counts
    for arm in figures["arms"]:
        wanted = [arm["ttft_s"][q] for q in ("mean", "p50", "p90", "p99")]
        wanted += [arm["class"][c]["mean_s"] for c in ("WARM", "MEDIUM", "HEAVY")]
        wanted += [arm["heavy_t2_mean_s"], arm["tpot_s"]["p90"], arm["e2e_s"]["mean"],
                   arm["e2e_s"]["p50"], arm["victims"], arm["migrations"], arm["hit_ratio"],
                   arm["balance"]]
        equal(rows[arm["name"]], wanted, f"figures of {arm['name']}")
    said = words(root)
    moves = {a["name"]: a["detail"]["moves"]["total"] for a in figures["arms"]}
    check(moves["linear"] > 0 and f"{moves['linear']} move" in said, "moves are counted")
    contains(said, "replay --requests 150", "the command")
    for heading in ("Figures", "Differences to the base", "Time to first token, by class",
                    "Distributions", "Queues over time", "Moves and pieces over time"):
        contains([h.text for h in root.iter("h3")], heading, "headings")
    check("seed 1" in said and figures["version"] in said, "seed and version")


@case
def a_replay_without_detail_has_what_is_there(t):
    path = t.path("replay.json")
    t.run("turnward-bench", "replay", "--requests", 60, "--seeds", 1, "--arms", "linear,eft",
          "--detail", 0, "--json", path, code=0, seconds=60)
    root = report(t, path)
    headings = [h.text for h in root.iter("h3")]
    check("Figures" in headings and "Queues over time" not in headings, headings)


@case
def the_design_suite_fits_one_page(t):
    path = t.path("replay.json")
    t.run("turnward-bench", "replay", "--suite", "design", "--requests", 250, "--seeds", 1,
          "--json", path, code=0, seconds=100)
    with open(path, encoding="utf-8") as file:
        arms = json.load(file)["arms"]
    root = report(t, path)
    names = {name for name, _ in rows_of(root)}
    equal(names, {arm["name"] for arm in arms}, "arms in tables")


@case
def pieces_outages_and_moves_are_drawn(t):
    lanes = {"step_s": 1, "engines": 2, "requests": [[1, 2, 3], [0, 0, 1]],
             "pending_prefill_tokens": [[5, 9, 1], [0, 0, 7]], "kv_used_ratio": [[0, 0, 0]] * 2}
    detail = {"timeline": lanes,
              "moves": {"total": 1, "at_s": [1], "from": [0], "to": [1]},
              "pieces": {"total": 5, "at_s": [0.5, 1, 9], "engine": [1, 0, 77],
                         "tokens": [512, 9, 9]},
              "outages": {"total": 1, "kind": ["stall"], "engine": [1], "from_s": [1],
                          "until_s": [2]}}
    arm = {"name": "x", "ttft_s": {"p50": 1, "p90": 2, "p99": 3}, "detail": detail}
    root = report(t, write(t, "r.json", {"kind": "replay", "arms": [arm]}))
    contains(words(root), "1 move, 5 pieces (the first 3 shown), 1 outage", "counts")
    shapes = {p.get("class"): p.get("d") for p in root.iter("path")}
    equal(shapes["piece"].count("M"), 2, "pieces of engines that exist")
    check("out" in shapes, "the stall's span")


@case
def runs_of_live_and_demo_are_compared(t):
    arms = [live_arm("round-robin", 2), live_arm("eft", 1)]
    root = report(t, write(t, "demo.json", {"arms": arms, "speed": 10, "valid": False}))
    said = words(root)
    contains(said, "NOT valid", "validity")
    contains(said, "HEAVY turn \u2265 2: TTFT", "panels")
    rows = dict(rows_of(root))
    equal(rows["ttft_s.p90"], [6, 3], "TTFT p90, arms beside each other")
    equal(rows["errors_by_kind.cut"], [1, 1], "failures by kind")
    check("migrations" not in rows and "planned" in rows, "what is not known is left out")
    equal(rows["eft"][2], 3, "TTFT p90 in the table of arms")


@case
def a_kind_of_its_own_becomes_tables_and_quantiles(t):
    doc = {"kind": "stream", "loads": [
        {"name": "haproxy", "chunk_us": {"p50": 10, "p90": 20, "p99": 45}, "rss": 1e6},
        {"name": NASTY, "chunk_us": {"p50": 5, "p90": 9, "p99": 30}, "rss": 5e5}],
           "targets": [{"name": "chunk", "wanted": "<= 0.65", "got": 0.61, "met": True},
                       {"name": "p99", "wanted": "<= 1", "got": 1.2, "met": False}]}
    root = report(t, write(t, "stream.json", doc))
    said = words(root)
    contains(said, "\u2713 met", "a target that was met")
    contains(said, "\u2717 NOT met", "one that was not")
    contains(said, "chunk_us", "a panel of quantiles")
    rows = dict(rows_of(root))
    equal(sorted(rows["haproxy"]), [10, 20, 45, 1e6], "numbers")
    equal(sorted(rows[SEEN]), [5, 9, 30, 5e5], "a nasty name's numbers")


@case
def names_from_files_are_text_and_nothing_else(t):
    named = {"name": NASTY, "ttft_s": {"p50": 1, "p90": 2, "p99": 3}, "detail": {
        "timeline": {"step_s": 1, "requests": [[1]], "pending_prefill_tokens": [[5]]}}}
    replay = {"kind": "replay", "workload": NASTY, "base": NASTY, NASTY: NASTY, "arms": [
        named, {"name": "b", "ttft_s": {"p90": 1}}], "targets": [{NASTY: NASTY}]}
    live = {"speed": 1, "valid": True, "arms": [dict(live_arm(NASTY, 1), **{NASTY: 1})]}
    other = {NASTY: [{NASTY: NASTY, "name": NASTY, NASTY + "2": {"p50": 1, "p90": 2}}]}
    for name, value in (("a.json", replay), ("b.json", live), ("c.json", other)):
        root = report(t, write(t, name, value))
        check(SEEN in words(root), f"{name}: the name is not shown as it is")
    root = report(t, write(t, "<b>&.json", replay))
    contains(root.find("head").find("title").text, "<b>&.json", "the file's name")


@case
def odd_values_harm_no_picture(t):
    numbers = [None, "x", -5, 0, 1e300, [1], {"p50": 1}, 1e-300, True]
    arms = [{"name": f"{i}", "ttft_s": {"mean": v, "p50": v, "p90": v, "p99": v},
             "figures": {"ttft_mean_s": {"against_base_percent": v, "against_base_error": v}},
             "class": v, "detail": {
                 "ttft_s": {"ALL": [v] * 3}, "timeline": {
                     "step_s": v if i % 2 else 1, "requests": [[v, v], v],
                     "pending_prefill_tokens": [[v] * 3, [1]]},
                 "moves": {"total": v, "at_s": [v, 1], "from": [v, 0], "to": [0, v]}}}
            for i, v in enumerate(numbers)]
    report(t, write(t, "odd.json", {"kind": "replay", "base": 5, "arms": arms, "detail": {
        "quantiles": [0, 0.5, 2]}}))
    for value in ({}, {"arms": []}, {"arms": [1, "x"]}, {"kind": "replay", "arms": [{}]},
                  {"arms": {}}, {"kind": "live", "arms": [{}]}, {"targets": [{}], "x": [[]]}):
        report(t, write(t, "empty.json", value))


@case
def several_files_have_a_table_of_contents(t):
    live = write(t, "live.json", {"speed": 1, "valid": True, "arms": [live_arm("one", 1)]})
    other = write(t, "other.json", {"rows": [{"name": "x", "p50": 1}]})
    root = report(t, live, other, live)
    links = [a.get("href") for a in root.find("body").find("nav").iter("a")]
    equal([l for l in links if "-" not in l], ["#f1", "#f2", "#f3"], "files")
    check("#f1-table" in links and "#f3-classes" in links, f"parts: {links}")
    check(report(t, other).find("body").find("nav") is None, "contents of one file")


@case
def replays_are_laid_side_by_side(t):
    def replay(name, **p90):
        return write(t, name, {"kind": "replay", "base": "a", "arms": [
            {"name": arm, "ttft_s": {"p90": v}, "figures": {
                "ttft_p90_s": {"against_base_percent": 100 * (v / p90["a"] - 1)}}}
            for arm, v in p90.items()]})
    root = report(t, replay("one.json", a=10, b=8, c=3), replay("two.json", a=4, b=5))
    overview = root.find("body").find("div").find("table")
    rows = {r[0].text: "".join(r.itertext()) for r in overview.find("tbody")}
    equal(list(rows), ["b", "a"], "arms that both have, best first")
    contains(rows["b"], "8.00\u221220\u00a0%5.00+25\u00a0%", "p90 and per cent over the base")


@case
def arms_can_be_asked_for(t):
    arms = [{"name": f"arm{i}", "ttft_s": {"p50": i, "p90": 2 * i, "p99": 3 * i}}
            for i in range(1, 12)]
    path = write(t, "many.json", {"kind": "replay", "base": "arm9", "arms": arms})

    def coloured(*args):
        root = report(t, path, args=args)
        return {x.text for x in root.iter("text") if x.get("class") == "n"}
    equal(coloured(), {"arm9", "arm1", "arm2", "arm3", "arm4", "arm5"}, "the base and the best")
    equal(coloured("--highlight", "arm11,nobody"), {"arm9", "arm11"}, "those asked for")


@case
def mistakes_are_told_and_harm_no_older_page(t):
    good = write(t, "good.json", {"rows": [{"name": "x", "p50": 1}]})
    out = t.write("old.html", "old")

    def fails(*files, code, text):
        done = t.run("turnward-bench", "report", *files, "-o", out, code=code)
        for part in text:
            contains(done.err, part, "what is said")
        with open(out, encoding="utf-8") as file:
            equal(file.read(), "old", "the older page")
    broken = t.write("broken.json", '{"a": 1,, "b": 2}')
    fails(good, broken, code=1, text=[broken, "no JSON at byte 8 of 17"])
    cut = t.write("cut.json", '{"a": [1, 2')
    fails(cut, code=1, text=[cut, "breaks off at byte 11"])
    fails(t.write("list.json", "[1]"), code=1, text=["list.json", "object", "byte 0"])
    fails(t.path("nowhere.json"), code=1, text=["nowhere.json", "No such file"])
    fails(t.write("deep.json", "[" * 100 + "]" * 100), code=1, text=["deep.json", "too deeply"])
    fails(code=2, text=["a file is missing"])
    fails(good, "--nothing", code=2, text=["--nothing"])
    done = t.run("turnward-bench", "report", good, "-o", t.path("no", "dir.html"), code=1)
    contains(done.err, "cannot be written", "a page that cannot be written")


@case
def the_page_goes_to_standard_output_unless_told(t):
    path = write(t, "x.json", {"rows": [{"name": "x", "p50": 1}]})
    contains(t.run("turnward-bench", "report", path, code=0).out, "</html>", "the page")


@case
def a_browser_shows_it(t):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser",
                                                   "google-chrome"))), None)
    if not browser:
        raise Skip("no chromium: tests/setup --pictures installs it")
    path = write(t, "x.json", {"speed": 1, "valid": True, "arms": [live_arm("one", 1)]})
    report(t, path)
    with tempfile.TemporaryDirectory() as home:
        picture = os.path.join(home, "page.png")
        done = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}/x",
             "--enable-logging=stderr", f"--screenshot={picture}", "--window-size=1200,1500",
             "file://" + t.path("page.html")], env=dict(os.environ, HOME=home),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False)
        check(os.path.exists(picture), done.stdout.decode(errors="replace")[-500:])
        check(os.path.getsize(picture) > 20000, "the picture is empty")
        check(b"CONSOLE" not in done.stdout, "the browser complains of the page")


main()
