/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.c - code and sentence of the last call that failed or skipped a save, one pair per thread.
 *
 * The only state of the library that does not hang on a handle: a handle that could not be opened
 * has nowhere else to leave its sentence. Calls that succeed leave it alone.
 */
#include <config.h>

#include "client/error.h"

#include <assert.h>
#include <stdio.h>

static _Thread_local struct {
	int code;
	char text[ERR_TEXT_MAX + 32];
} last;

static void keep(const char *call, int code, const struct err *e)
{
	last.code = code;
	snprintf(last.text, sizeof(last.text), "%s: %s", call,
		 e && e->text[0] ? e->text : err_text(code));
}

int error_keep(const char *call, int code, const struct err *e)
{
	assert(code < 0);
	keep(call, code, e);
	return code;
}

void error_note(const char *call, int code, const struct err *e)
{
	assert(code > 0 && e->text[0]);
	keep(call, code, e);
}

const char *ckpt_last_error(int *ret_code)
{
	if (ret_code)
		*ret_code = last.code;
	return last.code ? last.text : "no call has failed";
}

const char *ckpt_strerror(int code)
{
	return err_text(code);
}

const char *ckpt_version(void)
{
	return PACKAGE_VERSION;
}
