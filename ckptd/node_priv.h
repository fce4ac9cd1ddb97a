/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node_priv.h - what the machines of ckptd share beyond one job: the node.
 */
#ifndef CKPTD_NODE_PRIV_H
#define CKPTD_NODE_PRIV_H

#include "ckptd/answer.h"
#include "ckptd/by_process.h"
#include "ckptd/holding.h"
#include "ckptd/job.h"
#include "ckptd/marks.h"
#include "ckptd/node.h"
#include "ckptd/tidy.h"
#include "ckptd/user.h"
#include "storage/store.h"

#define NODE_NUMBERED 1024

struct beat_heard;

/* beats.c: what ranks write into their beat pages. */
struct beats_node {
	struct list all;
	struct timer timer;
	uint64_t looked_ns; /* nothing told after it has a time before it */
	uint64_t heard_ns;  /* something was new */
	uint64_t told;      /* samples */
	bool many, looking;
	uint32_t n;        /* pages in all */
	uint32_t to_look;  /* of these the first ones: they complete the look that was begun */
	uint64_t whole_ns; /* when the last of a look was looked at */
	uint32_t per_turn; /* so many are looked at in one turn of the loop */
	uint32_t left;     /* of them in the turn that began at turn_ns */
	uint64_t turn_ns;
	struct beat_heard *heard; /* of one look */
	size_t heard_cap;
};
void beats_node_init(struct node *n);
void beats_node_fini(struct node *n);
struct recheck;

/* admission.c */
enum admission_state {
	ADMISSION_NONE, /* nothing is asked */
	ADMISSION_CHECKING,
	ADMISSION_ADMITTED,
	ADMISSION_REFUSED,
	ADMISSION_OVERRULED
};
struct admission {
	enum admission_state state;
	char reason[MARK_REASON_MAX];
	uint64_t since_ns; /* time of day */
	struct timer hold; /* of the opens that wait */
	bool held;         /* it is armed */
};

struct node {
	struct env env;
	struct node_options options;
	struct store store;
	struct index *index; /* may be NULL: see index_open_fn */
	bool store_open, ready, stopping;
	char config_error[ERR_TEXT_MAX]; /* empty: the newest configuration is in use */
	struct list jobs, sessions;
	struct users users;
	struct by_process members; /* of all jobs, that live: member_index() */
	struct by_process leaving; /* of all jobs: leaving.c */
	struct holding holding;
	struct list process_ends; /* with ranks not handled yet: process_ends.c */
	struct list early;       /* opens that came before it was ready, or admitted */
	struct list refused;     /* jobs that could not be read: refused.c */
	struct list kept_regions; /* of their memory; until adopt_memory() of all jobs */
	struct timer refused_timer;
	struct list failed_jobs; /* whose creation failed: freed by their next step */
	struct list stopped_jobs; /* whose state contradicts itself: job_state.h */
	struct recheck *recheck;
	bool hook_runs; /* trust.hook, on this checkpoint: trust.c */
	struct checkpoint_id hook_asks;
	uint64_t next_load;
	uint64_t next_cached; /* rounds of loads through the page cache: sharing.c */
	void (*ready_fn)(void *arg, int status, const char *text);
	void *ready_arg;
	void (*stopped_fn)(void *arg);
	void *stopped_arg;
	struct timer stop_timer;
	struct timer hurry_timer;
	bool hurry;            /* the stop has lasted: the index is not written any more */
	struct timer whole_timer;
	bool whole_files; /* half of the stop's time is over: nothing is looked for any more */
	struct list seeking;   /* replicas that are looked for: replicas.c */
	struct list agreeing;  /* overlaps that are compared: agreeing.c */
	struct list indexing;  /* works of the index: indexing.c */
	struct timer goodput_timer;
	struct timer problems_timer;
	bool problems_watched; /* it is armed */
	struct disk_look disk_look;
	uint32_t index_works;   /* on their way to the index */
	uint64_t index_errors;
	uint32_t works;         /* others that point to the node: a stop waits for their end */
	uint32_t side_works;    /* likewise, but a stop does not wait: answers, closes, frees */
	uint64_t destroying;    /* bytes of regions that are on their way to be free */
	struct list memory_waits; /* struct preparing, for them */
	struct events *events;
	struct answers answers; /* the long ones to ckptctl and to List */
	struct acting *acting;
	struct marks marks;
	struct admission admission;
	struct held_up held[2]; /* slow, hung: alarms of the node, its GPUs and links */
	uint32_t last_number, unwatched_number; /* of jobs, for the detector: watching_names.c */
	uint64_t number_uses;
	/* Where the job of a number was found last: watching_job(). */
	struct job *numbered[NODE_NUMBERED];
	struct watching *watching; /* NULL: nothing is watched */
	struct probing *probing;   /* NULL: nothing is collected */
	struct beats_node beats;
	struct tidy tidy;
};

/* Something may have ended: go on with an orderly stop. */
void node_stop_step(struct node *n);
/* Of env, on a worker. What was written before it counts if it returns 0: the next start looks
 * there. */
MUST_CHECK int node_check_folder(const struct node *n, struct err *e);
/* An orderly stop is over: what is submitted now is only handed back. */
bool node_stop_over(const struct node *n);
/* conn_events.unsent: unsent.c. */
void node_close_unsent(void *arg, uint32_t uid, const int *fds, size_t n_fds);

#endif
