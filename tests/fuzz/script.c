/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tests/fuzz/script.h"

#include <string.h>

static bool is_digit(uint8_t c)
{
	return c >= '0' && c <= '9';
}

bool script_next(struct script *s, struct script_line *ret)
{
	const uint8_t *end, *p = s->at;
	size_t len = 0;

	if (s->at == s->end)
		return false;
	end = memchr(s->at, '\n', (size_t)(s->end - s->at));
	s->at = end ? end + 1 : s->end;
	end = end ? end : s->end;
	memset(ret, 0, sizeof(*ret));
	for (; p < end && *p >= 'a' && *p <= 'z'; p++)
		if (len < sizeof(ret->word) - 1)
			ret->word[len++] = (char)*p;
	while (p < end && *p != '^') {
		uint64_t v = 0;

		if (!is_digit(*p)) {
			p++;
			continue;
		}
		for (; p < end && is_digit(*p); p++)
			v = v * 10 + (uint64_t)(*p - '0'); /* wraps: any number will do */
		if (ret->n < SCRIPT_NUMBERS)
			ret->number[ret->n++] = v;
	}
	if (p < end) {
		ret->patch = p + 1;
		ret->patch_len = (size_t)(end - p) - 1;
	}
	return true;
}

uint64_t script_number(const struct script_line *l, unsigned i, uint64_t otherwise)
{
	return i < l->n ? l->number[i] : otherwise;
}

void script_patch(const struct script_line *l, uint8_t *bytes, size_t len)
{
	for (size_t i = 0; len && i + 3 <= l->patch_len; i += 3)
		bytes[((size_t)l->patch[i] << 8 | l->patch[i + 1]) % len] ^= l->patch[i + 2];
}
