/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xid.c - the rule `xid`: errors that GPUs and NVSwitches report, judged by the table.
 *
 * Kernel messages and NVML's events become struct xid_event; each is entered into the GPU that it
 * names: incidents, jobs, what came together. A storm of messages costs a few comparisons each and
 * is said once, then at most once a second with its count.
 *
 * Invariants: (1) a struct xid_gpu is in `active` exactly if something of it stands or waits;
 * (2) history outlives the verdict: what was forgiven by time is counted again within its window,
 * and is forgotten only when a person says that the GPU is well; (3) without a policy nothing is
 * done.
 *
 * The way back: by time, as the row says; by a reset, which shows as a recovery action that becomes
 * "none", or a GPU that is there again; by a person.
 */
#include <config.h>

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "detect/xid.h"

struct mine {
	struct list active;
};

struct mine_node { /* what is said in three lines: the first has the address */
	char named[PCI_ADDRESS_MAX];
	uint64_t named_ns;
};

static int start(struct detector *d)
{
	list_init(&DETECTOR_OWN(d, xid, struct mine)->active);
	return 0;
}

static struct xid_gpu *gpu_of(struct detector *d, struct device *x)
{
	struct xid_gpu *g = DEVICE_OWN(d, x, xid, struct xid_gpu);

	if (!g->device) {
		g->device = x;
		list_init(&g->active);
	}
	return g;
}

static void set_active(struct detector *d, struct xid_gpu *g)
{
	if (list_empty(&g->active))
		list_add_tail(&DETECTOR_OWN(d, xid, struct mine)->active, &g->active);
}

/* ---- Entering ---- */

/* One to forget: nothing stands of it if possible, then the one that is longest ago. */
static struct xid_seen *oldest(struct xid_gpu *g)
{
	struct xid_seen *o = &g->seen[0];

	for (uint32_t i = 1; i < g->n_seen; i++) {
		struct xid_seen *x = &g->seen[i];

		if (x->standing != o->standing ? o->standing : x->last_ns < o->last_ns)
			o = x;
	}
	return o;
}

static struct xid_seen *seen_of(struct detector *d, struct xid_gpu *g, const struct xid_event *ev)
{
	const struct xid_row *row = xid_policy_find(d->xid, ev->code, ev->subcode, ev->fatal);
	struct xid_seen *x;

	if (!row)
		return NULL;
	for (uint32_t i = 0; i < g->n_seen; i++)
		if (g->seen[i].code == ev->code && g->seen[i].row == row)
			return &g->seen[i];
	if (g->n_seen < XID_KEPT) {
		x = &g->seen[g->n_seen++];
	} else {
		x = oldest(g);
		xid_clear(d, g, x, "more recent errors took its place");
		g->forgotten++;
	}
	*x = (struct xid_seen){.row = row, .code = ev->code, .subcode = row->subcode, .link = -1};
	return x;
}

static void count_job(struct xid_seen *x, uint32_t job, uint64_t now_ns)
{
	int at = 0;

	if (job == SAMPLE_NONE)
		return;
	for (int i = 0; i < XID_JOBS; i++) {
		if (x->job_ns[i] && x->jobs[i] == job) {
			at = i;
			break;
		}
		if (x->job_ns[i] < x->job_ns[at])
			at = i;
	}
	x->jobs[at] = job;
	x->job_ns[at] = now_ns;
}

/* The one whose newest is oldest, or free, unless it is known. */
static struct xid_owner *owner_of(struct xid_seen *x, uint32_t uid)
{
	struct xid_owner *o = &x->owners[0];

	for (int i = 0; i < XID_OWNERS; i++) {
		struct xid_owner *p = &x->owners[i];

		if (p->times_ns[0] && p->uid == uid)
			return p;
		if (p->times_ns[0] < o->times_ns[0])
			o = p;
	}
	*o = (struct xid_owner){.uid = uid};
	return o;
}

/* An incident of one of the user's jobs; where jobs are counted, each of them once. */
static void count_owner(struct xid_seen *x, const struct job *j, uint32_t job, bool begins,
			uint64_t now_ns)
{
	struct xid_owner *o;
	int at = 0;

	if (!j || !j->owned || (!begins && !x->row->jobs))
		return;
	o = owner_of(x, j->owner);
	while (at < XID_TIMES - 1 && !(x->row->jobs && o->times_ns[at] && o->jobs[at] == job))
		at++;
	for (; at > 0; at--) { /* the last one goes, or the job's own */
		o->jobs[at] = o->jobs[at - 1];
		o->times_ns[at] = o->times_ns[at - 1];
	}
	o->jobs[0] = job;
	o->times_ns[0] = now_ns ? now_ns : 1;
}

