/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names and patterns of them. Pure; any thread.
 *
 * '#' takes a whole run of digits: in "layer12" no pattern finds a layer 1 or 2. Matching takes at
 * most the product of both lengths: only the last '*' is ever tried again.
 */
#include <config.h>

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "model/layout_rules.h"

static bool digit(char c)
{
	return c >= '0' && c <= '9';
}

/* The digits at *at, which no digit may precede. */
static bool take_number(const char *name, uint32_t len, uint32_t *at, struct layout_number *ret)
{
	uint64_t value = 0;
	uint32_t i = *at;

	if (i == len || !digit(name[i]) || (i > 0 && digit(name[i - 1])))
		return false;
	for (; i < len && digit(name[i]); i++)
		if (value < UINT32_MAX)
			value = value * 10 + (uint64_t)(name[i] - '0');
	*ret = (struct layout_number){
		.found = true,
		.value = value < UINT32_MAX ? (uint32_t)value : UINT32_MAX,
		.end = i,
	};
	*at = i;
	return true;
}

/* One character of the pattern that is not '*'. */
static bool take(char c, const char *name, uint32_t len, uint32_t *at, struct layout_number *ret)
{
	if (c == '#')
		return take_number(name, len, at, ret);
	if (c == '\0' || *at == len || (c != '?' && c != name[*at]))
		return false;
	++*at;
	return true;
}

bool layout_glob(const char *glob, const char *name, uint32_t len, struct layout_number *ret)
{
	struct layout_number number = { 0 };
	const char *star = NULL;
	uint32_t at = 0, again = 0;

	for (;;) {
		if (*glob == '*') {
			star = ++glob;
			again = at;
		} else if (*glob == '\0' && at == len) {
			*ret = number;
			return true;
		} else if (take(*glob, name, len, &at, &number)) {
			glob++;
		} else if (star && again < len) {
			glob = star;
			at = ++again;
		} else {
			return false;
		}
	}
}

bool layout_globs_match(const struct layout_globs *g, const char *name, uint32_t len,
			struct layout_number *ret)
{
	for (uint32_t i = 0; i < g->n; i++)
		if (layout_glob(g->glob[i], name, len, ret))
			return true;
	return false;
}

static uint32_t count_of(const char *text, char c)
{
	uint32_t n = 0;

	for (; *text; text++)
		n += *text == c;
	return n;
}

int layout_globs_add(struct layout_globs *g, const char *glob, uint32_t numbers, struct err *e)
{
	char **more;
	char *copy;

	if (!*glob || strlen(glob) > CKPT_NAME_MAX)
		return err_set(e, -EINVAL, "a pattern of names has 1 to %d bytes", CKPT_NAME_MAX);
	if (count_of(glob, '#') > 1 || count_of(glob, '#') < numbers)
		return err_set(e, -EINVAL, "pattern '%.100s' needs %s one '#', for the number",
			       glob, numbers ? "exactly" : "at most");
	if (g->n >= LAYOUT_GLOBS_MAX)
		return err_set(e, -EINVAL, "more than %u patterns in one list", LAYOUT_GLOBS_MAX);
	copy = alloc_str(glob);
	more = alloc_resize(g->glob, (g->n + 1) * sizeof(*more));
	if (more)
		g->glob = more;
	if (!copy || !more) {
		alloc_free(copy);
		return err_code(e, -ENOMEM, "keep pattern '%.100s'", glob);
	}
	g->glob[g->n++] = copy;
	return 0;
}

void layout_globs_free(struct layout_globs *g)
{
	for (uint32_t i = 0; i < g->n; i++)
		alloc_free(g->glob[i]);
	alloc_free(g->glob);
	*g = (struct layout_globs){0};
}
