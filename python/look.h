/* SPDX-License-Identifier: Apache-2.0 */
/*
 * look.h - what the C of ckpt._bindings can see of a live object: a numpy array or a torch tensor.
 *
 * What is said of an object is the same as what ckpt/_tensors.py says, which stays the authority:
 * an object that is not simple (another type, strides, a mapped file, any error) is left to it.
 */
#ifndef PYTHON_LOOK_H
#define PYTHON_LOOK_H

#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "ckpt.h"
#include "python/unchanged.h"

#define DTYPES_MAX 64 /* dtype objects that are known; tensors of others are not simple */

struct known_dtype {
	PyObject *dtype;
	uint16_t code;
};

/* Methods of torch.Tensor (NBYTES: of its storage) and attributes. */
enum call { DATA_PTR, CONTIGUOUS, IS_NEG, IS_CONJ, STORAGE, OFFSET, GET_DEVICE, NBYTES, CALLS };
enum attribute { SHAPE, DTYPE, IS_CPU, IS_CUDA, REQUIRES_GRAD, ATTRIBUTES };

struct method {
	PyCFunction function;
	bool keywords; /* it takes a tuple and a dict, and needs nothing in them */
};

/* What is known of the libraries. References. */
struct looker {
	PyObject *dtype_code; /* of ckpt._tensors */
	struct known_dtype dtypes[DTYPES_MAX];
	int n_dtypes;
	PyObject *ndarray, *mmap;               /* NULL: numpy is not known */
	PyObject *no_file;                      /* the last type of a base that is no file */
	PyObject *tensor, *parameter, *storage; /* NULL: torch is not known */
	struct method call[CALLS];
	PyObject *attribute[ATTRIBUTES];
	descrgetfunc get; /* of the attributes */
	PyObject *no_args;
	struct unchanged unchanged; /* trusted: a digest stands for what was seen of a tensor */
};

/* An object that is simple: contiguous, of a known type and dtype. */
struct look {
	void *ptr;
	uint64_t bytes;
	int64_t dims[CKPT_NDIM_MAX];
	int device, ndim;
	uint16_t dtype;
	bool writable;
	PyObject *owner; /* of its memory, a reference; NULL: the object itself */
};

/* What a torch tensor was, while the digest of torch's objects is this one. */
struct seen {
	uint64_t digest; /* 0: nothing is known of it */
	void *ptr;
	int device;
	uint16_t ndim;
};

/*
 * False: it is not simple, and no error is left behind. Nothing is remembered of the object.
 */
bool look(struct looker *k, PyObject *o, struct look *ret);

/* look(), and what the caller may remember of it. */
bool look_to_remember(struct looker *k, PyObject *o, struct look *ret, struct seen *seen);

/* What has a torch tensor's memory now, a reference; NULL and an error: nothing has. */
PyObject *look_owner(struct looker *k, PyObject *o);

/* Whether o is a tensor of torch, and no subclass of what is known. */
static inline bool look_is_torch(const struct looker *k, PyObject *o)
{
	PyObject *type = (PyObject *)Py_TYPE(o);

	return k->tensor && (type == k->tensor || type == k->parameter);
}

/* Of an object that look() has found simple; -1: an error. */
int look_trained(struct looker *k, PyObject *o);

/* ndarray, mmap.mmap, and arrays with what numpy says of them; 1: known, 0: they are not what its
 * ABI says, -1: an error. */
int look_know_numpy(struct looker *k, PyObject *ndarray, PyObject *mmap, PyObject *samples);

/* Tensor, Parameter, the storages' type, and tuples of some tensor's methods (NBYTES: its
 * storage's) and of Tensor's attributes, in the order of the enums. 1: known, 0: they are not of
 * the kinds that this can call, -1: an error. */
int look_know_torch(struct looker *k, PyObject *const types[3], PyObject *calls,
		    PyObject *attributes);

void look_clear(struct looker *k);

#endif
