/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.h - a whole node in virtual time: ckptd's own objects, simulated ranks, faults, an oracle.
 *
 *   sim.c          the command line: seeds, replay, planted bugs, the summary
 *   sim_run.c      one seed from its first launch to its orderly end
 *   sim_daemon.c   the lives of ckptd: start, death, orderly stop
 *   sim_chaos.c    what goes wrong, and when
 *   sim_damage.c   bytes that change by themselves, in files and in memory
 *   sim_job.c      the launcher: starts ranks, replaces dead ones, starts jobs again
 *   sim_rank.c     one rank: its fiber, its connection, requests and their repetition
 *   sim_trainer.c  what a rank does: open, declare, prepare, load, train, save, wait
 *   sim_made.c     a job that a tool makes in incoming/, and that ckptd adopts
 *   sim_load.c     a load: reading sources, checking leaves, placing
 *   sim_state.c    what training state looks like: shards of ranks, and every byte of it
 *   oracle.c       what the log says, and whether it may say so; oracle_rank.c: what ranks saw
 *
 * A run has a time of trouble and a time of peace. In peace everything must work again within a
 * bound of virtual time, everything promised must be there, and nothing may be left behind.
 */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include "ckptd/node.h"
#include "model/declaration.h"
#include "proto/origin.h"
#include "proto/session.pb-c.h"
#include "tests/sim/conn.h"
#include "tests/sim/disk.h"
#include "tests/sim/index.h"
#include "tests/sim/memory.h"
#include "tests/sim/oracle.h"

#define SIM_JOBS      3
#define SIM_WORLD     4
#define SIM_SLOTS     8
#define SIM_SHARDS    8
#define SIM_IMAGE_MAX (64u << 10)

/* ---- What happens, counted ---- */

/* clang-format off: a list */
#define SIM_COUNTS(X) \
	X(runs) X(events) X(ops) X(starts) X(failed_starts) X(stops) X(epochs) X(records) \
	X(sealed) X(skipped) X(thrown_away) X(committed) X(aborted) X(freed) X(lost) \
	X(wait_sealed) \
	X(wait_committed) X(wait_durable) X(superseded) X(wait_timeout) X(load_memory) \
	X(load_disk) X(load_step) X(load_reshard) X(load_nothing) X(trusted) X(went_back) \
	X(fell_back) X(bad_leaf) \
	X(repeated) X(rejoined) X(launches) X(replaced) X(rank_kills) X(kills) \
	X(kills_at_op) X(kills_at_point) X(errors_at_point) X(power_losses) X(keeper_deaths) \
	X(index_losses) X(commits_lost) X(files_lost) X(breaks) X(outages) X(torn_ledgers) \
	X(disk_faults) X(zombies) \
	X(refused) X(full) X(removed) X(jobs_removed) X(pinned) X(load_lost) X(stale_leaf) \
	X(beats_adopted) X(beats_told) X(clock_set) X(memory_hits) X(bad_memory) X(vouched) \
	X(rewritten) X(adopted) X(read_again)
/* clang-format on */

enum count {
#define X(name) COUNT_##name,
	SIM_COUNTS(X)
#undef X
		COUNTS
};

/* ---- What kinds of trouble there are; weights of a profile ---- */

#define SIM_TROUBLES(X)                                                                            \
	X(kill)                                                                                    \
	X(kill_at_op)                                                                              \
	X(kill_at_point)                                                                           \
	X(power) X(keeper) X(index) X(sever) X(kill_rank) X(relaunch) X(stop) X(outage) X(full)    \
		X(flip) X(flip_memory) X(error_at_point) X(clock) X(lose_commit) X(lose_file) \
		X(remove_job)

enum trouble {
#define X(name) TROUBLE_##name,
	SIM_TROUBLES(X)
#undef X
		TROUBLES
};

