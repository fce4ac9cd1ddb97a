/* SPDX-License-Identifier: Apache-2.0 */
/*
 * print.h - output for people: aligned tables, sizes, ages. What came from outside is made
 * printable: a tensor's name must not move the cursor.
 */
#ifndef TOOLS_PRINT_H
#define TOOLS_PRINT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

#define TEXT_MAX 32 /* of a size or an age */

const char *text_bytes(char buf[TEXT_MAX], uint64_t bytes);  /* "1.5 GiB" */
const char *text_time(char buf[TEXT_MAX], uint64_t wall_ns); /* of the day, here */
const char *text_age(char buf[TEXT_MAX], uint64_t wall_ns);  /* "5m", since then; "-" for 0 */
/* A word that may be longer than it is worth: the first characters of an id. */
const char *text_short(char buf[TEXT_MAX], const char *hex);

/* Prints text with control characters replaced; no newline. */
void print_clean(FILE *f, const char *text);
__attribute__((format(printf, 1, 2))) void say(const char *fmt, ...); /* one clean line */
/* "ckptctl: sentence" to stderr. */
__attribute__((format(printf, 1, 2))) void complain(const char *fmt, ...);

/*
 * A table: its columns are words, "JOB STEP> SIZE>", '>' for numbers, which stand at the right.
 * Cells follow row by row. An allocation that fails is told by table_end(), which prints and
 * frees.
 */
struct table;
struct table *table_new(const char *columns);
/*
 * For more rows than can be held: behind table_measure() cells only tell how wide their columns
 * are, behind table_measured() each row is printed once its last cell is there. The same rows come
 * both times.
 */
void table_measure(struct table *t);
void table_measured(struct table *t);
__attribute__((format(printf, 2, 3))) void table_cell(struct table *t, const char *fmt, ...);
MUST_CHECK int table_end(struct table *t);
int table_drop(struct table *t); /* frees alone; 0 */

void print_json(json_t *doc); /* takes the reference */

#endif
