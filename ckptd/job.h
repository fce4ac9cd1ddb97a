/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.h - the data that ckptd keeps of one job: its log, members, slots and checkpoints.
 *
 * Who changes what:
 *   job.c         the job itself, appends to its log
 *   epoch.c       epochs: opens, settling, falling back
 *   member.c      members (one per rank), their slots; credits.c: which step they save next;
 *                 preparing.c, slot_fill.c: the slots' memory;
 *                 disk_need.c: the disk's room for what they will save
 *   checkpoint.c  an attempt from its first seal to COMMITTED or ABORTED, and its memory
 *   persist.c     from memory to files; replicas.c: what others write; rewrite.c: damaged files
 *                 are written again; retain.c: which files go
 *   problems.c    what keeps it from being saved, as people are told
 *   load.c        what is being read; load_planning.c, load_giving.c: how
 *   job_removal.c its end: all of it goes
 * ledger.c only describes memory. All on the loop's thread; what a worker touches is in the
 * struct of its work.
 *
 * Invariants here (I1..I15 stand in doc/architecture.md):
 *  (1) a slot holds at most one shard of one checkpoint; slot->holds and shard->slot agree;
 *  (2) a checkpoint is in job->checkpoints until it is ABORTED or gone from memory and disk, has
 *      no works and no readers;
 *  (3) what the log says is in job->history, and nothing acts on a record before it is appended.
 */
#ifndef CKPTD_JOB_H
#define CKPTD_JOB_H

#include "base/rounds.h"
#include "ckptd/blobs.h"
#include "ckptd/job_state.h"
#include "ckptd/ledger.h"
#include "ckptd/node.h"
#include "ckptd/problems.h"
#include "coord/record.h"
#include "detect/goodput.h"
#include "model/declaration.h"
#include "model/trust.h"
#include "proto/origin.h"
#include "proto/session_page.h"
#include "storage/commit_file.h"
#include "storage/store.h"

struct session;
struct user;
struct checkpoint;
struct persist;
struct rewrite;
struct replicas;

/* ---- Memory of one rank's snapshot ---- */

enum slot_state {
	SLOT_MAPPING, /* handed to its process, which maps it; it may have no pages yet */
	SLOT_EMPTY,
	SLOT_WRITING, /* its process has a credit for it */
	SLOT_SEALED,
	SLOT_DIGESTED,
	/* A leaf did not match: never read again, freed with its checkpoint. Holds nothing: the
	 * ledger could not say so, until it does it is not used. */
	SLOT_QUARANTINED,
};

struct slot {
	struct list link; /* in job->slots */
	struct job *job;
	uint32_t number;  /* unique in the job for ever */
	uint32_t rank;
	struct region *region;
	struct region *table;      /* for rank tables that are too long for a record, each in turn;
				      NULL: they are not, or there was no memory for it */
	struct process_id process; /* may write to it */
	struct user *user;         /* charged for its regions; NULL: no user */
	uint32_t places;           /* counted: USER_REGIONS, */
	uint64_t bytes;            /* and USER_MEMORY_BYTES */
	struct member *member;     /* NULL: its process ended or left; by slot_give() */
	struct list of_member;     /* in member->slots, or in slots_left() */
	enum slot_state state;
	bool busy;                 /* MAPPING: a worker fills and seals its region */
	bool undeclared;           /* adoption: its seal's declaration is lost */
	uint64_t credit;           /* WRITING: the credit that was granted with it */
	struct checkpoint *holds;  /* SEALED and later (1) */
	uint64_t in_ledger;        /* the ledger's newest generation that it was written into by a
				      move, as in the two below */
};

/* One rank's part of a checkpoint. */
struct shard_state {
	struct slot *slot;         /* NULL: not sealed yet, or no longer in memory */
	bool sealed;
	uint64_t image_len;
	struct declared *declared;
	struct blobs *blobs;       /* NULL: not sealed, or no longer in memory */
	struct origin origin;      /* of the rank when it sealed */
	struct user *blobs_user;   /* whom their block counts for */
	bool bad_file;             /* its file is damaged, wherever its memory is */
	void *table;               /* the rank table, once DIGESTED; also in the ledger, unless: */
	bool table_in_region;      /* it lies in the slot's region for it, which the ledger names */
	size_t table_len;
	struct digest table_digest;
	const struct digest *samples; /* of the table */
	uint32_t n_samples;
};

/* Which ranks of a checkpoint or an epoch have loaded and which have not: one of each (I15). */
struct origins {
	bool resumed, fresh;
	uint32_t resumed_rank, fresh_rank;
	uint64_t step; /* that resumed_rank has loaded */
};

enum agreed_state { CP_OPEN, CP_COMMITTING, CP_COMMITTED, CP_ABORTED };
enum durable_state {
	DUR_NONE,
	DUR_WANTED,  /* picked, waiting for its turn */
	DUR_WRITING,
	DUR_DONE,
	DUR_FAILED,
	DUR_GONE,    /* freed, or being freed */
	DUR_UNFINISHED, /* what an earlier life left of writing it: files without COMMIT, which go
			   when the log has it as lost, or memory writes them anew */
};

