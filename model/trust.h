/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust.h - how far a committed checkpoint is to be trusted: the numbers of trust records.
 *
 *   latest     committed, and nothing more is known
 *   complete   every copy of it was read again and matches its digests
 *   verified   and the job went on healthily for as many steps as the policy asks, or somebody who
 *              knows said so
 *
 * A level never falls. Beside it stand what may be known against a checkpoint: doubted
 * (trouble was under way when it was committed: healthy steps do not verify it any more; somebody
 * who knows still may), bad (somebody said so: it is kept, and not offered) and passed over (the
 * job went back behind it, to one that is trusted more: it is never latest again, I5). Pure.
 */
#ifndef MODEL_TRUST_H
#define MODEL_TRUST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(name, value in records, word) */
#define TRUST_LEVELS(X)                                                                            \
	X(TRUST_LATEST, 0, "latest")                                                               \
	X(TRUST_COMPLETE, 1, "complete")                                                           \
	X(TRUST_VERIFIED, 2, "verified")

enum trust_level {
#define X(name, value, word) name = value,
	TRUST_LEVELS(X)
#undef X
};
#define TRUST_LEVEL_MASK 0xffu
#define TRUST_DOUBTED    0x100u
#define TRUST_BAD        0x200u
#define TRUST_PASSED     0x400u

/* What is known once `said` was said of a checkpoint of which `have` was known. */
uint32_t trust_add(uint32_t have, uint32_t said);
/* The level alone. One that a newer program knows counts as the highest of ours. */
enum trust_level trust_level(uint32_t trust);
/* Whether a checkpoint may be offered to who asks for this level at least. */
bool trust_reaches(uint32_t trust, enum trust_level least);
/* "bad", or the level's word. */
const char *trust_word(uint32_t trust);
/* False: it is no level. */
bool trust_parse(const char *word, enum trust_level *ret);

#endif
