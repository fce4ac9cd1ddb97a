/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reads.c - what a load under another layout reads: real ckptd, all ranks at once, each a
 * process with libckpt, bytes counted by the kernel (read_bytes of /proc/self/io). Row D2
 * of doc/features.md.
 *
 * For every pair of layouts: every element is right; what all ranks read from the device together
 * is at most 1.05 x what the node wants + two leaves for each contiguous piece of it; it is no more
 * than the files hold: once; afterwards the page cache has nothing of them. What the node wants is
 * worked out element by element, from the layouts alone.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "ckpt.h"
#include "tests/lib/rig.h"

#define LEAF       65536u
/* Blocks of the file system's own that are read beside those of the files, as it may have let go of
 * where a file's extents are: far less than a leaf, which is the least that is read twice. */
#define OTHERS     (4 * 4096u)
#define RANKS_MAX  8
#define SHARDS_MAX 24
#define STEP       10

/* ---- The state ---- */

static const struct tensor {
	const char *name;
	int dtype;
	uint64_t bytes; /* of an element */
	int ndim;
	uint64_t dim[3];
} tensors[] = {
	{"bias", CKPT_F32, 4, 1, {40001}},
	{"conv", CKPT_U8, 1, 3, {5, 300, 611}},
	{"embedding", CKPT_BF16, 2, 2, {3001, 769}},
	{"layers.0.weight", CKPT_F32, 4, 2, {512, 640}},
	{"layers.1.weight", CKPT_F32, 4, 2, {512, 640}},
	{"layers.2.weight", CKPT_F32, 4, 2, {512, 640}},
	{"layers.3.weight", CKPT_F32, 4, 2, {512, 640}},
	{"moment", CKPT_F64, 8, 2, {640, 200}},
	{"scale", CKPT_F64, 8, 0, {0}},
};
#define TENSORS (sizeof(tensors) / sizeof(tensors[0]))

static uint64_t elements_of(const struct tensor *t)
{
	uint64_t n = 1;

	for (int k = 0; k < t->ndim; k++)
		n *= t->dim[k];
	return n;
}

/* The element's bytes follow from where it is. */
static uint64_t value_of(size_t tensor, uint64_t element)
{
	uint64_t x = (tensor + 1) * 0x9e3779b97f4a7c15u + element * 0xbf58476d1ce4e5b9u;

	return (x ^ (x >> 29)) * 0x94d049bb133111ebu >> 7;
}

/* ---- Layouts ---- */

enum kind { FIRST, LAST, REPLICATED, FLAT, GRID, GATED, DEALT, MIXED, KINDS };
static const char *const kind_names[KINDS] = {
	"first", "last", "replicated", "flat", "grid", "gated", "dealt", "mixed",
};

struct layout {
	enum kind kind;
	int world;
	int of; /* ranks that the state is cut for: the others would be on another node */
};

/* A box of a tensor, or elements [start, stop) of it. */
struct part {
	size_t tensor;
	bool flat;
	uint64_t offset[3], shape[3], start, stop;
};

static struct part whole(size_t tensor)
{
	struct part p;

	memset(&p, 0, sizeof(p)); /* parts are compared byte by byte */
	p.tensor = tensor;
	memcpy(p.shape, tensors[tensor].dim, sizeof(p.shape));
	return p;
}

/* Part i of n of dimension k. */
static struct part cut(struct part p, int k, int i, int n)
{
	uint64_t lo = p.shape[k] * (uint64_t)i / (uint64_t)n;
	uint64_t hi = p.shape[k] * ((uint64_t)i + 1) / (uint64_t)n;

	p.offset[k] += lo;
	p.shape[k] = hi - lo;
	return p;
}