struct profile {
	const char *name;
	unsigned jobs, world; /* at most */
	uint64_t trouble_ns;  /* how long it lasts */
	unsigned events;      /* how many, at most */
	uint8_t weight[TROUBLES];
	bool good_disk, good_net; /* no faults of that kind */
	unsigned wait_durable;    /* one save in n is waited for until it is DURABLE */
	unsigned slow_load;       /* one load in n takes its time */
	unsigned admin;           /* one step in n somebody removes or pins; 0: never */
	unsigned ask_trust;       /* one in so many loads asks for more than latest; 0: 6 */
	unsigned keep_last;       /* 0: drawn */
	unsigned persist_every;   /* 0: drawn */
	bool one_point;           /* faults at points are all at this one */
	int point;
	uint64_t outage_ns; /* how long one lasts at most; 0: short */
	uint64_t sync_ns;   /* how long a sync takes at most; 0: a millisecond */
	unsigned load_step; /* one step in so many loads an older one; 0: 20 */
	bool no_alarm;      /* nothing happens in it that is one */
};

struct sim;
struct rank;

/* ---- ckptd (sim_daemon.c) ---- */

struct daemon {
	struct sim *sim;
	struct life *life;
	struct life_hook hook;
	struct node *node;
	struct index *index;
	struct memory *memory;
	bool ready, stopping, stopped;
	uint64_t stop_ns; /* when it was told to stop */
	bool keeper_lost; /* the keeper died while this life went on */
	bool freed;
	int point;         /* armed to kill, or -1 */
	uint64_t delay_ns; /* before the next start */
	uint64_t failures; /* starts that failed, one after the other */
};

void daemon_start(struct sim *s);
void daemon_kill(struct sim *s);
void daemon_arm(struct sim *s, int point, bool kill, uint64_t after);
/* Orderly; in steps of the driver. */
void daemon_stop(struct sim *s);
bool daemon_stopped(struct sim *s);
/* A job whose log this start could not read. */
bool daemon_refuses(const struct sim *s, const struct job_id *id);
size_t daemon_end(struct sim *s); /* what it still held */

/* ---- Training state (sim_state.c) ---- */

/* SHARD_WHOLE: by every rank; SHARD_HALVES: rows in two halves, each by every other rank. */
enum shard_kind { SHARD_ROWS, SHARD_COLUMNS, SHARD_FLAT, SHARD_WHOLE, SHARD_HALVES };

/* One tensor as one rank has it: elements (r, c) of a box, or elements [start, stop) of all. */
struct part {
	unsigned tensor;              /* of the job */
	uint64_t rows, cols, element; /* of the whole tensor; bytes of an element */
	bool flat, shared;            /* shared: others may have the same part */
	uint64_t r0, r1, c0, c1, start, stop;
	uint64_t bytes, image_offset;
};

struct state {
	struct part parts[SIM_SHARDS];
	uint32_t n_parts;
	void *declaration; /* alloc_free() */
	size_t declaration_len;
	struct digest digest;
	uint64_t image_bytes, blob_offset, blob_bytes;
};

/* The shards of one rank of a job under a layout. Uses base/alloc.h. */
void state_make(struct state *st, unsigned job, uint32_t rank, uint32_t world, unsigned layout,
		struct geometry g);
/* Byte i of a part, as saved under a key by a rank. Now and then a rank has one wrong byte in what
 * others have too. */
void state_fill(const struct part *p, unsigned job, const struct save_key *k, uint32_t rank,
		uint8_t *to);
void state_blob(unsigned job, uint32_t rank, const struct save_key *k, uint8_t *to, uint64_t len);
uint64_t state_blob_bytes(const struct save_key *k);
#define SIM_BLOB_MAX 200u
/*
 * UINT64_MAX: equal; else the first byte that is not. A rank that loads what it saved, under the
 * same layout, must have its own bytes; others may have those of any rank that had them.
 */
struct saved_by {
	uint32_t world;
	unsigned layout;
};
uint64_t state_compare(const struct part *p, unsigned job, const struct save_key *k,
		       const struct saved_by *saved, const struct rank *reader,
		       const uint8_t *have);

/* ---- Jobs and ranks ---- */

struct sim_job {
	struct sim *sim;
	unsigned index;
	char name[16];
	uint32_t uid;
	bool made;         /* ckptd makes the run ids */
	unsigned launches; /* the number of the newest */
	char run_id[32];
	uint32_t world;
	unsigned layout;
	struct rank *ranks[SIM_WORLD];
	bool agent_busy; /* the launcher has decided something that is to come */
	uint64_t decisions;
	struct oracle_job *oracle; /* once a rank has opened it */
	unsigned goal;             /* in peace: durable saves still wanted */
	uint64_t sealed_ns;        /* when a rank last heard that its save is sealed */
};

