/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xid_table.h - the table of Xids that is in force: the one that is built in, and a file over it.
 */
#ifndef CKPTD_XID_TABLE_H
#define CKPTD_XID_TABLE_H

#include "base/err.h"

struct xid_policy;

#define XID_TABLE_FILE "/etc/ckptd/xid.tsv"

/* A file that is not there changes nothing. One that cannot be used is an error; *ret is then the
 * table that is built in, which serves: nobody need be without for a typing mistake. -ENOMEM: *ret
 * is NULL. Free with xid_policy_free(). */
int xid_table_read(const char *path, struct xid_policy **ret, struct err *e);

#endif
