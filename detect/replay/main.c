/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - replay: what a detector says in traces whose truth is known.
 *
 * Seeds 1 to 99 are for tuning: thresholds may be chosen by what they show, so their figures count
 * for nothing. Seeds from 1000 on are for figures: nobody may look at what goes wrong in them and
 * change the detector.
 */
#include <config.h>

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "detect/replay/judge.h"
#include "detect/replay/rand.h"
#include "detect/replay/runner.h"
#include "detect/xid_policy.h"

#define TUNING_LAST      99
#define EVALUATION_FIRST 1000

struct options {
	uint32_t nodes, job_nodes, threads;
	double days;
	uint64_t seed;
	enum watcher_kind kind;
	const char *out, *name, *xid_path;
	struct xid_policy *xid;
	bool json, verbose;
};

static const char *const words[] = {
#define X(name, word, text) word,
	WATCHERS(X)
#undef X
};

static void usage(FILE *out)
{
	fprintf(out,
		"usage: replay generate [options] [-o FILE]  a trace; FILE.zst: compressed\n"
		"       replay run [options] TRACE...        lead a detector through recorded "
		"traces\n"
		"       replay score [options]               through generated ones\n"
		"       replay compare [options]             all detectors, rivals at their best\n"
		"       replay quiet [options]               through cases in which nothing is "
		"wrong\n"
		"       replay check [options]               exit 1 if the detector is not good "
		"enough\n"
		"options: --nodes N  --days D  --seed S  --job-nodes N  --threads N  --json\n"
		"         --xid FILE: the table of Xids, share/xid.tsv where it was built\n"
		"         --detector ckptd|fixed|longest|median  --case NAME (generate)  -v: what "
		"is "
		"false or not found\n"
		"seeds 1..99 are for tuning, from 1000 on for figures\n");
}

static bool parse_kind(const char *word, enum watcher_kind *ret)
{
	for (unsigned i = 0; i < WATCHER_COUNT; i++) {
		if (strcmp(words[i], word) != 0)
			continue;
		*ret = (enum watcher_kind)i;
		return true;
	}
	return false;
}

static bool parse_option(int c, struct options *o)
{
	char *end = NULL;
	double v = optarg ? strtod(optarg, &end) : 0;
	bool number = optarg && *optarg && !*end && v >= 0 && v < 1e15;

	switch (c) {
	case 'n':
		o->nodes = (uint32_t)v;
		return number && v >= 1 && v <= 100000;
	case 'j':
		o->job_nodes = (uint32_t)v;
		return number && v <= 100000;
	case 't':
		o->threads = (uint32_t)v;
		return number && v >= 1 && v <= 16;
	case 'd':
		o->days = v;
		return number && v > 0 && v <= 366;
	case 's':
		o->seed = (uint64_t)v;
		return number;
	case 'o':
		o->out = optarg;
		return true;
	case 'x':
		o->xid_path = optarg;
		return true;
	case 'c':
		o->name = optarg;
		return true;
	case 'J':
		o->json = true;
		return true;
	case 'v':
		o->verbose = true;
		return true;
	case 'D':
		return parse_kind(optarg, &o->kind);
	default:
		return false;
	}
}

/* What the rules about seeds ask for. */
static void warn_of_seed(const struct options *o, bool figures)
{
	if (figures && o->seed <= TUNING_LAST)
		fprintf(stderr, "replay: seed %llu is for tuning: do not quote these figures\n",
			(unsigned long long)o->seed);
	else if (o->seed > TUNING_LAST && o->seed < EVALUATION_FIRST)
		fprintf(stderr,
			"replay: seed %llu is neither for tuning (1..%d) nor for figures "
			"(%d...)\n",
			(unsigned long long)o->seed, TUNING_LAST, EVALUATION_FIRST);
	if (o->verbose && o->seed >= EVALUATION_FIRST)
		fprintf(stderr,
			"replay: seed %llu is for figures: after looking at what went wrong in it, "
			"it is spent; change nothing by what you see\n",
			(unsigned long long)o->seed);
}

