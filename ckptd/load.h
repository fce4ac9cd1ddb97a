/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h - giving a checkpoint to a process: sources, plan, and the sources' safety until its end.
 */
#ifndef CKPTD_LOAD_H
#define CKPTD_LOAD_H

#include "ckptd/session.h"

/* Answers the request itself, now or later. */
void load_start(struct session *s, uint64_t request, const Ckpt__Load *m);
/* Answers with what a checkpoint holds. */
void load_look(struct session *s, uint64_t request, const Ckpt__Stored *m);
/* A load of what the message wants; takes the descriptor (sets it to -1) if it is needed. */
void load_read(struct session *s, uint64_t request, const Ckpt__Read *m, int *fds, size_t n_fds);
void load_end(struct session *s, uint64_t request, const Ckpt__LoadEnd *m);
void load_init(struct job *j);
void load_fini(struct job *j);
void load_step(struct job *j); /* loads that waited for an epoch */
/* The job is stopped: loads that wait for an epoch are answered with this. */
void load_stop(struct job *j, int code, const char *text);
/* The session's connection ended: whatever it was reading may be reused. */
void load_drop_all(struct session *s);
/* The node has stopped: plans that are being made, or wait for that, end soon. */
void load_cancel_all(struct session *s);
/* The connection takes descriptors again. */
void load_room(struct session *s);
/* The node ends: all workers have. Files are closed here. */
void load_forget_all(struct session *s);

#endif
