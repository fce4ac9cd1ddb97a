/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_nvml.c - GPUs, as NVIDIA's management library sees them: errors as they happen (events),
 * the recovery action that the driver asks for, ECC counters, load, power, clocks, temperature,
 * traffic of NVLink; and while somebody asks about processes, what these use (gpu_use.h).
 *
 *   1. The library is looked for at run time (libnvidia-ml.so.1, or CKPT_LIBNVIDIA_ML), and every
 *      function but those that find GPUs may be missing in it: what it cannot say stays unknown.
 *   2. A GPU keeps its number by its PCI address, also when the driver was unloaded in between.
 *   3. A SAMPLE_NVML is made for each event, and where something has changed since the last one.
 *   4. It measures each half of an interval, as waiting for events puts that off by up to a
 *      quarter: what is measured once an interval and told once in one is missing now and then.
 *
 * Failure modes: a GPU that is lost is said to be unavailable, the others are read on. A driver
 * that was unloaded or replaced is opened anew, at most every REOPEN_NS. A call that hangs holds up
 * this source's thread and nothing else. Events come late by WAIT_MS at most, and only the last
 * one of several that came together: the kernel's messages have all of them.
 */
#include <config.h>

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/collect_source.h"
#include "ckptd/nvml.h"
#include "detect/kernel_line.h"

#define LIBRARY   "libnvidia-ml.so.1"
#define SECOND    1000000000ull
#define REOPEN_NS (30 * SECOND)
#define GPUS_MAX  64
enum { WAIT_MS = 150, EVENTS_AT_ONCE = 64 };

struct gpu {
	char address[PCI_ADDRESS_MAX];
	nvml_gpu_t handle; /* NULL: not there now */
	bool told, said;   /* its name; a SAMPLE_NVML */
	bool reported;     /* an event said that it is unavailable */
	uint64_t reported_ns;
	bool unavailable;
	enum gpu_recovery recovery;
	uint64_t corrected, uncorrected;
	uint64_t nvlink_kib, nvlink_ns; /* 0: not read yet */
	struct gpu_seen seen;
};

struct gpus {
	const struct collect_config *config;
	void *dl;
	struct nvml_library nvml;
	nvml_set_t set; /* NULL: it tells no events */
	bool open, broken;
	bool blind;     /* the last look at processes found nothing */
	struct err why; /* it is not open */
	uint64_t opened_ns, polled_ns, uses_ns;
	uint32_t n, listening;
	struct gpu gpu[GPUS_MAX];
};

/* ---- The library ---- */

static int load(struct gpus *g, struct collect_out *out)
{
	const char *given = getenv("CKPT_LIBNVIDIA_ML");
	const char *name = given && given[0] ? given : LIBRARY;
	int n = 0;

	g->dl = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!g->dl) {
		collect_state(out, "there is no '%.80s' here", name);
		return -ENOENT;
	}
#define X(member, symbol, parameters)                                                              \
	*(void **)&g->nvml.member = dlsym(g->dl, symbol);                                          \
	if (n++ < NVML_NEEDED && !g->nvml.member) {                                                \
		collect_state(out, "'%.80s' has no function %s", name, symbol);                    \
		return -ENOENT;                                                                    \
	}
	NVML_FUNCTIONS(X)
#undef X
	return 0;
}

/* (2) */
static struct gpu *gpu_at(struct gpus *g, const char *address)
{
	for (uint32_t i = 0; i < g->n; i++)
		if (strcmp(g->gpu[i].address, address) == 0)
			return &g->gpu[i];
	if (g->n == GPUS_MAX)
		return NULL;
	memcpy(g->gpu[g->n].address, address, PCI_ADDRESS_MAX);
	g->gpu[g->n].recovery = RECOVERY_UNKNOWN;
	return &g->gpu[g->n++];
}

static void find_gpus(struct gpus *g)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < g->n; i++)
		g->gpu[i].handle = NULL;
	if (g->nvml.count(&n) != NVML_OK)
		n = 0;
	for (unsigned i = 0; i < n && i < GPUS_MAX; i++) {
		struct nvml_pci pci = {.address = ""};
		char address[PCI_ADDRESS_MAX];
		nvml_gpu_t handle = NULL;
		struct gpu *one;

		if (g->nvml.handle(i, &handle) != NVML_OK || !handle ||
		    g->nvml.pci(handle, &pci) != NVML_OK ||
		    !pci_address(pci.address, strnlen(pci.address, sizeof(pci.address)), address,
				 NULL))
			continue;
		one = gpu_at(g, address);
		if (one)
			one->handle = handle;
	}
}

