/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xid_judge.c - from the table's row and what was seen of a GPU to a verdict and its sentence.
 *
 * In this order, the later wins: the row's action; what came with it; how often it came; the
 * recovery action that the driver itself names, while it stands. The driver does not know how often
 * it came: what follows from that is only replaced by something harder.
 */
#include <config.h>

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "detect/xid.h"

struct judgement {
	enum verdict_action action;
	enum verdict_level level;
	uint32_t incidents;
	bool repeated, escalated, overridden; /* repeated: often enough to escalate */
};

static uint32_t jobs_within(const struct xid_seen *x, uint64_t now_ns)
{
	uint32_t n = 0;

	for (int i = 0; i < XID_JOBS; i++)
		if (x->job_ns[i] && now_ns - x->job_ns[i] <= x->row->window_ns)
			n++;
	return n;
}

uint32_t xid_incidents(const struct xid_seen *x, uint64_t now_ns)
{
	uint64_t window = x->row->window_ns, half = window / 2;
	uint32_t n = 0;

	if (!x->row->count)
		return 1;
	if (x->row->jobs)
		return jobs_within(x, now_ns);
	if (x->row->count > XID_TIMES) {
		if (now_ns - x->half_ns >= 2 * half)
			return x->incident ? 1 : 0;
		return x->halves[0] + (now_ns - x->half_ns < half ? x->halves[1] : 0);
	}
	for (int i = 0; i < XID_TIMES; i++)
		if (x->times_ns[i] && now_ns - x->times_ns[i] <= window)
			n++;
	return n;
}

/* A program can cause it by itself, as often and in as many jobs as its user wants. */
static bool is_of_programs(const struct xid_row *r)
{
	return r->scope == XID_OF_APP && r->class == CLASS_UNSTABLE;
}

/* How often the programs of other users than the one with the most have met it in the window: so
 * one user cannot make it count against the GPU, whatever the others do once. */
static uint32_t met_by_others(const struct xid_seen *x, uint64_t now_ns)
{
	uint32_t all = 0, most = 0;

	for (int i = 0; i < XID_OWNERS; i++) {
		const struct xid_owner *o = &x->owners[i];
		uint32_t n = 0;

		for (int k = 0; k < XID_TIMES; k++)
			n += o->times_ns[k] && now_ns - o->times_ns[k] <= x->row->window_ns;
		all += n;
		most = n > most ? n : most;
	}
	return all - most;
}

/* It rests on jobs, of one user or several: the policy asks for an alarm of the machine as well. */
static void rest_on_owners(struct verdict *v, const struct xid_seen *x)
{
	const struct xid_owner *last = NULL;
	unsigned n = 0;

	for (int i = 0; i < XID_OWNERS; i++) {
		const struct xid_owner *o = &x->owners[i];

		n += o->times_ns[0] > 0;
		if (o->times_ns[0] && (!last || o->times_ns[0] > last->times_ns[0]))
			last = o;
	}
	v->of_jobs = true;
	v->of_one_owner = n == 1;
	v->owner = last ? last->uid : 0;
}

static struct judgement judge(const struct detector *d, const struct xid_gpu *g,
			      const struct xid_seen *x)
{
	const struct xid_row *r = x->row, *asked;
	struct judgement j = {.action = r->action,
			      .level = r->severity >= XID_CRITICAL ? LEVEL_ALARM : LEVEL_NOTE,
			      .incidents = xid_incidents(x, d->now_ns)};

	if (x->n_with) {
		j.action = r->with[x->n_with - 1].action;
		j.level = j.action >= ACTION_RESET ? LEVEL_ALARM : LEVEL_NOTE;
	}
	j.repeated = r->count && j.incidents >= r->count;
	if (j.repeated && (!d->options.shared_node || !is_of_programs(r) ||
			   met_by_others(x, d->now_ns) >= r->count)) {
		j.escalated = true;
		j.action = r->then;
		j.level = LEVEL_ALARM;
	}
	if (g->recovery_ns && x->code != XID_RECOVERY && j.action != ACTION_IGNORE) {
		asked = xid_policy_find(d->xid, XID_RECOVERY, g->recovery, false);
		j.overridden = j.escalated ? asked->action > j.action : asked->action != j.action;
		if (j.overridden)
			j.action = asked->action;
	}
	if (x->code == XID_RECOVERY && g->quiet_recovery)
		j.level = LEVEL_NOTE;
	return j;
}

static const char *advice_words(enum verdict_action a, enum verdict_level level)
{
	switch ((unsigned)a) {
	case ACTION_IGNORE:
		return "nothing need be done";
	case ACTION_RECORD:
		return "nothing need be done now, it is kept on record";
	case ACTION_RESTART:
		return "start the ranks of the job again";
	case ACTION_RESET:
		return level == LEVEL_ALARM ? "reset the GPU, then verify it"
					    : "reset the GPU when it is idle";
	case ACTION_DRAIN:
		return "drain the node and have the GPU checked";
	case ACTION_REBOOT:
		return "drain the node and start it again";
	case ACTION_VALIDATE:
		return "run the node check";
	case ACTION_CHECKPOINT:
		return "take a checkpoint now";
	default:
		return verdict_action_word(a);
	}
}

