/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node_files.h - the data folder's files of JSON that ckptd writes for people and its next life,
 * and that tools read where none runs: names and limits (doc/disk-format.md, doc/json.md).
 */
#ifndef STORAGE_NODE_FILES_H
#define STORAGE_NODE_FILES_H

#define EVENTS_FILE       "events" /* one object a line; EVENTS_FILE_OLD has what was before */
#define EVENTS_FILE_OLD   "events.old"
#define EVENTS_FILE_BYTES (1u << 20) /* then it takes the place of the old one */
#define EVENTS_LINE_MAX   8192u
#define EVENTS_KEPT       1024u /* the newest, which a start takes over */

#define MARKS_FILE       "marks" /* who is suspect, and whether the node is drained */
#define MARKS_FILE_BYTES (256u << 10)

#define GOODPUT_FILE "goodput" /* in a job's folder: detect/goodput_json.h */

#endif
