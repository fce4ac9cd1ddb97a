/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs.c - what ckptctl can do, and how that is told to people and to bash.
 */
#include <config.h>

#include "tools/verbs.h"

#include <string.h>

#include "detect/verdict.h"
#include "model/retention.h"

#define TEXT_(x)     #x
#define TEXT(number) TEXT_(number)

const struct option_entry option_table[OPTIONS] = {
	[OPTION_SOCKET] = {"socket", 0, "PATH", "-f",
			   "of the ckptd that is asked, or has the files"},
	[OPTION_DATA] = {"data", 0, "FOLDER", "-d", "look at these files, not at a running ckptd"},
	[OPTION_JSON] = {"json", 0, NULL, NULL, "print one JSON document"},
	[OPTION_YES] = {"yes", 0, NULL, NULL, "do not ask"},
	[OPTION_DRY_RUN] = {"dry-run", 0, NULL, NULL, "only say what would be done"},
	[OPTION_JOBS] = {"jobs", 0, "N", NULL, "files read at the same time (processors)"},
	[OPTION_TENSOR] = {"tensor", 0, "GLOB", NULL, "only tensors and blobs called like this"},
	[OPTION_KEEP_LAST] = {"keep-last", 0, "K", NULL,
			      "with --data: the newest K stay (" TEXT(RETENTION_KEEP_LAST) ")"},
	[OPTION_KEEP_EVERY] = {"keep-every", 0, "N", NULL, "with --data: multiples of N stay"},
	[OPTION_FORMAT] = {"format", 0, "NAME", "-W 'safetensors dcp torch'",
			   "safetensors, dcp, or to import torch (safetensors)"},
	[OPTION_OUTPUT] = {"output", 0, "PATH", "-f", "the file or folder that is made"},
	[OPTION_AS] = {"as", 0, "JOB", NULL, "the new job"},
	[OPTION_STEP] = {"step", 0, "N", NULL, "the step of its checkpoint (0)"},
	[OPTION_TO] = {"to", 0, "LAYOUT", "-f", "the new layout: its name and sizes, or a file"},
	[OPTION_CAST] = {"cast", 0, "DTYPE", "-W 'bf16 f16 f32 f64'",
			 "floats as bf16, f16, f32 or f64, rounded to nearest even"},
	[OPTION_MIN_TRUST] = {"min-trust", 0, "LEVEL", "-W 'latest complete verified'",
			      "only what is trusted as much (latest)"},
	[OPTION_SET] = {"set", 0, "LEVEL", "-W 'verified bad'", "say that it is verified, or bad"},
	[OPTION_SHARD_SIZE] = {"shard-size", 0, "BYTES", NULL,
			       "several files of at most so many bytes, such as 5G"},
	[OPTION_METADATA] = {"metadata", 0, "KEY=VALUE", NULL, "what else the file is to say"},
	[OPTION_TORCH] = {"torch", 0, "VERSION", "-W '1.13 2'",
			  "for dcp: of the torch that is to load it, 1.13 or 2 (2)"},
	[OPTION_MEMORY] = {"memory", 0, "BYTES", NULL, "of buffers, such as 256M (256M)"},
	[OPTION_TO_DATA] = {"to-data", 0, "FOLDER", "-d",
			    "the data folder of the new job (the same)"},
	[OPTION_INCOMING] = {"incoming", 0, NULL, NULL, "what tools began and did not end"},
	[OPTION_ALL] = {"all", 0, NULL, NULL, "the whole job, as rm-job"},
	[OPTION_FOLLOW] = {"follow", 0, NULL, NULL, "go on with what happens from now on"},
	[OPTION_SINCE] = {"since", 0, "TIME", NULL,
			  "an event's number, 90s, 10m, 2h or 7d ago, or a time of the day"},
	[OPTION_PEERS] = {"peers", 0, "A:P,B:P", NULL, "nodes that check their network, all alike"},
	[OPTION_SELF] = {"self", 0, "A:P", NULL, "which of the peers this one is"},
	[OPTION_FLEET] = {"fleet", 0, "FILE", "-f", "histories of other nodes, to compare with"},
	[OPTION_HISTORY] = {"history", 0, "FILE", "-f", "where to keep the results"},
	[OPTION_TIME] = {"time", 0, "SECONDS", NULL, "that all of it may take (60)"},
	[OPTION_TABLE] = {"table", 0, "FILE", "-f", "what overrides it (/etc/ckptd/xid.tsv)"},
	[OPTION_COMPRESS] = {"compress", 0, "LEVEL", NULL, "of zstd, for the new files (off)"},
	[OPTION_QUIET] = {"quiet", 'q', NULL, NULL, "names and problems only"},
	[OPTION_VERBOSE] = {"verbose", 'v', NULL, NULL, "more, and in full"},
	[OPTION_HELP] = {"help", 'h', NULL, NULL, "print this, or the help of a verb"},
	[OPTION_VERSION] = {"version", 0, NULL, NULL, "print the version"},
};

