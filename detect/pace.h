/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pace.h - how long a job's steps, starts and phases take, and how late a rank is: only that it is,
 * never whose fault that is (hang.c).
 */
#ifndef DETECT_PACE_H
#define DETECT_PACE_H

#include "detect/rules.h"

struct lateness {
	double age_s;     /* it has been where it is, without what the detector could not see */
	double usual_s;   /* a step, or the phase, takes so long; 0: not known */
	double phi;       /* of a step's age; 0: cannot be said */
	double timeout_s; /* learned; too long beyond it whatever it does */
	const struct in_phase *phase; /* declared, or NULL: steps are expected */
	bool starting;                /* no step finished in this run */
	bool mute;                    /* pace_mute(), and in no phase: it is never late */
	uint64_t since_ns;
};

/* Long enough in one place to be asked what it does (phi and 2 usual steps). */
bool pace_late(const struct detector *d, const struct job *j, const struct rank *r,
	       struct lateness *ret);
/* No step of its is waited for: it told of none in this run, and either nobody of the job ever did,
 * or others have gone on by several steps without it. */
bool pace_mute(const struct detector *d, const struct job *j, const struct rank *r);
/* The usual step of the job in s; 0: too few are known. */
double pace_step(const struct detector *d, const struct job *j);
/* Its trainer declares long phases of its own (ckpt_save() and ckpt_load() do that by themselves).
 */
bool pace_declares(const struct detector *d, const struct job *j);
/* The interval that comes to an end now is not taken for a usual one. */
void pace_suspect(struct detector *d, struct rank *r);
/* ... and not for a long one either: it was the fault of something that was found. */
void pace_broken(struct detector *d, struct rank *r);

#endif