static int cut_tensor(enum kind kind, size_t tensor, int rank, int world, struct part *out)
{
	const struct tensor *t = &tensors[tensor];
	struct part p = whole(tensor), half;

	switch (t->ndim == 0 ? REPLICATED : kind) {
	case FIRST:
		*out = cut(p, 0, rank, world);
		return 1;
	case LAST:
		*out = cut(p, t->ndim - 1, rank, world);
		return 1;
	case FLAT:
		p.flat = true;
		p.start = elements_of(t) * (uint64_t)rank / (uint64_t)world;
		p.stop = elements_of(t) * ((uint64_t)rank + 1) / (uint64_t)world;
		*out = p;
		return 1;
	case GRID:
		if (world % 2 || t->ndim < 2)
			return cut_tensor(FIRST, tensor, rank, world, out);
		*out = cut(cut(p, 0, rank / 2, world / 2), t->ndim - 1, rank % 2, 2);
		return 1;
	case GATED: /* both halves of the first dimension, cut each */
		for (int i = 0; i < 2; i++) {
			half = cut(p, 0, i, 2);
			out[i] = cut(half, 0, rank, world);
		}
		return 2;
	case DEALT:
		*out = p;
		return (int)(tensor % (size_t)world) == rank;
	case MIXED:
		return cut_tensor(tensor % 3 == 0   ? FIRST
				  : tensor % 3 == 1 ? LAST
						    : REPLICATED,
				  tensor, rank, world, out);
	case REPLICATED:
	case KINDS:
		break;
	}
	*out = p;
	return 1;
}

static int parts_of(const struct layout *l, int rank, struct part *out)
{
	int n = 0;

	for (size_t t = 0; t < TENSORS; t++)
		n += cut_tensor(l->kind, t, rank, l->of, out + n);
	assert(n <= SHARDS_MAX);
	return n;
}

/* Calls fn with the runs of consecutive elements of the whole tensor, in the order of the part. */
typedef void run_fn(void *arg, const struct part *p, uint64_t first, uint64_t n);
static void runs_of(const struct part *p, run_fn *fn, void *arg)
{
	const struct tensor *t = &tensors[p->tensor];
	uint64_t outer = 1, inner = 1, row;
	int last = t->ndim - 1;

	if (p->flat || t->ndim == 0) {
		if (!p->flat || p->stop > p->start)
			fn(arg, p, p->start, p->flat ? p->stop - p->start : 1);
		return;
	}
	for (int k = 0; k < last; k++)
		outer *= p->shape[k];
	for (uint64_t i = 0; i < outer && p->shape[last]; i++) {
		uint64_t rest = i, first = p->offset[last], stride = t->dim[last];

		for (int k = last; k-- > 0; stride *= t->dim[k]) {
			first += (rest % p->shape[k] + p->offset[k]) * stride;
			rest /= p->shape[k];
		}
		row = p->shape[last] * inner;
		fn(arg, p, first, row);
	}
}

static void add_run(void *arg, const struct part *p, uint64_t first, uint64_t n)
{
	(void)p;
	(void)first;
	*(uint64_t *)arg += n;
}

static uint64_t bytes_of(const struct part *p)
{
	uint64_t n = 0;

	runs_of(p, add_run, &n);
	return n * tensors[p->tensor].bytes;
}

/* ---- What the node wants ---- */

struct wanted {
	uint8_t *want[TENSORS]; /* by element: some rank wants it and no file before had it */
	uint64_t bytes, pieces;
	bool open; /* the last element of the image was wanted */
};

static void want_run(void *arg, const struct part *p, uint64_t first, uint64_t n)
{
	struct wanted *w = arg;

	memset(w->want[p->tensor] + first, 1, n);
}

static void take_run(void *arg, const struct part *p, uint64_t first, uint64_t n)
{
	struct wanted *w = arg;
	uint8_t *want = w->want[p->tensor];

	for (uint64_t i = first; i < first + n; i++) {
		if (want[i]) {
			w->bytes += tensors[p->tensor].bytes;
			w->pieces += !w->open;
		}
		w->open = want[i];
		want[i] = 0;
	}
}

static bool holds(const struct layout *l, int rank, const struct part *part)
{
	struct part parts[SHARDS_MAX];
	int n = parts_of(l, rank, parts);

	for (int i = 0; i < n; i++)
		if (memcmp(&parts[i], part, sizeof(*part)) == 0)
			return true;
	return false;
}

/*
 * What several ranks have stored is dealt to their files by windows of at least a 64th of what a
 * rank writes, and no less than a leaf: so many more pieces there are of it.
 */
