/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
	const char *name, *text;
} points[FAULT_POINTS + 1] = {
#define F(name, text) { #name, text },
#include "base/faults.def"
#undef F
	{ NULL, NULL },
};

static const struct {
	const char *name, *text;
} bugs[PLANTED_BUGS + 1] = {
#define B(name, invariant, text) { #name, invariant ": " text },
#include "base/bugs.def"
#undef B
	{ NULL, NULL },
};

/* Process-wide on purpose: a point is a place in the code, wherever it runs. */
static struct armed {
	_Atomic int action;
	_Atomic bool persistent;
	_Atomic uint64_t at, hits;
} armed[FAULT_POINTS + 1];
static _Atomic bool bug_is_on[PLANTED_BUGS + 1];

static void kill_self(void *arg)
{
	const char *mark = arg; /* CKPT_FAULT_ONCE, or NULL */

	if (mark)
		close(open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	kill(getpid(), SIGKILL);
	pause();
}
static void (*kill_fn)(void *arg) = kill_self;
static void *kill_arg;

const char *fault_name(enum fault_point p)
{
	return points[p].name;
}

const char *fault_text(enum fault_point p)
{
	return points[p].text;
}

const char *bug_name(enum planted_bug b)
{
	return bugs[b].name;
}

const char *bug_text(enum planted_bug b)
{
	return bugs[b].text;
}

#ifdef CKPT_FAULTS
bool fault_hit(enum fault_point p)
{
	struct armed *a = &armed[p];
	uint64_t hit = atomic_fetch_add(&a->hits, 1) + 1;
	int action = atomic_load(&a->action);

	if (action == FAULT_NONE || hit < a->at || (hit > a->at && !a->persistent))
		return false;
	if (action == FAULT_KILL)
		kill_fn(kill_arg);
	return true;
}

bool bug_on(enum planted_bug b)
{
	return atomic_load_explicit(&bug_is_on[b], memory_order_relaxed);
}
#endif

void fault_arm(enum fault_point p, enum fault_action action, uint64_t at, bool persistent)
{
	armed[p].at = at;
	armed[p].persistent = persistent;
	armed[p].action = action;
}

void fault_disarm_all(void)
{
	for (int p = 0; p < FAULT_POINTS; p++) {
		armed[p].action = FAULT_NONE;
		armed[p].hits = 0;
	}
	for (int b = 0; b < PLANTED_BUGS; b++)
		bug_is_on[b] = false;
}

uint64_t fault_hits(enum fault_point p)
{
	return armed[p].hits;
}

void bug_set(enum planted_bug b, bool on)
{
	bug_is_on[b] = on;
}

void fault_set_kill(void (*fn)(void *arg), void *arg)
{
	kill_fn = fn ? fn : kill_self;
	kill_arg = arg;
}

/* "HIT" or "HIT+", from 1. */
static bool parse_hit(const char *text, uint64_t *ret, bool *ret_persistent)
{
	char *end;

	*ret = strtoull(text, &end, 10);
	*ret_persistent = *end == '+';
	return text[0] >= '0' && text[0] <= '9' && *ret > 0 && !end[*ret_persistent];
}

/* One "NAME=error|kill[@hit[+]]"; + means from that hit on. */
static int arm_from_text(char *text, struct err *e)
{
	char *eq = strchr(text, '='), *at;
	uint64_t hit = 1;
	bool persistent = false;

	if (!eq)
		return err_set(e, -EINVAL, "CKPT_FAULT: '%s' has no action: write NAME=kill or "
			       "NAME=error", text);
	*eq++ = '\0';
	at = strchr(eq, '@');
	if (at) {
		*at++ = '\0';
		if (!parse_hit(at, &hit, &persistent))
			return err_set(e, -EINVAL,
				       "CKPT_FAULT: %s=%s@%s: behind @ stands a number "
				       "from 1, and + if it is from then on",
				       text, eq, at);
	}
	if (strcmp(eq, "kill") != 0 && strcmp(eq, "error") != 0)
		return err_set(e, -EINVAL, "CKPT_FAULT: %s=%s: the action is kill or error", text,
			       eq);
	for (int p = 0; p < FAULT_POINTS; p++) {
		if (strcmp(points[p].name, text) != 0)
			continue;
		fault_arm(p, strcmp(eq, "kill") == 0 ? FAULT_KILL : FAULT_ERROR, hit, persistent);
		return 0;
	}
	return err_set(e, -EINVAL, "CKPT_FAULT: there is no fault point '%s'", text);
}

static int bug_from_text(const char *text, struct err *e)
{
	for (int b = 0; b < PLANTED_BUGS; b++) {
		if (strcmp(bugs[b].name, text) != 0)
			continue;
		bug_set(b, true);
		return 0;
	}
	return err_set(e, -EINVAL, "CKPT_BUG: there is no planted bug '%s'", text);
}

/* Whether it is this life of a supervised program that is to be hit. */
static bool armed_life(void)
{
	const char *once = getenv("CKPT_FAULT_ONCE"), *after = getenv("CKPT_FAULT_AFTER");

	if (once && kill_fn == kill_self)
		kill_arg = (void *)once;
	return !(once && access(once, F_OK) == 0) && !(after && access(after, F_OK) != 0);
}

int fault_from_env(struct err *e)
{
#ifdef CKPT_FAULTS
	const char *names[] = { "CKPT_FAULT", "CKPT_BUG" };

	for (int i = 0; i < 2; i++) {
		const char *env = getenv(names[i]);
		char text[1024], *save = NULL;
		int r = 0;

		if (!env || (i == 0 && !armed_life()))
			continue;
		if (strlen(env) >= sizeof(text))
			return err_set(e, -EINVAL, "%s is longer than %zu bytes", names[i],
				       sizeof(text) - 1);
		strcpy(text, env);
		for (char *t = strtok_r(text, ",", &save); t && r == 0;
		     t = strtok_r(NULL, ",", &save))
			r = i == 0 ? arm_from_text(t, e) : bug_from_text(t, e);
		if (r < 0)
			return r;
	}
#else
	(void)e;
	(void)arm_from_text;
	(void)armed_life;
	(void)bug_from_text;
#endif
	return 0;
}