static void count_incident(struct xid_seen *x, uint64_t now_ns)
{
	uint64_t half = x->row->window_ns / 2, passed;

	memmove(&x->times_ns[1], &x->times_ns[0], sizeof(x->times_ns) - sizeof(x->times_ns[0]));
	x->times_ns[0] = now_ns ? now_ns : 1;
	if (!half)
		return;
	passed = x->half_ns ? (now_ns - x->half_ns) / half : 2;
	if (passed > 0) {
		x->halves[1] = passed == 1 ? x->halves[0] : 0;
		x->halves[0] = 0;
		x->half_ns = passed == 1 ? x->half_ns + half : now_ns;
	}
	x->halves[0]++;
}

/* What goes with what, in both directions. */
static void correlate(struct xid_gpu *g, struct xid_seen *x, uint64_t now_ns)
{
	for (uint32_t i = 0; i < g->n_seen; i++) {
		struct xid_seen *pair[2] = {x, &g->seen[i]};

		if (pair[1] == x || pair[1]->code == x->code || !pair[1]->last_ns ||
		    now_ns - pair[1]->last_ns > XID_TOGETHER)
			continue;
		for (int k = 0; k < 2; k++) {
			struct xid_seen *of = pair[k], *other = pair[!k];

			for (uint32_t w = 0; !of->n_with && w < of->row->n_with; w++) {
				uint32_t code = of->row->with[w].code;

				if (code != other->code &&
				    (code != XID_WITH_ANY || other->code == XID_RECOVERY))
					continue;
				of->n_with = w + 1;
				of->with_code = other->code;
				of->dirty = true;
				of->said_ns = 0;
			}
		}
	}
}

static bool said_already(const struct xid_seen *x, const struct xid_event *ev, uint64_t now_ns)
{
	return x->messages && x->source != ev->source && now_ns - x->last_ns < XID_SAID_TWICE;
}

static void take_details(struct xid_seen *x, const struct xid_event *ev)
{
	if (ev->pid) {
		x->pid = ev->pid;
		snprintf(x->process, sizeof(x->process), "%.15s", ev->process);
	}
	if (ev->link >= 0)
		x->link = ev->link;
	if (ev->unit)
		snprintf(x->unit, sizeof(x->unit), "%.15s", ev->unit);
}

/* A message; whether it began an incident. */
static bool enter(struct detector *d, struct xid_seen *x, const struct xid_event *ev)
{
	uint64_t now_ns = d->now_ns;
	bool begins = !x->incident || now_ns - x->last_ns > XID_ONE_INCIDENT;

	if (begins) {
		x->messages = x->n_with = 0;
		x->first_ns = now_ns;
		x->incident = true;
		count_incident(x, now_ns);
	}
	count_job(x, ev->job, now_ns);
	count_owner(x, known_job(d, ev->job), ev->job, begins, now_ns);
	x->messages += x->messages < UINT32_MAX;
	x->last_ns = now_ns;
	x->source = (uint8_t)ev->source;
	x->dirty = true;
	take_details(x, ev);
	return begins;
}

/* Says what is due of one that has changed: at once when it is new, else once a second. */
static void say_due(struct detector *d, struct xid_gpu *g, struct xid_seen *x)
{
	if (!x->dirty || (x->decide_ns && !x->n_with && d->now_ns < x->decide_ns))
		return;
	if (x->said_ns && d->now_ns - x->said_ns < NS_PER_SEC)
		return;
	xid_judge(d, g, x);
}

static void on_event(struct detector *d, struct device *device, const struct xid_event *ev)
{
	struct xid_gpu *g = gpu_of(d, device);
	struct xid_seen *x = seen_of(d, g, ev);

	if (!x)
		return;
	if (said_already(x, ev, d->now_ns)) {
		take_details(x, ev);
		return;
	}
	if (enter(d, x, ev)) {
		x->said_ns = 0;
		x->decide_ns = x->row->n_with ? d->now_ns + XID_SETTLE : 0;
		correlate(g, x, d->now_ns);
	}
	set_active(d, g);
	for (uint32_t i = 0; i < g->n_seen; i++)
		if (g->seen[i].dirty)
			say_due(d, g, &g->seen[i]);
}

/* ---- Recovery ---- */

static void was_reset(struct detector *d, struct xid_gpu *g, const char *why)
{
	for (uint32_t i = 0; i < g->n_seen; i++) {
		xid_clear(d, g, &g->seen[i], why);
		g->seen[i].incident = false;
	}
}

static bool alarm_stands(const struct detector *d, const struct xid_gpu *g)
{
	for (uint32_t i = 0; i < g->n_seen; i++) {
		const struct xid_seen *x = &g->seen[i];

		if (x->standing && x->code != XID_RECOVERY && x->row->severity >= XID_CRITICAL &&
		    d->now_ns - x->last_ns <= XID_TOGETHER)
			return true;
	}
	return false;
}

