/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tests/sim/byte_table.h"

#include "base/alloc.h"
#include "model/declaration.h"

int byte_table(struct rank_table_parts parts, void **ret, size_t *ret_len)
{
	struct declaration_builder *b = NULL;
	uint64_t len = parts.image_len;
	struct shard t = {.name = "w",
			  .name_len = 1,
			  .dtype = CKPT_U8,
			  .global = {1, {len}},
			  .box = {1, {0}, {len}},
			  .bytes = len};
	void *declaration = NULL;
	int r = declaration_builder_new(parts.geometry, &b);

	if (r == 0)
		r = declaration_add(b, &t, NULL);
	if (r >= 0)
		r = declaration_finish(b, &declaration, &parts.declaration_len, NULL);
	declaration_builder_free(b);
	if (r == 0) {
		parts.declaration = declaration;
		r = rank_table_build(&parts, ret, ret_len, NULL);
	}
	alloc_free(declaration);
	return r;
}
