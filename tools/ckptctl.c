/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckptctl.c - looks at checkpoints and takes care of them: the command line.
 *
 * Exit status: 0 fine; 1 a problem was found, or ckptd refused; 2 usage, or it could not be found
 * out. An error is one sentence on stderr, after which stdout is not to be used.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/near.h"
#include "model/trust.h"
#include "tools/files.h"
#include "tools/job_name.h"
#include "tools/print.h"
#include "tools/verbs.h"

enum { OPTION_COMPLETION = OPTIONS, GETOPT_BASE = 256, READERS_MAX = 1024, LEVEL_MAX = 22 };
enum { SECONDS_MAX = 3600 };

/* jansson takes memory in a thousand places whose failure nobody could use: the tool ends. What it
 * holds are documents of the tool's own: no budget of other files counts them. */
static void *take_or_end(size_t size)
{
	struct alloc_budget *b = alloc_set_budget(NULL);
	void *p = alloc_zero(size);

	alloc_set_budget(b);
	if (!p) {
		fputs("ckptctl: out of memory: ask for less, one job or one tensor\n", stderr);
		exit(EXIT_UNKNOWN);
	}
	return p;
}

static void give_back(void *p)
{
	struct alloc_budget *b = alloc_set_budget(NULL);

	alloc_free(p);
	alloc_set_budget(b);
}

/* What an error says about the checkpoints, rather than about the question. */
static int exit_status(int r)
{
	switch (r) {
	case CKPT_ECORRUPT:
	case CKPT_ELOST:
	case CKPT_ESTATE:
	case CKPT_EIO:
	case -EAGAIN:
	case -EBUSY:
	case -EIO:
		return EXIT_PROBLEM;
	default:
		return r < 0 ? EXIT_UNKNOWN : r;
	}
}

/* ---- Options ---- */

static bool parse_number(const char *text, uint64_t max, uint64_t *ret)
{
	char *end;
	uint64_t v;

	errno = 0;
	v = strtoull(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno || v == 0 || v > max)
		return false;
	*ret = v;
	return true;
}

static int take_number(const struct option_entry *o, uint64_t max, uint64_t *ret)
{
	if (parse_number(optarg, max, ret))
		return 0;
	complain("--%s needs a number of 1 to %llu, not '%s'", o->name, (unsigned long long)max,
		 optarg);
	return -EINVAL;
}

/* Bytes: digits, and K, M, G or T for powers of 1024. */
static int take_bytes(const struct option_entry *o, uint64_t *ret)
{
	static const char units[] = "KMGT";
	char digits[32];
	size_t n = strspn(optarg, "0123456789");
	const char *unit = optarg[n] ? strchr(units, optarg[n]) : NULL;
	int shift = unit ? 10 * (int)(unit - units + 1) : 0;
	uint64_t v = 0;

	snprintf(digits, sizeof(digits), "%.*s", (int)n, optarg);
	if (n >= sizeof(digits) || (optarg[n] && !unit) || (unit && unit[0] && optarg[n + 1]) ||
	    !parse_number(digits, (uint64_t)INT64_MAX >> shift, &v)) {
		complain("--%s needs a number of bytes, such as 65536 or 256M, not '%s'", o->name,
			 optarg);
		return -EINVAL;
	}
	*ret = v << shift;
	return 0;
}

static int take_word(const struct option_entry *o, struct words *w)
{
	if (w->n == WORDS_MAX) {
		complain("--%s can be given %d times", o->name, WORDS_MAX);
		return -EINVAL;
	}
	w->at[w->n++] = optarg;
	return 0;
}

/* Where an option's text goes as it is; NULL: it is not that simple. */
static const char **text_of(struct ctl *c, enum option_id id)
{
	const struct {
		enum option_id id;
		const char **to;
	} texts[] = {
		{OPTION_SOCKET, &c->socket},
		{OPTION_DATA, &c->data},
		{OPTION_FORMAT, &c->format},
		{OPTION_OUTPUT, &c->output},
		{OPTION_AS, &c->as},
		{OPTION_TO, &c->to},
		{OPTION_STEP, &c->step},
		{OPTION_CAST, &c->cast},
		{OPTION_TO_DATA, &c->to_data},
		{OPTION_TORCH, &c->torch},
		{OPTION_SINCE, &c->since},
		{OPTION_PEERS, &c->peers},
		{OPTION_SELF, &c->self},
		{OPTION_FLEET, &c->fleet},
		{OPTION_HISTORY, &c->history},
		{OPTION_SET, &c->set},
		{OPTION_TABLE, &c->table},
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].id == id)
			return texts[i].to;
	return NULL;
}