static struct watcher_settings settings_of(const struct options *o)
{
	struct watcher_settings set = watcher_published();

	set.xid = o->xid;
	return set;
}

static int failed(int r, const struct err *e)
{
	fprintf(stderr, "replay: %s\n", e && e->code ? e->text : err_text(r));
	return 1;
}

/* ---- generated traces ---- */

static int score_seed(const struct options *o, enum watcher_kind kind,
		      const struct watcher_settings *set, uint64_t seed, struct score *sum,
		      uint64_t *ret_samples)
{
	struct world_config worlds[JOBS_MAX];
	unsigned n = cluster_worlds(seed, o->nodes, o->days, o->job_nodes, worlds);
	CLEANUP_FREE struct run *runs = alloc_array(n, sizeof(*runs));
	int r;

	if (!runs)
		return -ENOMEM;
	for (unsigned i = 0; i < n; i++)
		runs[i] = (struct run){.world = worlds[i],
				       .kind = kind,
				       .settings = *set,
				       .log = o->verbose ? stdout : NULL};
	r = run_all(runs, n, o->threads);
	for (unsigned i = 0; i < n; i++) {
		if (r == 0)
			r = score_add(sum, &runs[i].score);
		*ret_samples += runs[i].samples;
		if (runs[i].refused)
			fprintf(stderr, "replay: %llu samples of job %u were refused\n",
				(unsigned long long)runs[i].refused, i);
		score_fini(&runs[i].score);
	}
	return r;
}

static void print_score(const struct options *o, const struct score *s, const char *detector,
			const char *title)
{
	if (o->json)
		score_json(s, detector, title, stdout);
	else
		score_table(s, title, stdout);
}

static int do_score(const struct options *o)
{
	struct watcher_settings set = settings_of(o);
	struct score sum;
	uint64_t samples = 0;
	char title[120];
	int r;

	warn_of_seed(o, true);
	score_init(&sum);
	r = score_seed(o, o->kind, &set, o->seed, &sum, &samples);
	if (r == 0) {
		snprintf(title, sizeof(title), "%s, %u nodes x %g days, seed %llu", words[o->kind],
			 o->nodes, o->days, (unsigned long long)o->seed);
		print_score(o, &sum, words[o->kind], title);
		fprintf(stderr, "%llu samples\n", (unsigned long long)samples);
	}
	score_fini(&sum);
	return r < 0 ? failed(r, NULL) : 0;
}

static int do_generate(const struct options *o)
{
	struct world_config worlds[JOBS_MAX];
	struct quiet_case cases[QUIET_CASES_MAX];
	unsigned n = 0, n_cases = quiet_cases(cases);
	struct err e = {0};

	for (unsigned i = 0; o->name && i < n_cases; i += 2) {
		if (strcmp(cases[i].name, o->name) != 0)
			continue;
		worlds[0] = cases[i].config;
		worlds[0].style = &cases[i].style;
		worlds[0].seed = o->seed;
		n = 1;
	}
	if (o->name && !n) {
		fprintf(stderr, "replay: there is no case '%s'\n", o->name);
		return 2;
	}
	if (!n)
		n = cluster_worlds(o->seed, o->nodes, o->days, o->job_nodes, worlds);
	warn_of_seed(o, false);
	return run_generate(worlds, n, o->out, &e) < 0 ? failed(0, &e) : 0;
}

/* ---- traces in which nothing is wrong ---- */