static uint64_t windows_of(const struct layout *l, int rank, const struct part *part)
{
	uint64_t state = 0, window = LEAF;
	bool first = true, others = false;

	for (size_t t = 0; t < TENSORS; t++)
		state += elements_of(&tensors[t]) * tensors[t].bytes;
	while (window * 2 <= state / (uint64_t)l->of / 32)
		window *= 2;
	for (int i = 0; i < l->world; i++) {
		first = first && (i >= rank || !holds(l, i, part));
		others = others || (i > rank && holds(l, i, part));
	}
	return first && others ? bytes_of(part) / window + 1 : 0;
}

/* What several ranks have stored counts once: it is in the file of one of them. */
static struct wanted wanted_of(const struct layout *have, const struct layout *want)
{
	struct wanted w = {0};
	struct part parts[SHARDS_MAX];
	int n;

	for (size_t t = 0; t < TENSORS; t++)
		w.want[t] = calloc(1, elements_of(&tensors[t]));
	for (int rank = 0; rank < want->world; rank++) {
		n = parts_of(want, rank, parts);
		for (int i = 0; i < n; i++)
			runs_of(&parts[i], want_run, &w);
	}
	for (int rank = 0; rank < have->world; rank++) {
		n = parts_of(have, rank, parts);
		w.open = false;
		for (int i = 0; i < n; i++) {
			runs_of(&parts[i], take_run, &w);
			w.pieces += windows_of(have, rank, &parts[i]);
		}
	}
	for (size_t t = 0; t < TENSORS; t++)
		free(w.want[t]);
	return w;
}

/* ---- One rank, in a process of its own ---- */

struct rank {
	pid_t pid;
	int go, done; /* pipes */
};

struct result {
	int code;
	char text[200];
	uint64_t wanted, device;
};

struct memory {
	uint8_t *next;
	bool check, wrong;
};

static void fill_run(void *arg, const struct part *p, uint64_t first, uint64_t n)
{
	uint64_t size = tensors[p->tensor].bytes;
	struct memory *m = arg;

	for (uint64_t i = first; i < first + n; i++, m->next += size) {
		uint64_t v = value_of(p->tensor, i);

		if (m->check)
			m->wrong = m->wrong || memcmp(m->next, &v, size) != 0;
		else
			memcpy(m->next, &v, size);
	}
}

/* Bytes that this process has had read from devices. */
static uint64_t device_bytes(void)
{
	char line[80];
	unsigned long long n = 0;
	FILE *f = fopen("/proc/self/io", "re");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "read_bytes: %llu", &n) == 1)
			break;
	if (f)
		fclose(f);
	return n;
}

/* What runs here is in the page cache: a page of it that is missing would count as one of ours. */
static void warm_programs(void)
{
	char line[512], path[400], buf[65536];
	FILE *f = fopen("/proc/self/maps", "re");

	while (f && fgets(line, sizeof(line), f)) {
		bool file = sscanf(line, "%*s r-xp %*s %*s %*s %399[^\n]", path) == 1;
		int fd = file ? open(path, O_RDONLY | O_CLOEXEC) : -1;

		while (fd >= 0 && read(fd, buf, sizeof(buf)) > 0)
			;
		if (fd >= 0)
			close(fd);
	}
	if (f)
		fclose(f);
}

static int declare(struct ckpt *c, const struct part *p)
{
	const struct tensor *t = &tensors[p->tensor];
	struct ckpt_tensor ct = {
		.size = sizeof(ct),
		.name = t->name,
		.dtype = t->dtype,
		.ndim = t->ndim,
		.global_shape = t->dim,
		.offset = p->offset,
		.shape = p->shape,
		.start = p->start,
		.stop = p->stop,
		.flags = CKPT_TRAINED | (p->flat ? CKPT_FLAT : 0),
	};

	if (p->flat)
		ct.offset = ct.shape = NULL;
	return ckpt_declare(c, &ct);
}

struct trainer {
	struct ckpt *c;
	struct part parts[SHARDS_MAX];
	int n;
	struct ckpt_binding bindings[SHARDS_MAX];
};

