/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bindings.c - ckpt._bindings: the bindings of many tensors, without Python for each of them; and
 * what ends a call's waits (interrupt.c).
 *
 * A Table holds what a handle has declared. fill() looks at one live object for each of them
 * (look.c) and writes its struct ckpt_binding; declare() looks at one and calls ckpt_declare().
 * What is not simple is left to ckpt/__init__.py, which does the same without this module.
 *
 *   1. An address is of the object as it is in that call: a table holds no reference to a tensor or
 *      its memory, and uses the address that it has seen only where not one byte of what torch has
 *      behind the tensor has changed since (unchanged.c).
 *   2. What has the memory that fill() gives addresses of is kept by the caller's lists: numpy
 *      arrays by the list that is looked through, torch's storages by `keep`.
 *
 * Limited API: one file serves all Pythons from 3.10 on. Runs with the interpreter's lock held.
 */
#include <config.h>

#include "python/interrupt.h"
#include "python/look.h"

#include <assert.h>
#include <string.h>

#define FLAT (-1)

/* ---- What is declared ---- */

struct entry {
	uint64_t bytes;
	size_t dims; /* where its extents begin in table.dims */
	uint16_t dtype;
	int16_t ndim; /* FLAT: any shape of so many bytes */
	struct seen seen;
};

struct table {
	PyObject_HEAD struct looker looker;
	struct entry *entries;
	size_t n, room;
	int64_t *dims;
	size_t n_dims, dims_room;
};

/* ---- Filling ---- */

static bool fits(const struct table *t, const struct entry *e, const struct look *l)
{
	if (l->dtype != e->dtype || l->bytes != e->bytes)
		return false;
	return e->ndim == FLAT ||
	       (l->ndim == e->ndim &&
		memcmp(l->dims, t->dims + e->dims, (size_t)e->ndim * sizeof(l->dims[0])) == 0);
}

static int append_number(PyObject *list, Py_ssize_t n)
{
	PyObject *o = PyLong_FromSsize_t(n);
	int r = o ? PyList_Append(list, o) : -1;

	Py_XDECREF(o);
	return r;
}

struct filling {
	PyObject *tensors, *keep, *odd;
	struct ckpt_binding *out;
	const void *storage; /* the last one that keep has a reference to; NULL: none */
	uint64_t storage_digest;
	bool writable;
};

/* Has the storage of a tensor kept (2) where it is not that of the one before. 1, 0: its objects
 * are not of known classes, -1: an error. */
static int keep_storage(struct table *t, struct filling *f, PyObject *o)
{
	const struct unchanged *u = &t->looker.unchanged;
	const void *storage = unchanged_storage(u, o);
	PyObject *owner;
	int r;

	if (!storage || storage == f->storage)
		return storage != NULL;
	owner = look_owner(&t->looker, o);
	r = owner ? PyList_Append(f->keep, owner) : -1;
	Py_XDECREF(owner);
	f->storage = r == 0 ? unchanged_storage(u, o) : NULL;
	f->storage_digest = f->storage ? unchanged_storage_digest(u, f->storage) : 0;
	return r < 0 ? r : f->storage != NULL;
}

/* Of a tensor that is as it was seen. 1, 0: it may have changed, -1: an error. */
static int fill_unchanged(struct table *t, struct filling *f, Py_ssize_t i, PyObject *o)
{
	const struct entry *e = &t->entries[i];
	const struct unchanged *u = &t->looker.unchanged;
	int r = e->seen.digest && look_is_torch(&t->looker, o) ? keep_storage(t, f, o) : 0;

	if (r <= 0)
		return r;
	if (unchanged_digest(u, o, f->storage_digest) != e->seen.digest)
		return 0;
	f->out[i] = (struct ckpt_binding){.ptr = e->seen.ptr,
					  .device = e->seen.device,
					  .dtype = e->dtype,
					  .ndim = e->seen.ndim,
					  .bytes = e->bytes};
	return 1;
}

static int fill_looked_at(struct table *t, struct filling *f, Py_ssize_t i, PyObject *o)
{
	struct entry *e = &t->entries[i];
	struct seen seen;
	struct look l;
	int r = 0;

	f->storage = NULL; /* a call of torch may let go of the lock */
	if (!look_to_remember(&t->looker, o, &l, &seen))
		return append_number(f->odd, i);
	if (!fits(t, e, &l) || (f->writable && !l.writable && l.bytes)) {
		r = append_number(f->odd, i);
	} else {
		f->out[i] = (struct ckpt_binding){.ptr = l.ptr,
						  .device = l.device,
						  .dtype = l.dtype,
						  .ndim = (uint16_t)l.ndim,
						  .bytes = l.bytes};
		e->seen = seen;
		if (l.owner)
			r = PyList_Append(f->keep, l.owner); /* (2) */
	}
	Py_XDECREF(l.owner);
	return r;
}

