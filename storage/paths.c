/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paths.c - names in the data folder. Made of ids alone: no text of a user reaches a path.
 * Numbers are decimal without leading zeros, ids lower-case hex: one id has one name.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "storage/paths.h"
#include "storage/store.h"

#define PATH_SIZE (DISK_PATH_MAX + 1)

void path_job(char *buf, const struct job_id *job)
{
	char hex[ID_TEXT_MAX];

	hex_format(hex, job->b, sizeof(job->b));
	snprintf(buf, PATH_SIZE, "jobs/%s", hex);
}

static void path_in_job(char *buf, const struct job_id *job, const char *leaf)
{
	char hex[ID_TEXT_MAX];

	hex_format(hex, job->b, sizeof(job->b));
	snprintf(buf, PATH_SIZE, "jobs/%s/%s", hex, leaf);
}

void path_log(char *buf, const struct job_id *job)
{
	path_in_job(buf, job, "log");
}

void path_log_new(char *buf, const struct job_id *job)
{
	path_in_job(buf, job, "log.new");
}

/* The checkpoint's folder, "/" and leaf unless it is empty. */
static void path_in_checkpoint(char *buf, const struct checkpoint_id *id, const char *leaf)
{
	char job[ID_TEXT_MAX], attempt[ID_TEXT_MAX];
	int n;

	hex_format(job, id->job.b, sizeof(id->job.b));
	hex_format(attempt, id->attempt.b, sizeof(id->attempt.b));
	n = snprintf(buf, PATH_SIZE, "jobs/%s/%" PRIu64 ".%s%s%s", job, id->step, attempt,
		     leaf[0] ? "/" : "", leaf);
	assert(n > 0 && n < (int)PATH_SIZE);
}

void path_checkpoint(char *buf, const struct checkpoint_id *id)
{
	path_in_checkpoint(buf, id, "");
}

void path_shard(char *buf, const struct checkpoint_id *id, uint32_t rank)
{
	char leaf[32];

	snprintf(leaf, sizeof(leaf), "rank-%u.shard", rank);
	path_in_checkpoint(buf, id, leaf);
}

void path_shard_again(char *buf, const struct checkpoint_id *id, uint32_t rank)
{
	char leaf[40];

	snprintf(leaf, sizeof(leaf), TEMPORARY_PREFIX "rank-%u.shard", rank);
	path_in_checkpoint(buf, id, leaf);
}

void path_commit(char *buf, const struct checkpoint_id *id)
{
	path_in_checkpoint(buf, id, "COMMIT");
}

void path_spare(char *buf, uint64_t serial, uint64_t bytes)
{
	snprintf(buf, PATH_SIZE, "spare/%" PRIu64 ".%" PRIu64, serial, bytes);
}

/* A decimal number as these functions write it; *end is what follows. */
static int number_parse(const char *text, const char **end, uint64_t *ret)
{
	char *stop;

	if (text[0] < '0' || text[0] > '9' || (text[0] == '0' && text[1] >= '0' && text[1] <= '9'))
		return -EINVAL;
	errno = 0;
	*ret = strtoull(text, &stop, 10);
	*end = stop;
	return errno ? -EINVAL : 0;
}

int checkpoint_name_parse(const char *name, uint64_t *ret_step, struct attempt_id *ret_attempt)
{
	struct attempt_id attempt;
	const char *end;
	uint64_t step;

	if (number_parse(name, &end, &step) < 0 || *end != '.' ||
	    hex_parse(attempt.b, sizeof(attempt.b), end + 1) < 0)
		return -EINVAL;
	*ret_step = step;
	*ret_attempt = attempt;
	return 0;
}

bool shard_name_is(const char *name)
{
	const char *end;
	uint64_t rank;

	return strncmp(name, "rank-", 5) == 0 && number_parse(name + 5, &end, &rank) == 0 &&
	       rank <= UINT32_MAX && strcmp(end, ".shard") == 0;
}

int spare_name_parse(const char *name, uint64_t *ret_serial, uint64_t *ret_bytes)
{
	const char *end;
	uint64_t serial, bytes;

	if (number_parse(name, &end, &serial) < 0 || *end != '.' ||
	    number_parse(end + 1, &end, &bytes) < 0 || *end != '\0')
		return -EINVAL;
	*ret_serial = serial;
	*ret_bytes = bytes;
	return 0;
}