static int begin(struct trainer *t, const struct rig *r, const char *job, const char *run,
		 const struct layout *l, int rank)
{
	struct ckpt_options o = {
		.size = sizeof(o), .run_id = run, .socket = r->socket, .connect_timeout_ms = 20000};
	int code = ckpt_open(job, rank, l->world, &o, &t->c);

	t->n = parts_of(l, rank, t->parts);
	for (int i = 0; i < t->n && code >= 0; i++) {
		const struct part *p = &t->parts[i];
		uint64_t bytes = bytes_of(p);

		t->bindings[i] = (struct ckpt_binding){.ptr = calloc(1, bytes + 1),
						       .device = CKPT_HOST,
						       .dtype = tensors[p->tensor].dtype,
						       .bytes = bytes};
		code = declare(t->c, p);
	}
	return code < 0 ? code : ckpt_prepare(t->c, 4096);
}

static bool each_element(struct trainer *t, bool check)
{
	struct memory m = {.check = check};

	for (int i = 0; i < t->n; i++) {
		m.next = t->bindings[i].ptr;
		runs_of(&t->parts[i], fill_run, &m);
	}
	return !m.wrong;
}

/* A tensor that went to another rank of as many is extra to a strict load: it is lenient. */
static int load(struct trainer *t, struct result *ret)
{
	struct ckpt_load_args a = {.size = sizeof(a),
				   .step = CKPT_LATEST,
				   .tensors = t->bindings,
				   .n_tensors = (size_t)t->n,
				   .timeout_ms = CKPT_DEFAULT_TIMEOUT,
				   .flags = CKPT_LENIENT};
	struct ckpt_loaded got = {.size = sizeof(got)};
	uint64_t before = device_bytes();
	int code = ckpt_load(t->c, &a, &got);

	ret->device = device_bytes() - before;
	ret->wanted = got.bytes;
	if (code >= 0 &&
	    (code & CKPT_PARTIAL || got.tier != CKPT_TIER_DISK || !each_element(t, true)))
		return -EBADMSG;
	return code;
}

static int save(struct trainer *t)
{
	struct ckpt_save_args a = {.size = sizeof(a),
				   .step = STEP,
				   .tensors = t->bindings,
				   .n_tensors = (size_t)t->n,
				   .timeout_ms = CKPT_DEFAULT_TIMEOUT,
				   .flags = CKPT_WAIT_CREDIT};
	struct ckpt_load_args nothing = {.size = sizeof(nothing),
					 .step = CKPT_LATEST,
					 .tensors = t->bindings,
					 .n_tensors = (size_t)t->n,
					 .timeout_ms = CKPT_DEFAULT_TIMEOUT};
	int code = ckpt_load(t->c, &nothing, NULL);

	each_element(t, false);
	if (code >= 0)
		code = ckpt_save(t->c, &a);
	return code < 0 ? code : ckpt_wait(t->c, STEP, CKPT_DURABLE, CKPT_DEFAULT_TIMEOUT, NULL);
}

static _Noreturn void be_rank(const struct rig *r, const char *job, const char *run,
			      const struct layout *l, int rank, bool saves, struct rank *self)
{
	static struct trainer t;
	struct result result = {0};
	char go = 1;

	result.code = begin(&t, r, job, run, l, rank);
	warm_programs();
	/* All are there before one begins. */
	if (write(self->done, &go, 1) != 1 || read(self->go, &go, 1) != 1)
		_exit(1);
	if (result.code >= 0)
		result.code = saves ? save(&t) : load(&t, &result);
	if (result.code < 0)
		snprintf(result.text, sizeof(result.text), "%s", ckpt_last_error(NULL));
	if (write(self->done, &result, sizeof(result)) != (ssize_t)sizeof(result) ||
	    read(self->go, &go, 1) != 1) /* nobody leaves before all have read */
		_exit(1);
	ckpt_close(t.c);
	_exit(0);
}