static void listen_to_events(struct gpus *g)
{
	const struct nvml_library *l = &g->nvml;

	g->set = NULL;
	g->listening = 0;
	if (!l->set_new || !l->listen || !l->wait || !l->set_free || l->set_new(&g->set) != NVML_OK)
		return;
	for (uint32_t i = 0; i < g->n; i++) {
		unsigned long long types = NVML_EVENT_XID | NVML_EVENT_UNAVAILABLE |
					   NVML_EVENT_RECOVERY,
				   has = 0;

		if (!g->gpu[i].handle)
			continue;
		if (l->supported && l->supported(g->gpu[i].handle, &has) == NVML_OK)
			types &= has;
		if (types && l->listen(g->gpu[i].handle, types, g->set) == NVML_OK)
			g->listening++;
	}
	if (g->listening > 0)
		return;
	l->set_free(g->set);
	g->set = NULL;
}

static void say_state(const struct gpus *g, struct collect_out *out)
{
	uint32_t there = 0;

	for (uint32_t i = 0; i < g->n; i++)
		there += g->gpu[i].handle != NULL;
	collect_state(out, "%u GPU%s%s%s", there, there == 1 ? "" : "s",
		      g->set ? "" : "; the driver tells no events",
		      g->blind ? "; the driver does not tell which processes use them" : "");
}

static int open_driver(struct gpus *g, uint64_t now_ns, struct collect_out *out, struct err *e)
{
	int r;

	g->opened_ns = now_ns;
	g->broken = false;
	r = g->nvml.init();
	if (r == NVML_DRIVER_NOT_LOADED) {
		collect_state(out, "the NVIDIA driver is not loaded");
		return -ENOENT;
	}
	if (r != NVML_OK)
		return err_set(e, -EIO,
			       "the NVIDIA driver's library cannot be initialised "
			       "(nvmlInit: %d): see dmesg, and whether driver and library are of "
			       "one version",
			       r);
	g->open = true;
	find_gpus(g);
	listen_to_events(g);
	say_state(g, out);
	return 0;
}

static void close_driver(struct gpus *g)
{
	if (!g->open)
		return;
	if (g->set)
		g->nvml.set_free(g->set);
	g->set = NULL;
	if (g->nvml.shutdown)
		g->nvml.shutdown();
	g->open = false;
}

static void close_nvml(void *state)
{
	struct gpus *g = state;

	close_driver(g);
	if (g->dl)
		dlclose(g->dl);
	alloc_free(g);
}

static int open_nvml(const struct collect_config *c, struct collect_out *out, void **ret,
		     struct err *e)
{
	struct gpus *g = alloc_zero(sizeof(*g));
	int r;

	if (!g)
		return err_code(e, -ENOMEM, "watch GPUs");
	g->config = c;
	r = load(g, out);
	if (r == 0)
		r = open_driver(g, 0, out, e);
	if (r == 0 && g->n == 0) {
		collect_state(out, "the NVIDIA driver knows no GPU");
		r = -ENOENT;
	}
	if (r < 0) {
		close_nvml(g);
		return r;
	}
	*ret = g;
	return 0;
}

/* ---- Looking at a GPU ---- */

static uint32_t number_of(const struct gpus *g, const struct gpu *one)
{
	return (uint32_t)(one - g->gpu);
}

static struct sample *add(struct gpus *g, struct gpu *one, struct collect_out *out)
{
	struct sample *s;

	if (!one->told)
		collect_name(out, number_of(g, one), 'g', one->address);
	one->told = one->said = true;
	s = collect_add(out, SAMPLE_NVML);
	s->device = number_of(g, one);
	s->nvml.recovery = one->recovery;
	s->nvml.unavailable = one->unavailable;
	s->nvml.corrected = one->corrected;
	s->nvml.uncorrected = one->uncorrected;
	return s;
}

static uint64_t field_value(const struct nvml_field *f)
{
	switch (f->type) {
	case 0:
		return f->value.d > 0 ? (uint64_t)f->value.d : 0;
	case 1:
		return f->value.u;
	case 2:
		return f->value.ul;
	case 6:
		return f->value.us;
	case 5:
		return f->value.i > 0 ? (uint64_t)f->value.i : 0;
	default:
		return f->value.ull;
	}
}

static bool field(struct gpus *g, struct gpu *one, unsigned id, uint64_t *ret)
{
	struct nvml_field f = {.id = id, .scope = id == NVML_FIELD_RECOVERY ? 0 : UINT32_MAX};

	if (!g->nvml.fields || g->nvml.fields(one->handle, 1, &f) != NVML_OK || f.result != NVML_OK)
		return false;
	*ret = field_value(&f);
	return true;
}

/* What a call's result says of the GPU, and of the driver. */
struct health {
	bool lost, reset;
};