#define BIT(name) (1ull << OPTION_##name)
#define EVERY (BIT(JSON) | BIT(QUIET) | BIT(VERBOSE) | BIT(HELP))
#define LOOK (EVERY | BIT(SOCKET) | BIT(DATA))
#define FILES (LOOK | VERB_USES_FILES)
#define DEED (EVERY | BIT(SOCKET))
#define LOOK_JOB (LOOK | VERB_TAKES_JOB)
#define FILES_JOB (FILES | VERB_TAKES_JOB)
#define DEED_JOB (DEED | VERB_TAKES_JOB)

const struct verb verb_table[] = {
	{"status", "[JOB]", 0, 1, LOOK_JOB, verb_status, "how the node and its jobs stand", NULL},
	{"list", "[JOB]", 0, 1, LOOK_JOB, verb_list, "the checkpoints, newest first", NULL},
	{"show", "JOB [STEP[.ATTEMPT]]", 1, 2, LOOK_JOB | BIT(MIN_TRUST) | BIT(TENSOR), verb_show,
	 "one checkpoint: tensors, shapes, sizes, where its bytes are", NULL},
	{"verify", "[JOB [STEP[.ATTEMPT]]]", 0, 2, FILES_JOB | BIT(JOBS) | BIT(MIN_TRUST),
	 verb_verify, "read the files again and name every leaf that does not match", NULL},
	{"rm", "JOB STEP[.ATTEMPT]...", 1, -1, DEED_JOB | BIT(YES) | BIT(ALL) | BIT(DATA), verb_rm,
	 "remove checkpoints from disk, or a whole job", NULL},
	{"rm-job", "JOB", 1, 1, DEED_JOB | BIT(YES) | BIT(DATA), rm_whole_job,
	 "remove a whole job: its log and all its checkpoints", NULL},
	{"pin", "JOB STEP[.ATTEMPT]...", 2, -1, DEED_JOB, verb_pin,
	 "keep checkpoints until unpinned", NULL},
	{"unpin", "JOB STEP[.ATTEMPT]...", 2, -1, DEED_JOB, verb_unpin,
	 "let retention have checkpoints again", NULL},
	{"trust", "JOB [STEP[.ATTEMPT]]", 1, 2, LOOK_JOB | BIT(SET), verb_trust,
	 "what checkpoints are trusted with, or say what is known", NULL},
	{"gc", "[JOB]", 0, 1,
	 LOOK_JOB | BIT(DRY_RUN) | BIT(KEEP_LAST) | BIT(KEEP_EVERY) | BIT(INCOMING), verb_gc,
	 "remove what the retention rules let go, or say what that is", NULL},
	{"diff", "A B", 2, 2, FILES | BIT(MIN_TRUST) | BIT(TENSOR) | BIT(MEMORY), verb_diff,
	 "compare the tensors of two checkpoints, JOB[@STEP], or files", NULL},
	{"export", "JOB [STEP[.ATTEMPT]]", 1, 2,
	 FILES_JOB | BIT(FORMAT) | BIT(OUTPUT) | BIT(TENSOR) | BIT(CAST) | BIT(SHARD_SIZE) |
		 BIT(METADATA) | BIT(MIN_TRUST) | BIT(MEMORY) | BIT(TORCH) | BIT(YES),
	 verb_export, "write tensors to a file of another format", "--output PATH"},
	{"layout", "LAYOUT [JOB [STEP] | FILE]", 1, 3, FILES | BIT(TENSOR), verb_layout,
	 "which part of which tensor each rank of a layout holds", NULL},
	{"import", "PATH", 1, 1,
	 FILES | BIT(FORMAT) | BIT(AS) | BIT(STEP) | BIT(TO) | BIT(TENSOR) | BIT(MEMORY) |
		 BIT(DRY_RUN),
	 verb_import, "make a new job of files of another format", "--as JOB"},
	{"reshard", "JOB [STEP[.ATTEMPT]]", 1, 2,
	 FILES_JOB | BIT(DRY_RUN) | BIT(MIN_TRUST) | BIT(MEMORY) | BIT(TO) | BIT(TO_DATA) |
		 BIT(AS) | BIT(COMPRESS),
	 verb_reshard, "write a checkpoint anew for other ranks, as a new job",
	 "--to LAYOUT --as JOB"},
	{"events", "", 0, 0, LOOK | BIT(FOLLOW) | BIT(SINCE), verb_events,
	 "what happened on this node, oldest first", NULL},
	{"node-check", "", 0, 0,
	 FILES | BIT(MEMORY) | BIT(PEERS) | BIT(SELF) | BIT(FLEET) | BIT(HISTORY) | BIT(TIME),
	 verb_node_check, "measure whether this node is fit to train", NULL},
	{"xid", "[CODE[.SUBCODE]]", 0, 1, EVERY | BIT(TABLE), verb_xid,
	 "what an error of a GPU means, and what is done about it", NULL},
	{"why", "[SUBJECT]", 0, 1, LOOK_JOB, verb_why,
	 "what stands against a NODE, JOB, JOB:RANK or DEVICE, why, and what was decided", NULL},
	{"clear", "SUBJECT", 1, 1, DEED_JOB, verb_clear,
	 "say that a NODE, JOB, JOB:RANK or DEVICE is well again: verdicts and marks go", NULL},
	{"drain", "[REASON]", 0, 1, DEED, verb_drain,
	 "what is newest to disk, and no new runs on this node", NULL},
	{"undrain", "[REASON]", 0, 1, DEED, verb_undrain, "new runs again", NULL},
	{"policy", "[CLASS CAUSE [SUBJECT]]", 0, 3, DEED | BIT(DRY_RUN), verb_policy,
	 "what is done about verdicts, or would be about this one", NULL},
	{"goodput", "JOB", 1, 1, LOOK_JOB, verb_goodput,
	 "what its time went to, and how often it should save", NULL},
	{"safe", "JOB", 1, 1, DEED_JOB, verb_safe,
	 "what of it survives if a process, ckptd, the node or the power goes now", NULL},
	{"token", "JOB", 1, 1, DEED_JOB, verb_token, "what another user opens the job with", NULL},
	{"rebuild", "", 0, 0, LOOK, verb_rebuild, "make the index anew from the files", NULL},
	{0},
};