static int fill_one(struct table *t, struct filling *f, Py_ssize_t i)
{
	PyObject *o = PyList_GetItem(f->tensors, i);
	int r = o ? fill_unchanged(t, f, i, o) : -1;

	if (r != 0)
		return r < 0 ? r : 0;
	return fill_looked_at(t, f, i, o);
}

PyDoc_STRVAR(fill_doc,
	     "fill(tensors, address, writable, keep) -> list\n\nWrites the bindings of a list of "
	     "objects, one for each declared one, to address; appends to keep what holds their "
	     "memory beside tensors; returns the indices of those that it has not written: of all, "
	     "where as many are not declared.");

static PyObject *table_fill(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
	struct table *t = (struct table *)self;
	struct filling f;
	bool collects;
	Py_ssize_t n;
	int r = 0;

	if (n_args != 4 || !PyList_Check(args[0]) || !PyList_Check(args[3]))
		return PyErr_Format(PyExc_TypeError, "fill(tensors, address, writable, keep)");
	f = (struct filling){.tensors = args[0],
			     .keep = args[3],
			     .out = PyLong_AsVoidPtr(args[1]),
			     .writable = args[2] == Py_True};
	f.odd = f.out ? PyList_New(0) : NULL;
	if (!f.odd)
		return NULL;
	n = PyList_Size(f.tensors);
	collects = PyGC_Disable(); /* storages come by the hundred thousand, and none is garbage */
	for (Py_ssize_t i = 0; i < n && r == 0; i++)
		r = (size_t)n == t->n ? fill_one(t, &f, i) : append_number(f.odd, i);
	if (collects)
		PyGC_Enable();
	if (r < 0)
		Py_CLEAR(f.odd);
	return f.odd;
}

/* Index of the range that p is in or behind; -1: it is before all. */
static Py_ssize_t range_of(const uint64_t *starts, Py_ssize_t n, uint64_t p)
{
	Py_ssize_t low = 0, high = n;

	assert(n >= 0);
	while (low < high) {
		Py_ssize_t middle = low + (high - low) / 2;

		if (starts[middle] <= p)
			low = middle + 1;
		else
			high = middle;
	}
	return low - 1;
}

PyDoc_STRVAR(
	outside_doc,
	"first_outside(address, count, starts, ends) -> int\n\nThe index of the first of so many "
	"bindings, of those on the host and contiguous, that is not inside one of the ranges; "
	"-1: all are. starts and ends are bytes of sorted 64-bit numbers.");

static PyObject *table_first_outside(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
	const struct ckpt_binding *b = n_args == 4 ? PyLong_AsVoidPtr(args[0]) : NULL;
	Py_ssize_t bytes[2] = {0, 0}, count = b ? PyLong_AsSsize_t(args[1]) : -1;
	const uint64_t *starts, *ends;
	char *of[2];

	(void)self;
	if (count < 0 || PyBytes_AsStringAndSize(args[2], &of[0], &bytes[0]) != 0 ||
	    PyBytes_AsStringAndSize(args[3], &of[1], &bytes[1]) != 0 || bytes[0] != bytes[1])
		return PyErr_Occurred() ? NULL
					: PyErr_Format(PyExc_TypeError, "first_outside(address, "
									"count, starts, ends)");
	starts = (const uint64_t *)(const void *)of[0];
	ends = (const uint64_t *)(const void *)of[1];
	for (Py_ssize_t i = 0; i < count; i++) {
		uint64_t p = (uintptr_t)b[i].ptr;
		Py_ssize_t at;

		if (b[i].device != CKPT_HOST || b[i].bytes == 0 || b[i].strides)
			continue;
		at = range_of(starts, bytes[0] / 8, p);
		if (at < 0 || ends[at] < p || ends[at] - p < b[i].bytes)
			return PyLong_FromSsize_t(i);
	}
	return PyLong_FromLong(-1);
}

/* ---- Declaring ---- */