struct checkpoint {
	struct list link; /* in job->checkpoints, in order of their first seal */
	struct job *job;
	uint64_t step, epoch;
	struct attempt_id attempt;
	uint32_t try_number;
	uint32_t world;
	enum agreed_state agreed;
	uint64_t record_n;    /* of the commit record */
	uint64_t wall_ns;
	struct digest root, layout;
	uint64_t bytes;
	struct shard_state *shards; /* world; tables are kept while the memory is */
	uint32_t n_sealed, n_digested;
	uint32_t n_memory;          /* ranks whose shard is in memory */
	uint32_t n_held;            /* slots that hold it, as job_state_check() has counted them */
	bool sealed, digested;      /* facts, of all ranks */
	struct origins origins;     /* of those that sealed */
	bool abort_logged;          /* ABORTED: its record is in the log, or never will be */
	bool memory;                /* every shard can be read from memory */
	enum durable_state durable;
	struct commit_file *commit; /* with DUR_DONE; NULL: none can be read, with disk_suspect */
	uint64_t disk_bytes;        /* commit_disk_bytes() of it: checkpoint_has_files() */
	bool commit_gone;           /* without commit: there is no COMMIT, not even a bad one */
	bool files_suffice;         /* without commit: it could be made, and not be written */
	bool rebuilt;               /* this life has made its COMMIT again from its files */
	bool disk_suspect;          /* some shard's bad_file: kept, never offered */
	uint32_t rewrite_tries;     /* to write them again from memory that failed */
	bool pinned;
	uint32_t trust;             /* what its trust records add up to: model/trust.h */
	uint32_t said;              /* the same with what has no record yet */
	uint32_t saying;            /* its trust and pin records that wait for the log: of works */
	bool rereading;             /* one of works reads its files, and no memory */
	bool releasing;             /* its memory goes, some ranks in each step of the job */
	bool reread_disk, reread_memory; /* all of it was read again, and matched */
	bool reread_said;                /* that all there was has matched: once */
	uint32_t reread_given_up;        /* so often: it could not be read, for now */
	bool asked_hook;                 /* trust.hook, in this life of ckptd */
	bool off_line;                   /* the job does not go on from it */
	uint64_t begun_ns;               /* first sealed, loop's clock; 0: in an earlier life */
	uint64_t committed_ns;           /* loop's clock; 0: in an earlier life */
	uint64_t healthy_from;           /* steps above it count for it */
	bool stuck;                 /* its free record was refused: the next start tries again */
	bool wait_durable;          /* somebody waits for it to be DURABLE */
	bool no_room;               /* the disk had none for it, or the data folder was away: tried
				       again when that may be over */
	bool files_left;            /* GONE, and its files could not be taken away yet */
	bool expiring;              /* one of works takes its files away, which reads no memory */
	bool recyclable; /* this ckptd wrote its files, and gave no descriptor of them away */
	struct persist *persist;
	uint32_t works;             /* that point here */
	uint32_t recording;         /* its records on their way into the log: of works */
	uint32_t readers;           /* loads */
	struct list holders;        /* users with such loads, past or present: holding.c */
	bool overdue;               /* retention would take it away, but for readers */
	bool no_cache;              /* what the page cache gave was not what is on the disk */
	uint64_t cached;            /* pages of its files are, by loads of this round; 0: none */
	struct timer timeout;       /* attempt_timeout while OPEN and not sealed */
	char reason[REASON_MAX + 1]; /* ABORTED, damaged, or why persisting failed */
	uint32_t persist_tries;
	bool replicas_told; /* that holders of replicas differ, at an earlier try */
};

/* ---- Members ---- */

/* One declaration, shared by members and shards of the job that have it. */
struct declared {
	struct list link; /* in job->declared */
	struct digest digest;
	void *bytes;           /* of alloc, unless: */
	struct region *region; /* has them: too long for a record of the ledger, which names it */
	size_t len;
	struct declaration view;
	uint32_t element; /* declaration_element(): to look at every shard is not for the loop */
	uint32_t refs;
	struct user *user; /* charged for its bytes: the first that sent it; or NULL */
	uint64_t in_ledger;
};

/* credits.c: where a rank stands in the open window. */
enum turn { TURN_DONE, TURN_DUE, TURN_GIVEN };

