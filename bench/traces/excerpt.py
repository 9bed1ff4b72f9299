#!/usr/bin/env python3
"""Makes claude_code.jsonl from the full file of sessions: excerpt.py FULL.jsonl[.xz] > OUT.

Takes top-level sessions whose first prompt has at most 40,000 tokens and cuts each to its first
12 requests, and before the first whose prompt and answer exceed a context of 120,000 tokens.
Of those with at least two requests left, 200 evenly spread over the file are kept.
"""
import json
import lzma
import sys

FIRST_PROMPT_MAX = 40_000
TURNS_MAX = 12
CONTEXT_MAX = 120_000
SESSIONS = 200


def cut(session):
    """The session's first requests, or None when it does not belong here."""
    turns = []
    for t, prompt, answer, think, api, hashes in session["r"][:TURNS_MAX]:
        if prompt + answer > CONTEXT_MAX:
            break
        turns.append([t, prompt, max(answer, 1), think, api, hashes])
    if "parent" in session or len(turns) < 2 or turns[0][1] > FIRST_PROMPT_MAX:
        return None
    return dict(session, r=turns)


def main():
    path = sys.argv[1]
    with (lzma.open if path.endswith(".xz") else open)(path, "rt", encoding="utf-8") as file:
        sessions = [s for s in (cut(json.loads(line)) for line in file) if s]
    for i in range(min(SESSIONS, len(sessions))):
        session = sessions[i * len(sessions) // min(SESSIONS, len(sessions))]
        print(json.dumps(session, separators=(",", ":")))


main()