static int quiet_runs(const struct options *o, enum watcher_kind kind, uint32_t *ret_false)
{
	struct quiet_case cases[QUIET_CASES_MAX];
	struct run runs[QUIET_CASES_MAX];
	struct watcher_settings set = settings_of(o);
	unsigned n = quiet_cases(cases);
	int r;

	for (unsigned i = 0; i < n; i++) {
		runs[i] = (struct run){.world = cases[i].config,
				       .kind = kind,
				       .settings = set,
				       .log = o->verbose ? stdout : NULL};
		runs[i].world.seed = o->seed;
		runs[i].world.style = &cases[i].style;
	}
	r = run_all(runs, n, o->verbose ? 1 : o->threads);
	*ret_false = 0;
	for (unsigned i = 0; i < n; i++) {
		const struct tallies *t = cases[i].style.declares ? &runs[i].score.declared
								  : &runs[i].score.undeclared;

		*ret_false += t->alarms;
		if (o->json)
			printf("{\"detector\":\"%s\",\"quiet\":\"%s\",\"declared\":%s,\"alarms\":%"
			       "u}\n",
			       words[kind], cases[i].name,
			       cases[i].style.declares ? "true" : "false", t->alarms);
		else
			printf("%-10s %-12s %-12s %4u alarms   (%s)\n", words[kind], cases[i].name,
			       cases[i].style.declares ? "declared" : "not declared", t->alarms,
			       cases[i].text);
		score_fini(&runs[i].score);
	}
	return r;
}

static int do_quiet(const struct options *o)
{
	uint32_t n;
	int r = quiet_runs(o, o->kind, &n);

	return r < 0 ? failed(r, NULL) : n > 0;
}

/* ---- recorded traces ---- */

static int do_run(const struct options *o, char **files)
{
	struct watcher_settings set = settings_of(o);

	for (; *files; files++) {
		struct err e = {0};
		struct score s;
		uint64_t samples = 0;
		int r;

		score_init(&s);
		r = run_file(*files, o->kind, &set, o->verbose, &s, &samples, &e);
		if (r == 0)
			print_score(o, &s, words[o->kind], *files);
		score_fini(&s);
		if (r < 0)
			return failed(r, &e);
		fprintf(stderr, "%llu samples\n", (unsigned long long)samples);
	}
	return 0;
}

/* ---- the rivals at their best ---- */

struct worth {
	double recall, precision, f1;
};

static void add_worth(const struct tallies *t, uint32_t *faults, uint32_t *found, uint32_t *good,
		      uint32_t *bad)
{
	for (uint32_t i = 0; i < t->n_groups; i++) {
		*faults += t->groups[i].faults;
		*found += t->groups[i].found;
	}
	*good += t->good + t->vague;
	*bad += t->wrong + t->spurious;
}

static struct worth worth_of(const struct score *s)
{
	uint32_t faults = 0, found = 0, good = 0, bad = 0;
	struct worth w = {0};

	add_worth(&s->declared, &faults, &found, &good, &bad);
	add_worth(&s->undeclared, &faults, &found, &good, &bad);
	w.recall = faults ? (double)found / faults : 0;
	w.precision = good + bad ? (double)good / (good + bad) : 0;
	w.f1 = w.recall + w.precision > 0 ? 2 * w.recall * w.precision / (w.recall + w.precision)
					  : 0;
	return w;
}

/* The n-th settings that are tried; false: no more. */
static bool settings_to_try(const struct options *o, enum watcher_kind kind, unsigned n,
			    struct watcher_settings *ret)
{
	static const double timeouts[] = {60, 120, 300, 450, 600, 900, 1200, 1800, 2700};
	static const double times[] = {1.1, 1.5, 2, 3, 5, 8};
	static const double ratios[] = {1.1, 1.25, 1.5};
	static const uint32_t confirms[] = {2, 5, 10, 20};

	*ret = settings_of(o);
	switch ((unsigned)kind) {
	case WATCH_FIXED:
		if (n >= sizeof(timeouts) / sizeof(timeouts[0]))
			return false;
		ret->timeout_s = timeouts[n];
		return true;
	case WATCH_LONGEST:
		if (n >= sizeof(times) / sizeof(times[0]))
			return false;
		ret->times = times[n];
		return true;
	case WATCH_MEDIAN:
		if (n >= 24)
			return false;
		ret->ratio = ratios[n % 3];
		ret->confirm = confirms[n / 3 % 4];
		ret->deviations = n < 12 ? 4 : 8;
		return true;
	default:
		return n == 0;
	}
}

