/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_report.c - see save_report.h. What to do is said by problem, and by why there is no credit.
 */
#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt.h"
#include "proto/session_page.h"
#include "tools/document.h"
#include "tools/job_name.h"
#include "tools/plural.h"
#include "tools/print.h"
#include "tools/save_report.h"

struct remedy {
	const char *word, *remedy;
	bool elsewhere; /* status has another field for it */
};

static const struct remedy of_problems[] = {
	{"prepare-refused",
	 "its sentence says what was refused; memory.budget, memory.slots and quotas are in "
	 "ckptd.conf(5)",
	 false},
	{"saves-fail", "the trainer gets the same sentence from its save: mend it there", false},
	{"saves-skipped", "see below which rank blocks, and why", false},
	{"rank-ahead",
	 "that rank counts its steps otherwise than the others, or called save with a wrong step: "
	 "mend it in the trainer; when it saves the others' step all go on",
	 false},
	{"damage", "'ckptctl verify' says what is damaged and where; pin the newest good one",
	 true},
	{"disk-full", "make room: 'ckptctl gc --dry-run', fewer retention.keep_last, another disk",
	 false},
	{"disk-low",
	 "make room before it is needed: 'ckptctl gc --dry-run', fewer retention.keep_last, "
	 "another "
	 "disk",
	 false},
	{"folder-away",
	 "mount or put back the data folder, and what is in memory is written; do not end the "
	 "ranks before",
	 false},
	{"log-unwritable",
	 "saves go on in memory and nothing is committed: mend the data folder's "
	 "file system; do not end the ranks before",
	 false},
	{"lost",
	 "a launch goes on from what is left; to lose less set checkpoint.persist_every to 1, or "
	 "wait for DURABLE; 'ckptctl rm' gives a lost one up",
	 false},
	{"no-commit", "look at its ranks: 'ckptctl status -v'", false},
	{"not-loaded", "call load() on each rank before the first save", false},
	{"goes-back",
	 "if it is a mistake: stop it, 'ckptctl rm' its steps, and start it with load(); the "
	 "highest step is still on disk",
	 false},
};

/* A switch without a default: the compiler says which block has no remedy yet. */
static const char *remedy_of_block(enum credit_block block)
{
	switch (block) {
	case BLOCK_NONE:
		break;
	case BLOCK_FILLING:
		return "wait: its memory is being prepared";
	case BLOCK_OPENING:
		return "wait: the epoch is being opened, or ckptd stops";
	case BLOCK_MEMORY:
		return "raise memory.budget (ckptd.conf, or ckptd --set memory.budget=SIZE), or "
		       "end what else uses it";
	case BLOCK_ABSENT:
		return "start the ranks that are missing, or look why they ended: 'ckptctl events'";
	case BLOCK_UNPREPARED:
		return "that rank must call prepare, or its save; if it was refused, the problem "
		       "is above";
	case BLOCK_NOT_LOADED:
		return "that rank must load before it saves";
	case BLOCK_SLOTS:
		return "save less often, or raise memory.slots; 'ckptctl list' says whether the "
		       "disk keeps up";
	case BLOCK_BEHIND:
		return "save less often, or look why that rank is slow: 'ckptctl why JOB:RANK'";
	case BLOCK_LEFT:
		return "start the job again: its load goes on from the newest checkpoint";
	}
	return "";
}

/* Of a word that only a newer ckptd says BLOCK_NONE. */
static enum credit_block block_of(const char *word)
{
	static const char *const words[CKPT_SKIP_REASONS_MAX] = {
#define X(name, value, word) [value] = word,
		CKPT_SKIP_REASONS(X)
#undef X
	};

	for (unsigned i = 0; i < CKPT_SKIP_REASONS_MAX; i++)
		if (words[i] && strcmp(words[i], word) == 0)
			return (enum credit_block)i;
	return BLOCK_NONE;
}

static const struct remedy *remedy_of(const char *problem)
{
	for (size_t i = 0; i < sizeof(of_problems) / sizeof(of_problems[0]); i++)
		if (strcmp(of_problems[i].word, problem) == 0)
			return &of_problems[i];
	return NULL;
}

void save_report_problems(const json_t *job, json_t *list)
{
	char age[TEXT_MAX], text[1200], label[JOB_LABEL_MAX];
	json_t *p;
	size_t i;

	job_typed(label, job);
	json_array_foreach(json_object_get(job, "problems"), i, p)
	{
		const struct remedy *r = remedy_of(doc_text(p, "problem"));

		if (r && r->elsewhere)
			continue;
		snprintf(text, sizeof(text),
			 "job '%s': %s (%s, since %s ago): 'ckptctl why %s' says what to do",
			 doc_text(job, "job"), doc_text(p, "why"), doc_text(p, "problem"),
			 text_age(age, doc_number(p, "since_ns")), label);
		json_array_append_new(list, doc_name(text, strlen(text)));
	}
}

