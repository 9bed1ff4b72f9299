/* Makes the probe's tables from patterns.h, at build time: generate [--first-event] > tables.h */
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "bpf/patterns.h"

enum { STATES_MAX = 256, PLACES_MAX = 1024, DEPTH_MAX = 96, BYTES = 256 };
enum { AFTER_TEXT, AFTER_LINE };

#define X(name, table, begins) MACHINE_##name,
enum machine { MACHINES(X) MACHINE_NR };
#undef X

enum table { TABLE_request, TABLE_answer, TABLE_events };

static const struct {
	const char *name;
	enum table table;
	int begins;
} machines[MACHINE_NR] = {
#define X(name, table, begins) { #name, TABLE_##table, begins },
	MACHINES(X)
#undef X
};

enum {
	FOUND_NONE = 0,
#define X(name, bit, meaning) FOUND_##name = 1 << bit,
	FOUNDS(X)
#undef X
};

struct pattern {
	enum machine machine;
	const char *text;
	unsigned found;
	enum machine then;
};

static const struct pattern patterns[] = {
#define X(machine, text, found, then) { MACHINE_##machine, text, FOUND_##found, MACHINE_##then },
	PATTERNS(X) PATTERNS_FIRST_EVENT(X)
#undef X
};

enum { PATTERNS_NR = sizeof(patterns) / sizeof(patterns[0]) };

static int patterns_used = PATTERNS_NR;

/* Where one may stand: before each part of each pattern, and behind its last. */
static struct {
	int pattern, part; /* part: index into the text */
} places[PLACES_MAX];
static int first_place[PATTERNS_NR + 1];

struct set {
	uint64_t bits[PLACES_MAX / 64];
};

/* A state of the automaton: the places in `machine`, and what was found on entering it. */
static struct state {
	enum machine machine;
	unsigned found;
	struct set set;
	int next[BYTES];
	int kind; /* equivalent states have the same */
} states[4096];
static int states_nr;

static bool is_blank(int b)
{
	return b == ' ' || b == '\t';
}

static bool is_line_end(int b)
{
	return b == '\r' || b == '\n';
}

static bool is_digit(int b)
{
	return b >= '0' && b <= '9';
}

static bool has(const struct set *set, int place)
{
	return set->bits[place / 64] >> place % 64 & 1;
}

static void add(struct set *set, int place)
{
	set->bits[place / 64] |= 1ull << place % 64;
}

/* Whether this part of a pattern takes the byte, and whether it may be repeated or left out. */
static bool takes(char part, int b, bool fold)
{
	switch (part) {
#define X(code, name, bytes, many) \
	case code:                 \
		return bytes;
		PATTERN_SETS(X)
#undef X
	default:
		return part == b || (fold && b >= 'A' && b <= 'Z' && part == (b | 0x20));
	}
}

static bool repeats(char part)
{
	switch (part) {
#define X(code, name, bytes, many) \
	case code:                 \
		return many;
		PATTERN_SETS(X)
#undef X
	default:
		return false;
	}
}

static bool folds(enum machine machine)
{
	return machine != MACHINE_REQUEST_BODY && machine != MACHINE_EVENTS &&
	       machine != MACHINE_EVENT_SKIPPED;
}

static void enter(struct set *set, int place)
{
	const char *text = patterns[places[place].pattern].text;

	add(set, place);
	if (repeats(text[places[place].part]))
		enter(set, place + 1);
}

/* The beginnings of a machine's patterns, which every byte may be. */
static void enter_all(struct set *set, enum machine machine, bool at_start)
{
	for (int p = 0; p < patterns_used; p++) {
		if (patterns[p].machine != machine)
			continue;
		if (patterns[p].text[0] != AT_START[0])
			enter(set, first_place[p]);
		else if (at_start)
			enter(set, first_place[p] + 1);
	}
}

static struct set moved(const struct set *from, enum machine machine, int b)
{
	struct set to = { 0 };

	for (int place = 0; place < first_place[patterns_used]; place++) {
		if (!has(from, place))
			continue;
		char part = patterns[places[place].pattern].text[places[place].part];

		if (part && takes(part, b, folds(machine)))
			enter(&to, repeats(part) ? place : place + 1);
	}
	enter_all(&to, machine, false);
	return to;
}

static struct set begun(enum machine machine)
{
	struct set set = { 0 };

	enter_all(&set, machine, true);
	if (machines[machine].begins == AFTER_LINE)
		set = moved(&set, machine, '\n');
	return set;
}

static int state_of(enum machine machine, unsigned found, const struct set *set)
{
	for (int s = 0; s < states_nr; s++)
		if (states[s].machine == machine && states[s].found == found &&
		    memcmp(&states[s].set, set, sizeof(*set)) == 0)
			return s;
	assert(states_nr < (int)(sizeof(states) / sizeof(states[0])));
	states[states_nr] = (struct state){ .machine = machine, .found = found, .set = *set };
	return states_nr++;
}

static int state_after(int from, int b)
{
	enum machine machine = states[from].machine;
	struct set set = moved(&states[from].set, machine, b);
	unsigned found = 0;

	for (int place = 0; place < first_place[patterns_used]; place++) {
		const struct pattern *pattern = &patterns[places[place].pattern];

		if (!has(&set, place) || pattern->text[places[place].part])
			continue;
		found |= pattern->found;
		if (pattern->then != pattern->machine) {
			machine = pattern->then;
			set = begun(machine);
			break;
		}
	}
	return state_of(machine, found, &set);
}

