/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faults.c - what goes wrong, when, and what follows from it until the job runs again.
 *
 * One fault at a time in a job. Its kind is the next card of a shuffled deck, so that no class is
 * missing in a long trace. Each is labelled at the moment in which it begins; what else becomes
 * true through it (the rank of a lost GPU dies) is labelled "also".
 */
#include <config.h>

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "detect/replay/world.h"

static const struct {
	const char *group, *what;
	uint8_t weight;
} kinds[FAULT_COUNT] = {
#define X(name, group, what, weight) {group, what, weight},
	FAULTS(X)
#undef X
};

const char *fault_group(const char *what)
{
	for (unsigned i = 0; i < FAULT_COUNT; i++)
		if (strcmp(kinds[i].what, what) == 0)
			return kinds[i].group;
	return "?";
}

static void shuffle(struct world *w)
{
	w->deck_n = w->deck_at = 0;
	for (unsigned i = 0; i < FAULT_COUNT; i++)
		for (unsigned k = 0; k < kinds[i].weight; k++)
			w->deck[w->deck_n++] = (uint8_t)i;
	assert(w->deck_n <= sizeof(w->deck));
	for (uint32_t i = w->deck_n; i > 1; i--) {
		uint32_t k = rand_below(&w->fault_rand, i);
		uint8_t swap = w->deck[k];

		w->deck[k] = w->deck[i - 1];
		w->deck[i - 1] = swap;
	}
}

static void wait_for_next(struct world *w, uint64_t from_ns)
{
	uint64_t at = w->now + S(rand_exponential(&w->fault_rand, w->c.fault_every_s));

	world_at(w, at > from_ns ? at : from_ns, EVENT_FAULT, 0);
}

void faults_begin(struct world *w)
{
	shuffle(w);
	if (w->c.fault_every_s > 0)
		wait_for_next(w, S(rand_between(&w->fault_rand, 2700, 5400)));
}

/* ---- labels ---- */

static struct label *tell_label(struct world *w, enum label_kind kind, uint32_t classes)
{
	struct label *l = &world_put(w)->label;

	l->kind = kind;
	l->id = w->fault.id;
	l->classes = classes;
	return l;
}

static void on_rank(const struct world *w, struct label *l)
{
	l->subject.kind = SUBJECT_RANK;
	l->subject.node = w->c.node_base + w->fault.node;
	l->subject.job = w->c.job;
	l->subject.rank = w->fault.rank;
}

static void on_node(const struct world *w, struct label *l, enum subject_kind kind, uint32_t device)
{
	l->subject.kind = kind;
	l->subject.node = w->c.node_base + w->fault.node;
	l->subject.device = device;
}

static void on_job(const struct world *w, struct label *l)
{
	l->subject.kind = SUBJECT_JOB;
	l->subject.job = w->c.job;
}

static struct label *tell_fault(struct world *w, uint32_t classes)
{
	struct label *l = tell_label(w, LABEL_FAULT, classes);

	l->until_ns = w->fault.until_ns;
	snprintf(l->what, sizeof(l->what), "%s", kinds[w->fault.kind].what);
	if (w->fault.factor > 0)
		l->factor = (double)w->fault.factor;
	return l;
}

#define C(c)      (1u << CLASS_##c)
#define BAD_GPU   (C(DEAD) | C(HUNG) | C(CORRUPTING) | C(UNSTABLE) | C(FAILING))
#define DEV_PORT  RANKS_PER_NODE
#define DEV_DISK  (RANKS_PER_NODE + 1)
#define GPU_OF(r) ((r) % RANKS_PER_NODE)

/* ---- the ways down ---- */

/* The first rank ends first_s from now. Its launcher sees it and ends those beside it; the others
 * fail by themselves when they hear nothing of it. The job is up again at until_ns. */
static void collapse(struct world *w, double first_s, double others_s, int value)
{
	struct rand *r = &w->fault_rand;
	uint32_t first = w->fault.rank - w->fault.rank % RANKS_PER_NODE;
	double end_s = first_s + rand_between(r, 1, others_s + 5), up_s;
	struct event *e;

	for (uint32_t i = first; i < first + RANKS_PER_NODE && i < w->world; i++) {
		if (i == w->fault.rank)
			continue;
		e = world_at(w, w->now + S(first_s + rand_between(r, 0.5, 6)), EVENT_EXIT, i);
		e->how = EXIT_SIGNAL;
		e->value = 15;
	}
	others_s += first_s;
	e = world_at(w, w->now + S(others_s), EVENT_ALL_EXIT, 0);
	e->how = value < 0 ? EXIT_SIGNAL : EXIT_CODE;
	e->value = value < 0 ? -value : value;
	world_at(w, w->now + S(end_s), EVENT_JOB_END, 0);
	up_s = others_s + 12 + rand_lognormal_in(r, 150, 0.5, 40, 900);
	w->fault.until_ns = w->now + S(up_s);
	world_at(w, w->fault.until_ns, EVENT_FAULT_END, 0);
	world_at(w, w->fault.until_ns, EVENT_BEGIN, 0);
}