/* The driver names an action. What else stands against the GPU is judged by it. */
static void on_recovery(struct detector *d, struct device *device, enum gpu_recovery recovery,
			enum xid_source source)
{
	struct xid_gpu *g = gpu_of(d, device);

	if (recovery >= RECOVERY_UNKNOWN ||
	    (g->recovery_ns ? g->recovery : RECOVERY_NONE) == recovery)
		return;
	if (recovery == RECOVERY_NONE) {
		if (source == XID_BY_NVML && d->now_ns - g->recovery_ns < XID_NVML_LAGS)
			return;
		g->recovery_ns = 0;
		g->recovery = RECOVERY_NONE;
		was_reset(d, g, "its driver asks for no recovery any more: it was reset");
		return;
	}
	for (uint32_t i = 0; i < g->n_seen; i++)
		if (g->seen[i].code == XID_RECOVERY)
			xid_clear(d, g, &g->seen[i], "its driver asks for something else now");
	g->quiet_recovery = alarm_stands(d, g);
	g->recovery = recovery;
	g->recovery_ns = d->now_ns ? d->now_ns : 1;
	on_event(d, device,
		 &(struct xid_event){.code = XID_RECOVERY,
				     .subcode = recovery,
				     .source = source,
				     .job = SAMPLE_NONE,
				     .link = -1});
	for (uint32_t i = 0; i < g->n_seen; i++)
		if (g->seen[i].standing && g->seen[i].code != XID_RECOVERY)
			xid_judge(d, g, &g->seen[i]);
}

/* ---- Samples ---- */

/* The job whose program met it, where only one has ranks on the node. */
static uint32_t only_job(const struct node *n)
{
	uint32_t job = SAMPLE_NONE;
	struct rank *r;

	list_each(r, &n->ranks, of_node) {
		if (!r->expected || r->job == job)
			continue;
		if (job != SAMPLE_NONE)
			return SAMPLE_NONE;
		job = r->job;
	}
	return job;
}

static void on_line(struct detector *d, struct node *n, const struct kernel_line *l)
{
	struct mine_node *m = NODE_OWN(d, n, xid, struct mine_node);
	bool lost = l->kind == KERNEL_GPU_LOST;
	const char *name = l->device;
	struct device *x;

	if (l->kind == KERNEL_GPU_NAMED) {
		snprintf(m->named, sizeof(m->named), "%.15s", l->device);
		m->named_ns = d->now_ns;
		return;
	}
	if (!name[0])
		name = m->named[0] && d->now_ns - m->named_ns <= XID_LINES_APART ? m->named
										 : "unknown";
	x = device_called(d, n, l->kind == KERNEL_SXID ? 's' : 'g', name);
	if (!x)
		return;
	if (l->kind == KERNEL_XID && l->code == XID_RECOVERY && l->recovery != RECOVERY_UNKNOWN) {
		on_recovery(d, x, l->recovery, XID_BY_KERNEL);
		return;
	}
	on_event(d, x,
		 &(struct xid_event){.code = lost ? XID_LOST : l->code,
				     .subcode = l->subcode,
				     .fatal = l->severity == SEVERITY_FATAL,
				     .source = XID_BY_KERNEL,
				     .pid = l->pid,
				     .job = only_job(n),
				     .link = l->link,
				     .process = l->process,
				     .unit = l->unit[0] ? l->unit : NULL});
}

static void on_kernel(struct detector *d, const struct sample *s, struct node *n)
{
	struct kernel_line l;

	kernel_line_parse(s->kernel.facility, s->kernel.level, s->kernel.text,
			  sizeof(s->kernel.text), &l);
	if (l.kind == KERNEL_XID || l.kind == KERNEL_SXID || l.kind == KERNEL_GPU_LOST ||
	    l.kind == KERNEL_GPU_NAMED)
		on_line(d, n, &l);
}

#define NVML_UNKNOWN 999 /* NVML saw several, or does not know */

static bool just_seen(const struct xid_gpu *g, uint64_t now_ns)
{
	for (uint32_t i = 0; i < g->n_seen; i++)
		if (g->seen[i].messages && now_ns - g->seen[i].last_ns < XID_SAID_TWICE)
			return true;
	return false;
}