static int tune(const struct options *o, enum watcher_kind kind, struct watcher_settings *ret_best)
{
	struct options small = *o;
	double best = -1;
	struct watcher_settings set;

	small.verbose = false;
	small.nodes = o->nodes < 96 ? o->nodes : 96;
	small.days = o->days < 2 ? o->days : 2;
	*ret_best = settings_of(o);
	for (unsigned n = 0; kind != WATCH_CKPTD && settings_to_try(o, kind, n, &set); n++) {
		struct score sum;
		uint64_t samples = 0;
		double f1;
		int r;

		score_init(&sum);
		r = score_seed(&small, kind, &set, 1, &sum, &samples);
		f1 = worth_of(&sum).f1;
		score_fini(&sum);
		if (r < 0)
			return r;
		if (f1 > best) {
			best = f1;
			*ret_best = set;
		}
	}
	return 0;
}

static void describe(enum watcher_kind kind, const struct watcher_settings *s, char *buf,
		     size_t size)
{
	switch ((unsigned)kind) {
	case WATCH_FIXED:
		snprintf(buf, size, "fixed: %g s", s->timeout_s);
		break;
	case WATCH_LONGEST:
		snprintf(buf, size, "longest x %g (NVRx: 5)", s->times);
		break;
	case WATCH_MEDIAN:
		snprintf(buf, size, "median x %g + %g MAD, %u in a row (SCOUT: 1.25, 4, 2)",
			 s->ratio, s->deviations, s->confirm);
		break;
	default:
		snprintf(buf, size, "ckptd");
		break;
	}
}

/* Found in all of both, and how long it took in the middle. */
static void summarize(const struct score *s, const char *title)
{
	const struct tallies *both[] = {&s->declared, &s->undeclared};
	double node_days = s->declared.node_days + s->undeclared.node_days;
	uint32_t bad = s->declared.wrong + s->declared.spurious + s->undeclared.wrong +
		       s->undeclared.spurious;
	struct worth w = worth_of(s);
	uint32_t found = 0, right = 0;
	double hung = NAN;

	for (unsigned k = 0; k < 2; k++) {
		for (uint32_t i = 0; i < both[k]->n_groups; i++) {
			found += both[k]->groups[i].found;
			right += both[k]->groups[i].right;
		}
	}
	if (score_group(&s->declared, "hung"))
		hung = tally_delay(score_group(&s->declared, "hung"), 0.5);
	printf("%-64s %6.3f %9.3f %6.3f %7.3f %9.1f %9.4f\n", title, w.recall, w.precision, w.f1,
	       found ? (double)right / found : (double)NAN, hung, bad / node_days);
}

static int compare_one(const struct options *o, enum watcher_kind kind, struct score *sum,
		       char title[120])
{
	struct watcher_settings set;
	uint64_t samples = 0;
	int r = tune(o, kind, &set);

	if (r == 0)
		r = score_seed(o, kind, &set, o->seed, sum, &samples);
	describe(kind, &set, title, 120);
	if (r == 0)
		print_score(o, sum, words[kind], title);
	fflush(stdout);
	return r;
}

static int do_compare(const struct options *o)
{
	struct score sums[WATCHER_COUNT];
	char titles[WATCHER_COUNT][120];
	int r = 0;

	warn_of_seed(o, true);
	for (unsigned k = 0; k < WATCHER_COUNT; k++)
		score_init(&sums[k]);
	for (unsigned k = 0; r == 0 && k < WATCHER_COUNT; k++)
		r = compare_one(o, (enum watcher_kind)k, &sums[k], titles[k]);
	if (r == 0 && !o->json) {
		printf("\n%-64s %6s %9s %6s %7s %9s %9s\n", "all faults of all jobs", "recall",
		       "precision", "F1", "subject", "hung, s", "false/n-d");
		for (unsigned k = 0; k < WATCHER_COUNT; k++)
			summarize(&sums[k], titles[k]);
	}
	for (unsigned k = 0; k < WATCHER_COUNT; k++)
		score_fini(&sums[k]);
	return r < 0 ? failed(r, NULL) : 0;
}

/* ---- good enough? ---- */

