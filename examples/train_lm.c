/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_lm.c - a tiny language model in plain C that goes on where it was killed: tutorial for
 * ckpt.h. cc train_lm.c $(pkg-config --cflags --libs libckpt) -lm
 *
 *   ckptd --user &
 *   ./train_lm 2000 &  kill -9 $!  ./train_lm 2000     continues; nothing is lost but the last
 * steps
 *
 * The model: logits of the next byte = W[last byte]; softmax; plain gradient descent. The text:
 * the GPL in /usr/share/common-licenses, on every Debian system. RANK and WORLD_SIZE may be set:
 * each rank then holds its rows of W, which shows sharding, and learns from bytes that they
 * predict.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt.h>

#define VOCABULARY 256
#define TEXT "/usr/share/common-licenses/GPL-3"

struct trainer {
	float *weights;             /* rows [first, first + rows) of 256 x 256 */
	uint64_t first, rows, cursor; /* cursor: next position in the text */
	unsigned char *text;
	size_t text_len;
};

/* Every call of ckpt.h that fails has one sentence to say. */
static int complain(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, ckpt_last_error(NULL));
	return 1;
}

static int read_text(struct trainer *t)
{
	FILE *f = fopen(TEXT, "rb");

	t->text = malloc(1 << 20);
	t->text_len = f && t->text ? fread(t->text, 1, 1 << 20, f) : 0;
	if (f)
		fclose(f);
	return t->text_len > 2 ? 0 : -1;
}

static double train_step(struct trainer *t)
{
	double loss = 0;
	int n = 0;

	for (int i = 0; i < 256; i++, t->cursor++) {
		unsigned char from = t->text[t->cursor % (t->text_len - 1)];
		unsigned char to = t->text[t->cursor % (t->text_len - 1) + 1];
		float p[VOCABULARY], sum = 0, *row;

		if (from < t->first || from >= t->first + t->rows)
			continue;
		row = t->weights + (from - t->first) * VOCABULARY;
		for (int k = 0; k < VOCABULARY; k++)
			sum += p[k] = expf(row[k]);
		for (int k = 0; k < VOCABULARY; k++)
			row[k] -= 0.5f * (p[k] / sum - (k == to));
		loss -= log(p[to] / sum);
		n++;
	}
	return n ? loss / n : 0;
}

/* What the state is, once: this rank's rows of one 256 x 256 tensor. */
static int declare(struct ckpt *c, const struct trainer *t)
{
	struct ckpt_tensor w = {
		.size = sizeof(w),
		.name = "weights",
		.dtype = CKPT_F32,
		.ndim = 2,
		.global_shape = (uint64_t[]){ VOCABULARY, VOCABULARY },
		.offset = (uint64_t[]){ t->first, 0 },
		.shape = (uint64_t[]){ t->rows, VOCABULARY },
		.flags = CKPT_TRAINED,
	};

	return ckpt_declare(c, &w);
}

static int load(struct ckpt *c, struct trainer *t, const struct ckpt_binding *where, uint64_t *step)
{
	struct ckpt_load_args args = { .size = sizeof(args), .step = CKPT_LATEST, .tensors = where,
				       .n_tensors = 1, .timeout_ms = CKPT_DEFAULT_TIMEOUT };
	struct ckpt_loaded got = { .size = sizeof(got) };
	const void *cursor;
	uint64_t len;
	int r = ckpt_load(c, &args, &got);

	if (r < 0 || r & CKPT_NOTHING)
		return r;
	r = ckpt_blob_get(c, "cursor", &cursor, &len);
	if (r < 0 || len != sizeof(t->cursor))
		return -1;
	memcpy(&t->cursor, cursor, sizeof(t->cursor));
	*step = got.step;
	printf("going on from step %" PRIu64 ", read from %s\n", got.step,
	       got.tier == CKPT_TIER_MEMORY ? "memory" : "disk");
	return 0;
}

static int save(struct ckpt *c, const struct trainer *t, const struct ckpt_binding *where,
		uint64_t step)
{
	struct ckpt_blob cursor = { "cursor", &t->cursor, sizeof(t->cursor) };
	struct ckpt_save_args args = {
		.size = sizeof(args), .step = step, .tensors = where, .n_tensors = 1,
		.blobs = &cursor, .n_blobs = 1, .timeout_ms = CKPT_DEFAULT_TIMEOUT,
	};

	return ckpt_save(c, &args); /* CKPT_SKIPPED is no failure: the next one will do */
}

static int is_number(const char *text, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	return text[0] >= '0' && text[0] <= '9' && !*end && !errno && *ret > 0;
}

int main(int argc, char **argv)
{
	uint64_t steps = 1000, step = 0, saved;
	struct trainer t = { 0 };
	struct ckpt *c;
	int r;

	if (argc > 2 || (argc == 2 && !is_number(argv[1], &steps))) {
		fprintf(stderr, "usage: train_lm [STEPS]   a number from 1; 1000 without it\n");
		return 2;
	}

	setvbuf(stdout, NULL, _IOLBF, 0); /* lines are seen when they are printed, in a pipe too */
	/* Rank and world come from the environment; without one, a job of one rank. */
	setenv("RANK", "0", 0);
	setenv("WORLD_SIZE", "1", 0);
	if (ckpt_open("train_lm_c", CKPT_FROM_ENV, CKPT_FROM_ENV, NULL, &c) < 0)
		return complain("open");
	t.first = (uint64_t)(VOCABULARY * ckpt_rank(c) / ckpt_world(c));
	t.rows = (uint64_t)(VOCABULARY * (ckpt_rank(c) + 1) / ckpt_world(c)) - t.first;
	t.weights = calloc(t.rows * VOCABULARY, sizeof(float));
	if (!t.weights || read_text(&t) < 0) {
		fprintf(stderr, "cannot read %s\n", TEXT);
		return 1;
	}
	struct ckpt_binding where = { .ptr = t.weights, .device = CKPT_HOST, .dtype = CKPT_F32,
				      .bytes = t.rows * VOCABULARY * sizeof(float) };
	/* Memory for saves is made behind the load, while the first steps are trained. */
	if (declare(c, &t) < 0)
		return complain("declare");
	if (load(c, &t, &where, &step) < 0)
		return complain("load");
	saved = step;
	while (step < steps) {
		/* Ranks of this model do not wait for each other: no CKPT_PHASE_SYNC to mark. */
		struct ckpt_beat beat = { .size = sizeof(beat), .flags = CKPT_BEAT_LOSS };

		beat.loss = train_step(&t);
		beat.step = ++step;
		ckpt_beat(c, &beat); /* for ckptd's failure detector; no system call */
		if (step % 100 && ckpt_should_save(c, step) <= 0)
			continue;
		printf("step %" PRIu64 " loss %.6f\n", step, beat.loss);
		r = save(c, &t, &where, step);
		saved = r == CKPT_OK ? step : saved;
		if (r < 0) /* training goes on: a failed save harms nothing that was saved */
			complain("save");
	}
	r = ckpt_wait(c, saved, CKPT_DURABLE, 10000, NULL);
	if (r < 0 && r != CKPT_ENOTFOUND)
		complain("wait");
	ckpt_close(c);
	free(t.weights);
	free(t.text);
	return 0;
}