const struct verb *verb_find(const char *name)
{
	for (const struct verb *v = verb_table; v->name; v++)
		if (strcmp(v->name, name) == 0)
			return v;
	return NULL;
}

/* ---- For people ---- */

static void print_option(FILE *f, const struct option_entry *o)
{
	int n = fprintf(f, "  %c%c%s--%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ',
			o->letter ? ", " : "  ", o->name, o->argument ? " " : "",
			o->argument ? o->argument : "");

	fprintf(f, "%*s %s\n", n < 26 ? 26 - n : 0, "", o->help);
}

void print_help(FILE *f)
{
	fputs("usage: ckptctl VERB [ARGUMENTS] [OPTIONS]\n\n", f);
	for (const struct verb *v = verb_table; v->name; v++)
		fprintf(f, "  %-10s %-26s %s\n", v->name, v->arguments, v->help);
	fputs("\noptions:\n", f);
	for (int i = 0; i < OPTIONS; i++)
		print_option(f, &option_table[i]);
	fputs("\n"
	      "ckptd is found by --socket, CKPT_SOCKET, $XDG_RUNTIME_DIR/ckptd.sock or\n"
	      "/run/ckptd/ckptd.sock. Exit status: 0 fine, 1 a problem was found, 2 usage error "
	      "or\n"
	      "not known. ckptctl(1) says more.\n",
	      f);
}

void print_verb_help(FILE *f, const struct verb *v)
{
	fprintf(f, "usage: ckptctl %s%s%s%s%s [OPTIONS]\n\n%s\n\noptions:\n", v->name,
		v->arguments[0] ? " " : "", v->arguments, v->needs ? " " : "",
		v->needs ? v->needs : "", v->help);
	for (int i = 0; i < OPTIONS; i++)
		if (v->options & (1ull << i))
			print_option(f, &option_table[i]);
}

/* ---- For bash ---- */

static const char completion_head[] =
	"# bash completion for ckptctl; made by 'ckptctl --completion' from its table of verbs\n"
	"_ckptctl()\n"
	"{\n"
	"\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
	"\tlocal verb= opts= want= i\n"
	"\tlocal -a from=() args=()\n"
	"\tCOMPREPLY=()\n"
	"\tcase $prev in\n";