/* Where the switch is kept; NULL: it is none. */
static bool *flag_of(struct ctl *c, enum option_id id)
{
	const struct {
		enum option_id id;
		bool *to;
	} flags[] = {
		{OPTION_JSON, &c->json},       {OPTION_YES, &c->yes},
		{OPTION_DRY_RUN, &c->dry_run}, {OPTION_INCOMING, &c->incoming},
		{OPTION_ALL, &c->all},         {OPTION_FOLLOW, &c->follow},
	};

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		if (flags[i].id == id)
			return flags[i].to;
	return NULL;
}

static int take_small(const struct option_entry *o, uint32_t max, uint32_t *ret)
{
	uint64_t n = 0;
	int r = take_number(o, max, &n);

	*ret = (uint32_t)n;
	return r;
}

static int take_trust(const struct option_entry *o, uint32_t *ret)
{
	enum trust_level level;

	if (!trust_parse(optarg, &level)) {
		complain("--%s: '%.40s' is not latest, complete or verified", o->name, optarg);
		return -EINVAL;
	}
	*ret = level;
	return 0;
}

static int take_option(struct ctl *c, enum option_id id)
{
	const struct option_entry *o = &option_table[id];
	const char **text = text_of(c, id);
	bool *flag = flag_of(c, id);

	if (text)
		*text = optarg;
	else if (flag)
		*flag = true;
	else if (id == OPTION_QUIET || id == OPTION_VERBOSE)
		c->talk = id == OPTION_QUIET ? -1 : 1;
	else if (id == OPTION_JOBS)
		return take_small(o, READERS_MAX, &c->jobs);
	else if (id == OPTION_KEEP_LAST)
		return take_small(o, UINT32_MAX, &c->keep_last);
	else if (id == OPTION_KEEP_EVERY)
		return take_number(o, INT64_MAX, &c->keep_every);
	else if (id == OPTION_MIN_TRUST)
		return take_trust(o, &c->min_trust);
	else if (id == OPTION_COMPRESS)
		return take_small(o, LEVEL_MAX, &c->compress);
	else if (id == OPTION_TIME)
		return take_small(o, SECONDS_MAX, &c->time);
	else if (id == OPTION_SHARD_SIZE)
		return take_bytes(o, &c->shard_size);
	else if (id == OPTION_MEMORY)
		return take_bytes(o, &c->memory);
	else if (id == OPTION_METADATA)
		return take_word(o, &c->metadata);
	else
		assert(id == OPTION_TENSOR); /* main() does the others */
	if (id != OPTION_TENSOR)
		return 0;
	c->tensor = optarg;
	return take_word(o, &c->tensors);
}

static void fill_options(struct option longs[OPTIONS + 2], char letters[OPTIONS + 2])
{
	size_t n = 0;

	letters[n++] = ':'; /* our own words for what is missing */
	for (int i = 0; i < OPTIONS; i++) {
		longs[i] = (struct option){ .name = option_table[i].name,
					    .has_arg = option_table[i].argument ? required_argument
										: no_argument,
					    .val = GETOPT_BASE + i };
		if (option_table[i].letter)
			letters[n++] = option_table[i].letter;
	}
	letters[n] = '\0';
	longs[OPTIONS] = (struct option){ .name = "completion", .val = GETOPT_BASE + OPTIONS };
	longs[OPTIONS + 1] = (struct option){ 0 };
}

static int option_of(int c)
{
	if (c >= GETOPT_BASE)
		return c - GETOPT_BASE;
	for (int i = 0; i < OPTIONS; i++)
		if (option_table[i].letter == c)
			return i;
	return -1;
}

static int no_option(const char *given)
{
	char hint[NEAR_TEXT_MAX], name[64];
	struct near near;

	near_begin(&near, given);
	for (int i = 0; i < OPTIONS; i++) {
		snprintf(name, sizeof(name), "--%s", option_table[i].name);
		near_try(&near, name);
	}
	complain("there is no option %s%s; 'ckptctl --help' lists them", given,
		 near_text(&near, hint));
	return -EINVAL;
}

static void no_verb(const char *given)
{
	char hint[NEAR_TEXT_MAX];
	struct near near;

	near_begin(&near, given);
	for (const struct verb *v = verb_table; v->name; v++)
		near_try(&near, v->name);
	complain("there is no verb '%s'%s; 'ckptctl --help' lists them", given,
		 near_text(&near, hint));
}