struct member {
	struct list link; /* in job->members */
	struct list of_process; /* in node->members, from member_index() on */
	struct list ending;     /* its process has ended: process_ends.c */
	struct round_item told; /* in job->telling */
	struct job *job;
	struct user *user; /* charged for it; NULL: no user, out of memory */
	uint32_t rank;
	struct process_id process;
	struct session *session; /* NULL while not connected */
	bool alive;              /* the session has not ended: its process lives and said no bye */
	struct list slots;       /* slot->of_member */
	bool prepared;           /* it can be given a credit: some of its slots are filled */
	bool undeclared;         /* adoption: its declaration is lost */
	struct preparing *preparing; /* they are being made */
	struct sealing *sealing;     /* they are being filled and sealed, one after another */
	struct round_item fill;      /* in job->fills: some of them are filled later */
	uint64_t epoch;          /* it may save in */
	uint64_t entered_ns;     /* when it entered it, by the loop's clock */
	struct origin origin;    /* in it; UNSAID while an adopted one is not back */
	struct declared *declared;
	uint64_t in_ledger;
	struct region *page;     /* struct session_page */
	struct beats *beats;     /* beats.c; NULL: it cannot beat */
	uint64_t credit;         /* newest granted */
	bool credit_unused;
	enum turn turn;          /* in the open window: credits.c */
	uint64_t next_save;      /* the newest step that it said it saved or skipped, + 1 */
	uint32_t passed;         /* saves of steps before the open window that it skipped */
	uint64_t blob_bytes;
	uint64_t read_cached;    /* round of the last load that it read through the page cache */
	uint64_t credit_request; /* id of a waiting Credit request; 0: none */
	struct skipped {
		uint64_t step, epoch;
		uint32_t try_number;
		char reason[96]; /* cut off */
	} skipped[8];            /* the last steps this rank did not save */
	uint32_t n_skipped;      /* ever; the ring's next place is this modulo 8 */
	struct rank_saves saves; /* problems.c */
};

/* ---- The job ---- */

/* credits.c: the step for which all ranks are given a credit. */
struct credit_window {
	uint64_t epoch; /* it is open in this one; 0: it never was */
	uint64_t from;  /* its first step */
	uint64_t failed; /* a step of it that some rank did not save, + 1; 0: none */
	uint32_t ahead;  /* the rank beyond whose save it lies */
	bool deserted;   /* that rank has gone back: no rank is beyond the window any more */
	uint64_t opened_ns; /* loop's clock */
	bool due;       /* some rank's turn may be DUE */
	enum credit_block block; /* why the next one is not opened */
	uint32_t blocked_rank;   /* by which rank */
	struct member *behind;   /* that one, with BLOCK_BEHIND; or NULL */
};

#define TROUBLES_MAX     16
#define SLOTS_LEFT_LISTS 64u

struct append; /* a record on its way into the log: job.c */

struct wait_request {
	uint64_t step, epoch;
	uint32_t what; /* enum ckpt_state */
	bool asks;     /* and nothing is written for its sake */
};

struct waiter {
	struct round_item item; /* in job->waits */
	struct list of_session; /* in the session's waits */
	struct job *job;
	struct session *session;
	uint64_t request;
	struct wait_request wanted;
};

/* goodput_file.c: what of goodput is being kept. */
struct goodput_file {
	struct work work;
	char *bytes;
	size_t len;
	struct job_id job; /* whose, for the worker */
	uint64_t wall_ns; /* of what was read; 0: nothing was */
	bool busy, again, told;
};

/* job_removal.c: what happens to a job that its user removes. */
enum job_removal {
	JOB_KEPT,
	JOB_LEAVES,  /* a worker moves its folder out of jobs/: nothing of it changes meanwhile */
	JOB_REMOVED, /* it has none any more: job_free() gives back its memory for good */
};

/* Alarms that stand, of one class, by their ids: goodput.c. */
struct held_up {
	uint64_t *ids;
	uint32_t n, cap; /* of it; there is room for */
};

struct job {
	struct list link; /* in node->jobs; stopped: in node->stopped_jobs */
	struct node *node;
	enum job_removal removal;
	uint32_t works;    /* that point to it, and to none of its checkpoints */
	struct user *user; /* charged for it: job_count(); NULL: no user, or it is stopped */
	enum job_defect defect; /* what was found, if anything: job_state.h */
	bool stopped;           /* that was acted on */
	char defect_text[ERR_TEXT_MAX];
	uint64_t next_beats;  /* the newest beat page's */
	uint64_t wanted_step; /* the first save at or after it was asked for; 0: none */
	struct credit_window window;
	struct origins origins; /* of this epoch: one that has loaded; fresh is not kept */
	struct saves saves; /* problems.c */
	struct history history;
	struct joblog *log;
	uint8_t token[32];
	struct ledger ledger;
	struct user *ledger_user; /* charged for its region; NULL: no user, or no region */
	struct ledger_making *ledger_making; /* its next region is being made */
	uint64_t ledger_retry_ns;            /* making one failed: not before */
	uint64_t ledger_need;                /* bytes of declarations that wait for their room */

	struct list appends;       /* waiting, the first is being written */
	bool appending, lead;      /* lead: our lead record is in the log */
	uint64_t append_since_ns;  /* since when, while appending */
	int log_error;             /* appends fail for good: somebody else wrote */
	struct timer append_retry;
	struct task step_task;
	bool poked;
	char log_text[ERR_TEXT_MAX];
	const char *refused; /* while a done runs: why the log takes no such record, or NULL */
	bool summing;                 /* a summing record is on its way, or the trim behind it */
	uint64_t sum_at;              /* one that failed is tried again at this record */
	char trim_text[ERR_TEXT_MAX]; /* why the log cannot be trimmed; empty: it can */