/* By what the rank was refused. */
static const char *remedy_of_refusal(const json_t *p)
{
	static const struct {
		const char *lacks, *remedy;
	} kinds[] = {
		{"disk",
		 "make room on disk: 'ckptctl gc --dry-run', fewer retention.keep_last, a smaller "
		 "storage.disk_reserve, another disk"},
		{"budget", "raise memory.budget or lower memory.slots (ckptd.conf(5), or ckptd "
			   "--set memory.budget=SIZE), or end other jobs"},
		{"memory",
		 "the cgroup of ckptd or the machine has no memory, which memory.budget does not "
		 "change: MemoryMax= of the unit, 'systemd-cgtop', other programs, a tmpfs"},
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (doc_is(p, "lacks", kinds[i].lacks))
			return kinds[i].remedy;
	return remedy_of("prepare-refused")->remedy;
}

bool save_report_stands(const json_t *o, const char *word)
{
	json_t *p;
	size_t i;

	json_array_foreach(json_object_get(o, "problems"), i, p)
	{
		if (strcmp(doc_text(p, "problem"), word) == 0)
			return true;
	}
	return false;
}

static void print_problems(const json_t *o)
{
	char age[TEXT_MAX];
	json_t *p;
	size_t i;

	json_array_foreach(json_object_get(o, "problems"), i, p)
	{
		const struct remedy *r = remedy_of(doc_text(p, "problem"));
		const char *remedy = doc_is(p, "problem", "prepare-refused") ? remedy_of_refusal(p)
				     : r                                     ? r->remedy
									     : NULL;
		uint64_t times = doc_number(p, "times");

		say("%s: %s", doc_text(p, "problem"), doc_text(p, "why"));
		say("  since %s ago, found %" PRIu64 " time%s%s%s",
		    text_age(age, doc_number(p, "since_ns")), times, plural(times),
		    remedy ? "; what to do: " : "", remedy ? remedy : "");
	}
}

/* Whether a rank has come to a save that it cannot make, as another has not come so far: else the
 * ranks only train. */
static bool another_waits(const json_t *saves)
{
	const json_t *last = json_object_get(saves, "last_skip");

	return doc_number(saves, "waiting") > 0 ||
	       (doc_is(last, "skip", "behind") &&
		doc_number(last, "rank") != doc_number(saves, "blocked_rank") &&
		doc_number(last, "time_ns") >
			doc_number(json_object_get(saves, "committed"), "time_ns"));
}

/* Where saves fail for a reason of their own, no rank is to blame that others wait for. Of a rank
 * that is ahead all others are behind. */
static bool rank_blocks(const json_t *o, const json_t *saves)
{
	static const char *const reasons[] = {"rank-ahead", "log-unwritable", "folder-away",
					      "saves-fail"};
	enum credit_block block = block_of(doc_text(saves, "blocked"));

	if (block == BLOCK_LEFT)
		return true;
	for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
		if (save_report_stands(o, reasons[i]))
			return false;
	return block != BLOCK_BEHIND || another_waits(saves);
}

static void print_block(const json_t *saves)
{
	const char *word = doc_text(saves, "blocked");
	const json_t *rank = json_object_get(saves, "blocked_rank");
	enum credit_block block = block_of(word);
	const char *remedy = remedy_of_block(block), *sep = remedy[0] ? ": " : "";

	if (!word[0])
		return;
	if (block == BLOCK_LEFT)
		say("no step is saved any more, as rank %" PRIu64 " has ended (%s)%s%s",
		    doc_number(saves, "blocked_rank"), word, sep, remedy);
	else if (json_is_integer(rank))
		say("the next save waits for rank %" JSON_INTEGER_FORMAT " (%s)%s%s",
		    json_integer_value(rank), word, sep, remedy);
	else
		say("the next save waits (%s)%s%s", word, sep, remedy);
}

static void print_last_skip(const json_t *saves)
{
	const json_t *last = json_object_get(saves, "last_skip");
	const json_t *skipped = json_object_get(saves, "skipped");
	char age[TEXT_MAX], text[300] = "";
	const char *word;
	json_t *n;
	size_t used = 0;

	if (!json_is_object(last))
		return;
	say("the last save that was not made: step %" PRIu64 " of rank %" PRIu64
	    ", %s ago (%s): %s",
	    doc_number(last, "step"), doc_number(last, "rank"),
	    text_age(age, doc_number(last, "time_ns")), doc_text(last, "skip"),
	    doc_text(last, "reason"));
	json_object_foreach((json_t *)skipped, word, n) if (used < sizeof(text)) used +=
		(size_t)snprintf(text + used, sizeof(text) - used, "%s%s %" JSON_INTEGER_FORMAT,
				 used ? ", " : "", word, json_integer_value(n));
	say("saves not made since ckptd started, of all ranks: %s", text);
}

bool save_report_print(const json_t *o, const char *name)
{
	const json_t *saves = json_object_get(o, "saves");
	const json_t *committed = json_object_get(saves, "committed");
	const json_t *last = json_object_get(saves, "last_skip");
	bool problems = json_array_size(json_object_get(o, "problems")) > 0;
	bool runs = doc_flag(saves, "running");
	bool late = json_is_object(last) &&
		    (!json_is_object(committed) ||
		     doc_number(last, "time_ns") > doc_number(committed, "time_ns"));
	char age[TEXT_MAX];

	if (!json_is_object(saves))
		return false; /* an older ckptd */
	print_problems(o);
	if (json_is_object(committed))
		say("job '%s': %sstep %" PRIu64 " was committed %s ago", name,
		    problems || late || !runs ? "" : "saves work: ", doc_number(committed, "step"),
		    text_age(age, doc_number(committed, "time_ns")));
	else
		say("job '%s': nothing was committed", name);
	if (runs && (problems || late) && rank_blocks(o, saves))
		print_block(saves);
	if (!runs)
		say("no rank of it runs");
	print_last_skip(saves);
	return problems;
}