static void start_rank(struct rank *k, struct rig *r, const char *job, const char *run,
		       const struct layout *l, int rank, bool saves)
{
	struct rank self;
	int go[2], done[2];

	RIG_CHECK(pipe2(go, O_CLOEXEC) == 0 && pipe2(done, O_CLOEXEC) == 0, "pipes");
	k->pid = fork();
	RIG_CHECK(k->pid >= 0, "fork");
	if (k->pid == 0) {
		self = (struct rank){.go = go[0], .done = done[1]};
		close(go[1]);
		close(done[0]);
		be_rank(r, job, run, l, rank, saves, &self);
	}
	close(go[0]);
	close(done[1]);
	k->go = go[1];
	k->done = done[0];
}

/* All ranks of a layout do it at once; what they read from devices, and what each wanted. */
static struct result run_ranks(struct rig *r, const char *job, const char *run,
			       const struct layout *l, bool saves)
{
	struct rank ranks[RANKS_MAX];
	struct result sum = {0}, one;
	char byte = 1;

	assert(l->world <= RANKS_MAX);
	for (int i = 0; i < l->world; i++)
		start_rank(&ranks[i], r, job, run, l, i, saves);
	for (int i = 0; i < l->world; i++)
		RIG_CHECK(read(ranks[i].done, &byte, 1) == 1, "rank %d has died", i);
	for (int i = 0; i < l->world; i++)
		RIG_CHECK(write(ranks[i].go, &byte, 1) == 1, "rank %d has died", i);
	for (int i = 0; i < l->world; i++) {
		RIG_CHECK(read(ranks[i].done, &one, sizeof(one)) == (ssize_t)sizeof(one),
			  "rank %d has died", i);
		RIG_CHECK(one.code >= 0, "%s %d, rank %d: %d %s", kind_names[l->kind], l->world, i,
			  one.code, one.code == -EBADMSG ? "WRONG BYTES" : one.text);
		sum.wanted += one.wanted;
		sum.device += one.device;
	}
	for (int i = 0; i < l->world; i++) {
		RIG_CHECK(write(ranks[i].go, &byte, 1) == 1, "rank %d has died", i);
		RIG_CHECK(waitpid(ranks[i].pid, NULL, 0) == ranks[i].pid, "wait for rank %d", i);
		close(ranks[i].go);
		close(ranks[i].done);
	}
	return sum;
}

/* ---- The files ---- */

/* Bytes of the job's files, and how many of them are in the page cache. */
static uint64_t files_of(const struct rig *r, uint64_t *ret_cached)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), total = 0;
	char pattern[256];
	glob_t g;

	*ret_cached = 0;
	snprintf(pattern, sizeof(pattern), "%s/jobs/*/*/rank-*.shard", r->data);
	RIG_CHECK(glob(pattern, 0, NULL, &g) == 0, "there are no files");
	for (size_t i = 0; i < g.gl_pathc; i++) {
		int fd = open(g.gl_pathv[i], O_RDONLY | O_CLOEXEC);
		struct stat st;
		uint8_t *in;
		void *at;

		RIG_CHECK(fd >= 0 && fstat(fd, &st) == 0, "open '%s'", g.gl_pathv[i]);
		at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
		in = calloc(1, (size_t)st.st_size / page + 1);
		RIG_CHECK(at != MAP_FAILED && mincore(at, (size_t)st.st_size, in) == 0, "mincore");
		for (uint64_t k = 0; k < div_up((uint64_t)st.st_size, page); k++)
			*ret_cached += in[k] & 1;
		total += (uint64_t)st.st_size;
		munmap(at, (size_t)st.st_size);
		free(in);
		close(fd);
	}
	globfree(&g);
	return total;
}

static bool forgotten(void *arg)
{
	uint64_t cached;

	files_of(arg, &cached);
	return cached == 0;
}

/* ---- Pairs ---- */

/* A test beside us that drops the page cache would have us read twice: it waits until this is
 * closed (tests/it/test_replicas.c). */