	struct list members, slots, checkpoints, declared;
	struct rounds waits;     /* struct waiter: waiting.c */
	struct rounds telling;   /* struct member: watching.c */
	struct list slots_left[SLOTS_LEFT_LISTS]; /* those without a member: slots_left() */
	struct rounds fills;                      /* struct member: slot_fill.c */
	bool fills_due;                           /* something has changed for them */
	struct timer fill_timer;                  /* a pause behind a fill that failed ends: */
	uint64_t fill_not_before_ns, fill_pause_ns;
	struct list declaring; /* declarations that wait for room in the ledger */
	struct list leaving;   /* ranks that left without a goodbye: leaving.c */
	struct rounds loads; /* those LOAD_WAITING: load.c */
	struct list checking; /* loads of which a leaf is read again */
	uint32_t next_slot;
	uint64_t next_declaration; /* region's name */
	bool freeing; /* by job_free(): memory that outlives this process stays */
	bool run_closed;     /* a made run: one of its sessions has ended, nobody else may join */
	/* Of the ranks that have left, in the move to this ledger: the next one (adopt.c). */
	uint64_t left_generation;
	uint32_t left_next;
	bool rank_left;      /* of the epoch: no step can be saved by all any more */
	uint32_t left_rank;  /* the first of them */
	bool run_over;       /* all its ranks have said goodbye */
	bool epoch_over; /* memory was lost since the epoch was opened: the next open opens one */
	bool creating;       /* record 0 is on its way */
	bool failed;         /* that came to nothing: its next step frees it */
	uint8_t *seen;       /* one byte per rank: it has joined the current epoch */
	uint8_t *away; /* one byte per rank: ckptd started, and its process was gone; NULL: none's,
			  or it was told */
	enum trust_level asked_trust; /* the highest that loads of this epoch went back for */
	struct opening *opening; /* an epoch is being opened; other opens wait in openings */
	struct list openings;
	struct timer settle_timer;
	struct persist *persist; /* the one being written */
	struct rewrite *rewrite; /* of one of them damaged files are written again */
	uint64_t rewritten;      /* files */
	/* As its last step found: copies to be read again; saves or loads under way. */
	bool unread, at_work;
	struct timer room_timer; /* what the disk or memory refused is tried again */
	bool say_later;          /* trust records: memory did */
	bool lacks_room;         /* some checkpoint->no_room */
	bool tight;              /* the disk had no room in this epoch: retain.c */
	uint64_t next_bytes;     /* that its next checkpoint needs on disk, by the last Prepare that
				  * knew all ranks; 0: none did, see problems_disk.c */
	struct list room_waits;  /* struct preparing: an expiry makes room */
	bool sweep;              /* expiries that failed, too */
	char disk_text[ERR_TEXT_MAX]; /* why the newest is only in memory; empty: it need not be */
	bool folder_away;             /* that is why; else the disk had no room */
	struct digest *samples;  /* of the newest commit, for the stale-snapshot alarm */
	uint32_t n_samples;
	struct digest samples_layout;
	uint64_t stale_alarms, stale_step;
	struct replicas *replicas; /* of the layout that its ranks have declared: replicas.c */
	uint64_t replica_alarms, replica_step;
	char replica_text[ERR_TEXT_MAX]; /* of the newest alarm: which ranks differ where */
	bool apart_known; /* of this layout nothing is to be compared any more: agreeing.c */
	struct digest apart_layout;
	uint64_t overlap_alarms, overlap_step;
	char overlap_text[ERR_TEXT_MAX]; /* of the newest alarm: which ranks disagree, and where */
	bool relogged; /* this start has begun its log anew */
	bool retaining;
	uint64_t expired_ns; /* loop's clock: an expiry was over; 0: none was */
	uint64_t kept_round;     /* tidy.c: asked what it uses */
	uint64_t layouts_stored; /* how many of stored_layouts are valid */
	struct digest stored_layouts[8];
	struct goodput goodput;
	struct goodput_file goodput_file;
	struct held_up held[2]; /* slow, hung: alarms of it and its ranks that stand */
	uint64_t progress; /* newest step that it is known to have finished in this epoch */
	uint64_t troubles[TROUBLES_MAX]; /* verdicts that stand against its state: trust.c */
	uint32_t n_troubles;
	uint64_t lost; /* commit records whose bytes were lost, reported */
	uint64_t last_durable_step;
	bool now; /* a checkpoint that somebody wants on disk at once: acting.c */
	uint64_t now_step;
	struct attempt_id now_attempt;
	uint32_t number;      /* the detector's; 0: not known to it yet, or forgotten */
	uint64_t number_used; /* when, in the order of all uses */
};

