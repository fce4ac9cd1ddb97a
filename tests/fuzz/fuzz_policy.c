/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that claim to be a policy. What is accepted has rows whose every value is allowed, and
 * decides within the budget; what is refused is refused in words and leaves the table as it was.
 */
#include <config.h>

#include <assert.h>
#include <string.h>

#include "detect/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void row_holds(const struct policy_row *r)
{
	assert(r->line > 0 && r->n_steps >= 1 && r->n_steps <= POLICY_STEPS_MAX);
	assert(r->class <= CLASS_COUNT && r->cause <= CAUSE_COUNT && r->level <= 2);
	assert(r->times <= POLICY_TIMES_MAX && (!r->times || r->window_ns > 0));
	assert(r->times || r->n_steps == 1);
	for (uint32_t i = 0; i < r->n_steps; i++) {
		assert(r->steps[i] != 0 && r->steps[i] < 2 * POLICY_ADVICE);
		assert(r->level == LEVEL_ALARM || !(r->steps[i] & ~POLICY_FREE));
	}
}

static void decides(struct policy *p)
{
	struct policy_facts f = {.now_ns = 1, .copies = 1, .durable_age_ns = 5, .spares = 0};
	uint32_t acted = 0;

	for (unsigned i = 0; i < 40; i++) {
		struct verdict v = {.class = i % CLASS_COUNT,
				    .cause = i % CAUSE_COUNT,
				    .level = i % 3 ? LEVEL_ALARM : LEVEL_NOTE,
				    .advice = i % ACTION_COUNT,
				    .subject = {.kind = i % 6, .rank = i % 5}};
		struct decision d;

		policy_decide(p, &v, &f, &d);
		assert(d.why[0] && (d.now | d.advised | d.withheld) == d.wanted);
		assert(v.level == LEVEL_ALARM || !(d.wanted & ~POLICY_FREE));
		assert(!d.again_ns || (d.withheld && d.again_ns > f.now_ns));
		acted += (d.now & ~POLICY_FREE) != 0;
		if (d.withheld) {
			uint32_t withheld = d.withheld;

			policy_decide_again(p, &v, &f, withheld, &d);
			assert(!(d.wanted & ~withheld & ~ACTION_BIT(ACTION_RECORD)));
			assert(!d.again_ns || d.again_ns > f.now_ns);
			acted += (d.now & ~POLICY_FREE) != 0;
		}
		f.now_ns += 60ull * 1000000000u;
	}
	assert(acted <= 3);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char first[] = "dead * alarm * * * * checkpoint - -\n";
	struct policy_options o = {.actions_per_hour = 3, .can = POLICY_ADVICE - 1};
	struct policy *p;
	struct err e = {0};

	if (policy_new(&o, &p) < 0)
		return 0;
	assert(policy_parse(p, "first", first, strlen(first), &e) == 0);
	if (policy_parse(p, "fuzzed", (const char *)data, size, &e) < 0)
		assert(e.text[0] && policy_size(p) == 1);
	for (size_t i = 0; i < policy_size(p); i++)
		row_holds(policy_at(p, i));
	decides(p);
	policy_free(p);
	return 0;
}
