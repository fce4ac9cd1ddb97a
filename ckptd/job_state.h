/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job_state.h - whether what ckptd keeps of a job can be true, and what happens where it cannot.
 *
 * A contradiction is a defect of ckptd or of the machine's memory. With node_options.abort_broken
 * (test builds, the simulator) it ends the process. Else it stops that job, and nothing else: its
 * memory, ledger, log and files stay as they are, all that waits on it and all later requests get
 * CKPT_ESTOPPED with one sentence, an event says so, and `ckptctl status` shows it. A stopped job
 * is in node->stopped_jobs, so that nothing that walks over the node's jobs meets it; works that
 * were under way end without a change to it. The next start of ckptd reads its state again.
 */
#ifndef CKPTD_JOB_STATE_H
#define CKPTD_JOB_STATE_H

#include <stdbool.h>

struct job;

/* X(name, what is wrong) */
#define JOB_DEFECTS(X)                                                                             \
	X(JOB_SOUND, "nothing is wrong")                                                           \
	X(JOB_DEFECT_SLOT, "a slot's state contradicts what the slot holds")                       \
	X(JOB_DEFECT_HOLDER, "a slot and the checkpoint in it do not agree")                       \
	X(JOB_DEFECT_OWNER, "a slot is in use by a rank that is not its owner")                    \
	X(JOB_DEFECT_MEMBER, "a rank's state contradicts itself")                                  \
	X(JOB_DEFECT_SHARDS, "a checkpoint counts other shards than it has")                       \
	X(JOB_DEFECT_CHECKPOINT, "a checkpoint's state contradicts itself")                        \
	X(JOB_DEFECT_PERSIST, "two checkpoints are written at a time, or an unknown one")          \
	X(JOB_DEFECT_LOG, "what the log adds up to contradicts itself")                            \
	X(JOB_DEFECT_ASSERTION, "an assertion on its state failed")

enum job_defect {
#define X(name, text) name,
	JOB_DEFECTS(X)
#undef X
};

bool job_stopped(const struct job *j);

/*
 * False: cond does not hold, and the job is broken: the caller returns and changes nothing more.
 * job_step() stops the job in the next turn.
 */
#define JOB_ASSERT(j, cond) ((cond) || job_broken((j), #cond, __FILE__, __LINE__))
/* Always false. */
bool job_broken(struct job *j, const char *what, const char *file, int line);

/*
 * Looks at members, slots and checkpoints once each, and at the ends of the history. True: nothing
 * contradicts itself, and the job was not broken before.
 */
bool job_state_check(struct job *j);
/* Job is broken: stops it, if it is not stopped yet, and answers what waits on it. */
void job_stop(struct job *j);

#endif