static bool ok(struct gpus *g, struct health *h, int result)
{
	h->lost |= result == NVML_GPU_IS_LOST;
	h->reset |= result == NVML_RESET_REQUIRED;
	g->broken |= result == NVML_UNINITIALIZED || result == NVML_DRIVER_NOT_LOADED ||
		     result == NVML_VERSION_MISMATCH;
	return result == NVML_OK;
}

static void look_at_recovery(struct gpus *g, struct gpu *one, const struct health *h)
{
	uint64_t v;

	if (field(g, one, NVML_FIELD_RECOVERY, &v))
		one->recovery = v < RECOVERY_UNKNOWN ? (enum gpu_recovery)v : RECOVERY_UNKNOWN;
	else
		one->recovery = h->reset ? RECOVERY_RESET : RECOVERY_UNKNOWN;
}

static void look_at_ecc(struct gpus *g, struct gpu *one, struct health *h)
{
	unsigned long long n;

	for (int since = NVML_SINCE_EVER; g->nvml.ecc && since >= NVML_SINCE_DRIVER; since--) {
		if (!ok(g, h, g->nvml.ecc(one->handle, NVML_CORRECTED, since, &n)))
			continue;
		one->corrected = n;
		if (ok(g, h, g->nvml.ecc(one->handle, NVML_UNCORRECTED, since, &n)))
			one->uncorrected = n;
		return;
	}
}

/* Sums over the node's GPUs. */
struct sums {
	double busy, power, clock, temperature, nvlink;
	unsigned n_busy, n_power, n_clock, n_nvlink;
	bool hot;
};

static void look_at_load(struct gpus *g, struct gpu *one, struct health *h, struct sums *sums)
{
	const struct nvml_library *l = &g->nvml;
	struct nvml_use use;
	unsigned v;

	if (l->use && ok(g, h, l->use(one->handle, &use))) {
		sums->busy += use.gpu / 100.0;
		sums->n_busy++;
	}
	if (l->power && ok(g, h, l->power(one->handle, &v))) {
		sums->power += v / 1000.0;
		sums->n_power++;
	}
	if (l->clock && ok(g, h, l->clock(one->handle, NVML_CLOCK_SM, &v))) {
		sums->clock += v;
		sums->n_clock++;
	}
	if (l->temperature && ok(g, h, l->temperature(one->handle, NVML_TEMPERATURE_GPU, &v))) {
		sums->temperature = sums->hot && sums->temperature > v ? sums->temperature : v;
		sums->hot = true;
	}
}

/* Counted in KiB since the driver was loaded, of all links. */
static void look_at_nvlink(struct gpus *g, struct gpu *one, uint64_t now_ns, struct sums *sums)
{
	uint64_t sent, received, kib;

	if (!field(g, one, NVML_FIELD_NVLINK_TX, &sent) ||
	    !field(g, one, NVML_FIELD_NVLINK_RX, &received))
		return;
	kib = sent + received;
	if (one->nvlink_ns && kib >= one->nvlink_kib && now_ns > one->nvlink_ns) {
		sums->nvlink += (double)(kib - one->nvlink_kib) * 1024 * (double)SECOND /
				(double)(now_ns - one->nvlink_ns);
		sums->n_nvlink++;
	}
	one->nvlink_kib = kib;
	one->nvlink_ns = now_ns;
}

/* An event said that it is gone; it is there again when nothing speaks against it any more. */
static bool still_gone(struct gpu *one, const struct health *h, uint64_t now_ns)
{
	if (one->reported && !h->lost && now_ns - one->reported_ns >= 2 * SECOND &&
	    (one->recovery == RECOVERY_NONE || one->recovery == RECOVERY_UNKNOWN))
		one->reported = false;
	return h->lost || one->reported;
}

static void look_at(struct gpus *g, struct gpu *one, uint64_t now_ns, struct sums *sums,
		    struct collect_out *out)
{
	struct gpu before = *one;
	struct health h = {0};

	if (one->handle) {
		look_at_load(g, one, &h, sums);
		look_at_ecc(g, one, &h);
		look_at_recovery(g, one, &h);
		look_at_nvlink(g, one, now_ns, sums);
		one->unavailable = still_gone(one, &h, now_ns);
	}
	if (!one->said || one->recovery != before.recovery ||
	    one->unavailable != before.unavailable || one->corrected != before.corrected ||
	    one->uncorrected != before.uncorrected)
		add(g, one, out);
}

static void mean(struct collect_out *out, enum sample_metric m, double sum, unsigned n)
{
	if (n > 0)
		out->metrics[m] = (float)(sum / n);
}