/* Nothing ends until a watchdog of the job, or a person, ends it. */
static void hang(struct world *w)
{
	struct rand *r = &w->fault_rand;
	double watchdog_s = rand_between(r, 600, 1800), spread_s = 4;
	bool told_first = rand_chance(r, 0.5);
	struct event *e = world_at(w, w->now + S(watchdog_s), EVENT_ALL_EXIT, 0);

	e->how = EXIT_SIGNAL;
	e->value = 6;
	world_at(w, w->now + S(watchdog_s + (told_first ? -0.5 : rand_between(r, 1, 8))),
		 EVENT_JOB_END, 0);
	w->fault.until_ns =
		w->now + S(watchdog_s + spread_s + 10 + rand_lognormal_in(r, 150, 0.5, 40, 900));
	world_at(w, w->fault.until_ns, EVENT_FAULT_END, 0);
	world_at(w, w->fault.until_ns, EVENT_BEGIN, 0);
}

static void last(struct world *w, double low_s, double high_s)
{
	w->fault.until_ns = w->now + S(rand_between(&w->fault_rand, low_s, high_s));
	world_at(w, w->fault.until_ns, EVENT_FAULT_END, 0);
}

static void begin_process(struct world *w)
{
	struct rand *r = &w->fault_rand;
	static const int signals[] = {9, 9, 11, 7, 6};
	bool signal = rand_chance(r, 0.6), by_gpu = rand_chance(r, 0.15);
	uint32_t code = rand_chance(r, 0.5) ? 13 : 31;
	struct label *l;
	char pci[16];

	collapse(w, 0, 2 + rand_lognormal_in(r, 15, 0.8, 1, 120), rand_chance(r, 0.6) ? 1 : -6);
	on_rank(w, tell_fault(w, C(DEAD)));
	world_pci(GPU_OF(w->fault.rank), pci, sizeof(pci));
	if (by_gpu) {
		world_kernel(w, w->fault.node, 0,
			     "NVRM: Xid (PCI:%s): %u, pid=%u, name=python3, Ch 00000008", pci, code,
			     4000 + w->fault.rank);
		l = tell_label(w, LABEL_ALSO, BAD_GPU);
		on_node(w, l, SUBJECT_GPU, GPU_OF(w->fault.rank));
	} else if (signal && rand_chance(r, 0.2)) {
		world_kernel(w, w->fault.node, 0,
			     "Out of memory: Killed process %u (python3) total-vm:812345678kB, "
			     "anon-rss:512345678kB, file-rss:0kB, shmem-rss:0kB, UID:1000",
			     4000 + w->fault.rank);
		on_node(w, tell_label(w, LABEL_ALSO, BAD_GPU), SUBJECT_NODE, SAMPLE_NONE);
	}
	job_exit(w, w->fault.rank, signal ? EXIT_SIGNAL : EXIT_CODE,
		 signal ? signals[rand_below(r, 5)] : 1);
	job_stuck(w);
}

static void begin_node(struct world *w)
{
	uint32_t first = w->fault.rank - w->fault.rank % RANKS_PER_NODE;

	w->fault.replace = true;
	collapse(w, 0, rand_between(&w->fault_rand, 30, 600),
		 rand_chance(&w->fault_rand, 0.5) ? 1 : -6);
	on_node(w, tell_fault(w, C(DEAD)), SUBJECT_NODE, SAMPLE_NONE);
	w->nodes[w->fault.node].state = NODE_DEAD;
	for (uint32_t i = first; i < first + RANKS_PER_NODE && i < w->world; i++)
		w->gone[i] = true;
	job_stuck(w);
}

/* The rank of a GPU that failed ends, or hangs in its driver. */
static void rank_suffers(struct world *w, bool hangs)
{
	struct rand *r = &w->fault_rand;
	double after_s = rand_between(r, 0.2, 40);
	struct event *e;

	if (hangs) {
		hang(w);
		return;
	}
	collapse(w, after_s, 2 + rand_lognormal_in(r, 15, 0.8, 1, 120), 1);
	e = world_at(w, w->now + S(after_s), EVENT_EXIT, w->fault.rank);
	e->how = rand_chance(r, 0.5) ? EXIT_SIGNAL : EXIT_CODE;
	e->value = e->how == EXIT_SIGNAL ? 6 : 1;
}