static void on_nvml(struct detector *d, const struct sample *s, const struct who *w)
{
	struct xid_gpu *g = gpu_of(d, w->device);
	struct xid_event ev = {.code = s->nvml.xid,
			       .subcode = XID_SUB_ANY,
			       .source = XID_BY_NVML,
			       .job = only_job(w->node),
			       .link = -1};

	if (s->nvml.xid && s->nvml.xid != XID_RECOVERY && s->nvml.xid < XID_CODE_SXID &&
	    !(s->nvml.xid == NVML_UNKNOWN && just_seen(g, d->now_ns)))
		on_event(d, w->device, &ev);
	if (s->nvml.unavailable && !g->unavailable) {
		ev.code = XID_LOST;
		on_event(d, w->device, &ev);
	} else if (!s->nvml.unavailable && g->unavailable) {
		was_reset(d, g, "it is there again");
	}
	g->unavailable = s->nvml.unavailable;
	on_recovery(d, w->device, s->nvml.recovery, XID_BY_NVML);
}

/* The number of a GPU that the kernel has spoken of before: what was seen goes with its name. */
static void on_name(struct detector *d, struct node *n, struct device *named)
{
	struct xid_gpu *to = gpu_of(d, named), *from;
	struct device *x = n->devices;

	while (x && (x == named || x->role != 'g' || strcmp(x->name, named->name) != 0))
		x = x->next;
	if (!x || to->n_seen)
		return;
	from = gpu_of(d, x);
	for (uint32_t i = 0; i < from->n_seen; i++) {
		bool standing = from->seen[i].standing;

		xid_clear(d, from, &from->seen[i], "it is known by its number now");
		to->seen[i] = from->seen[i];
		to->seen[i].dirty = standing;
		to->seen[i].said_ns = 0;
	}
	to->n_seen = from->n_seen;
	to->recovery = from->recovery;
	to->recovery_ns = from->recovery_ns;
	from->n_seen = 0;
	from->recovery_ns = 0;
	x->name[0] = '\0';
	set_active(d, to);
}

static void on_sample(struct detector *d, const struct sample *s, const struct who *w)
{
	if (!d->xid || !w->node) /* (3) */
		return;
	if (s->kind == SAMPLE_KERNEL)
		on_kernel(d, s, w->node);
	else if (s->kind == SAMPLE_NVML && w->device)
		on_nvml(d, s, w);
	else if (s->kind == SAMPLE_NAME && w->device && w->device->role == 'g')
		on_name(d, w->node, w->device);
}

/* ---- Time, and people ---- */

/* Not while the driver asks for something. */
static bool forgiven(const struct xid_gpu *g, const struct xid_seen *x, uint64_t now_ns)
{
	return !g->recovery_ns && x->row->hold_ns != XID_STAYS &&
	       now_ns - x->last_ns > x->row->hold_ns;
}

static void on_tick(struct detector *d)
{
	struct mine *m = DETECTOR_OWN(d, xid, struct mine);
	struct xid_gpu *g, *next;

	list_each_safe(g, next, &m->active, active) {
		bool more = false;

		for (uint32_t i = 0; i < g->n_seen; i++) {
			struct xid_seen *x = &g->seen[i];

			say_due(d, g, x);
			if (x->standing && forgiven(g, x, d->now_ns))
				xid_clear(d, g, x,
					  "nothing more of it was reported for long enough");
			more |= x->standing || x->dirty;
		}
		if (!more)
			list_del(&g->active); /* (1) */
	}
}

static void forget(struct detector *d, struct device *x)
{
	struct xid_gpu *g = DEVICE_OWN(d, x, xid, struct xid_gpu);
	bool unavailable = g->unavailable;

	if (!g->device)
		return;
	list_del(&g->active);
	*g = (struct xid_gpu){.device = x, .unavailable = unavailable};
	list_init(&g->active);
}

/* The verdicts are cleared by who calls; here its history ends. (2) */
static void on_well(struct detector *d, const struct subject *s)
{
	struct node *n = known_node(d, s->node);

	for (struct device *x = n ? n->devices : NULL; x; x = x->next) {
		struct subject own = subject_gpu(x->node, x->number);

		if (subject_contains(s, &own))
			forget(d, x);
	}
}

static void on_explain(const struct detector *d, const struct subject *s, struct explain *e)
{
	const struct device *x =
		s->kind == SUBJECT_GPU ? known_device(d, s->node, s->device) : NULL;

	if (x)
		xid_explain(d, DEVICE_OWN(d, x, xid, const struct xid_gpu), e);
}

const struct rule rule_xid = {
	.name = "xid",
	.kinds = 1u << SAMPLE_KERNEL | 1u << SAMPLE_NVML | 1u << SAMPLE_NAME,
	.node_bytes = sizeof(struct mine_node),
	.device_bytes = sizeof(struct xid_gpu),
	.detector_bytes = sizeof(struct mine),
	.tick_ns = 250 * NS_PER_MS,
	.start = start,
	.sample = on_sample,
	.tick = on_tick,
	.well = on_well,
	.explain = on_explain,
};
