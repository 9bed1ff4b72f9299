/* Values out of a document, without fuss about what is missing. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/report.h"
#include "shm/base/scoped.h"

double report_get(const struct jread *value, const char *path)
{
	double number;

	return jread_get_f64(value, path, &number) == 0 ? number : NAN;
}

double report_getf(const struct jread *value, const char *format, ...)
{
	char path[REPORT_PATH_MAX];
	va_list list;

	va_start(list, format);
	vsnprintf(path, sizeof(path), format, list);
	va_end(list);
	return report_get(value, path);
}

bool report_has(const struct jread *value, const char *path)
{
	struct jread found;

	return jread_get(value, path, &found) == 0 && found.type != JREAD_NULL;
}

size_t report_list(const struct jread *value, const char *path, double *ret, size_t max)
{
	struct jread_walk walk;
	struct jread list;
	size_t nr = 0;

	if (jread_get(value, path, &list) || list.type != JREAD_ARRAY)
		return 0;
	jread_walk_begin(&walk, &list);
	while (nr < max && jread_walk_next(&walk)) {
		double number;

		ret[nr++] = jread_f64(&walk.value, &number) == 0 ? number : NAN;
	}
	return nr;
}

void report_put(struct out *o, const struct jread *value)
{
	size_t len;

	if (value->type != JREAD_STRING) {
		out_escaped_mem(o, value->text, value->len);
		return;
	}
	scoped(free_drop) char *text = malloc(value->len + 1);
	if (!text)
		o->err = -ENOMEM;
	else if (jread_str(value, text, value->len + 1, &len) == 0)
		out_escaped_mem(o, text, len);
}
