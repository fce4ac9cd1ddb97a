/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watching_restart.c - what stood when the ckptd before this one ended.
 *
 * A detector begins with nothing. What is wrong still will be found again where it can be measured;
 * what was told once (a kernel message, the end of a process) is not told again. So each alarm that
 * stood is an event of the start, read out of the events that are kept: nobody takes silence for
 * health. What is older than these is not known.
 */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "ckptd/events.h"
#include "ckptd/watching_priv.h"

static bool is(const json_t *e, const char *key, const char *value)
{
	const char *text = json_string_value(json_object_get(e, key));

	return text && strcmp(text, value) == 0;
}

/* The events that raised what stands, by their verdicts' numbers, which are one life's. */
static json_t *standing(const json_t *events)
{
	json_t *found = json_object(), *e;
	char id[32];
	size_t i;

	json_array_foreach(events, i, e)
	{
		if (is(e, "kind", event_kind_word(EVENT_STARTED)))
			json_object_clear(found);
		if (!is(e, "kind", event_kind_word(EVENT_VERDICT)))
			continue;
		snprintf(id, sizeof(id), "%lld",
			 (long long)json_integer_value(json_object_get(e, "verdict")));
		if (is(e, "level", "alarm") && !is(e, "state", "cleared"))
			json_object_set(found, id, e);
		else
			json_object_del(found, id);
	}
	return found;
}

static const char *text_of(const json_t *e, const char *key)
{
	const char *text = json_string_value(json_object_get(e, key));

	return text ? text : "?";
}

static void tell(struct node *n, const json_t *e)
{
	json_t *subject = json_deep_copy(json_object_get(e, "subject")), *more = json_object();
	static const char *const kept[] = {"class", "cause", "level", "since_ns", "why"};
	const json_t *uid = json_object_get(e, "uid");

	json_object_del(subject, "device"); /* a number of that life */
	for (size_t i = 0; more && i < sizeof(kept) / sizeof(kept[0]); i++)
		if (json_object_get(e, kept[i]))
			json_object_set(more, kept[i], json_object_get(e, kept[i]));
	events_post(n->events, EVENT_FORGOTTEN, 4,
		    json_is_integer(uid) ? (uint32_t)json_integer_value(uid) : EVENT_FOR_ALL,
		    subject, more,
		    "%s was %s (%s) when ckptd ended, and is watched anew: that nothing is said of "
		    "it now does not mean that it is well; %s",
		    text_of(subject, "words"), text_of(e, "class"), text_of(e, "cause"),
		    text_of(e, "why"));
}

void watching_restarted(struct node *n)
{
	const struct events_question q = {.sees_all = true};
	json_t *doc = events_answer(n->events, &q);
	json_t *found = standing(json_object_get(doc, "events")), *e;
	const char *id;

	json_object_foreach(found, id, e) tell(n, e);
	json_decref(found);
	json_decref(doc);
}