static void tell_gpu_fault(struct world *w)
{
	struct label *l = tell_fault(w, BAD_GPU);

	l->code = w->fault.code;
	on_node(w, l, SUBJECT_GPU, GPU_OF(w->fault.rank));
	on_rank(w, tell_label(w, LABEL_ALSO, C(DEAD) | C(HUNG)));
}

static void tell_nvml(struct world *w, enum gpu_recovery recovery, bool unavailable)
{
	struct sample *s = world_node_sample(w, SAMPLE_NVML, w->fault.node);

	s->device = GPU_OF(w->fault.rank);
	s->nvml.xid = unavailable ? 0 : w->fault.code;
	s->nvml.recovery = recovery;
	s->nvml.unavailable = unavailable;
}

static void begin_bus(struct world *w)
{
	char pci[16];

	world_pci(GPU_OF(w->fault.rank), pci, sizeof(pci));
	w->fault.code = 79;
	w->fault.replace = true;
	rank_suffers(w, rand_chance(&w->fault_rand, 0.3));
	tell_gpu_fault(w);
	if (rand_chance(&w->fault_rand, 0.7))
		world_kernel(w, w->fault.node, 0,
			     "NVRM: Xid (PCI:%s): 79, pid='<unknown>', name=<unknown>, GPU has "
			     "fallen off the bus.",
			     pci);
	world_kernel(w, w->fault.node, 0, "NVRM: GPU %s.0: GPU has fallen off the bus.", pci);
	job_stuck(w);
	world_at(w, w->now + S(rand_between(&w->fault_rand, 1, 5)), EVENT_FAULT_NEXT, 0);
}

static const struct fatal {
	uint8_t code;
	enum gpu_recovery recovery;
	const char *who, *text;
} fatal[] = {
	{48, RECOVERY_RESET, "pid=4711, name=python3",
	 "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at "
	 "partition 6, subpartition 1."},
	{62, RECOVERY_RESET, "pid='<unknown>', name=<unknown>", "2027(2a08) 00000000 00000000"},
	{64, RECOVERY_RESET, "pid='<unknown>', name=<unknown>",
	 "Row Remapper: Error recording row remapping to InfoROM"},
	{74, RECOVERY_RESET, "pid='<unknown>', name=<unknown>",
	 "NVLink: fatal error detected on link 4(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"},
	{95, RECOVERY_RESET, "pid='<unknown>', name=<unknown>",
	 "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"},
	{109, RECOVERY_RESET, "pid=4711, name=python3",
	 "Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x6c02c"},
	{119, RECOVERY_REBOOT, "pid=4711, name=python3",
	 "Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 76 "
	 "(GSP_RM_CONTROL) (0x20802a02 0x8)."},
	{120, RECOVERY_REBOOT, "pid='<unknown>', name=<unknown>",
	 "GSP task exception: RISC-V exception 5 at 0x1d2c"},
	{140, RECOVERY_DRAIN_RESET, "pid='<unknown>', name=<unknown>",
	 "An uncorrectable ECC error detected (possible firmware handling failure) DRAM:1, LTC:0, "
	 "MMU:0, PCIE:0"},
};

static void begin_xid(struct world *w)
{
	struct rand *r = &w->fault_rand;
	const struct fatal *f = &fatal[rand_below(r, sizeof(fatal) / sizeof(fatal[0]))];
	char pci[16];
	double how = rand_unit(r);

	world_pci(GPU_OF(w->fault.rank), pci, sizeof(pci));
	w->fault.code = f->code;
	w->fault.stage = f->recovery;
	w->fault.replace = true;
	w->fault.blocks = how < 0.9;
	if (w->fault.blocks)
		rank_suffers(w, how < 0.3);
	else
		last(w, 600, 3600);
	tell_gpu_fault(w);
	world_kernel(w, w->fault.node, 0, "NVRM: Xid (PCI:%s): %u, %s, %s", pci, f->code, f->who,
		     f->text);
	if (f->code == 48)
		world_kernel(w, w->fault.node, 0,
			     "NVRM: Xid (PCI:%s): 63, pid='<unknown>', name=<unknown>, Row "
			     "Remapper: New row marked for remapping, reset gpu to activate.",
			     pci);
	if (w->fault.blocks)
		job_stuck(w);
	world_at(w, w->now + S(rand_between(r, 0.05, 2)), EVENT_FAULT_NEXT, 0);
}

