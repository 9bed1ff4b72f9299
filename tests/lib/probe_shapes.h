/* The shapes of answers that the probe is tested with, for the engine that plays them and the
 * client that times them. */
#ifndef TURNWARD_TESTS_LIB_PROBE_SHAPES_H
#define TURNWARD_TESTS_LIB_PROBE_SHAPES_H

#include <stddef.h>
#include <string.h>

#define PROBE_TOKEN_MARK "TOK1"

/*
 * X(name, API, script). The script's letters, each a write of its own unless a + follows:
 *   H head of a chunked event stream   h the same, ended by closing   C 100 Continue
 *   R what comes before the token      T the token's event            S the same in three writes
 *   N more events   E the stream's end   W wait   w 3/10 of it   v the rest   P wait, with comments
 *   J a JSON document, by length   j the same, in chunks   B 503   X close without an end
 */
#define PROBE_SHAPES(X)                                                           \
	X(role, chat, "HWRTNE")                                                   \
	X(early, chat, "HwRvTNE")                                                 \
	X(glued, chat, "H+RWTNE")                                                 \
	X(many, chat, "HWRTNNNE")                                                 \
	X(coalesced, chat, "WH+R+T+N+E")                                          \
	X(split, chat, "HWRSNE")                                                  \
	X(pings, chat, "HPRTNE")                                                  \
	X(reasoning, thought, "HWRTNE")                                           \
	X(tools, tools, "HWRTNE")                                                 \
	X(spaced, spaced, "HWRTNE")                                               \
	X(completions, completions, "WH+TNE")                                     \
	X(responses, responses, "HwRvTNE")                                        \
	X(messages, messages, "HwRvTNE")                                          \
	X(unframed, chat, "hWRTNX")                                               \
	X(interim, chat, "CHWRTNE")                                               \
	X(json, chat, "WJ")                                                       \
	X(chunked_json, chat, "Wj")                                               \
	X(busy, chat, "B")                                                        \
	X(cut, chat, "HWRTX")                                                     \
	X(cut_early, chat, "HWX")                                                 \
	X(left, chat, "HWWWWWWWWWWRTNE") /* the client leaves before the token */ \
	X(echo, completions, "WH+TNE")   /* the request wants its prompt back */  \
	X(internal, chat, "HWRTNE")      /* one of the router's own */            \
	X(metrics, chat, "J")            /* GET */

enum probe_shape {
#define X(name, api, script) SHAPE_##name,
	PROBE_SHAPES(X)
#undef X
		SHAPES_NR
};

static const char *const probe_shape_names[] = {
#define X(name, api, script) #name,
	PROBE_SHAPES(X)
#undef X
};

/* SHAPES_NR: there is none of this name. */
static inline unsigned probe_shape_find(const char *name, size_t n)
{
	unsigned shape = 0;

	while (shape < SHAPES_NR && (strlen(probe_shape_names[shape]) != n ||
				     memcmp(probe_shape_names[shape], name, n) != 0))
		shape++;
	return shape;
}

#endif
