/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_advice.h - alarms advise what policy.h says that they usually do.
 */
#ifndef DETECT_TEST_ADVICE_H
#define DETECT_TEST_ADVICE_H

#include "detect/policy.h"
#include "tests/lib/test.h"

static inline void advises_as_usual(const struct verdict *v)
{
	enum verdict_action usual = policy_usual_advice(v->cause, v->subject.kind);

	if (v->level == LEVEL_ALARM && usual != ACTION_COUNT && v->advice != usual)
		fail_msg("'%s' advises %s, and usually %s", v->words,
			 verdict_action_word(v->advice), verdict_action_word(usual));
}

#endif
