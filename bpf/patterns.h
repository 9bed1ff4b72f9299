/*
 * What the probe looks for in a connection's bytes, as one list: generate.c makes the tables from
 * it that the kernel side and the tests step through.
 *
 * A pattern is matched anywhere, except that one that begins with AT_START counts only as the first
 * thing in its machine. Letters of heads match in either case. On a match `found` is noted, and the
 * machine `then` goes on, if it is another one, from its start.
 */
#ifndef TURNWARD_BPF_PATTERNS_H
#define TURNWARD_BPF_PATTERNS_H

/* X(code, name, bytes, many): a set of bytes; with `many` any number of them, also none. */
#define PATTERN_SETS(X)                                            \
	X(1, BLANKS, is_blank(b), 1)                               \
	X(2, SPACES, is_blank(b) || is_line_end(b), 1)             \
	X(3, TEXT, !is_line_end(b), 1)                             \
	X(4, PATH, !is_blank(b) && !is_line_end(b) && b != '?', 1) \
	X(5, DIGITS, is_digit(b), 1)                               \
	X(6, WORD, (b >= 'a' && b <= 'z') || b == '_', 1)          \
	X(11, LINE, is_line_end(b), 0)                             \
	X(12, ONE_DIGIT, is_digit(b), 0)                           \
	X(14, FINAL_DIGIT, b >= '2' && b <= '9', 0)                \
	X(15, PATH_END, b == ' ' || b == '?', 0)                   \
	X(16, FILLED, b != '"' && !is_line_end(b), 0)              \
	X(17, ITEM, b != ']' && !is_blank(b) && !is_line_end(b), 0)

/* The same as bytes of a pattern. */
#define BLANKS      "\x01"
#define SPACES      "\x02"
#define TEXT        "\x03"
#define PATH        "\x04"
#define DIGITS      "\x05"
#define WORD        "\x06"
#define LINE        "\x0b"
#define ONE_DIGIT   "\x0c"
#define FINAL_DIGIT "\x0e"
#define PATH_END    "\x0f"
#define FILLED      "\x10"
#define ITEM        "\x11"
#define AT_START    "\x12"

/* What a match means: a bit in `found`. X(name, bit, direction it is for) */
#define FOUNDS(X)                                                         \
	X(END, 0, "both: the head's last byte")                           \
	X(LENGTH, 1, "both: a digit of Content-Length")                   \
	X(CHUNKED, 2, "both: the body comes in chunks")                   \
	X(GENERATION, 3, "request: a path that makes an engine generate") \
	X(INTERNAL, 4, "request: of the router's own")                    \
	X(STREAM, 5, "request: asks for a stream")                        \
	X(ECHO, 6, "request: wants its prompt back")                      \
	X(STATUS, 7, "answer: a digit of the final status")               \
	X(EVENTS, 8, "answer: its type is text/event-stream")             \
	X(TOKEN, 9, "answer: the first byte of the first token")          \
	X(UNECHOED, 10, "request: of an API that never echoes the prompt")

/* X(machine, table, begins): `begins` is what its first byte is taken to follow. */
#define MACHINES(X)                           \
	X(REQUEST_HEAD, request, AFTER_LINE)  \
	X(REQUEST_BODY, request, AFTER_LINE)  \
	X(ANSWER_START, answer, AFTER_LINE)   \
	X(ANSWER_INTERIM, answer, AFTER_TEXT) \
	X(ANSWER_HEAD, answer, AFTER_TEXT)    \
	X(EVENTS, events, AFTER_LINE)         \
	X(EVENT_SKIPPED, events, AFTER_TEXT)

/* A non-empty string under this key in an event is a token. Escaped quotes in strings keep text
 * from matching: there `"content":"` reads `\"content\":\"`. */
#define KEY(name)       "\"" name "\"" BLANKS ":" BLANKS
#define STRING(name)    LINE "data:" TEXT KEY(name) "\"" FILLED
#define GENERATES(path) "\npost " PATH path PATH_END