static int check_seed(const struct options *o, uint64_t seed, bool fixed, unsigned *bad)
{
	struct watcher_settings set = settings_of(o);
	struct score sum;
	uint64_t samples = 0;
	char title[120];
	int r;

	score_init(&sum);
	r = score_seed(o, o->kind, &set, seed, &sum, &samples);
	snprintf(title, sizeof(title), "%u nodes x %g days, %s seed %llu", o->nodes, o->days,
		 fixed ? "fixed" : "fresh", (unsigned long long)seed);
	if (r == 0) {
		score_table(&sum, title, stdout);
		*bad += judge(&sum.declared, seed, fixed, stdout);
	}
	score_fini(&sum);
	return r;
}

static int do_check(const struct options *o)
{
	struct rng rng;
	uint64_t fresh;
	uint32_t alarms = 0;
	unsigned bad = 0;
	int r;

	rng_system(&rng);
	fresh = EVALUATION_FIRST + rng_below(&rng, 1000000000);
	printf("fresh seed %llu\n", (unsigned long long)fresh);
	r = check_seed(o, o->seed, true, &bad);
	if (r == 0)
		r = check_seed(o, fresh, false, &bad);
	if (r == 0)
		r = quiet_runs(o, o->kind, &alarms);
	if (r < 0)
		return failed(r, NULL);
	printf("%s quiet-cases %u alarms\n", alarms ? "not ok" : "ok", alarms);
	return bad > 0 || alarms > 0;
}

static int load_policy(struct options *o)
{
	FILE *f = fopen(o->xid_path, "r");
	struct err e = {0};
	char *text;
	size_t len;
	int r;

	if (!f) {
		fprintf(stderr, "replay: cannot open '%s': %s\n", o->xid_path, strerror(errno));
		return -1;
	}
	text = alloc_zero(1u << 20);
	len = text ? fread(text, 1, 1u << 20, f) : 0;
	fclose(f);
	r = text ? xid_policy_new(&o->xid) : -ENOMEM;
	if (r == 0)
		r = xid_policy_add(o->xid, o->xid_path, text, len, &e);
	if (r < 0)
		failed(r, &e);
	alloc_free(text);
	return r;
}

/* Its exit status; -1: there is no such verb. */
static int run_verb(const char *verb, const struct options *o, char **files)
{
	if (strcmp(verb, "generate") == 0)
		return do_generate(o);
	if (strcmp(verb, "run") == 0 && *files)
		return do_run(o, files);
	if (strcmp(verb, "score") == 0)
		return do_score(o);
	if (strcmp(verb, "compare") == 0)
		return do_compare(o);
	if (strcmp(verb, "quiet") == 0)
		return do_quiet(o);
	if (strcmp(verb, "check") == 0)
		return do_check(o);
	return -1;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{"nodes", 1, NULL, 'n'},     {"days", 1, NULL, 'd'},    {"seed", 1, NULL, 's'},
		{"job-nodes", 1, NULL, 'j'}, {"threads", 1, NULL, 't'}, {"json", 0, NULL, 'J'},
		{"detector", 1, NULL, 'D'},  {"case", 1, NULL, 'c'},    {"output", 1, NULL, 'o'},
		{"xid", 1, NULL, 'x'},       {NULL, 0, NULL, 0}};
	struct options o = {.nodes = 200,
			    .days = 2,
			    .seed = EVALUATION_FIRST,
			    .threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN),
			    .out = "-",
			    .xid_path = SOURCE_FOLDER "/share/xid.tsv"};
	const char *verb = argc > 1 ? argv[1] : "";
	int c;

	optind = 2;
	o.threads = o.threads > 16 ? 16 : o.threads;
	while (argc > 1 && (c = getopt_long(argc, argv, "vo:", longs, NULL)) != -1) {
		if (!parse_option(c, &o)) {
			usage(stderr);
			return 2;
		}
	}
	rand_init();
	if (load_policy(&o) < 0)
		return 1;
	c = run_verb(verb, &o, argv + optind);
	xid_policy_free(o.xid);
	if (c >= 0)
		return c;
	usage(strcmp(verb, "--help") == 0 ? stdout : stderr);
	return strcmp(verb, "--help") == 0 ? 0 : 2;
}
