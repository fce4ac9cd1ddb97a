/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

bool err_is_shortage(int code)
{
	return code == -ENOMEM || code == -EMFILE || code == -ENFILE;
}

const char *err_text(int code)
{
	const char *text;

	switch (code) {
#define X(name, value, words)                                                                      \
	case name:                                                                                 \
		return words;
		CKPT_ERRORS(X)
#undef X
	case 0:
		return "success";
	case -ELOOP: /* strerror's "too many levels" says nothing of links that are not followed */
		return "a symbolic link is in the way, and is not followed";
	default:
		break;
	}
	text = code < 0 && code > -1000 ? strerrordesc_np(-code) : NULL;
	return text ? text : "unknown error";
}

/* A sentence may quote what came from outside, and ends on somebody's terminal. */
static void format(char *buf, size_t size, const char *fmt, va_list ap)
{
	int n = vsnprintf(buf, size, fmt, ap);

	if (n < 0)
		buf[0] = '\0';
	else if ((size_t)n >= size)
		text_shorten(buf, size);
	text_clean(buf);
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
	va_list ap;

	if (e) {
		va_start(ap, fmt);
		e->code = code;
		format(e->text, sizeof(e->text), fmt, ap);
		va_end(ap);
	}
	return code;
}

int err_code(struct err *e, int code, const char *fmt, ...)
{
	va_list ap;
	size_t used;

	if (e) {
		va_start(ap, fmt);
		e->code = code;
		format(e->text, sizeof(e->text), fmt, ap);
		va_end(ap);
		used = strlen(e->text);
		snprintf(e->text + used, sizeof(e->text) - used, ": %s", err_text(code));
	}
	return code;
}

int err_wrap(struct err *e, int code, const char *fmt, ...)
{
	char inner[ERR_TEXT_MAX];
	va_list ap;
	size_t used;

	if (!e)
		return code;
	if (e->code == 0) {
		e->code = code;
		snprintf(inner, sizeof(inner), "%s", err_text(code));
	} else {
		memcpy(inner, e->text, sizeof(inner));
	}
	va_start(ap, fmt);
	format(e->text, sizeof(e->text), fmt, ap);
	va_end(ap);
	used = strlen(e->text);
	if (snprintf(e->text + used, sizeof(e->text) - used, ": %s", inner) >=
	    (int)(sizeof(e->text) - used))
		text_shorten(e->text, sizeof(e->text));
	return e->code;
}

void err_clear(struct err *e)
{
	if (e) {
		e->code = 0;
		e->text[0] = '\0';
	}
}