static void *grown(void *old, size_t *room, size_t n, size_t item)
{
	size_t more = *room ? *room * 2 : 64;
	void *p = old;

	if (n <= *room)
		return old;
	while (more < n)
		more *= 2;
	p = more <= (size_t)PY_SSIZE_T_MAX / item ? PyMem_Realloc(old, more * item) : NULL;
	if (p)
		*room = more;
	else
		PyErr_NoMemory();
	return p;
}

static int make_room(struct table *t, int ndim)
{
	void *p = grown(t->entries, &t->room, t->n + 1, sizeof(*t->entries));

	if (!p)
		return -1;
	t->entries = p;
	p = grown(t->dims, &t->dims_room, t->n_dims + (size_t)ndim + 1, sizeof(*t->dims));
	if (!p)
		return -1;
	t->dims = p;
	return 0;
}

/* There is room. */
static void add(struct table *t, const struct look *l, const struct seen *seen, bool flat)
{
	assert(t->n < t->room && t->n_dims + (size_t)l->ndim <= t->dims_room);
	t->entries[t->n++] = (struct entry){.bytes = l->bytes,
					    .dims = t->n_dims,
					    .dtype = l->dtype,
					    .ndim = flat ? FLAT : (int16_t)l->ndim,
					    .seen = *seen};
	if (flat)
		return;
	memcpy(t->dims + t->n_dims, l->dims, (size_t)l->ndim * sizeof(l->dims[0]));
	t->n_dims += (size_t)l->ndim;
}

/* Extents or offsets as libckpt takes them; *ret is NULL for None. False: they are not simple. */
static bool numbers(PyObject *given, int ndim, uint64_t to[CKPT_NDIM_MAX], const uint64_t **ret)
{
	*ret = NULL;
	if (given == Py_None)
		return true;
	if (!PyTuple_Check(given) || PyTuple_Size(given) != ndim)
		return false;
	for (int i = 0; i < ndim; i++) {
		PyObject *n = PyTuple_GetItem(given, i);
		int64_t value = PyLong_CheckExact(n) ? PyLong_AsLongLong(n) : -1;

		if (value < 0)
			return false;
		to[i] = (uint64_t)value;
	}
	*ret = to;
	return true;
}

/* NULL: it is not simple. */
static const char *plain_name(PyObject *name)
{
	Py_ssize_t len;
	const char *text = PyUnicode_CheckExact(name) ? PyUnicode_AsUTF8AndSize(name, &len) : NULL;

	return text && strlen(text) == (size_t)len ? text : NULL;
}

static PyObject *shape_of(const struct look *l)
{
	PyObject *shape = PyTuple_New(l->ndim);

	for (int i = 0; shape && i < l->ndim; i++) {
		PyObject *n = PyLong_FromLongLong(l->dims[i]);

		if (!n || PyTuple_SetItem(shape, i, n) != 0)
			Py_CLEAR(shape);
	}
	return shape;
}

typedef int declare_fn(struct ckpt *c, const struct ckpt_tensor *t);

/* What ckpt_declare() answers, in *ret; false: the tensor is not simple. */
static bool declare_simple(struct table *t, PyObject *const *args, const struct look *l, int *ret)
{
	uint64_t global[CKPT_NDIM_MAX], offset[CKPT_NDIM_MAX], shape[CKPT_NDIM_MAX];
	declare_fn *function = (declare_fn *)(uintptr_t)PyLong_AsVoidPtr(args[0]);
	struct ckpt *c = PyLong_AsVoidPtr(args[1]);
	struct ckpt_tensor d = {.size = sizeof(d), .dtype = l->dtype, .ndim = l->ndim};
	int trained =
		args[6] == Py_None ? look_trained(&t->looker, args[3]) : PyObject_IsTrue(args[6]);

	d.name = plain_name(args[2]);
	if (!function || !c || !d.name || trained < 0 ||
	    !numbers(args[4], l->ndim, global, &d.global_shape) ||
	    !numbers(args[5], l->ndim, offset, &d.offset) || PyErr_Occurred())
		return false;
	for (int i = 0; i < l->ndim; i++)
		shape[i] = (uint64_t)l->dims[i];
	d.shape = shape;
	d.global_shape = d.global_shape ? d.global_shape : shape;
	d.flags = trained ? CKPT_TRAINED : 0;
	*ret = function(c, &d);
	return true;
}

PyDoc_STRVAR(declare_doc,
	     "declare(ckpt_declare, handle, name, tensor, global_shape, offset, trained) -> tuple "
	     "or None\n\n(what ckpt_declare() answers, dtype, shape, bytes), or None: it has done "
	     "nothing, as the tensor is not simple. What was declared is added.");

