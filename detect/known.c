/* SPDX-License-Identifier: Apache-2.0 */
/*
 * known.c - who is known: jobs and their ranks, nodes and their devices, born with the first sample
 * that speaks of them, and what of each sample is entered there before a rule sees it.
 *
 * Invariants: (1) d->n_ranks <= options.ranks_max, of which an owner of jobs gets one more while it
 * then has at most twice as many as stay free: one owner alone leaves a third to others. Ranks of
 * jobs that ended, and ranks that were replaced or said goodbye, are given back when a new one does
 * not fit, its owner's first, and when their job is forgotten. Ranks that a verdict stands against
 * are spared; where nothing else fits, one of a job that ended goes with its verdicts; (2) a rank
 * is in the list of exactly the node that rank.node names; (3) d->bytes is the sum of all that was
 * taken here; (4) job.ranks are sorted by number: rules walk over who is there, and what they say
 * goes by that order; (5) of the ranks of a job n_expected are expected, and n_staying of them have
 * not said goodbye.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "detect/rules.h"

struct job *known_job(const struct detector *d, uint32_t job)
{
	return job < d->options.jobs_max ? d->jobs[job] : NULL;
}

struct node *known_node(const struct detector *d, uint32_t node)
{
	return node < d->options.nodes_max ? d->nodes[node] : NULL;
}

/* The place of the job's first rank that has this number or a higher one. */
static uint32_t place_of(const struct job *j, uint32_t rank)
{
	uint32_t low = 0, high = j->n_ranks;

	if (high && j->ranks[high - 1]->number < rank)
		return high; /* most are born so */
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (j->ranks[mid]->number < rank)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static struct rank *find_rank(const struct job *j, uint32_t rank)
{
	uint32_t i = j->n_ranks ? rank - j->ranks[0]->number : 0;

	/* Of a node that has some in a row, and of a whole job, it stands there. */
	if (i >= j->n_ranks || j->ranks[i]->number != rank)
		i = place_of(j, rank);
	return i < j->n_ranks && j->ranks[i]->number == rank ? j->ranks[i] : NULL;
}

struct rank *known_rank(const struct detector *d, uint32_t job, uint32_t rank)
{
	const struct job *j = known_job(d, job);

	return j ? find_rank(j, rank) : NULL;
}

struct device *known_device(const struct detector *d, uint32_t node, uint32_t device)
{
	const struct node *n = known_node(d, node);
	struct device *x = n ? n->devices : NULL;

	while (x && x->number != device)
		x = x->next;
	return x;
}

const char *detector_device_name(const struct detector *d, const struct subject *s, char *ret_role)
{
	const struct device *x = known_device(d, s->node, s->device);

	*ret_role = x ? x->role : '\0';
	return x && x->name[0] ? x->name : NULL;
}

bool detector_device_called(const struct detector *d, uint32_t node, const char *name,
			    struct subject *ret)
{
	const struct node *n = known_node(d, node);
	const struct device *x = n ? n->devices : NULL;

	while (x && (!name[0] || strcasecmp(x->name, name) != 0))
		x = x->next;
	if (x && x->role == 'd')
		*ret = subject_disk(node, x->number);
	else if (x && x->role == 'n')
		*ret = subject_port(node, x->number);
	else if (x)
		*ret = subject_gpu(node, x->number);
	return x != NULL;
}

struct subject subject_of_rank(const struct rank *r)
{
	return subject_rank(r->job, r->number, r->node);
}

/* ---- births ---- */

static void *take(struct detector *d, size_t size)
{
	void *p = alloc_zero(size);

	if (p)
		d->bytes += size;
	return p;
}

static void give(struct detector *d, void *p, size_t size)
{
	assert(!p || d->bytes >= size);
	if (p)
		d->bytes -= size;
	alloc_free(p);
}

void *scratch(void *p, uint32_t *cap, size_t n, size_t size)
{
	uint32_t more = *cap ? *cap : 16;

	assert(n <= UINT32_MAX / 2);
	if (n <= *cap)
		return p;
	alloc_free(p);
	while (more < n)
		more *= 2;
	p = alloc_array(more, size);
	*cap = p ? more : 0;
	return p;
}

static struct job *job_born(struct detector *d, uint32_t job)
{
	struct job *j = known_job(d, job);

	if (j || job >= d->options.jobs_max)
		return j;
	j = take(d, sizeof(*j) + d->job_size);
	if (!j)
		return NULL;
	j->number = job;
	j->on = true; /* until somebody says otherwise */
	j->began_ns = d->now_ns;
	d->jobs[job] = j;
	if (job >= d->jobs_end)
		d->jobs_end = job + 1;
	return j;
}

static struct node *node_born(struct detector *d, uint32_t node)
{
	struct node *n = known_node(d, node);

	if (n || node >= d->options.nodes_max)
		return n;
	n = take(d, sizeof(*n) + d->node_size);
	if (!n)
		return NULL;
	n->number = node;
	list_init(&n->ranks);
	d->nodes[node] = n;
	if (node >= d->nodes_end)
		d->nodes_end = node + 1;
	return n;
}

static struct device *device_born(struct detector *d, struct node *n, uint32_t device)
{
	struct device *x = known_device(d, n->number, device);

	if (x || n->n_devices >= DETECTOR_DEVICES_MAX)
		return x;
	x = take(d, sizeof(*x) + d->device_size);
	if (!x)
		return NULL;
	x->node = n->number;
	x->number = device;
	x->next = n->devices;
	n->devices = x;
	n->n_devices++;
	return x;
}

struct device *device_called(struct detector *d, struct node *n, char role, const char *name)
{
	struct device *x = n->devices;

	while (x && (x->role != role || strcmp(x->name, name) != 0))
		x = x->next;
	if (x)
		return x;
	x = device_born(d, n, DEVICE_UNNUMBERED + n->n_devices);
	if (!x)
		return NULL;
	x->role = role;
	snprintf(x->name, sizeof(x->name), "%s", name);
	return x;
}

static bool stays(const struct rank *r)
{
	return r->expected && !r->said_bye;
}

static void set_part(struct detector *d, struct job *j, struct rank *r, bool expected,
		     bool said_bye)
{
	bool was = r->expected, stayed = stays(r);

	r->expected = expected;
	r->said_bye = said_bye;
	j->n_expected = j->n_expected - was + expected;
	j->n_staying = j->n_staying - stayed + stays(r);
	d->room_changes += stayed && !stays(r);
	assert(j->n_staying <= j->n_expected && j->n_expected <= j->n_ranks); /* (5) */
}

static void set_expected(struct detector *d, struct job *j, struct rank *r, bool expected)
{
	set_part(d, j, r, expected, r->said_bye);
}

static void tell_gone(struct detector *d, struct rank *r)
{
	for (int i = 0; i < RULE_COUNT; i++)
		if (detect_rules[i]->gone)
			detect_rules[i]->gone(d, r);
}

static void rank_free(struct detector *d, struct rank *r)
{
	list_del(&r->of_node); /* (2) */
	d->n_ranks--;
	d->room_changes++;
	give(d, r, sizeof(*r) + d->rank_size);
}

void known_forget(struct detector *d, struct job *j)
{
	struct rank *r;

	assert(d->jobs[j->number] == j);
	each_rank(r, j) tell_gone(d, r);
	each_rank(r, j) rank_free(d, r);
	d->jobs[j->number] = NULL;
	while (d->jobs_end && !d->jobs[d->jobs_end - 1])
		d->jobs_end--;
	give(d, j->ranks, j->ranks_cap * sizeof(struct rank *));
	give(d, j, sizeof(*j) + d->job_size);
}

/* ---- room for ranks (1) ---- */

#define SHARE   2u
#define RESERVE 32u /* less than this part of all places is free: others' old alarms may go */
#define DROPPED 64u /* at a time: a new rank needs one place */

static bool has_owner(const struct job *j, const struct job *like)
{
	return j->owned == like->owned && j->owner == like->owner;
}

static bool room_for_rank(const struct detector *d, const struct job *j)
{
	uint32_t max = d->options.ranks_max, left = max > d->n_ranks ? max - d->n_ranks : 0;
	uint32_t has = 0;

	if (left == 0)
		return false;
	if (!j->owned || (d->n_ranks + 1) / SHARE <= left - 1)
		return true; /* whosever all of them are */
	for (uint32_t i = 0; i < d->jobs_end; i++)
		if (d->jobs[i] && has_owner(d->jobs[i], j))
			has += d->jobs[i]->n_ranks;
	return (has + 1) / SHARE <= left - 1;
}

/* Changes with all that may make room for a rank that was refused a place; never 0. */
static uint64_t room_state(const struct detector *d)
{
	return 1 + d->room_changes + d->verdicts.told;
}

/* Once for all ranks, as verdicts and ranks may both be many. */
static void mark_accused(struct detector *d)
{
	d->room_looks++;
	for (size_t i = 0; i < d->verdicts.n; i++) {
		const struct subject *s = &d->verdicts.standing[i].subject;
		struct rank *r = s->kind == SUBJECT_RANK ? known_rank(d, s->job, s->rank) : NULL;

		if (r)
			r->accused_at = d->room_looks;
	}
}

static bool stands_accused(const struct detector *d, const struct rank *r)
{
	return r->accused_at == d->room_looks;
}

/* Where no verdict stands against it, what was learned of the rank is all that is lost. accused: a
 * rank of a run that ended goes with what stands against it. */
static bool may_go(const struct detector *d, const struct job *j, const struct rank *r,
		   bool accused)
{
	if (stands_accused(d, r))
		return accused && !j->on;
	return !j->on || !stays(r);
}

/* Up to `most` ranks of a job; returns how many. */
static uint32_t drop_of(struct detector *d, struct job *j, uint32_t most, bool accused)
{
	struct rank *gone[DROPPED], *r;
	uint32_t n = 0, kept = 0;

	assert(most <= DROPPED);
	each_rank(r, j)
	{
		if (n < most && may_go(d, j, r, accused))
			gone[n++] = r;
	}
	for (uint32_t i = 0; i < n; i++) {
		tell_gone(d, gone[i]);
		set_expected(d, j, gone[i], false);
	}
	for (uint32_t i = 0, k = 0; i < j->n_ranks; i++) {
		if (k < n && j->ranks[i] == gone[k])
			k++;
		else
			j->ranks[kept++] = j->ranks[i];
	}
	j->n_ranks = kept;
	j->dropped |= n > 0;
	for (uint32_t i = 0; i < n; i++)
		rank_free(d, gone[i]);
	return n;
}

/* like: only those of its owner; NULL: anybody's. Ranks of jobs that ended first. accused: one that
 * a verdict stands against. Returns how many; DROPPED: there may be more. */
static uint32_t drop_gone(struct detector *d, const struct job *like, bool accused)
{
	uint32_t n = 0, most = accused ? 1 : DROPPED;

	for (int on = 0; on < 2; on++) {
		for (uint32_t i = 0; n < most && i < d->jobs_end; i++) {
			struct job *j = d->jobs[i];

			if (j && j->on == (on == 1) && j->n_ranks > (on ? j->n_staying : 0) &&
			    (!like || has_owner(j, like)))
				n += drop_of(d, j, most - n, accused);
		}
	}
	return n;
}

static bool few_are_free(const struct detector *d)
{
	return d->options.ranks_max - d->n_ranks <= d->options.ranks_max / RESERVE;
}

/* A rank that was refused a place asks again with each of its beats: the answer is looked for once
 * until it may be another one. */
static bool make_room(struct detector *d, struct job *j)
{
	uint32_t n = 0;

	if (j->refused_at == room_state(d))
		return false;
	if (room_for_rank(d, j))
		return true;
	mark_accused(d);
	for (int accused = 0; accused < 2; accused++) {
		n += drop_gone(d, j, accused);
		/* A rank that runs is worth more than another owner's past, if not its alarms. */
		if (!room_for_rank(d, j) && (!accused || few_are_free(d)))
			n += drop_gone(d, NULL, accused);
		if (room_for_rank(d, j))
			return true;
		if (n >= DROPPED)
			return false; /* its next beat drops more */
	}
	j->refused_at = room_state(d);
	return false;
}

static bool slot_for(struct detector *d, struct job *j)
{
	uint32_t n = j->ranks_cap ? 2 * j->ranks_cap : 8;
	struct rank **ranks;

	if (j->n_ranks < j->ranks_cap)
		return true;
	ranks = alloc_resize(j->ranks, n * sizeof(struct rank *));
	if (!ranks)
		return false;
	d->bytes += (n - j->ranks_cap) * sizeof(struct rank *);
	j->ranks = ranks;
	j->ranks_cap = n;
	return true;
}

/* (4) */
static void rank_enters(struct job *j, struct rank *r)
{
	uint32_t i = place_of(j, r->number);

	memmove(j->ranks + i + 1, j->ranks + i, (j->n_ranks - i) * sizeof(struct rank *));
	j->ranks[i] = r;
	j->n_ranks++;
}

/* A new rank takes part in the run, also where its first sample does not say that it comes. But
 * once the detector has forgotten ranks of this run, another sample than a coming or a beat may be
 * a late report on one of them: that rank does not take part. */
static bool takes_part(const struct job *j, enum sample_kind k)
{
	return j->on && (!j->dropped || k == SAMPLE_MEMBER || k == SAMPLE_BEAT);
}

static struct rank *rank_born(struct detector *d, struct job *j, uint32_t rank, enum sample_kind k)
{
	struct rank *r = find_rank(j, rank);

	if (r || rank >= d->options.ranks_max)
		return r;
	if (!make_room(d, j) || !slot_for(d, j))
		return NULL;
	r = take(d, sizeof(*r) + d->rank_size);
	if (!r)
		return NULL;
	r->job = j->number;
	r->number = rank;
	r->node = SAMPLE_NONE;
	r->began_ns = d->now_ns;
	list_init(&r->of_node);
	rank_enters(j, r);
	d->n_ranks++;
	set_expected(d, j, r, takes_part(j, k));
	return r;
}

/* (2) */
static void to_node(struct rank *r, struct node *n)
{
	if (!n || r->node == n->number)
		return;
	list_del(&r->of_node);
	list_add_tail(&n->ranks, &r->of_node);
	r->node = n->number;
}

static bool speaks_of_rank(enum sample_kind k)
{
	return k == SAMPLE_MEMBER || k == SAMPLE_BEAT || k == SAMPLE_PHASE ||
	       k == SAMPLE_ACTIVITY || k == SAMPLE_EXIT || k == SAMPLE_DIGESTS;
}

int known_who(struct detector *d, const struct sample *s, struct who *ret)
{
	struct who w = {0};

	if (s->job != SAMPLE_NONE && !(w.job = job_born(d, s->job)))
		return -ENOMEM;
	if (s->node != SAMPLE_NONE && !(w.node = node_born(d, s->node)))
		return -ENOMEM;
	if (s->kind == SAMPLE_PAIR && !node_born(d, s->pair.peer))
		return -ENOMEM;
	if (speaks_of_rank(s->kind) && !(w.rank = rank_born(d, w.job, s->rank, s->kind)))
		return -ENOMEM;
	if (w.node && s->device != SAMPLE_NONE && !speaks_of_rank(s->kind) &&
	    !(w.device = device_born(d, w.node, s->device)))
		return -ENOMEM;
	if (w.rank && !w.node)
		w.node = known_node(d, w.rank->node);
	*ret = w;
	return 0;
}

/* ---- what a sample says ---- */

static void enter_name(struct detector *d, const struct sample *s, const struct who *w)
{
	char *name = w->device ? w->device->name : w->job ? w->job->name : w->node->name;

	snprintf(name, SAMPLE_NAME_MAX, "%s", s->name.text);
	if (w->device)
		w->device->role = s->name.role;
	if (w->job && !w->device && s->name.owned) {
		w->job->owned = true;
		w->job->owner = s->name.owner;
		d->room_changes++;
	}
}

static void rank_begins(struct detector *d, struct job *j, struct rank *r)
{
	r->ended = false;
	set_part(d, j, r, r->expected, false);
	r->began_ns = d->now_ns;
	r->heard_ns = r->beat_ns = r->step = r->n_beats = r->interval_ns = 0;
	r->depth = 0;
	r->phased_ns = r->left_ns = 0;
	r->activity_ns = 0;
}

static void enter_run(struct detector *d, const struct sample *s, struct job *j)
{
	bool anew = s->run.begins && (!j->on || j->epoch != s->run.epoch);
	/* It had not ended after all: who has gone from it stays away. */
	bool again = anew && s->run.epoch && j->epoch == s->run.epoch;
	struct rank *r;

	if (s->run.begins)
		j->world = s->run.world;
	if (anew || !s->run.begins) {
		j->step = j->step_ns = 0;
		if (j->on && !s->run.begins)
			j->ended_ns = d->now_ns;
		d->room_changes += j->on != s->run.begins;
		j->on = s->run.begins;
		j->dropped = j->dropped && (again || !anew);
		if (anew)
			j->began_ns = d->now_ns;
		each_rank(r, j)
		{
			if (again && r->ended)
				continue;
			if (anew)
				rank_begins(d, j, r);
			r->depth = 0;
			set_expected(d, j, r, anew && (!j->world || r->number < j->world));
		}
	}
	if (s->run.begins)
		j->epoch = s->run.epoch;
}

static uint32_t role_of(struct job *j, const char *role)
{
	for (uint32_t i = 0; i < j->n_roles; i++)
		if (!strcmp(j->roles[i], role))
			return i;
	if (j->n_roles == ROLES_MAX)
		return ROLES_MAX - 1;
	snprintf(j->roles[j->n_roles], sizeof(j->roles[0]), "%s", role);
	return j->n_roles++;
}

static void enter_member(struct detector *d, const struct sample *s, const struct who *w)
{
	struct rank *r = w->rank;

	if (s->member.leaves) {
		set_expected(d, w->job, r, false);
		return;
	}
	to_node(r, w->node);
	r->role = role_of(w->job, s->member.role);
	if (r->ended || !r->expected)
		rank_begins(d, w->job, r);
	set_expected(d, w->job, r, w->job->on);
}

/* Of the time from a to b nothing could be seen, or something else than steps was going on. */
static uint64_t interval_of(const struct detector *d, const struct rank *r, const struct sample *s)
{
	uint64_t whole = d->now_ns - r->beat_ns;

	if (!r->beat_ns || r->beat_ns < d->lit_ns || r->depth || s->beat.step <= r->step ||
	    whole <= r->phased_ns)
		return 0;
	return (whole - r->phased_ns) / ((uint64_t)s->beat.missed + 1);
}

static void enter_beat(struct detector *d, const struct sample *s, const struct who *w)
{
	struct rank *r = w->rank;
	struct job *j = w->job;

	if (r->ended) /* a new process, whose coming nobody told */
		rank_begins(d, j, r);
	if (j->on && !r->expected && (!j->world || r->number < j->world))
		set_expected(d, j, r, true);
	if (w->node)
		to_node(r, w->node);
	r->interval_ns = interval_of(d, r, s);
	r->beat_ns = r->heard_ns = d->now_ns;
	r->step = s->beat.step;
	r->beat = s->beat;
	r->n_beats++;
	r->phased_ns = 0;
	r->activity_ns = 0;
	if (s->beat.step > j->step || !j->step_ns) {
		j->step = s->beat.step;
		j->step_ns = d->now_ns;
	}
}

static void enter_phase(struct detector *d, const struct sample *s, struct rank *r)
{
	struct in_phase *p;
	uint64_t since;

	r->heard_ns = d->now_ns;
	r->activity_ns = 0;
	if (s->phase.begins) {
		if (r->depth < PHASE_DEPTH) {
			p = &r->phases[r->depth];
			*p = (struct in_phase){.phase = s->phase.phase,
					       .since_ns = d->now_ns,
					       .expected_ns = s->phase.expected_ns};
			snprintf(p->what, sizeof(p->what), "%s", s->phase.what);
		}
		r->depth++;
		return;
	}
	if (!r->depth) { /* its begin was lost, or is of another run */
		r->phases[0].since_ns = 0;
		return;
	}
	if (--r->depth)
		return;
	since = r->phases[0].since_ns > r->beat_ns ? r->phases[0].since_ns : r->beat_ns;
	r->phased_ns += d->now_ns - since;
	r->left_ns = d->now_ns;
}

static void enter_activity(struct detector *d, const struct sample *s, struct rank *r)
{
	r->activity = s->activity;
	r->activity_ns = d->now_ns;
}

static void enter_exit(struct detector *d, const struct sample *s, const struct who *w)
{
	struct rank *r = w->rank;

	r->ended = true;
	r->depth = 0;
	if (s->exit.how == EXIT_SAID_BYE)
		set_part(d, w->job, r, r->expected, true);
}

void known_enter(struct detector *d, const struct sample *s, const struct who *w)
{
	if (w->node)
		w->node->heard_ns = d->now_ns;
	if (w->node && (!speaks_of_rank(s->kind) || s->kind == SAMPLE_ACTIVITY))
		w->node->said_ns = d->now_ns;
	switch ((unsigned)s->kind) {
	case SAMPLE_NAME:
		enter_name(d, s, w);
		break;
	case SAMPLE_JOB:
		enter_run(d, s, w->job);
		break;
	case SAMPLE_MEMBER:
		enter_member(d, s, w);
		break;
	case SAMPLE_BEAT:
		enter_beat(d, s, w);
		break;
	case SAMPLE_PHASE:
		enter_phase(d, s, w->rank);
		break;
	case SAMPLE_ACTIVITY:
		enter_activity(d, s, w->rank);
		break;
	case SAMPLE_EXIT:
		enter_exit(d, s, w);
		break;
	default:
		break;
	}
}

/* ---- all of it ---- */

int known_init(struct detector *d)
{
	d->jobs = take(d, d->options.jobs_max * sizeof(struct job *));
	d->nodes = take(d, d->options.nodes_max * sizeof(struct node *));
	return d->jobs && d->nodes ? 0 : -ENOMEM;
}

static void node_free(struct detector *d, struct node *n)
{
	struct device *x, *next;

	for (x = n->devices; x; x = next) {
		next = x->next;
		give(d, x, sizeof(*x) + d->device_size);
	}
	give(d, n, sizeof(*n) + d->node_size);
}

void known_fini(struct detector *d)
{
	struct rank *r;

	for (uint32_t i = 0; d->jobs && i < d->jobs_end; i++) {
		struct job *j = d->jobs[i];

		if (!j)
			continue;
		each_rank(r, j) give(d, r, sizeof(*r) + d->rank_size);
		give(d, j->ranks, j->ranks_cap * sizeof(struct rank *));
		give(d, j, sizeof(*j) + d->job_size);
	}
	for (uint32_t i = 0; d->nodes && i < d->nodes_end; i++)
		if (d->nodes[i])
			node_free(d, d->nodes[i]);
	give(d, d->jobs, d->options.jobs_max * sizeof(struct job *));
	give(d, d->nodes, d->options.nodes_max * sizeof(struct node *));
}