/* Fills c and *ret_given (bits), puts the rest of argv behind optind. */
static int parse(int argc, char **argv, struct ctl *c, uint64_t *ret_given)
{
	struct option longs[OPTIONS + 2];
	char letters[OPTIONS + 2];
	int ch, r;

	fill_options(longs, letters);
	while ((ch = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
		int id = option_of(ch);

		if (ch == ':') {
			complain("%s needs an argument; 'ckptctl --help' lists the options",
				 argv[optind - 1]);
			return -EINVAL;
		}
		if (id < 0)
			return no_option(argv[optind - 1]);
		*ret_given |= 1ull << id;
		if (id == OPTION_HELP || id == OPTION_VERSION || id == OPTION_COMPLETION)
			continue;
		r = take_option(c, (enum option_id)id);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- Verbs ---- */

static int check_use(const struct verb *v, uint64_t given, int n_args)
{
	uint64_t wrong = given & ~v->options;

	for (int i = 0; i < OPTIONS; i++)
		if (wrong & (1ull << i)) {
			complain("'%s' has no option --%s; 'ckptctl %s --help' lists what it has",
				 v->name, option_table[i].name, v->name);
			return -EINVAL;
		}
	if (n_args < v->args_min || (v->args_max >= 0 && n_args > v->args_max)) {
		complain("usage: ckptctl %s %s%s%s", v->name, v->arguments, v->needs ? " " : "",
			 v->needs ? v->needs : "");
		return -EINVAL;
	}
	return 0;
}

/*
 * With --socket, what reads or writes files does so in the data folder of that ckptd, which is
 * asked for it before anything else is done; --data beside it has to name the same. The ckptd may
 * also be that of --to-data. folder has room for c->data.
 */
static int find_folder(const struct verb *v, struct ctl *c, char folder[PATH_MAX], struct err *e)
{
	bool uses_files = (v->options & VERB_USES_FILES) || c->incoming;
	int r;

	if (!c->socket || !(c->data || uses_files))
		return 0;
	r = data_of_ckptd(c->socket, folder, e);
	if ((r == CKPT_ENOTFOUND || r == CKPT_EUNAVAILABLE) && c->data) {
		err_clear(e); /* the folder is named; who needs an answer asks again */
		return 0;
	}
	if (r < 0 || (c->to_data && data_is_same(folder, c->to_data)))
		return r;
	r = c->data ? data_check_same(folder, c->data, e) : 0;
	if (r < 0)
		return r;
	c->data = folder;
	if (c->to_data)
		c->socket = NULL; /* it is not that of the new job's folder */
	return 0;
}

static int run(const struct verb *v, struct ctl *c)
{
	char folder[PATH_MAX], job[JOB_TEXT_MAX];
	struct err e = { 0 };
	int r = find_folder(v, c, folder, &e);

	if (c->n_args > 0 && (v->options & VERB_TAKES_JOB))
		c->args[0] = (char *)job_name_by_uid(job, c->args[0]);
	if (r == 0)
		r = v->run(c, &e);
	if (r < 0)
		complain("%s", e.code ? e.text : err_text(r));
	if (fflush(stdout) != 0 || ferror(stdout)) {
		complain("could not write the output: %s", strerror(errno));
		return EXIT_UNKNOWN;
	}
	return exit_status(r);
}

/* What needs no verb; false: a verb is to be run. */
static bool help_or_version(uint64_t given, const struct verb *v)
{
	if (given & (1ull << OPTION_COMPLETION))
		print_completion(stdout);
	else if (given & (1ull << OPTION_VERSION))
		puts("ckptctl " PACKAGE_VERSION);
	else if ((given & (1ull << OPTION_HELP)) && v)
		print_verb_help(stdout, v);
	else if (given & (1ull << OPTION_HELP))
		print_help(stdout);
	else
		return false;
	return true;
}

int main(int argc, char **argv)
{
	struct ctl c = { 0 };
	const struct verb *v;
	uint64_t given = 0;

	json_set_alloc_funcs(take_or_end, give_back);
	/* Root works in a user's folder as that user (storage/beneath.h), who is in none of its
	 * groups. Where that is forbidden, they are a container's. */
	if (geteuid() == 0)
		ignore_result(setgroups(0, NULL));
	if (parse(argc, argv, &c, &given) < 0)
		return EXIT_UNKNOWN;
	v = optind < argc ? verb_find(argv[optind]) : NULL;
	/* `ckptctl help [VERB]`, as people try it first. */
	if (optind < argc && strcmp(argv[optind], "help") == 0) {
		given |= 1ull << OPTION_HELP;
		if (optind + 1 < argc) {
			v = verb_find(argv[++optind]);
			if (!v)
				given = 0;
		}
	}
	if (help_or_version(given, v))
		return EXIT_FINE;
	if (optind == argc) {
		print_help(stderr);
		return EXIT_UNKNOWN;
	}
	if (!v) {
		no_verb(argv[optind]);
		return EXIT_UNKNOWN;
	}
	c.args = argv + optind + 1;
	c.n_args = argc - optind - 1;
	if (check_use(v, given, c.n_args) < 0)
		return EXIT_UNKNOWN;
	return run(v, &c);
}
