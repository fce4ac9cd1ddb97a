/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that claim to be ckptd's configuration: as a file, and line by line as settings of the
 * command line. What is accepted is printed as a file that says the same, and what is refused is
 * refused in words.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckptd/config.h"

#define LINE_MAX_BYTES 197 /* of a file */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int read_config(const void *bytes, size_t len, struct config *c)
{
	int fd = memfd_create("config", MFD_CLOEXEC);
	struct err e = {0};
	char path[64];
	int r;

	assert(fd >= 0 && write(fd, bytes, len) == (ssize_t)len);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	r = config_file(c, path, true, &e);
	close(fd);
	assert(r == 0 || (e.code == r && e.text[0]));
	if (r == 0)
		r = config_check(c, &e);
	return r;
}

static char *print(const struct config *c, size_t *ret_len)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, ret_len);

	assert(f);
	config_print(c, f);
	assert(fclose(f) == 0);
	return text;
}

static void same_when_printed(const struct config *c)
{
	struct config again;
	size_t len, len_again;
	char *text = print(c, &len), *text_again;
	char differs[2048];

	if (strlen(c->data) > LINE_MAX_BYTES - strlen("data = ")) {
		free(text);
		return;
	}
	config_default(&again);
	assert(read_config(text, len, &again) == 0);
	text_again = print(&again, &len_again);
	assert(len == len_again && memcmp(text, text_again, len) == 0);
	config_needs_restart(c, &again, differs, sizeof(differs));
	assert(!differs[0]);
	free(text);
	free(text_again);
}

static void as_settings(const uint8_t *data, size_t size)
{
	char line[512];
	struct config c;
	struct err e = {0};

	config_default(&c);
	while (size > 0) {
		const uint8_t *end = memchr(data, '\n', size);
		size_t len = end ? (size_t)(end - data) : size;
		size_t used = len < sizeof(line) - 1 ? len : sizeof(line) - 1;
		int r;

		memcpy(line, data, used);
		line[used] = '\0';
		r = config_assign(&c, line, &e);
		assert(r == 0 || e.text[0]);
		len += end != NULL;
		data += len;
		size -= len;
	}
	if (config_check(&c, &e) == 0)
		same_when_printed(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config c;

	config_default(&c);
	if (read_config(data, size, &c) == 0)
		same_when_printed(&c);
	as_settings(data, size);
	return 0;
}