static void begin_hang(struct world *w)
{
	hang(w);
	on_rank(w, tell_fault(w, C(HUNG)));
	job_stuck(w);
}

/* ---- what is slow ---- */

static void begin_straggler(struct world *w)
{
	struct rand *r = &w->fault_rand;
	bool gradual =
		w->fault.kind == FAULT_SLOW_RANK_LATE || w->fault.kind == FAULT_SLOW_NODE_LATE;
	double how = rand_unit(r), ramp_s = gradual ? rand_between(r, 300, 1800) : 0;

	w->fault.factor = (float)exp(rand_between(r, log(1.15), log(2)));
	w->fault.ramp_ns = S(ramp_s);
	w->fault.signature = how < 0.4 ? 1 : how < 0.7 ? 2 : 0;
	w->fault.replace = rand_chance(r, 0.5);
	last(w, 1200 + ramp_s, 3600 + ramp_s);
	if (w->fault.kind >= FAULT_SLOW_NODE)
		on_node(w, tell_fault(w, C(SLOW)), SUBJECT_NODE, SAMPLE_NONE);
	else
		on_rank(w, tell_fault(w, C(SLOW)));
}

float faults_slowness(const struct world *w, uint32_t node, uint32_t rank)
{
	const struct fault *f = &w->fault;
	uint64_t for_ns = w->now - f->since_ns;
	float factor = f->factor;

	if (f->kind < FAULT_SLOW_RANK || f->kind > FAULT_SLOW_NODE_LATE || f->node != node ||
	    (f->kind < FAULT_SLOW_NODE && f->rank != rank))
		return 1;
	if (for_ns < f->ramp_ns)
		factor = 1 + (factor - 1) * (float)for_ns / (float)f->ramp_ns;
	return factor;
}

static void begin_link(struct world *w)
{
	struct rand *r = &w->fault_rand;
	struct label *l;

	w->fault.peer = w->slot[(w->nodes[w->fault.node].slot + 1) % w->c.nodes];
	w->fault.factor = (float)rand_between(r, 1.8, 2.5);
	w->fault.signature = w->fault.kind == FAULT_PATH ? 0 : (int)rand_below(r, 3);
	last(w, 1800, 7200);
	l = tell_fault(w, C(SLOW) | C(FAILING));
	on_node(w, l, SUBJECT_LINK, SAMPLE_NONE);
	if (w->fault.kind == FAULT_PATH)
		l->subject.peer = w->c.node_base + w->fault.peer;
	else
		l->subject.device = DEV_PORT;
}

bool faults_slow_path(const struct world *w, uint32_t from, uint32_t to)
{
	const struct fault *f = &w->fault;

	return (f->kind == FAULT_PATH && f->node == from && f->peer == to) ||
	       (f->kind == FAULT_SENDER && f->node == from) ||
	       (f->kind == FAULT_RECEIVER && f->node == to);
}

/* ---- the rest ---- */

static void begin_numbers(struct world *w)
{
	struct rand *r = &w->fault_rand;

	if (w->fault.kind == FAULT_JUMP)
		w->fault.factor = (float)rand_between(r, 3, 5);
	last(w, w->fault.kind == FAULT_JUMP ? 900 : 300, w->fault.kind == FAULT_JUMP ? 2400 : 1500);
	if (w->fault.kind == FAULT_NAN && w->style.local_loss)
		on_rank(w, tell_fault(w, C(DIVERGING)));
	else
		on_job(w, tell_fault(w, C(DIVERGING)));
}

static void begin_flaps(struct world *w)
{
	last(w, 900, 1500);
	on_node(w, tell_fault(w, C(UNSTABLE) | C(FAILING)), SUBJECT_LINK, DEV_PORT);
	world_at(w, w->now, EVENT_FAULT_NEXT, 0);
}

static void begin_replicas(struct world *w)
{
	uint32_t others[2] = {(w->fault.rank + w->world / 3) % w->world,
			      (w->fault.rank + 2 * w->world / 3) % w->world};

	last(w, 600, 600);
	on_rank(w, tell_fault(w, C(CORRUPTING)));
	for (unsigned i = 0; i < 2; i++) {
		bool first = rand_chance(&w->fault_rand, 0.5);
		struct sample *s =
			world_rank_sample(w, SAMPLE_DIGESTS, first ? w->fault.rank : others[i]);

		s->digests.step = w->checkpoint_step;
		s->digests.other = first ? others[i] : w->fault.rank;
		snprintf(s->digests.tensor, sizeof(s->digests.tensor), "layers.7.mlp.w");
	}
}