static int hold_caches(void)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);

	if (fd >= 0)
		RIG_CHECK(flock(fd, LOCK_SH) == 0, "flock: %s", strerror(errno));
	return fd;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double pair(struct rig *r, const struct layout *have, const struct layout *want, int number)
{
	struct wanted w = wanted_of(have, want);
	int caches = hold_caches();
	uint64_t cached, files = files_of(r, &cached), bound;
	char run[32], what[100];
	struct result got;

	snprintf(what, sizeof(what), "%s %d -> %s %d of %d", kind_names[have->kind], have->world,
		 kind_names[want->kind], want->world, want->of);
	snprintf(run, sizeof(run), "load%d", number);
	got = run_ranks(r, "job", run, want, false);
	bound = w.bytes + w.bytes / 20 + 2 * LEAF * w.pieces;
	RIG_CHECK(got.device <= bound,
		  "%s: %llu bytes read, %llu wanted in %llu pieces: at most "
		  "%llu",
		  what, (unsigned long long)got.device, (unsigned long long)w.bytes,
		  (unsigned long long)w.pieces, (unsigned long long)bound);
	RIG_CHECK(got.device <= files + OTHERS, "%s: %llu bytes read of %llu: some twice", what,
		  (unsigned long long)got.device, (unsigned long long)files);
	/* Else nothing was measured. */
	RIG_CHECK(got.device >= w.bytes, "%s: %llu bytes read, %llu wanted", what,
		  (unsigned long long)got.device, (unsigned long long)w.bytes);
	rig_wait(forgotten, r, "the page cache has nothing of the files any more");
	if (caches >= 0)
		close(caches);
	return (double)got.device / (double)w.bytes;
}

static const struct layout targets[] = {
	{FIRST, 1, 1}, {FIRST, 3, 3},      {FIRST, 4, 4}, {LAST, 2, 2},  {LAST, 4, 4},
	{FLAT, 2, 2},  {FLAT, 3, 3},       {GRID, 4, 4},  {GATED, 2, 2}, {GATED, 4, 4},
	{DEALT, 3, 3}, {REPLICATED, 3, 3}, {MIXED, 2, 2}, {MIXED, 4, 4}, {FIRST, 2, 5},
	{LAST, 2, 4},  {FLAT, 3, 7},       {GRID, 2, 4},  {GATED, 2, 5}, {DEALT, 2, 5},
	{FIRST, 1, 9}, {GATED, 3, 8},
};
#define TARGETS (sizeof(targets) / sizeof(targets[0]))

static void from(struct rig *r)
{
	const struct layout *have = r->arg;
	double ratios[TARGETS];
	struct statfs fs;
	uint64_t cached;

	rig_start(r);
	run_ranks(r, "job", "save", have, true);
	rig_kill_all(r);
	rig_start(r);
	if (access("/proc/self/io", R_OK) != 0 || statfs(r->data, &fs) != 0 ||
	    fs.f_type == TMPFS_MAGIC)
		rig_skip("what a process reads from a device is not counted here");
	files_of(r, &cached);
	RIG_CHECK(cached == 0, "what was saved is in the page cache: %llu pages",
		  (unsigned long long)cached);
	for (size_t i = 0; i < TARGETS; i++)
		ratios[i] = pair(r, have, &targets[i], (int)i);
	qsort(ratios, TARGETS, sizeof(ratios[0]), compare);
	rig_note("%s %d -> %zu layouts: read / wanted min %.3f median %.3f p90 %.3f max %.3f",
		 kind_names[have->kind], have->world, TARGETS, ratios[0], ratios[TARGETS / 2],
		 ratios[TARGETS * 9 / 10], ratios[TARGETS - 1]);
}

int main(int argc, char **argv)
{
	static const struct layout have[] = {
		{FIRST, 2, 2},      {FIRST, 3, 3}, {LAST, 2, 2},  {LAST, 4, 4},  {FLAT, 3, 3},
		{REPLICATED, 2, 2}, {GRID, 4, 4},  {GATED, 3, 3}, {DEALT, 2, 2}, {MIXED, 4, 4},
	};
	struct rig_test tests[sizeof(have) / sizeof(have[0])];
	static char names[sizeof(have) / sizeof(have[0])][32];

	for (size_t i = 0; i < sizeof(have) / sizeof(have[0]); i++) {
		snprintf(names[i], sizeof(names[i]), "%s_%d", kind_names[have[i].kind],
			 have[i].world);
		tests[i] = (struct rig_test){names[i], from, &have[i]};
	}
	return rig_run(tests, sizeof(have) / sizeof(have[0]), 2, argc, argv);
}
