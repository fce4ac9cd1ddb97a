/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.h - many users beside each other that all save as fast as they can.
 */
#ifndef TESTS_ADVERSARY_SHARE_H
#define TESTS_ADVERSARY_SHARE_H

#include "tests/lib/rig.h"

/* A test: CKPT_SHARE_USERS users with 16 jobs each. */
void share(struct rig *r);

#endif