static void add(char *buf, size_t size, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static void add(char *buf, size_t size, const char *format, ...)
{
	size_t n = strlen(buf);
	va_list ap;

	va_start(ap, format);
	vsnprintf(buf + n, size - n, format, ap);
	va_end(ap);
}

/* "3 days", "90 minutes" */
static void time_words(uint64_t ns, char *buf, size_t size)
{
	uint64_t minutes = ns / (60 * NS_PER_SEC);

	if (minutes >= 2880)
		snprintf(buf, size, "%llu days", (unsigned long long)(minutes / 1440));
	else if (minutes >= 120)
		snprintf(buf, size, "%llu hours", (unsigned long long)(minutes / 60));
	else
		snprintf(buf, size, "%llu minutes", (unsigned long long)minutes);
}

/* What made it more, or other, than its row says. */
static void because(const struct xid_gpu *g, const struct xid_seen *x, const struct judgement *j,
		    char *buf, size_t size)
{
	static const char *const asks[] = {"nothing", "a reset", "a restart of the node",
					   "an end of its work with peers and a reset",
					   "an end of its work and a reset"};
	char window[32];

	if (x->n_with)
		add(buf, size, ", together with Xid %u", x->with_code);
	if (j->repeated) {
		time_words(x->row->window_ns, window, sizeof(window));
		add(buf, size,
		    x->row->jobs ? ", met by %u different jobs in %s" : ", %u times in %s",
		    j->incidents, window);
		if (!j->escalated)
			add(buf, size,
			    ", not so often without one user's programs, which may cause it");
	}
	if (j->overridden && g->recovery < RECOVERY_UNKNOWN)
		add(buf, size, "; the driver asks for %s", asks[g->recovery]);
}

static void details(const struct xid_seen *x, char *buf, size_t size)
{
	if (x->unit[0])
		add(buf, size, ", unit %s", x->unit);
	if (x->link >= 0)
		add(buf, size, ", link %d", x->link);
	if (x->pid)
		add(buf, size, ", process %s (pid %u)", x->process, x->pid);
	if (x->messages > 1)
		add(buf, size, ", %u messages", x->messages);
}

static void say(const struct detector *d, const struct xid_gpu *g, const struct xid_seen *x,
		const struct judgement *j, struct verdict *v)
{
	char more[160] = "", why[160] = "", code[24], name[32] = "";

	details(x, more, sizeof(more));
	because(g, x, j, why, sizeof(why));
	if (x->code > XID_CODE_SXID) {
		snprintf(code, sizeof(code), "SXid %u", x->code);
		snprintf(name, sizeof(name), " of NVSwitch %.16s", g->device->name);
	} else if (x->subcode < XID_SUB_FATAL && x->code != XID_RECOVERY) {
		snprintf(code, sizeof(code), "Xid %u.%u", x->code, x->subcode);
	} else {
		snprintf(code, sizeof(code), "Xid %u", x->code);
	}
	verdict_say(d, v, "reports %s%s (%.110s)%s%s: %s.", code, name, x->row->meaning, more, why,
		    advice_words(j->action, j->level));
}

static struct subject subject_of(const struct xid_gpu *g, const struct xid_seen *x)
{
	if (x->code > XID_CODE_SXID)
		return subject_node(g->device->node);
	return subject_gpu(g->device->node, g->device->number);
}

void xid_clear(struct detector *d, struct xid_gpu *g, struct xid_seen *x, const char *why)
{
	struct subject s = subject_of(g, x);

	if (x->standing)
		verdicts_clear_code(&d->verdicts, &s, CAUSE_XID, x->code, x->subcode, why,
				    d->now_ns);
	x->standing = x->dirty = false;
	x->decide_ns = 0;
}

void xid_judge(struct detector *d, struct xid_gpu *g, struct xid_seen *x)
{
	struct judgement j = judge(d, g, x);
	struct verdict v;

	assert(x->row && g->device);
	x->dirty = false;
	x->said_ns = d->now_ns;
	x->decide_ns = 0;
	if (j.action == ACTION_IGNORE) {
		xid_clear(d, g, x, "another error explains it");
		return;
	}
	v = verdict_of(subject_of(g, x),
		       j.level == LEVEL_ALARM && x->row->class == CLASS_UNSTABLE ? CLASS_FAILING
										 : x->row->class,
		       CAUSE_XID, j.level, j.action);
	v.code = x->code;
	v.subcode = x->subcode;
	v.since_ns = x->first_ns;
	verdict_evidence(&v, "messages of the driver", x->messages, 1, "", x->first_ns);
	if (x->row->count)
		verdict_evidence(&v, x->row->jobs ? "different jobs that met it" : "incidents",
				 j.incidents, x->row->count, "", x->first_ns);
	if (x->n_with)
		verdict_evidence(&v, "Xid that came with it", x->with_code, 0, "", x->last_ns);
	if (g->recovery_ns)
		verdict_evidence(&v, "recovery action that the driver names", g->recovery, 0, "",
				 g->recovery_ns);
	if (d->options.shared_node && is_of_programs(x->row))
		rest_on_owners(&v, x);
	say(d, g, x, &j, &v);
	x->standing = true;
	accuse(d, &v);
}

void xid_explain(const struct detector *d, const struct xid_gpu *g, struct explain *e)
{
	for (uint32_t i = 0; i < g->n_seen; i++) {
		const struct xid_seen *x = &g->seen[i];
		char name[32];

		xid_row_name(&(struct xid_row){.code = x->code, .subcode = x->subcode}, name,
			     sizeof(name));
		explain_line(e, "Xid %s (%s): last %.0f s ago", name, x->row->meaning,
			     (double)(d->now_ns - x->last_ns) / NS_PER_SEC);
		if (x->row->count)
			explain_line(e, "  %u of %u %s within its window, from which on: %s",
				     xid_incidents(x, d->now_ns), x->row->count,
				     x->row->jobs ? "different jobs" : "incidents",
				     verdict_action_word(x->row->then));
	}
	if (g->recovery_ns)
		explain_line(e, "its driver names a recovery action since %.0f s",
			     (double)(d->now_ns - g->recovery_ns) / NS_PER_SEC);
}
