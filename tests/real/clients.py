#!/usr/bin/env python3
"""Checks a server with the official openai and anthropic clients, one line a check.

    clients.py URL MODEL [--clients openai,anthropic] [--only NAME,...]

URL is without /v1. Prints "ok NAME NOTE" or "FAIL NAME NOTE"; exit status 1 if any failed. The
clients do not try again here, so a dropped answer is seen and not mended.
"""
import argparse
import asyncio
import json
import sys
import time
import traceback
import urllib.request

SYSTEM = "You are a careful assistant. " * 60
QUESTION = {"role": "user", "content": "Name a colour."}
PARAMETERS = {"type": "object", "properties": {"colour": {"type": "string"}},
              "required": ["colour"]}
TOO_LONG = {"role": "user", "content": "a b c d e f g h " * 9000}


class Wrong(Exception):
    """What came is not what should have come."""


def expect(condition, *what):
    if not condition:
        raise Wrong(" ".join(str(w) for w in what))


# ---- openai ----

class OpenAI:
    """Each method that begins with a letter is a check; its result is the note."""

    def __init__(self, url, model):
        import openai
        self._errors = openai
        self._url = url
        self._where = {"base_url": url + "/v1", "api_key": "none", "max_retries": 0,
                       "timeout": 120}
        self._client = openai.OpenAI(**self._where)
        self._chat = {"model": model, "temperature": 0, "max_tokens": 32,
                      "messages": [{"role": "system", "content": SYSTEM}, QUESTION]}
        self._model = model

    def _streamed(self, **more):
        """Text, usage, finish reason and seconds to the first text of a stream."""
        begun, first = time.monotonic(), None
        text, usage, finish = "", None, None
        for event in self._client.chat.completions.create(
                **dict(self._chat, **more), stream=True,
                stream_options={"include_usage": True}):
            for choice in event.choices:
                if choice.delta.content:
                    first = first or time.monotonic() - begun
                    text += choice.delta.content
                finish = choice.finish_reason or finish
            usage = event.usage or usage
        return text, usage, finish, first

    def models(self):
        ids = [m.id for m in self._client.models.list().data]
        expect(self._model in ids, ids)

    def chat(self):
        answer = self._client.chat.completions.create(**self._chat)
        expect(answer.usage.completion_tokens == 32, answer.usage)
        expect(answer.choices[0].finish_reason == "length", answer.choices[0])
        return f"{answer.usage.prompt_tokens} prompt tokens"

    def chat_stream(self):
        text, usage, finish, first = self._streamed()
        expect(finish == "length" and usage.completion_tokens == 32, finish, usage)
        whole = self._client.chat.completions.create(**self._chat).choices[0].message.content
        expect(text == whole, "streamed", repr(text), "whole", repr(whole))
        return f"first text after {first:.3f} s"

    def chat_at_once(self):
        from openai import AsyncOpenAI

        async def run():
            async with AsyncOpenAI(**self._where) as client:
                return await asyncio.gather(*(client.chat.completions.create(**self._chat)
                                              for _ in range(6)))
        answers = asyncio.run(run())
        # Batched arithmetic may round otherwise, and so may the words after it.
        expect(all(a.usage.completion_tokens == 32 for a in answers), answers)

    def raw_response(self):
        raw = self._client.chat.completions.with_raw_response.create(**self._chat)
        expect(raw.parse().choices, raw.headers)
        return raw.headers.get("x-request-id")

    def completions(self):
        answer = self._client.completions.create(model=self._model, prompt="def main():",
                                                 max_tokens=5, temperature=0)
        expect(answer.usage.completion_tokens == 5, answer.usage)

    def completions_stream(self):
        text = "".join(e.choices[0].text for e in self._client.completions.create(
            model=self._model, prompt="def main():", max_tokens=5, temperature=0, stream=True)
            if e.choices)
        expect(text, "no text")

    def responses(self):
        answer = self._client.responses.create(model=self._model, input="Name a colour.",
                                               max_output_tokens=12, temperature=0)
        expect(answer.output_text, answer)
        return answer.id

    def responses_stream(self):
        kinds = [e.type for e in self._client.responses.create(
            model=self._model, input="Name a colour.", max_output_tokens=12, temperature=0,
            stream=True)]
        expect(kinds[0] == "response.created", kinds[0])
        expect(kinds[-1] in ("response.completed", "response.incomplete"), kinds[-1])
        expect("response.output_text.delta" in kinds, set(kinds))

    def tools(self):
        """Tools are part of the prompt, streamed or not."""
        tools = [{"type": "function", "function": {
            "name": "paint", "description": "Paints a wall. " * 20, "parameters": PARAMETERS}}]
        bare = self._client.chat.completions.create(**self._chat).usage.prompt_tokens
        usage = self._client.chat.completions.create(**self._chat, tools=tools).usage
        expect(usage.prompt_tokens > bare + 50, usage, "without:", bare)
        _, usage, _, _ = self._streamed(tools=tools)
        expect(usage.prompt_tokens > bare + 50, usage, "without:", bare)
        return f"{usage.prompt_tokens} prompt tokens, {bare} without"

    def _token(self, text):
        body = json.dumps({"model": self._model, "prompt": text}).encode()
        request = urllib.request.Request(self._url + "/tokenize", body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["tokens"][0]

    def tool_call(self):
        """A grammar makes even this model call, and a bias keeps it from blanks without end."""
        tools = [{"type": "function", "function": {"name": "paint", "strict": True, "parameters": {
            "type": "object", "properties": {"colour": {"enum": ["red"]}},
            "required": ["colour"], "additionalProperties": False}}}]
        choice = {"type": "function", "function": {"name": "paint"}}
        kw = dict(self._chat, tools=tools, tool_choice=choice, max_tokens=200,
                  logit_bias={str(self._token(c)): 90 for c in '":{}'})
        call = self._client.chat.completions.create(**kw).choices[0].message.tool_calls[0]
        expect(call.function.name == "paint", call)
        expect(json.loads(call.function.arguments) == {"colour": "red"}, call)
        parts = [c.delta.tool_calls[0].function for e in self._client.chat.completions.create(
            **kw, stream=True) for c in e.choices if c.delta.tool_calls]
        expect("".join(p.name or "" for p in parts) == "paint", parts)
        expect(json.loads("".join(p.arguments or "" for p in parts)) == {"colour": "red"}, parts)
        return call.function.arguments

    def unknown_model(self):
        try:
            self._client.chat.completions.create(**dict(self._chat, model="no-such-model"))
        except self._errors.NotFoundError as error:
            return error.code
        raise Wrong("it was answered")

    def too_long(self):
        try:
            self._client.chat.completions.create(**dict(self._chat, messages=[TOO_LONG]))
        except self._errors.BadRequestError as error:
            return error.type
        raise Wrong("it was answered")

    def early_close(self):
        for stream in [self._client.chat.completions.create(
                **dict(self._chat, max_tokens=3000), stream=True) for _ in range(3)]:
            next(iter(stream))
            stream.close()


# ---- anthropic ----

class Anthropic:
    """Likewise."""

    def __init__(self, url, model):
        import anthropic
        self._errors = anthropic
        self._client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0,
                                           timeout=120)
        self._message = {"model": model, "max_tokens": 16, "system": SYSTEM,
                         "messages": [QUESTION]}

    def messages(self):
        answer = self._client.messages.create(**self._message)
        expect(answer.usage.output_tokens == 16, answer.usage)
        expect(answer.stop_reason == "max_tokens", answer.stop_reason)
        return f"{answer.usage.input_tokens} input tokens"

    def messages_stream(self):
        with self._client.messages.stream(**self._message) as stream:
            pieces = sum(1 for _ in stream.text_stream)
            answer = stream.get_final_message()
        expect(answer.usage.output_tokens == 16, answer.usage)
        return f"{pieces} pieces"

    def messages_tools(self):
        tools = [{"name": "paint", "description": "Paints a wall. " * 20,
                  "input_schema": PARAMETERS}]
        bare = self._client.messages.create(**self._message).usage
        usage = self._client.messages.create(**self._message, tools=tools).usage
        expect(usage.output_tokens == 16, usage)
        return f"{usage.input_tokens} input tokens, {bare.input_tokens} without"

    def count_tokens(self):
        counted = self._client.messages.count_tokens(
            model=self._message["model"], system=SYSTEM, messages=[QUESTION])
        expect(counted.input_tokens > 100, counted)
        return counted.input_tokens

    def messages_unknown_model(self):
        try:
            self._client.messages.create(**dict(self._message, model="no-such-model"))
        except self._errors.NotFoundError as error:
            return error.status_code
        raise Wrong("it was answered")

    def messages_too_long(self):
        try:
            self._client.messages.create(**dict(self._message, messages=[TOO_LONG]))
        except self._errors.BadRequestError as error:
            return error.status_code
        raise Wrong("it was answered")

    def messages_early_close(self):
        with self._client.messages.stream(**dict(self._message, max_tokens=3000)) as stream:
            next(iter(stream.text_stream))


CLIENTS = {"openai": OpenAI, "anthropic": Anthropic}


def checks(clients, only, url, model):
    for name in clients:
        client = CLIENTS[name](url, model)
        for method in [m for m in type(client).__dict__ if not m.startswith("_")]:
            if not only or method in only:
                yield method, getattr(client, method)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--only", default="", help="checks to run, by name")
    parser.add_argument("--but", default="", help="checks to leave out")
    options = parser.parse_args()
    only, but = (list(filter(None, o.split(","))) for o in (options.only, options.but))
    failed = 0
    for name, run in checks(options.clients.split(","), only, options.url, options.model):
        if name in but:
            continue
        begun = time.monotonic()
        try:
            word, note = "ok", run() or ""
        except Exception as error:  # pylint: disable=broad-except
            where = traceback.extract_tb(error.__traceback__)[-1]
            word, note = "FAIL", f"{type(error).__name__}: {error} ({where.name}:{where.lineno})"
            failed += 1
        print(f"{word} {name} [{time.monotonic() - begun:.2f} s] {note}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