/* ---- job.c ---- */
MUST_CHECK int job_new(struct node *n, struct job **ret);
/* Its uid is known: it counts as one of that user's; until job_uncount(), or it is freed. */
void job_count(struct job *j);
void job_uncount(struct job *j);
void job_free(struct job *j); /* this process's memory only; JOB_REMOVED: all of its memory */
struct job *job_find(struct node *n, const char *name, uint32_t uid);
struct job *job_find_id(struct node *n, const struct job_id *id);

/*
 * Appends a record (type and payload filled in) behind those that wait; done runs once it is
 * durable and applied to job->history, or with an error when it never will be. A log that cannot
 * be written for now (full disk) is tried again for ever: see I14.
 */
typedef void append_done_fn(void *arg, int status);
MUST_CHECK int job_append(struct job *j, const struct record *r, append_done_fn *done, void *arg);
/* A record of a checkpoint, one of whose works it is until done runs, or it is withdrawn. */
MUST_CHECK int job_append_for(struct checkpoint *c, const struct record *r, append_done_fn *done,
			      void *arg);
/* Takes a record back that waits and is certainly not in the log; done does not run. False: it is
 * being appended, or may be there. */
MUST_CHECK bool job_withdraw(struct job *j, append_done_fn *done, void *arg);
/* The job is stopped: records that no worker has are never written, and who waits for them gets
 * -ECANCELED. */
void job_drop_appends(struct job *j);
/* Records wait for their turn: job->history does not say yet what they will. */
bool job_has_appends(const struct job *j);
/* The log could not be written the last time that it was tried. */
bool job_log_down(const struct job *j);
/* A record whose append failed may be in the log all the same: what it commits keeps its memory. */
bool job_is_unclear(const struct job *j);
/*
 * Something changed: the whole machine of the job takes a step in the next turn of the loop. Events
 * only note what happened and poke; decisions, and everything that frees, are made in job_step().
 */
