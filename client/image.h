/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.h - from bindings into a slot's image: copy, compare, samples.
 */
#ifndef CLIENT_IMAGE_H
#define CLIENT_IMAGE_H

#include "client/client.h"

#define SAMPLES_MAX	 64 /* tensors sampled */
#define SAMPLE_PIECES	 4
#define SAMPLE_BYTES_MAX (4u << 10)
#define SCRATCH_BYTES	 (256u << 10)

/* Makes every device that a binding names usable. Caller's thread. */
MUST_CHECK int image_devices(struct ckpt *c, const struct wanted *w, const struct ckpt_binding *b,
			     struct err *e);
/* Copies all bindings to their places. Any thread, with devices usable. */
MUST_CHECK int image_fill(struct ckpt *c, const struct ckpt_binding *b, uint8_t *image,
			  struct err *e);
/* 0: every byte of the bindings is in the image; CKPT_ETORN names the tensor that differs.
 * scratch: SCRATCH_BYTES. */
MUST_CHECK int image_compare(struct ckpt *c, const struct ckpt_binding *b, const uint8_t *image,
			     uint8_t *scratch, struct err *e);

/* Digests of parts of the bindings, to find out whether they change. */
struct image_samples {
	struct digest digest[SAMPLES_MAX * SAMPLE_PIECES];
	uint32_t n;
};
MUST_CHECK int image_sample(struct ckpt *c, const struct ckpt_binding *b, uint8_t *scratch,
			    struct image_samples *ret, struct err *e);
/* 0, or CKPT_ETORN: bindings or image are no longer what was sampled. */
MUST_CHECK int image_samples_check(struct ckpt *c, const struct ckpt_binding *b,
				   const uint8_t *image, uint8_t *scratch,
				   const struct image_samples *samples, struct err *e);

/* Packed bytes [at, at + len) of w's shard i from its binding into out. */
MUST_CHECK int image_read(struct ckpt *c, const struct wanted *w, uint32_t i,
			  const struct ckpt_binding *b, uint64_t at, uint8_t *out, size_t len,
			  struct err *e);
/* All packed bytes of w's shard i to its binding, which is device memory. */
MUST_CHECK int image_write(struct ckpt *c, const struct wanted *w, uint32_t i,
			   const struct ckpt_binding *b, const uint8_t *packed, struct err *e);

#endif