static void build(enum table table, int ret_starts[MACHINE_NR])
{
	states_nr = 0;
	for (int m = 0; m < MACHINE_NR; m++) {
		if (machines[m].table != table)
			continue;
		struct set set = begun(m);

		ret_starts[m] = state_of(m, 0, &set);
	}
	for (int s = 0; s < states_nr; s++)
		for (int b = 0; b < BYTES; b++)
			states[s].next[b] = state_after(s, b);
}

static bool equivalent(const struct state *a, const struct state *b)
{
	if (a->kind != b->kind)
		return false;
	for (int i = 0; i < BYTES; i++)
		if (states[a->next[i]].kind != states[b->next[i]].kind)
			return false;
	return true;
}

/* Kinds that find something come last, so that a comparison tells them; returns where they begin.
 */
static int finders_last(int *example, int kinds)
{
	static int old_example[STATES_MAX], renamed[STATES_MAX];
	int n = 0, first;

	memcpy(old_example, example, sizeof(old_example));
	for (int k = 0; k < kinds; k++)
		if (!states[old_example[k]].found)
			renamed[k] = n++;
	first = n;
	for (int k = 0; k < kinds; k++)
		if (states[old_example[k]].found)
			renamed[k] = n++;
	for (int k = 0; k < kinds; k++)
		example[renamed[k]] = old_example[k];
	for (int s = 0; s < states_nr; s++)
		states[s].kind = renamed[states[s].kind];
	return first;
}

/* States that no further byte tells apart get the same kind; returns how many kinds there are. */
static int merge(int ret_example[STATES_MAX])
{
	int kinds = 0, before;

	for (int s = 0; s < states_nr; s++)
		states[s].kind = (int)states[s].found;
	do {
		static int renamed[4096];

		before = kinds;
		kinds = 0;
		for (int s = 0; s < states_nr; s++) {
			int k = 0;

			while (k < kinds && !equivalent(&states[s], &states[ret_example[k]]))
				k++;
			if (k == kinds) {
				assert(kinds < STATES_MAX);
				ret_example[kinds++] = s;
			}
			renamed[s] = k;
		}
		for (int s = 0; s < states_nr; s++)
			states[s].kind = renamed[s];
	} while (kinds != before);
	return kinds;
}

static void print_array(const char *type, const char *table, const char *what, const int *values,
			int n, int size)
{
	printf("SCAN_TABLE %s %s_%s[%d] = {", type, table, what, size);
	for (int i = 0; i < n; i++)
		printf("%s%d,", i % 20 ? " " : "\n\t", values[i]);
	printf("\n};\n\n");
}

static void print_table(enum table table, const char *name)
{
	static int starts[MACHINE_NR], example[STATES_MAX];
	static int next[STATES_MAX * BYTES], found[STATES_MAX];

	build(table, starts);
	int kinds = merge(example), finds = finders_last(example, kinds);

	for (int k = 0; k < kinds; k++) {
		found[k] = (int)states[example[k]].found;
		for (int b = 0; b < BYTES; b++)
			next[k * BYTES + b] = states[states[example[k]].next[b]].kind;
	}
	printf("/* %s: %d states */\n", name, kinds);
	printf("enum { %s_FINDS = %d }; /* states from here on find something */\n", name, finds);
	for (int m = 0; m < MACHINE_NR; m++)
		if (machines[m].table == table)
			printf("enum { STATE_%s = %d };\n", machines[m].name,
			       states[starts[m]].kind);
	print_array("unsigned char", name, "next", next, kinds * BYTES, STATES_MAX * BYTES);
	print_array("unsigned short", name, "found", found, kinds, STATES_MAX);
}

/* What a byte is to the framing of chunks: its kind above, a digit's value below. */
static void print_frame(void)
{
	enum { OTHER, HEX, CR, LF, KINDS };
	static int values[BYTES];

	for (int b = 0; b < BYTES; b++) {
		int lower = b | 0x20;

		if (is_digit(b))
			values[b] = HEX << 4 | (b - '0');
		else if (lower >= 'a' && lower <= 'f')
			values[b] = HEX << 4 | (lower - 'a' + 10);
		else
			values[b] = (b == '\r' ? CR : b == '\n' ? LF : OTHER) << 4;
	}
	printf("enum { BYTE_KINDS = %d };\n", KINDS);
	print_array("unsigned char", "frame", "byte", values, BYTES, BYTES);
}

static void place_all(void)
{
	int n = 0;

	for (int p = 0; p < PATTERNS_NR; p++) {
		int length = (int)strlen(patterns[p].text);

		first_place[p] = n;
		for (int part = 0; part <= length; part++, n++) {
			assert(n < PLACES_MAX && length < DEPTH_MAX);
			places[n].pattern = p;
			places[n].part = part;
		}
	}
	first_place[PATTERNS_NR] = n;
}

int main(int argc, char **argv)
{
	if (argc < 2 || strcmp(argv[1], "--first-event") != 0)
		patterns_used = PATTERNS_NR - 1;
	place_all();
	printf("/* Generated from patterns.h: what follows each state on each byte. "
	       "*/\n");
	printf("enum { SCAN_STATES = %d };\n\n", STATES_MAX);
	printf("enum {\n");
#define X(name, bit, meaning) printf("\tFOUND_" #name " = %d,\n", 1 << (bit));
	FOUNDS(X)
#undef X
	printf("};\n\n");
	print_table(TABLE_request, "request");
	print_table(TABLE_answer, "answer");
	print_table(TABLE_events, "events");
	print_frame();
	return fflush(stdout) ? 1 : 0;
}