static PyObject *table_declare(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
	struct table *t = (struct table *)self;
	struct seen seen;
	PyObject *shape;
	struct look l;
	bool simple;
	int r;

	if (n_args != 7)
		return PyErr_Format(PyExc_TypeError, "declare() takes 7 arguments");
	if (!look_to_remember(&t->looker, args[3], &l, &seen))
		Py_RETURN_NONE;
	Py_CLEAR(l.owner);
	shape = shape_of(&l);
	if (!shape || make_room(t, l.ndim) < 0) {
		Py_XDECREF(shape);
		return NULL;
	}
	simple = declare_simple(t, args, &l, &r);
	if (!simple) {
		PyErr_Clear();
		Py_DECREF(shape);
		Py_RETURN_NONE;
	}
	if (r >= 0)
		add(t, &l, &seen, false);
	return Py_BuildValue("(iiNK)", r, (int)l.dtype, shape, (unsigned long long)l.bytes);
}

PyDoc_STRVAR(add_doc, "add(dtype, shape, bytes)\n\nOne that was declared by other means; shape is "
		      "None for a flat range.");

static PyObject *table_add(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
	struct table *t = (struct table *)self;
	bool flat = n_args == 3 && args[1] == Py_None;
	struct look l = {.ndim = 0};

	if (n_args != 3 || (!flat && !PyTuple_Check(args[1])) ||
	    (!flat && PyTuple_Size(args[1]) > CKPT_NDIM_MAX))
		return PyErr_Format(PyExc_TypeError, "add(dtype, shape, bytes)");
	l.dtype = (uint16_t)PyLong_AsLong(args[0]);
	l.ndim = flat ? 0 : (int)PyTuple_Size(args[1]);
	for (int i = 0; i < l.ndim; i++)
		l.dims[i] = PyLong_AsLongLong(PyTuple_GetItem(args[1], i));
	l.bytes = PyLong_AsUnsignedLongLong(args[2]);
	if (PyErr_Occurred() || make_room(t, l.ndim) < 0)
		return NULL;
	add(t, &l, &(struct seen){.digest = 0}, flat);
	Py_RETURN_NONE;
}

/* ---- The libraries ---- */

PyDoc_STRVAR(numpy_doc,
	     "know_numpy(ndarray, mmap, samples) -> bool\n\nWhether arrays are as its ABI "
	     "says: samples are (array, address, shape, strides, base, dtype, "
	     "contiguous, writable) in numpy's words.");

static PyObject *table_know_numpy(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
	struct looker *k = &((struct table *)self)->looker;
	int r;

	if (n_args != 3 || k->ndarray)
		return PyErr_Format(PyExc_TypeError, "know_numpy(ndarray, mmap, samples), once");
	r = look_know_numpy(k, args[0], args[1], args[2]);
	return r < 0 ? NULL : PyBool_FromLong(r);
}

PyDoc_STRVAR(
	torch_doc,
	"know_torch(Tensor, Parameter, UntypedStorage, methods, attributes) -> bool\n\nWhether the "
	"methods and attributes of its types can be called from here.");

static PyObject *table_know_torch(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
	struct looker *k = &((struct table *)self)->looker;
	int r;

	if (n_args != 5 || k->tensor)
		return PyErr_Format(
			PyExc_TypeError,
			"know_torch(Tensor, Parameter, UntypedStorage, methods, attributes), once");
	r = look_know_torch(k, args, args[3], args[4]);
	return r < 0 ? NULL : PyBool_FromLong(r);
}

/* A number that is an address, or 0 and an error. */
static const void *address_of(PyObject *n)
{
	return PyLong_Check(n) ? PyLong_AsVoidPtr(n) : NULL;
}

PyDoc_STRVAR(learn_doc,
	     "learn(tensor, size, TensorImpl, StorageImpl) -> bool\n\nWhether the addresses of "
	     "torch's objects are found from a tensor, an object of so many bytes, where those of "
	     "the tensors before were.");

static PyObject *table_learn(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
	struct looker *k = &((struct table *)self)->looker;
	Py_ssize_t size = n_args == 4 ? PyLong_AsSsize_t(args[1]) : -1;

	if (size < 0 || k->unchanged.trusted)
		return PyErr_Format(PyExc_TypeError,
				    "learn(tensor, size, TensorImpl, StorageImpl), before trust()");
	if (!look_is_torch(k, args[0]) || !address_of(args[2]) || !address_of(args[3]))
		Py_RETURN_FALSE;
	return PyBool_FromLong(unchanged_learn(&k->unchanged, args[0], (size_t)size,
					       address_of(args[2]), address_of(args[3])));
}