void job_launch(struct sim_job *j);
void job_remove(struct sim_job *j);
void job_kill_all(struct sim_job *j);
void job_rank_gone(struct sim_job *j, struct rank *r); /* it exited or died */

struct message {
	struct list link;
	void *bytes;
	size_t len, n_fds;
	int fds[CONN_FDS_MAX];
};

struct rank_slot {
	uint32_t number;
	struct mapping *map;
};

struct rank {
	struct list link; /* zombies */
	struct sim *sim;
	struct sim_job *job;
	uint32_t rank, world;
	unsigned layout, launch;
	char run_id[160];
	/* The fiber. */
	struct fiber fiber;
	struct blocks blocks;
	bool running, done, parked;
	uint64_t until_ns;
	bool heed; /* a message ends the wait */
	/* The connection. */
	struct sim_process *process;
	struct sim_channel *channel;
	struct list inbox;
	uint64_t next_id;
	bool opened_once, joining;
	uint64_t generation; /* of its slots */
	uint64_t joins;
	/* Files of a checkpoint that it was given to read, over this connection. */
	struct sim_channel *reading;
	uint64_t reading_step;
	struct attempt_id reading_attempt;
	/* What it holds. */
	struct mapping *page;
	struct mapping *beats; /* NULL: it was given none */
	uint64_t beats_written;
	bool beats_kept; /* the fd store had them when this ckptd was started */
	struct rank_slot slots[SIM_SLOTS];
	uint32_t n_slots;
	bool slots_said; /* ckptd has answered that all of them are ready */
	int fds[CONN_FDS_MAX];
	size_t n_fds;
	struct mapping *maps[CONN_FDS_MAX]; /* of a load */
	size_t n_maps;
	struct state state;
	uint64_t epoch, credit_used, step;
	struct origin origin;  /* in this epoch, as ckptd was told or has said */
	uint64_t placed_epoch; /* the newest in which it has loaded bytes of an older one */
	bool removes;          /* it is no rank: a person's ckptctl, which removes the job */
	bool forgets;          /* to load: for a while */
	bool loaded_late;      /* so it comes back to steps that only it has tried */
	struct {
		uint64_t epoch, step;
		uint32_t n;
	} tries[16];
	unsigned next_try;
	struct save_key newest_sealed, newest_skipped; /* skipped for want of a credit */
	struct save_key unsettled;
	uint64_t unsettled_credit, unsettled_generation;
	/* A request that was sent twice: the second answer is held against the first. */
	uint64_t twice_id;
	int twice_code;
	/* A leaf that it reported and that ckptd took note of. */
	bool bad_told, bad_file;
	struct attempt_id bad_attempt;
	uint32_t bad_rank;
	uint64_t bad_starts;
	uint64_t bad_number; /* of the file */
};

/* sim_beats.c */
void rank_take_beats(struct rank *r, int fd);
void rank_lose_beats(struct rank *r); /* that came with an open */
void trainer_beat(struct rank *r);            /* r->step is done */
/* A save begins, before it looks for a credit; or it does not wait for one any more. */
void trainer_begins_save(struct rank *r, uint64_t step, bool waits);
/* A ckptd is being started, or the keeper has died. */
void beats_note_kept(struct sim *s);
/* That ckptd has just become ready: what the fd store held is looked at. */
void beats_check_adopted(struct sim *s);
/* Some seconds of peace: all is told. */
void beats_check_told(struct sim *s);
/* Ranks train: the time of the detector is ckptd's own. */
void beats_check_time(struct sim *s);