void job_poke(struct job *j);
/* Hands it to a worker, charged to the job's user. */
void job_submit(struct job *j, enum work_class class, struct work *work);
/* A line of the log about the job, or about a step of it, which the text names too. */
void job_tell(struct job *j, int level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void job_tell_step(struct job *j, uint64_t step, int level, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
void job_id_of(const struct job *j, uint64_t step, const struct attempt_id *attempt,
	       struct checkpoint_id *ret);

/* ---- epoch.c ---- */
struct open_request {
	struct session *session;
	uint64_t request;
	char job[CKPT_JOB_MAX + 1];
	uint32_t rank, world;
	char run_id[RUN_ID_MAX + 1];
	bool has_token, reconnect, existing;
	bool looks;   /* it trains nothing */
	bool assumed; /* nothing said which rank it is */
	uint8_t token[32];
	uint64_t loaded_epoch;
	struct origin origin; /* of a reconnect in that epoch, or of one that joins */
};
/* A job that was being created (job->creating) is there, or came to nothing: opens of it go on, or
 * are answered with this, and its next step frees it. */
void epoch_created(struct job *j);
void epoch_creation_failed(struct job *j, int code, const char *text);
/* Answers the session itself, now or later. */
void epoch_open(struct node *n, const struct open_request *r);
/* Opens that came before the node was ready take their way now; or it never will be. */
void epoch_ready(struct node *n);
void epoch_never_ready(struct node *n);
/* Opens that wait since then or longer are refused; when the oldest of the others came, 0: none. */
uint64_t epoch_tire(struct node *n, uint64_t before_ns, int code, const char *text);
/* It is of a run that stands: its ranks come, or come again, whatever is said of the node. A run is
 * over when all have said goodbye. Who gives no run id joins only a run that has ranks here. */
bool epoch_stands(const struct job *j, const struct open_request *r);
/* The job is stopped: opens of it are answered with this. */
void epoch_stop(struct job *j, int code, const char *text);
/* The session ended: its open needs no answer. */
void epoch_drop_session(struct session *s);
void epoch_init(struct job *j);
void epoch_fini(struct job *j);
/* Run ids that ckptd made begin with this. */
#define RUN_ID_MADE "auto-"
/* The base cannot be read, or is not trusted enough: opens the next epoch with the newest
 * checkpoint that can be and is (I11). done gets 0 or why not: CKPT_ENOTFOUND: there is none that
 * is trusted as much as this, or as a load has asked in this epoch. */
void epoch_fall_back(struct job *j, const char *reason, enum trust_level least,
		     append_done_fn *done, void *arg);
/* There is no memory for its ledger: opens are refused. */
void epoch_no_ledger(struct job *j, int code);
/* An epoch is opened, or a rank waits for that or joins in the next call. */
bool epoch_opens(const struct job *j);
/* Only an epoch is, and what asked for it has an answer or has gone: the log holds it up. */
bool epoch_opens_for_none(const struct job *j);
void epoch_step(struct job *j); /* an open may be waiting for the old epoch to be settled */
/* Whether this checkpoint's bytes can be had from memory or files. */
bool checkpoint_restorable(const struct checkpoint *c);
bool checkpoint_is_base(const struct checkpoint *c); /* of its job's newest epoch */
struct checkpoint *epoch_newest_restorable(struct job *j);
struct checkpoint *epoch_newest_trusted(struct job *j, enum trust_level least);
/* This rank can be read from memory, or from its file. */
bool checkpoint_memory_is_good(const struct checkpoint *c, uint32_t rank);
bool checkpoint_file_is_good(const struct checkpoint *c, uint32_t rank);
/* The file of this rank, or all, is damaged: it is kept and shown with the reason, and not offered
 * any more, until rewrite.c has put a good one in its place. */
#define ALL_RANKS UINT32_MAX
void checkpoint_suspect(struct checkpoint *c, uint32_t rank, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Committed, not taken away on purpose nor overtaken in memory, and it cannot be restored. */
bool epoch_is_missed(struct job *j, const struct history_commit *h);
/* Committed, and neither memory nor files have it: recorded as lost, or to be by the next epoch. */
bool epoch_bytes_are_lost(struct job *j, const struct history_commit *h);
/* An epoch without base: the newest checkpoint before it (now: or in it) that nobody took away on
 * purpose. NULL: there never was one, or all were taken away. */
const struct history_commit *epoch_lost(struct job *j, bool now);
/* A sentence about all that epoch_lost() stands for, and what to do. */
void epoch_say_lost(struct job *j, bool now, char *buf, size_t size);
/* Whether the epoch's base is older than what was committed last, and that one's step. */
/* Whether the record of an epoch with this base is on its way: one of its works. */
bool epoch_is_opening_from(const struct checkpoint *c);
bool epoch_fell_back(const struct job *j, uint64_t *ret_step);

/* ---- member.c ---- */
MUST_CHECK int member_join(struct job *j, const struct open_request *r, struct member **ret);
/* For a live member: indexes it by its process, and counts it as one of its user's ranks. */
void member_index(struct member *m);
void member_unindex(struct member *m);
struct member *member_of_rank(struct job *j, uint32_t rank);
/* In its job, with nothing; NULL: out of memory. */
struct member *member_new(struct job *j, uint32_t rank);
void member_delete(struct member *m); /* which has nothing any more */
bool member_has_slots(const struct member *m);
/* Some rank cannot be given its next credit for want of a slot: credits.c. */
bool member_lacks_slot(struct job *j);
enum member_end {
	MEMBER_ENDED,    /* its process has */
	MEMBER_BYE,      /* it said so */
	MEMBER_FAILED,   /* it said that its trainer fails; its process ends soon */
	MEMBER_REPLACED, /* its rank is another's, or its run is over */
};
void member_left(struct member *m, enum member_end how);
/* One has said goodbye: the run is over if nobody is left, nor on his way out. */
void member_all_left(struct job *j);
MUST_CHECK int member_may_declare(const struct member *m, struct err *e);
MUST_CHECK int member_declare(struct member *m, struct declared *d, struct err *e);
void member_drop_slots(struct member *m);
/* It has loaded, or there was nothing to load: it may save in the current epoch. */
void member_enter_epoch(struct member *m);
/* Where its state comes from in the current epoch. */
void member_set_origin(struct member *m, struct origin o);
/* It has tensors and has loaded nothing, and another rank of the epoch has: what they save is no
 * state of the job (I15). */
bool member_must_load(const struct member *m);
uint64_t member_slot_bytes(const struct member *m);
/* The job is in another epoch now: says so on pages, and to who waits for a credit. */
void member_publish_epoch(struct job *j);
/* CKPT_EEPOCH to a Credit request. */
void member_refuse_credit(struct member *m, uint64_t request);
struct slot *slot_find(struct job *j, uint32_t number);
/* Back to EMPTY for its process, or destroyed when that is gone. It holds nothing any more. */
void slot_release(struct slot *s);
/* Those of which the ledger could not say that they are EMPTY, again. */
void member_empty_slots(struct job *j);
/* It has no member any more: destroyed, unless it holds something or a worker has it. */
void slot_let_go(struct slot *s);
/* Assigns it to that member; NULL: it has none, or none any more. */
void slot_give(struct slot *s, struct member *m);
/* Has the slots of that rank without a member, and those of some other ranks. */
struct list *slots_left(struct job *j, uint32_t rank);
/* Charges its regions to the job's user; to be called after each new region. */
void slot_count(struct slot *s);
/* Also gives back its charges; does not free its regions. */
void slot_free(struct slot *s);

/* ---- declaring.c ---- */
struct declare_bytes {
	int fd; /* of a memfd that has them, to be closed; -1: */
	const void *bytes;
	size_t len;
};
/* Answers the request itself, now or later, unless it returns an error; then fd is not taken. */
MUST_CHECK int declaring_start(struct session *s, uint64_t request, const struct digest *digest,
			       const struct declare_bytes *b, struct err *e);
void declaring_drop(struct session *s); /* its connection ended: a check under way ends soon */
void declaring_step(struct job *j); /* those that wait for room in the ledger */
void declaring_fini(struct job *j);
struct declared *declared_get(struct job *j, const struct digest *digest);
/* Adds a declaration that the job does not have; copies the bytes, unless they lie in the region,
 * which it takes on success. The adoption owns the reference of the job's list. */
MUST_CHECK int declared_adopt(struct job *j, const struct digest *digest, const void *bytes,
			      size_t len, struct region *region);
#define DECLARED_PREFIX    "declaration." /* then the job's id and a number, of its region */
#define ANNEX_RECORD_BYTES 320u           /* at most, of a record that names one */
void declared_name(struct job *j, char *buf, size_t size);
uint64_t declared_record_bytes(const struct declared *d);
MUST_CHECK int declared_write(struct ledger *l, const struct declared *d);
void declared_unref(struct job *j, struct declared *d);

/* ---- slot_fill.c ---- */
/* The process has mapped its slots: nobody else may any more. Answers like member_prepare(). */
MUST_CHECK int member_slots_ready(struct member *m, struct session *s, uint64_t request,
				  struct err *e);
/* Some of its slots are filled later: when older ones are gone, or there is memory. */
void slot_fill_later(struct member *m);
void slot_fill_forget(struct member *m); /* it has left */
void slot_fill_gone(struct job *j);      /* a slot is */
void slot_fill_step(struct job *j);
void slot_fill_init(struct job *j);
void slot_fill_stop(struct job *j);

/* ---- preparing.c ---- */
/* A Prepare. */
struct slots_wanted {
	uint64_t request, blob_bytes;
	bool early; /* its process waits until they have pages */
};
/* Answers the request itself, now or later, unless it returns an error, of the kind *ret_lacks. */
MUST_CHECK int member_prepare(struct member *m, struct session *s,
			      const struct slots_wanted *wanted, enum prepare_lacks *ret_lacks,
			      struct err *e);
/* No more slots are made than the one that is being made: their rank has left, or ckptd stops. */
void preparing_cancel(struct member *m);
/* An expiry or a slice of what is read again is over: Prepares that found no room look again. */
void preparing_has_room(struct job *j);
/* The charge of a region to its user until its place in the fd store is free; user NULL: none. */
struct region_charge {
	struct user *user; /* a reference, which is taken */
	uint64_t memory;   /* USER_MEMORY_BYTES, beside one of USER_REGIONS */
};
/* A worker destroys it, some time. */
void region_destroy_charged(struct node *n, uint32_t uid, struct region *r,
			    struct region_charge charge);
void region_destroy(struct node *n, uint32_t uid, struct region *r);

/* ---- ledgering.c ---- */
#define LEDGER_SLACK 16384u /* for records of what comes unasked */
/* Whether there is a ledger; else it is being made, or opens are refused by epoch_no_ledger(). */
bool ledgering_ready(struct job *j);
/* Its next region is on the way, and what slots will write may not fit in this one. */
bool ledgering_short(const struct job *j);
void ledgering_step(struct job *j);
void ledgering_uncount(struct job *j); /* it is freed */
/* Bytes that the record of a rank's table has at most; UINT64_MAX: no such number. */
uint64_t ledgering_table(const struct job *j, uint64_t declaration_len, uint64_t image_len,
			 uint64_t n_blobs, uint64_t names_len);
/* Memory that the ledger will take for a member with slots of that size, and regions of tables. */
uint64_t ledgering_reserve(const struct member *m, uint64_t slot_bytes);
/* The size of the region for the tables of a slot of that size; 0: they fit in records. */
uint64_t ledgering_table_region(const struct job *j, uint64_t declaration_len,
				uint64_t slot_bytes);
void ledgering_table_name(const struct job *j, uint32_t slot, char *buf, size_t size);

/* ---- checkpoint.c ---- */
struct seal_request {
	uint64_t step, epoch, credit, image_len;
	uint32_t slot, try_number;
	struct blobs *blobs; /* checkpoint_seal() takes it */
	struct digest declaration;
};
/* 1: this rank sealed the step before, and its answer was lost. 0: see checkpoint_sealed(). */
MUST_CHECK int checkpoint_seal(struct member *m, const struct seal_request *r,
			       struct attempt_id *ret_attempt, struct err *e);
/* What follows a seal that is in the ledger, once its rank has its answer: it wakes workers. */
void checkpoint_sealed(struct member *m, const struct seal_request *r);
struct skip_request {
	uint64_t step, epoch;
	uint64_t credit; /* 0: it took none; else it comes back unused */
	uint32_t try_number;
	uint32_t kind; /* enum ckpt_skip_reason */
	const char *reason;
};
void checkpoint_skip(struct member *m, const struct skip_request *r);
/* The slot that it was given for is not its process's any more. */
void checkpoint_return_credit(struct member *m, uint64_t credit);
/* A member's process ended: what it has not sealed never will be. */
void checkpoint_member_gone(struct job *j, uint32_t rank);
void checkpoint_abort(struct checkpoint *c, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
struct checkpoint *checkpoint_find(struct job *j, uint64_t epoch, uint64_t step);
struct checkpoint *checkpoint_find_attempt(struct job *j, uint64_t step,
					   const struct attempt_id *attempt);
MUST_CHECK int checkpoint_new(struct job *j, uint64_t step, uint64_t epoch, uint32_t world,
			      const struct attempt_id *attempt, struct checkpoint **ret);
/* After adoption: starts what was under way for a checkpoint found in the ledger. */
void checkpoint_resume(struct checkpoint *c);
MUST_CHECK int checkpoint_fix_root(struct checkpoint *c); /* root and layout from its tables */
/* Of the declarations of all its ranks; zero: out of memory. */
struct digest checkpoint_layout(const struct checkpoint *c);
void checkpoint_step(struct job *j); /* commits what is whole */
void checkpoint_give_way(struct job *j); /* to saves, while nothing can be committed */
/* SEALED, and its commit record is still to come. */
bool checkpoint_waits_for_commit(const struct checkpoint *c);
/* Lets go of memory that nothing needs any more (I9), and of the struct itself (2). */
void checkpoint_collect(struct job *j);
void checkpoint_free(struct checkpoint *c);
/* What its COMMIT says, instead of what it said before; takes it. */
void checkpoint_has_files(struct checkpoint *c, struct commit_file *commit);
/* Answers whoever waits, as far as it can be answered. */
void checkpoint_answer(struct job *j);
MUST_CHECK int checkpoint_wait(struct job *j, struct session *s, uint64_t request,
			       const struct wait_request *wanted, struct err *e);
/* The job is stopped, or removed: waits are answered with this. */
void waiters_stop(struct job *j, int code, const char *text);
void waiters_init(struct job *j);
void waiters_forget(struct job *j);
void waiters_drop_session(struct session *s); /* whatever jobs they are of */
void waiter_cancel(struct session *s, uint64_t request);

/* ---- persist.c ---- */
/* Picks what to write next, and moves on what is being written. */
void persist_step(struct job *j);
void persist_cancel(struct checkpoint *c);
/* The newest committed one goes to disk next, whatever persist_every says; NULL: it is there. */
struct checkpoint *persist_now(struct job *j);
/* All its files are written and synced, and its COMMIT is on the way: the next answer of the disk
 * decides whether it is DURABLE, whatever happens to its memory meanwhile. */
bool persist_is_publishing(const struct checkpoint *c);
/* Every shard is in memory, and nothing is known against it. */
bool persist_can(const struct checkpoint *c);
/* Files went: what found no room on the disk, of any job, is tried again. */
void persist_room(struct node *n);
void persist_init(struct job *j);
/* Bytes that the rank table in a file has at most, beside what names of blobs take. */
uint64_t persist_table_max(uint64_t declaration_len, uint64_t image_len, uint32_t leaf);
/* This process's memory of what is being written; no worker has it any more. */
void persist_fini(struct job *j);
/* Its ranks' bytes are compared no more: this process ends. */
void persist_hurry(struct job *j);

/* What COMMIT says of it but for its files; freed with commit_file_fini() and alloc_free(). */
MUST_CHECK int persist_describe(const struct checkpoint *c, struct commit_file **ret);
uint64_t persist_table_bound(const struct shard_state *sh, uint32_t leaf);
bool persist_wants_room(int code);
/* The disk had no room for it: tried again when there may be some. */
void persist_wait_for_room(struct checkpoint *c, const struct err *why);
/* The same for a data folder that is away. */
void persist_wait_for_folder(struct checkpoint *c, const struct err *why);

/* ---- rewrite.c ---- */
/* Damaged files of what is good in memory are written again. */
void rewrite_step(struct job *j);
/* Memory has what its damaged files should hold, and it has not failed too often. */
bool rewrite_may_help(const struct checkpoint *c);
bool rewrite_gave_up(const struct checkpoint *c);
/* The stop no longer waits for the rewrite: it ends before the next file. */
void rewrite_cancel(struct job *j);

/* ---- retain.c ---- */
void retain_step(struct job *j);
/* room: what is only kept while the disk has room is kept. */
size_t retain_plan(struct job *j, bool room, struct retention_item *items,
		   struct checkpoint **order, size_t cap);
/* What retention makes of the job's files; -ENOMEM. */
struct retain_sum {
	uint64_t kept;  /* bytes that stay even without room */
	uint64_t going; /* that go in favour of newer ones */
	bool went_back; /* a higher step than the newest stays beside what else is kept */
};
MUST_CHECK int retain_count(struct job *j, struct retain_sum *ret);
/* The disk has no room: what is only kept while it has goes. Whether an
 * expiry, or the end of what keeps one from beginning, is on its way. */
bool retain_make_room(struct job *j);
bool retain_has_files(const struct checkpoint *c);
/* A job_append_for()'s done, of a record that an unfinished checkpoint is lost: its files go. */
void retain_lost(void *checkpoint, int status);
MUST_CHECK int retain_remove(struct checkpoint *c, append_done_fn *done, void *arg,
			     struct err *e);

#endif