static void look_at_all(struct gpus *g, uint64_t now_ns, struct collect_out *out)
{
	struct sums sums = {0};

	g->polled_ns = now_ns;
	for (uint32_t i = 0; i < g->n; i++)
		look_at(g, &g->gpu[i], now_ns, &sums, out);
	mean(out, METRIC_GPU_BUSY, sums.busy, sums.n_busy);
	mean(out, METRIC_GPU_POWER, sums.power, sums.n_power);
	mean(out, METRIC_GPU_CLOCK, sums.clock, sums.n_clock);
	if (sums.hot)
		out->metrics[METRIC_GPU_TEMPERATURE] = (float)sums.temperature;
	if (sums.n_nvlink > 0)
		out->metrics[METRIC_NVLINK] = (float)sums.nvlink;
}

/* For who is asked about; false: it is not time for it. */
static bool look_at_uses(struct gpus *g, uint64_t now_ns, struct collect_out *out)
{
	if (!g->config->probes || (g->uses_ns && now_ns - g->uses_ns < GPU_USES_EVERY_NS))
		return false;
	g->uses_ns = now_ns;
	out->uses = (struct gpu_uses){.at_ns = now_ns};
	for (uint32_t i = 0; i < g->n; i++)
		if (g->gpu[i].handle)
			gpu_uses_look(&out->uses, &g->nvml, g->gpu[i].handle, &g->gpu[i].seen);
	if (g->blind != out->uses.blind) {
		g->blind = out->uses.blind;
		say_state(g, out);
	}
	return true;
}

/* ---- Events ---- */

static void take_event(struct gpus *g, const struct nvml_event *ev, uint64_t now_ns,
		       struct collect_out *out)
{
	struct gpu *one = NULL;
	struct sample *s;

	for (uint32_t i = 0; i < g->n; i++)
		if (ev->gpu && g->gpu[i].handle == ev->gpu)
			one = &g->gpu[i];
	if (!one)
		return;
	if (ev->type & NVML_EVENT_UNAVAILABLE) {
		one->unavailable = one->reported = true;
		one->reported_ns = now_ns;
	}
	if (ev->type & NVML_EVENT_RECOVERY)
		look_at_recovery(g, one, &(struct health){0});
	s = add(g, one, out);
	if (ev->type & NVML_EVENT_XID && ev->data <= UINT32_MAX)
		s->nvml.xid = (uint32_t)ev->data;
}

static void wait_for_events(struct gpus *g, unsigned ms, uint64_t now_ns, struct collect_out *out)
{
	struct nvml_event ev = {0};
	struct health h = {0};
	int r = NVML_TIMEOUT;

	for (int i = 0; g->set && i < EVENTS_AT_ONCE; i++) {
		r = g->nvml.wait(g->set, &ev, i == 0 ? ms : 0);
		if (!ok(g, &h, r))
			break;
		take_event(g, &ev, now_ns, out);
	}
	if (!g->set || (r != NVML_OK && r != NVML_TIMEOUT))
		poll(NULL, 0, (int)ms); /* it may say so at once, again and again */
}

/* Says the same as long as it lasts, so that it is told once. */
static int not_open(struct gpus *g, struct err *e)
{
	*e = g->why;
	return g->why.code;
}

static int open_anew(struct gpus *g, uint64_t now_ns, struct collect_out *out, struct err *e)
{
	int r;

	if (now_ns - g->opened_ns < REOPEN_NS)
		return not_open(g, e);
	r = open_driver(g, now_ns, out, e);
	if (r < 0 && r != -ENOENT)
		g->why = *e;
	return r;
}

/* (4) */
static unsigned wait_ms(const struct gpus *g)
{
	uint64_t ms = g->config->interval_ns / 4000000;

	return ms < WAIT_MS ? (unsigned)ms : WAIT_MS;
}

static int read_nvml(void *state, uint64_t now_ns, struct collect_out *out, struct err *e)
{
	struct gpus *g = state;
	int r = g->open ? 0 : open_anew(g, now_ns, out, e);

	if (r < 0)
		return r;
	/* Each round of the collectors, one in an interval, is to find a measurement (4). */
	if (!g->polled_ns || now_ns - g->polled_ns >= g->config->interval_ns / 2)
		look_at_all(g, now_ns, out);
	/* What processes use is told before anything is waited for. */
	wait_for_events(g, look_at_uses(g, now_ns, out) ? 0 : wait_ms(g), now_ns, out);
	if (!g->broken)
		return 0;
	close_driver(g);
	g->opened_ns = now_ns;
	err_set(&g->why, -EIO,
		"the NVIDIA driver was unloaded or replaced; it is opened anew "
		"after %llu s",
		REOPEN_NS / SECOND);
	return not_open(g, e);
}

const struct collect_source collect_nvml = {
	.id = COLLECT_NVML,
	.waits = true,
	.open = open_nvml,
	.read = read_nvml,
	.close = close_nvml,
};