/* X(machine, pattern, found or NONE, then) */
#define PATTERNS(X)                                                                        \
	X(REQUEST_HEAD, GENERATES("/completions"), GENERATION, REQUEST_HEAD)               \
	X(REQUEST_HEAD, GENERATES("/completion"), GENERATION, REQUEST_HEAD)                \
	X(REQUEST_HEAD, GENERATES("/responses"), GENERATION, REQUEST_HEAD)                 \
	X(REQUEST_HEAD, GENERATES("/messages"), GENERATION, REQUEST_HEAD)                  \
	X(REQUEST_HEAD, GENERATES("/responses"), UNECHOED, REQUEST_HEAD)                   \
	X(REQUEST_HEAD, GENERATES("/messages"), UNECHOED, REQUEST_HEAD)                    \
	X(REQUEST_HEAD, GENERATES("/generate"), GENERATION, REQUEST_HEAD)                  \
	X(REQUEST_HEAD, GENERATES("/infill"), GENERATION, REQUEST_HEAD)                    \
	X(REQUEST_HEAD, "\npost /inference/", GENERATION, REQUEST_HEAD)                    \
	X(REQUEST_HEAD, "\nx-turnward-internal:", INTERNAL, REQUEST_HEAD)                  \
	X(REQUEST_HEAD, "\naccept:" BLANKS "text/event-stream\r", STREAM, REQUEST_HEAD)    \
	X(REQUEST_HEAD, "\nx-turnward-stream:" BLANKS "1", STREAM, REQUEST_HEAD)           \
	X(REQUEST_HEAD, "\ncontent-length:" BLANKS ONE_DIGIT DIGITS, LENGTH, REQUEST_HEAD) \
	X(REQUEST_HEAD, "\ntransfer-encoding:" TEXT "chunked", CHUNKED, REQUEST_HEAD)      \
	X(REQUEST_HEAD, "\n\r\n", END, REQUEST_BODY)                                       \
	X(REQUEST_BODY, "\"stream\"" SPACES ":" SPACES "true", STREAM, REQUEST_BODY)       \
	X(REQUEST_BODY, "\"echo\"" SPACES ":" SPACES "true", ECHO, REQUEST_BODY)           \
	/* Any number of interim answers, 1xx, may come first and mean nothing. */         \
	X(ANSWER_START, "\nhttp/1." ONE_DIGIT " 1", NONE, ANSWER_INTERIM)                  \
	X(ANSWER_START, "\nhttp/1." ONE_DIGIT " " FINAL_DIGIT, STATUS, ANSWER_HEAD)        \
	X(ANSWER_INTERIM, "\n\r\n", NONE, ANSWER_START)                                    \
	X(ANSWER_HEAD, AT_START ONE_DIGIT DIGITS, STATUS, ANSWER_HEAD)                     \
	X(ANSWER_HEAD, "\ncontent-length:" BLANKS ONE_DIGIT DIGITS, LENGTH, ANSWER_HEAD)   \
	X(ANSWER_HEAD, "\ntransfer-encoding:" TEXT "chunked", CHUNKED, ANSWER_HEAD)        \
	X(ANSWER_HEAD, "\ncontent-type:" BLANKS "text/event-stream", EVENTS, ANSWER_HEAD)  \
	X(ANSWER_HEAD, "\n\r\n", END, ANSWER_HEAD)                                         \
	X(EVENTS, STRING("content"), TOKEN, EVENTS)                                        \
	X(EVENTS, STRING("delta"), TOKEN, EVENTS)                                          \
	X(EVENTS, STRING("partial_json"), TOKEN, EVENTS)                                   \
	X(EVENTS, STRING("reasoning"), TOKEN, EVENTS)                                      \
	X(EVENTS, STRING("reasoning_content"), TOKEN, EVENTS)                              \
	X(EVENTS, STRING("refusal"), TOKEN, EVENTS)                                        \
	X(EVENTS, STRING("text"), TOKEN, EVENTS)                                           \
	X(EVENTS, STRING("thinking"), TOKEN, EVENTS)                                       \
	X(EVENTS, LINE "data:" TEXT KEY("tool_calls") "[" BLANKS "{", TOKEN, EVENTS)       \
	X(EVENTS, LINE "data:" TEXT KEY("function_call") "{", TOKEN, EVENTS)               \
	X(EVENTS, LINE "data:" TEXT KEY("token_ids") "[" BLANKS ITEM, TOKEN, EVENTS)       \
	X(EVENTS, LINE "data:" TEXT KEY("type") "\"" WORD "_call\"", TOKEN, EVENTS)        \
	X(EVENTS, LINE "data:" TEXT KEY("type") "\"" WORD "tool_use\"", TOKEN, EVENTS)     \
	/* These events repeat the request, whose words are not the engine's. */           \
	X(EVENTS, LINE "event:" BLANKS "response.created", NONE, EVENT_SKIPPED)            \
	X(EVENTS, LINE "event:" BLANKS "response.queued", NONE, EVENT_SKIPPED)             \
	X(EVENTS, LINE "event:" BLANKS "response.in_progress", NONE, EVENT_SKIPPED)        \
	X(EVENTS, LINE "event:" BLANKS "message_start", NONE, EVENT_SKIPPED)               \
	X(EVENT_SKIPPED, "\n\n", NONE, EVENTS)                                             \
	X(EVENT_SKIPPED, "\n\r\n", NONE, EVENTS)

/* The rule that many clients use and that is wrong where a role or an empty event comes early: what
 * tests must be able to tell from ours. */
#define PATTERNS_FIRST_EVENT(X) X(EVENTS, LINE "data:", TOKEN, EVENTS)

#endif
