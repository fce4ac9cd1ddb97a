/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sketch as another node may send it, its digest made to match: whatever is taken from it keeps
 * the rules of samples, so that a detector refuses none, and writing it again says the same.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "codec/digest.h"
#include "detect/detector.h"
#include "detect/options.h"
#include "detect/sketch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NOW UINT64_C(1000000000000)

static void sign(uint8_t *bytes, size_t len)
{
	struct digest_stream s;
	struct digest d;

	put_le32(bytes + 8, (uint32_t)(len - SKETCH_HEADER));
	digest_begin(&s);
	digest_update(&s, bytes, 48);
	digest_update(&s, bytes + SKETCH_HEADER, len - SKETCH_HEADER);
	d = digest_end(&s);
	memcpy(bytes + 48, d.b, sizeof(d.b));
}

/* What was read, written anew, is read as the same number of samples. */
static void again(struct sketch *k, const struct sketch_head *head, unsigned n_verdicts)
{
	struct sketch_reader r;
	struct writer w = {0};
	struct verdict v;
	struct sample s;
	enum sketch_got got;
	unsigned verdicts = 0;

	sketch_write(k, head, NOW, &w);
	assert(!w.bad && sketch_open(w.buf, w.len, 0, NOW, 0, &r, NULL) == 0);
	while ((got = sketch_next(&r, &s, &v)) != SKETCH_END)
		verdicts += got == SKETCH_VERDICT;
	assert(verdicts == n_verdicts && r.head.sequence == head->sequence);
	writer_free(&w);
}

static void take(const uint8_t *bytes, size_t len)
{
	struct detector_options o;
	struct detector_events events = {0};
	struct detector *d;
	struct sketch_reader r;
	struct sketch *k;
	struct verdict v;
	struct sample s;
	enum sketch_got got;
	unsigned n_verdicts = 0;

	if (sketch_open(bytes, len, 0, NOW, NOW / 2, &r, NULL) < 0)
		return;
	detector_options_default(&o);
	o.ranks_max = o.nodes_max = o.jobs_max = 16;
	if (detector_new(&o, NULL, &events, &d) < 0 || sketch_new(&k) < 0)
		abort();
	while ((got = sketch_next(&r, &s, &v)) != SKETCH_END) {
		if (got == SKETCH_SAMPLE) {
			int rc = detector_feed(d, &s);

			assert(rc == 0 || rc == -ENOMEM);
			ignore_result(sketch_add(k, &s)); /* too many: as at a sender */
		} else {
			n_verdicts += sketch_add_verdict(k, &v) == 0;
		}
	}
	again(k, &r.head, n_verdicts);
	sketch_free(k);
	detector_free(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t copy[8192];

	take(data, size); /* nearly always refused */
	if (size < SKETCH_HEADER || size > sizeof(copy))
		return 0;
	memcpy(copy, data, size);
	sign(copy, size);
	take(copy, size);
	return 0;
}
