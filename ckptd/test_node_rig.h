/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_node_rig.h - for tests: a node in this process (tests/lib/host.h) and ranks that speak to it
 * by hand (tests/lib/hand.h), made and taken away around each test. What the disk answers can be
 * changed under the node, and what it says is remembered.
 */
#ifndef CKPTD_TEST_NODE_RIG_H
#define CKPTD_TEST_NODE_RIG_H

#include <stdatomic.h>

#include "tests/lib/hand.h"
#include "tests/lib/host.h"
#include "tests/lib/test.h"

#define TURNS_MAX 20000
#define ELEMENTS  100000u

/* What still runs is stopped behind the test. */
struct node_test {
	struct host host;
	bool running;
	char *dir, socket[108];
	const char *backend;
	struct node_options o; /* to be changed before it begins */
	struct checks *checks; /* for the node; NULL: none */
	bool index;            /* the node has one */
	void (*before)(struct node_test *t); /* while it starts, before it adopts; or NULL */
	struct hand a, b;
};

#define NODE_TEST(f) cmocka_unit_test_setup_teardown(f, node_test_setup, node_test_teardown)

/* *state: a struct node_test of which nothing runs yet. */
int node_test_setup(void **state);
int node_test_teardown(void **state);

/* ---- What the disk answers ---- */

extern _Atomic uint64_t pretended_room; /* what there is; UINT64_MAX: what there really is */
extern _Atomic int log_error;           /* of each new name in a job's log; 0: none */
extern _Atomic int log_sync_error;      /* of the folder of a log */
extern atomic_bool log_sync_waits;         /* each new name waits until this is false */
extern _Atomic int shard_error;         /* of each new shard file */
extern atomic_bool shard_waits;         /* each new shard file waits until this is false */
extern _Atomic int token_error;         /* of each new small file of a job */
extern _Atomic int list_error;          /* of the folders of checkpoints */
extern _Atomic int read_error;          /* of shard files that are there, of: */
extern _Atomic uint64_t unreadable_from; /* this step and later ones */
extern atomic_bool log_wants_spare;     /* no room for a log while there are spare files */

/* The data folder is gone as soon as it has a file of this pattern; NULL: it stays. */
extern const char *_Atomic folder_gone_with;

void disk_is_good(void);

/* ---- The node ---- */

/* 0, or why it does not start; it is to be ended in both cases. */
int try_begin_node(struct node_test *t);
void begin_node(struct node_test *t);
/* With one rank that can save, and with two. */
void begin_one(struct node_test *t);
void begin_two(struct node_test *t);
/* As if killed: nothing is told to anybody, all memory is lost. Its folder stays. */
void end_node(struct node_test *t);

/* How many files of that pattern the data folder has. */
size_t count_files(const struct node_test *t, const char *pattern);
/* How large these files are, all of them; there is one at least. */
uint64_t file_bytes(const struct node_test *t, const char *pattern);
struct job *the_job(struct node_test *t);
/* Whether some line of this test has the words. */
bool was_told(const char *words);
unsigned times_told(const char *words);
/* Turns once; false, without it, two minutes after the first call, for which *end_ns is 0. Turns
 * alone measure no time: a loop that is busy takes microseconds for one, and workers wait for a
 * core. */
bool turn_on(struct node_test *t, uint64_t *end_ns);
void turn_until_told(struct node_test *t, const char *words);

/* ---- Workers that are busy ---- */

/* All works of that user in that class wait until unblock(), or the test's end. */
void block(struct node_test *t, enum work_class class, uint32_t uid);
void unblock(struct node_test *t);
bool still_blocked(void);

/* ---- Ranks of the job "job" ---- */

void connect_rank(struct node_test *t, struct hand *k);
/* Returns the code. */
int open_rank(struct hand *k, uint32_t rank, uint32_t world, const char *run);
/* Connects and opens; returns the base's step. */
uint64_t join(struct node_test *t, struct hand *k, uint32_t rank, uint32_t world, const char *run);
void leave(struct hand *k);

/* Rows of "w"; in a world of 1 all of it: who declares that twice declares the same. */
void declare_elements(struct hand *k, uint32_t rank, uint32_t world, uint64_t elements);
void declare_rank(struct hand *k, uint32_t rank, uint32_t world); /* ELEMENTS of them */
void prepare_rank(struct hand *k);
void declare_and_prepare(struct hand *k, uint32_t rank, uint32_t world);

/* Saves bytes of (step, rank). Returns the code. */
int save_rank(struct hand *k, uint32_t rank, uint64_t step);
/* That must be taken, and become what is said. */
void save_until(struct hand *k, uint32_t rank, uint64_t step, uint32_t what);

/* Loads a step, or latest, and compares every byte with what save_rank() wrote at `step`. */
void load_rank_at(struct hand *k, uint32_t rank, uint64_t step, uint32_t tier, uint64_t which);
void load_rank(struct hand *k, uint32_t rank, uint64_t step, uint32_t tier);

#endif