static const char completion_words[] =
	"\tesac\n"
	"\tfor ((i = 1; i < COMP_CWORD; i++)); do\n"
	"\t\tcase ${COMP_WORDS[i]} in\n"
	"\t\t--socket|--data) from+=(\"${COMP_WORDS[i]}\" \"${COMP_WORDS[i+1]}\"); ((i++)) ;;\n";

static const char completion_verbs[] =
	"\t\t-*) ;;\n"
	"\t\t*)\n"
	"\t\t\tif [ -z \"$verb\" ]; then\n"
	"\t\t\t\tverb=${COMP_WORDS[i]}\n"
	"\t\t\telse\n"
	"\t\t\t\targs+=(\"${COMP_WORDS[i]}\")\n"
	"\t\t\tfi ;;\n"
	"\t\tesac\n"
	"\tdone\n"
	"\tcase $verb in\n";

static const char completion_tail[] =
	"\tesac\n"
	"\tcase $cur in\n"
	"\t-*) COMPREPLY=($(compgen -W \"$opts\" -- \"$cur\")); return ;;\n"
	"\tesac\n"
	"\tcase $want:${#args[@]} in\n"
	"\tverb:*) ;;\n"
	"\tfile:0|layout:0) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n";

static const char completion_jobs[] =
	"\tjob*:0|layout:1|policy:2|sides:*) opts=$(\"$1\" -q status \"${from[@]}\" 2>/dev/null) "
	";;\n"
	"\tjob-step:1|job-steps:*)\n"
	"\t\topts=$(\"$1\" -q list \"${args[0]}\" \"${from[@]}\" 2>/dev/null) ;;\n"
	"\tlayout:2) opts=$(\"$1\" -q list \"${args[1]}\" \"${from[@]}\" 2>/dev/null) ;;\n"
	"\t*) return ;;\n"
	"\tesac\n"
	"\tCOMPREPLY=($(compgen -W \"$opts\" -- \"$cur\"))\n"
	"}\n"
	"complete -F _ckptctl ckptctl\n";

static void print_option_words(FILE *f, uint64_t options)
{
	for (int i = 0; i < OPTIONS; i++)
		if (options & (1ull << i))
			fprintf(f, " --%s", option_table[i].name);
}

static const char *wants(const struct verb *v)
{
	if (v->args_max == 0)
		return "none";
	if (v->run == verb_layout)
		return "layout";
	if (v->run == verb_import)
		return "file";
	if (v->run == verb_diff)
		return "sides";
	if (v->run == verb_xid)
		return "none";
	if (v->run == verb_policy)
		return "policy";
	if (v->args_max < 0)
		return "job-steps";
	return v->args_max > 1 ? "job-step" : "job";
}

/* Options with an argument: their words, or none. */
static void print_argument_cases(FILE *f)
{
	for (int i = 0; i < OPTIONS; i++) {
		const struct option_entry *o = &option_table[i];

		if (o->words)
			fprintf(f, "\t--%s) COMPREPLY=($(compgen %s -- \"$cur\")); return ;;\n",
				o->name, o->words);
		else if (o->argument)
			fprintf(f, "\t--%s) return ;;\n", o->name);
	}
}

/* A verdict, for the policy. */
static void print_verdict_cases(FILE *f)
{
	fputs("\tpolicy:0) opts=\"", f);
	for (unsigned i = 0; i < CLASS_COUNT; i++)
		fprintf(f, "%s%s", i ? " " : "", verdict_class_word((enum verdict_class)i));
	fputs("\" ;;\n\tpolicy:1) opts=\"", f);
	for (unsigned i = 0; i < CAUSE_COUNT; i++)
		fprintf(f, "%s%s", i ? " " : "", verdict_cause_word((enum verdict_cause)i));
	fputs("\" ;;\n", f);
}

void print_completion(FILE *f)
{
	fputs(completion_head, f);
	print_argument_cases(f);
	fputs(completion_words, f);
	for (int i = 0; i < OPTIONS; i++)
		if (option_table[i].argument && !option_table[i].words)
			fprintf(f, "\t\t--%s) ((i++)) ;;\n", option_table[i].name);
	fputs(completion_verbs, f);
	fputs("\t'') want=verb opts=\"", f);
	for (const struct verb *v = verb_table; v->name; v++)
		fprintf(f, "%s ", v->name);
	fputs("--help --version\" ;;\n", f);
	for (const struct verb *v = verb_table; v->name; v++) {
		fprintf(f, "\t%s) want=%s opts=\"", v->name, wants(v));
		print_option_words(f, v->options);
		fputs("\" ;;\n", f);
	}
	fputs(completion_tail, f);
	print_verdict_cases(f);
	fputs(completion_jobs, f);
}