/* sim_rank.c */
struct rank *rank_start(struct sim_job *j, uint32_t rank, const char *run_id, uint64_t delay_ns);
void rank_kill(struct rank *r); /* SIGKILL; frees it */
bool rank_alive(const struct rank *r);
void rank_sleep(struct rank *r, uint64_t ns);
void rank_sever(struct rank *r);
/* Says hello and opens; then, when it was lost, takes up what it had. 0, or the rank is out. */
int rank_join(struct rank *r);
/*
 * Sends and waits for the reply; joins again and repeats under the same id when the connection is
 * lost. Negative: what ckptd said; CKPT_ETIMEDOUT; CKPT_EUNAVAILABLE: the slots it spoke of are
 * gone; -ESHUTDOWN: this rank is out. *ret is freed with reply_free(); its descriptors are r->fds.
 */
enum { ASK_SLOTS = 1, ASK_MAY_WAIT = 2, ASK_KEEP_FDS = 4 };
int rank_ask(struct rank *r, Ckpt__Request *q, unsigned flags, uint64_t deadline,
	     Ckpt__Reply **ret);
void reply_free(Ckpt__Reply *reply);
void rank_close_fds(struct rank *r);
void rank_unmap_slots(struct rank *r);
uint64_t rank_now(const struct rank *r);

/* sim_trainer.c */
void trainer_main(void *rank);
int trainer_take_slots(struct rank *r);
int trainer_declare(struct rank *r);
uint64_t trainer_page_epoch(struct rank *r);
/* sim_load.c: loads the base (step UINT64_MAX) or a step; *ret_nothing. */
int trainer_load(struct rank *r, uint64_t step, bool *ret_nothing);

/* ---- A job that a tool makes (sim_made.c) ---- */

struct made {
	struct sim *sim;
	struct checkpoint_id id;
	char name[8];
	uint32_t uid;
	struct life *life; /* the tool's, until it is freed */
	bool finished;     /* its COMMIT is in incoming/ */
	bool told;         /* ckptd has said that it is adopted */
};

void made_begin(struct sim *s); /* perhaps one is made */
void made_kill(struct sim *s);  /* the tool */
bool made_is_for(const struct rank *r);
void made_adopted(struct rank *r);
void made_check(struct sim *s); /* ckptd is ready */

/* ---- One seed ---- */

struct sim {
	struct world *w;
	const struct profile *profile;
	struct node_options options;
	struct disk *disk;
	struct index_store *index;
	struct keeper *keeper;
	struct host *host;
	struct daemon daemon;
	struct sim_job jobs[SIM_JOBS];
	unsigned n_jobs;
	struct list zombies;
	struct list graves; /* ranks that ended and are to be freed */
	struct oracle oracle;
	struct made made;
	bool trouble; /* faults may happen */
	bool peace;   /* everything must work */
	bool powered; /* false between power loss and start */
	uint64_t outage_ns; /* since when logs cannot be written; 0: they can */
	uint64_t outage_end_ns; /* of the last one */
	uint64_t disk_bytes;    /* its true size while it is full; else 0 */
	uint64_t full_ns, bulk; /* since when; what shard and spare files held then at least */
	unsigned bulk_seen;
	/* What was found damaged, and is good in memory: since when it could be written again. */
	struct attempt_id waits;
	uint64_t waits_ns, waits_life, rewritten;
	uint64_t counts[COUNTS];
	char wrong[512];
};

#define sim_count(s, what) ((s)->counts[COUNT_##what]++)

/* The first accusation ends the run. */
void sim_accuse(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* For the trace alone. */
void sim_tell(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* sim_chaos.c */
void chaos_options(struct sim *s); /* sizes, policies, fault rates */
void chaos_begin(struct sim *s);   /* arranges troubles */
void chaos_end(struct sim *s);     /* no more of them */
void power_loss(struct sim *s);

/* sim_damage.c: one bit of a file of some checkpoint, or of some copy in memory. */
void damage_file(struct sim *s);
void damage_memory(struct sim *s);
/* ckptd has this rank's bytes in memory and knows nothing against them. */
bool damage_has_memory(struct sim *s, const struct job_id *id, uint64_t step,
		       const struct attempt_id *a, uint32_t rank);
/* From the start on: damaged files of what is good in memory are written again (I11). */
void damage_watch(void *sim);

/* sim_run.c: true: nothing wrong. counts are added to. why: 512 bytes. */
bool sim_run(uint64_t seed, const struct profile *p, uint64_t counts[COUNTS], uint64_t *ret_hash,
	     char *why);

#endif
