/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust.c - levels of trust, how they add up, and their words. Pure; any thread.
 */
#include <config.h>

#include "model/trust.h"

#include <assert.h>
#include <string.h>

static const struct {
	enum trust_level level;
	const char *word;
} levels[] = {
#define X(name, value, word) {name, word},
	TRUST_LEVELS(X)
#undef X
};
#define LEVELS (sizeof(levels) / sizeof(levels[0]))

uint32_t trust_add(uint32_t have, uint32_t said)
{
	uint32_t a = have & TRUST_LEVEL_MASK, b = said & TRUST_LEVEL_MASK;
	uint32_t sum = ((have | said) & ~TRUST_LEVEL_MASK) | (a > b ? a : b);

	assert((sum & TRUST_LEVEL_MASK) >= a);
	return sum;
}

enum trust_level trust_level(uint32_t trust)
{
	uint32_t level = trust & TRUST_LEVEL_MASK;

	return level > TRUST_VERIFIED ? TRUST_VERIFIED : (enum trust_level)level;
}

bool trust_reaches(uint32_t trust, enum trust_level least)
{
	return !(trust & TRUST_BAD) && trust_level(trust) >= least;
}

const char *trust_word(uint32_t trust)
{
	return trust & TRUST_BAD ? "bad" : levels[trust_level(trust)].word;
}

bool trust_parse(const char *word, enum trust_level *ret)
{
	for (size_t i = 0; i < LEVELS; i++) {
		if (strcmp(levels[i].word, word) != 0)
			continue;
		*ret = levels[i].level;
		return true;
	}
	return false;
}