static void begin_device(struct world *w)
{
	struct rand *r = &w->fault_rand;

	if (w->fault.kind == FAULT_DISK)
		w->fault.factor = (float)rand_between(r, 4, 10);
	else
		w->fault.stage = rand_chance(r, 0.3);
	last(w, 2400, 5400);
	if (w->fault.kind == FAULT_DISK)
		on_node(w, tell_fault(w, C(SLOW) | C(FAILING)), SUBJECT_DISK, DEV_DISK);
	else
		on_node(w, tell_fault(w, C(CORRUPTING) | C(FAILING) | C(UNSTABLE)), SUBJECT_NODE,
			SAMPLE_NONE);
}

/* ---- one after the other ---- */

static bool may_strike(const struct world *w)
{
	bool runs = w->state == JOB_STEPPING || w->state == JOB_PAUSED;

	return runs && w->steps_here >= 30 && !w->fault.active;
}

void faults_strike(struct world *w)
{
	struct fault *f = &w->fault;
	static void (*const begin[FAULT_COUNT])(struct world *) = {
		[FAULT_PROCESS] = begin_process,
		[FAULT_NODE] = begin_node,
		[FAULT_BUS] = begin_bus,
		[FAULT_STOPPED] = begin_hang,
		[FAULT_DEADLOCK] = begin_hang,
		[FAULT_SPINNING] = begin_hang,
		[FAULT_XID] = begin_xid,
		[FAULT_NAN] = begin_numbers,
		[FAULT_SLOW_RANK] = begin_straggler,
		[FAULT_SLOW_RANK_LATE] = begin_straggler,
		[FAULT_SLOW_NODE] = begin_straggler,
		[FAULT_SLOW_NODE_LATE] = begin_straggler,
		[FAULT_PATH] = begin_link,
		[FAULT_SENDER] = begin_link,
		[FAULT_RECEIVER] = begin_link,
		[FAULT_JUMP] = begin_numbers,
		[FAULT_DISK] = begin_device,
		[FAULT_MEMORY] = begin_device,
		[FAULT_FLAPS] = begin_flaps,
		[FAULT_REPLICAS] = begin_replicas,
	};

	if (w->now + S(2.2 * 3600) > w->end_ns)
		return; /* it would not be over before the trace is */
	if (!may_strike(w)) {
		world_at(w, w->now + S(120), EVENT_FAULT, 0);
		return;
	}
	if (w->deck_at == w->deck_n)
		shuffle(w);
	*f = (struct fault){.kind = (enum fault_kind)w->deck[w->deck_at++],
			    .active = true,
			    .id = w->c.job * 10000 + ++w->n_faults,
			    .since_ns = w->now};
	f->blocks = f->kind <= FAULT_SPINNING;
	f->rank = rand_below(&w->fault_rand, w->world);
	f->node = world_node(w, f->rank);
	begin[f->kind](w);
	wait_for_next(w, f->until_ns + S(900));
}

void faults_next(struct world *w)
{
	struct fault *f = &w->fault;
	struct wnode *n = &w->nodes[f->node];
	double wait_s;

	if (!f->active)
		return;
	if (f->kind == FAULT_BUS)
		tell_nvml(w, RECOVERY_REBOOT, true);
	if (f->kind == FAULT_XID)
		tell_nvml(w, (enum gpu_recovery)f->stage, false);
	if (f->kind != FAULT_FLAPS)
		return;
	n->link_up = !n->link_up;
	n->downs += !n->link_up;
	wait_s = n->link_up ? rand_between(&w->fault_rand, 30, 150)
			    : rand_between(&w->fault_rand, 3, 30);
	if (n->link_up && w->now + S(wait_s) > f->until_ns)
		return;
	world_at(w, w->now + S(wait_s), EVENT_FAULT_NEXT, 0);
}

void faults_end(struct world *w)
{
	struct fault *f = &w->fault;
	bool runs = w->state == JOB_STEPPING || w->state == JOB_PAUSED;

	f->active = false;
	w->nodes[f->node].link_up = true;
	if (f->replace)
		w->replace = f->rank / RANKS_PER_NODE;
	if (f->blocks) {
		nodes_after_crash(w);
		return;
	}
	/* It did not end by itself: the job is stopped, and goes on elsewhere or from before. */
	if (runs && (f->replace || f->kind == FAULT_NAN || f->kind == FAULT_JUMP))
		job_stop(w);
}
