/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_report.h - how a job's saves get on, in words: `status` and `why`.
 */
#ifndef TOOLS_SAVE_REPORT_H
#define TOOLS_SAVE_REPORT_H

#include <jansson.h>
#include <stdbool.h>

/* Adds a sentence for each problem of the job that no other field of its document says. */
void save_report_problems(const json_t *job, json_t *list);
/* Whether the job has this problem now. */
bool save_report_stands(const json_t *o, const char *word);
/* o: has `saves` and `problems`; name: of the job. Returns whether there are problems. */
bool save_report_print(const json_t *o, const char *name);

#endif
