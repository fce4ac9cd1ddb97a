/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "base/loop.h"

void timers_insert(struct list *timers, struct timer *t, uint64_t deadline_ns)
{
	struct timer *at;

	timers_remove(t);
	t->deadline_ns = deadline_ns;
	t->armed = true;
	/* From the end: new deadlines are mostly the latest. Equal ones keep their order. */
	for (struct list *l = timers->prev; l != timers; l = l->prev) {
		at = container_of(l, struct timer, link);
		if (at->deadline_ns <= deadline_ns) {
			list_add_head(l, &t->link);
			return;
		}
	}
	list_add_head(timers, &t->link);
}

void timers_remove(struct timer *t)
{
	if (t->armed)
		list_del(&t->link);
	t->armed = false;
}

uint64_t timers_next(const struct list *timers)
{
	return list_empty(timers) ? UINT64_MAX
				  : container_of(timers->next, struct timer, link)->deadline_ns;
}

int timers_fire(struct list *timers, uint64_t now_ns, int bound)
{
	int n = 0;

	while (n < bound && timers_next(timers) <= now_ns) {
		struct timer *t = container_of(timers->next, struct timer, link);

		timers_remove(t);
		t->fire(t);
		n++;
	}
	return n;
}