PyDoc_STRVAR(digest_doc, "digest(tensor) -> int\n\nOf all bytes of torch's objects behind it; 0: "
			 "they are not known.");

static PyObject *table_digest(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
	struct looker *k = &((struct table *)self)->looker;
	const struct unchanged *u = &k->unchanged;
	const void *storage = NULL;

	if (n_args == 1 && u->known && look_is_torch(k, args[0]))
		storage = unchanged_storage(u, args[0]);
	if (!storage)
		return PyLong_FromLong(0);
	return PyLong_FromUnsignedLongLong(
		unchanged_digest(u, args[0], unchanged_storage_digest(u, storage)));
}

PyDoc_STRVAR(trust_doc, "trust()\n\nDigests change with each change that counts: they stand for "
			"what was seen from now on.");

static PyObject *table_trust(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
	struct looker *k = &((struct table *)self)->looker;

	(void)args;
	if (n_args != 0 || !k->unchanged.known)
		return PyErr_Format(PyExc_TypeError, "trust(), behind learn()");
	k->unchanged.trusted = true;
	Py_RETURN_NONE;
}

/* ---- The module ---- */

static int table_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
	struct table *t = (struct table *)self;
	PyObject *dtype_code;

	if (kwargs || !PyArg_ParseTuple(args, "O:Table", &dtype_code))
		return -1;
	if (t->looker.dtype_code) {
		PyErr_SetString(PyExc_TypeError, "a table is made once");
		return -1;
	}
	Py_INCREF(dtype_code);
	t->looker.dtype_code = dtype_code;
	return 0;
}

static void table_dealloc(PyObject *self)
{
	struct table *t = (struct table *)self;
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

	look_clear(&t->looker);
	PyMem_Free(t->entries);
	PyMem_Free(t->dims);
	release(self);
	Py_DECREF((PyObject *)type);
}

#define METHOD(name, function, doc)                                                                \
	{                                                                                          \
		name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, doc                  \
	}

static PyMethodDef methods[] = {
	METHOD("add", table_add, add_doc),
	METHOD("declare", table_declare, declare_doc),
	METHOD("digest", table_digest, digest_doc),
	METHOD("fill", table_fill, fill_doc),
	METHOD("first_outside", table_first_outside, outside_doc),
	METHOD("know_numpy", table_know_numpy, numpy_doc),
	METHOD("know_torch", table_know_torch, torch_doc),
	METHOD("learn", table_learn, learn_doc),
	METHOD("trust", table_trust, trust_doc),
	{NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc,
	 "Table(dtype_code): what a handle has declared, and how tensors are looked at."},
	{Py_tp_new, PyType_GenericNew},
	{Py_tp_init, table_init},
	{Py_tp_dealloc, table_dealloc},
	{Py_tp_methods, methods},
	{0, NULL},
};

static PyType_Spec spec = {.name = "ckpt._bindings.Table",
			   .basicsize = sizeof(struct table),
			   .flags = Py_TPFLAGS_DEFAULT,
			   .slots = slots};

PyDoc_STRVAR(raise_kept_doc,
	     "raise_kept(result, function, arguments) -> result\n\nA ctypes errcheck: raises "
	     "what a signal handler raised while the call waited.");

static PyMethodDef functions[] = {
	METHOD("raise_kept", interrupt_raise, raise_kept_doc),
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {.m_base = PyModuleDef_HEAD_INIT,
				    .m_name = "_bindings",
				    .m_doc = "The bindings of many tensors; see python/bindings.c.",
				    .m_size = -1,
				    .m_methods = functions};

PyMODINIT_FUNC PyInit__bindings(void);
PyMODINIT_FUNC PyInit__bindings(void)
{
	PyObject *m = PyModule_Create(&module), *type = PyType_FromSpec(&spec);
	PyObject *asked = PyLong_FromVoidPtr((void *)(uintptr_t)interrupt_asked);
	bool good = m && type && asked && PyModule_AddObjectRef(m, "Table", type) == 0 &&
		    PyModule_AddObjectRef(m, "INTERRUPTED", asked) == 0 &&
		    PyModule_AddIntConstant(m, "BINDING_BYTES", sizeof(struct ckpt_binding)) == 0;

	Py_XDECREF(asked);
	Py_XDECREF(type);
	if (!good)
		Py_CLEAR(m);
	return m;
}
