/* SPDX-License-Identifier: Apache-2.0 */
/*
 * look.c - where the bytes of one numpy array or torch tensor are.
 *
 *   1. Nothing about an object is kept here: address, shape, strides, dtype, device and memory are
 *      read from it at every look.
 *   2. No error leaves look(): Python looks again, and says what is wrong.
 *
 * numpy's arrays are read as its ABI has them: the members that its own macros read, the same in
 * numpy 1 and 2. look_know_numpy() first compares what is read of some arrays with what numpy says
 * of them. torch has no such ABI: the methods of its very types are called, so that neither a
 * subclass nor an attribute of the object answers in place of them.
 *
 * Runs with the interpreter's lock held; a method of torch may let go of it for a moment.
 */
#include <config.h>

#include "python/look.h"

#include <assert.h>
#include <string.h>

static uint64_t item_bytes(uint16_t dtype)
{
	static const uint8_t bits[] = {
#define X(name, value, n, text) [value] = (n),
		CKPT_DTYPES(X)
#undef X
	};

	return dtype < sizeof(bits) ? bits[dtype] / 8u : 0;
}

/* 0: not known. */
static uint16_t dtype_of(struct looker *k, PyObject *dtype)
{
	PyObject *result;
	long code;

	for (int i = 0; i < k->n_dtypes; i++)
		if (k->dtypes[i].dtype == dtype)
			return k->dtypes[i].code;
	if (k->n_dtypes == DTYPES_MAX)
		return 0;
	result = PyObject_CallFunctionObjArgs(k->dtype_code, dtype, NULL);
	code = result ? PyLong_AsLong(result) : -1;
	Py_XDECREF(result);
	if (code <= 0 || code > UINT16_MAX || item_bytes((uint16_t)code) == 0)
		return 0;
	Py_INCREF(dtype);
	k->dtypes[k->n_dtypes++] = (struct known_dtype){.dtype = dtype, .code = (uint16_t)code};
	return (uint16_t)code;
}

static bool count_bytes(struct look *l)
{
	l->bytes = item_bytes(l->dtype);
	for (int i = 0; i < l->ndim; i++)
		if (l->dims[i] < 0 ||
		    __builtin_mul_overflow(l->bytes, (uint64_t)l->dims[i], &l->bytes))
			return false;
	return l->bytes <= INT64_MAX;
}

/* ---- Arrays of numpy ---- */

/* PyArrayObject_fields of numpy's ABI. */
struct array {
	PyObject_HEAD char *data;
	int nd;
	Py_ssize_t *dimensions, *strides;
	PyObject *base, *descr;
	int flags;
};
#define ARRAY_CONTIGUOUS 0x0001
#define ARRAY_WRITEABLE  0x0400
#define ARRAY_WARNS      (1u << 31) /* np.broadcast_arrays() made it: to be taken as read-only */

static bool array_writable(const struct array *a)
{
	return a->flags & ARRAY_WRITEABLE && !((unsigned)a->flags & ARRAY_WARNS);
}

/* What is below arrays and memoryviews; a reference, NULL: nothing is. */
static PyObject *lowest(struct looker *k, PyObject *base)
{
	Py_XINCREF(base);
	while (base) {
		PyObject *below;

		if ((PyObject *)Py_TYPE(base) == k->ndarray) {
			below = ((struct array *)base)->base;
			Py_XINCREF(below);
		} else if (PyMemoryView_Check(base)) {
			below = PyObject_GetAttrString(base, "obj");
		} else {
			break;
		}
		Py_DECREF(base);
		base = below;
	}
	return base;
}

/* Its memory may be a mapped file's, whose length has to be looked at. */
static bool may_be_file(struct looker *k, PyObject *base)
{
	PyObject *low, *type;
	bool may;

	if (!base)
		return false;
	low = lowest(k, base);
	type = low ? (PyObject *)Py_TYPE(low) : NULL;
	may = type && type != k->no_file &&
	      (PyType_IsSubtype(Py_TYPE(low), (PyTypeObject *)k->ndarray) ||
	       PyType_IsSubtype(Py_TYPE(low), (PyTypeObject *)k->mmap));
	if (type && !may && type != k->no_file) {
		Py_INCREF(type);
		Py_XDECREF(k->no_file);
		k->no_file = type;
	}
	Py_XDECREF(low);
	return may;
}

static bool look_numpy(struct looker *k, PyObject *o, struct look *l)
{
	const struct array *a = (const struct array *)o;

	if (a->nd < 0 || a->nd > CKPT_NDIM_MAX)
		return false;
	l->dtype = dtype_of(k, a->descr);
	l->ndim = a->nd;
	for (int i = 0; i < a->nd; i++)
		l->dims[i] = a->dimensions[i];
	if (l->dtype == 0 || !count_bytes(l))
		return false;
	if (l->bytes && !(a->flags & ARRAY_CONTIGUOUS))
		return false;
	l->ptr = a->data;
	l->device = CKPT_HOST;
	l->writable = array_writable(a);
	return !may_be_file(k, a->base);
}

static PyObject *tuple_of(const Py_ssize_t *numbers, Py_ssize_t n)
{
	PyObject *tuple = PyTuple_New(n);

	for (Py_ssize_t i = 0; tuple && i < n; i++) {
		PyObject *number = PyLong_FromSsize_t(numbers[i]);

		if (!number || PyTuple_SetItem(tuple, i, number) != 0)
			Py_CLEAR(tuple);
	}
	return tuple;
}

/* For PyArg_ParseTuple(). */
static int address(PyObject *o, void *ret)
{
	*(void **)ret = PyLong_AsVoidPtr(o);
	return !PyErr_Occurred();
}

/* ---- Tensors of torch ---- */

static PyObject *call(struct looker *k, enum call which, PyObject *o)
{
	const struct method *m = &k->call[which];

	if (m->keywords)
		return ((PyCFunctionWithKeywords)(void (*)(void))m->function)(o, k->no_args, NULL);
	return m->function(o, NULL);
}

static PyObject *attribute(struct looker *k, enum attribute which, PyObject *o)
{
	return k->get(k->attribute[which], o, (PyObject *)Py_TYPE(o));
}

static bool is(PyObject *answer, PyObject *what)
{
	Py_XDECREF(answer); /* True and False live on */
	return answer == what;
}

/* -1: an error, or no number that a size can be. */
static int64_t number(PyObject *answer)
{
	int64_t n = answer ? PyLong_AsLongLong(answer) : -1;

	Py_XDECREF(answer);
	return n;
}

static bool torch_shape(struct looker *k, PyObject *o, struct look *l)
{
	PyObject *shape = attribute(k, SHAPE, o);
	Py_ssize_t n = shape && PyTuple_Check(shape) ? PyTuple_Size(shape) : -1;
	bool good = n >= 0 && n <= CKPT_NDIM_MAX;

	for (Py_ssize_t i = 0; good && i < n; i++) {
		l->dims[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
		good = l->dims[i] >= 0;
	}
	l->ndim = (int)n;
	Py_XDECREF(shape);
	return good;
}

static bool torch_dtype(struct looker *k, PyObject *o, struct look *l)
{
	PyObject *dtype = attribute(k, DTYPE, o);

	l->dtype = dtype ? dtype_of(k, dtype) : 0;
	Py_XDECREF(dtype);
	return l->dtype != 0;
}

static bool torch_device(struct looker *k, PyObject *o, struct look *l)
{
	int64_t device;

	l->device = CKPT_HOST;
	if (is(attribute(k, IS_CPU, o), Py_True))
		return true;
	if (!is(attribute(k, IS_CUDA, o), Py_True))
		return false;
	device = number(call(k, GET_DEVICE, o));
	l->device = (int)device;
	return device >= 0 && device < INT32_MAX;
}

PyObject *look_owner(struct looker *k, PyObject *o)
{
	return call(k, STORAGE, o);
}

/* Whether its storage has memory for all of it: storages are freed and made smaller by
 * themselves. */
static bool torch_memory(struct looker *k, PyObject *o, struct look *l)
{
	int64_t offset, bytes;

	l->owner = look_owner(k, o);
	if (!l->owner || (PyObject *)Py_TYPE(l->owner) != k->storage)
		return false;
	if (l->bytes == 0)
		return true;
	bytes = number(call(k, NBYTES, l->owner));
	offset = number(call(k, OFFSET, o));
	return l->ptr && offset >= 0 && bytes >= 0 &&
	       !__builtin_mul_overflow(offset, (int64_t)item_bytes(l->dtype), &offset) &&
	       offset <= bytes && (uint64_t)(bytes - offset) >= l->bytes;
}

static bool look_torch(struct looker *k, PyObject *o, struct look *l)
{
	PyObject *ptr;

	if (!torch_dtype(k, o, l) || !torch_shape(k, o, l) || !count_bytes(l) ||
	    !is(call(k, CONTIGUOUS, o), Py_True) || !is(call(k, IS_NEG, o), Py_False))
		return false;
	if ((l->dtype == CKPT_C64 || l->dtype == CKPT_C128) && !is(call(k, IS_CONJ, o), Py_False))
		return false;
	if (!torch_device(k, o, l))
		return false;
	ptr = call(k, DATA_PTR, o);
	l->ptr = ptr ? PyLong_AsVoidPtr(ptr) : NULL;
	Py_XDECREF(ptr);
	l->writable = true;
	return torch_memory(k, o, l);
}

bool look(struct looker *k, PyObject *o, struct look *ret)
{
	PyObject *type = (PyObject *)Py_TYPE(o);
	bool simple = false;

	*ret = (struct look){.owner = NULL};
	if (k->ndarray && type == k->ndarray)
		simple = look_numpy(k, o, ret);
	else if (look_is_torch(k, o))
		simple = look_torch(k, o, ret);
	if (simple && !PyErr_Occurred())
		return true;
	PyErr_Clear(); /* (2) */
	Py_CLEAR(ret->owner);
	return false;
}

/* 0: it is not known, or not to be trusted. */
static uint64_t digest_of(const struct looker *k, PyObject *o)
{
	const struct unchanged *u = &k->unchanged;
	const void *storage = u->trusted && look_is_torch(k, o) ? unchanged_storage(u, o) : NULL;

	return storage ? unchanged_digest(u, o, unchanged_storage_digest(u, storage)) : 0;
}

bool look_to_remember(struct looker *k, PyObject *o, struct look *ret, struct seen *seen)
{
	uint64_t before = digest_of(k, o);

	*seen = (struct seen){.digest = 0};
	if (!look(k, o, ret))
		return false;
	if (ret->ndim > UNCHANGED_NDIM_MAX || before == 0)
		return true;
	/* A call of torch may let go of the lock, and another thread change it meanwhile. */
	if (digest_of(k, o) == before)
		*seen = (struct seen){.digest = before,
				      .ptr = ret->ptr,
				      .device = ret->device,
				      .ndim = (uint16_t)ret->ndim};
	return true;
}

int look_trained(struct looker *k, PyObject *o)
{
	PyObject *grad;

	if ((PyObject *)Py_TYPE(o) == k->ndarray)
		return 0;
	grad = attribute(k, REQUIRES_GRAD, o);
	Py_XDECREF(grad);
	return grad ? grad == Py_True : -1;
}

/* ---- Getting to know the libraries ---- */

/* Whether the members are where this looks for them. 1, 0, -1: an error. */
static int sample_agrees(PyObject *sample)
{
	PyObject *o, *shape, *strides, *base, *dtype, *seen_shape, *seen_strides;
	int contiguous, writable, same;
	const struct array *a;
	Py_ssize_t n;
	void *p;

	if (!PyArg_ParseTuple(sample, "OO&OOOOpp", &o, address, &p, &shape, &strides, &base, &dtype,
			      &contiguous, &writable))
		return -1;
	a = (const struct array *)o;
	n = PyTuple_Check(shape) ? PyTuple_Size(shape) : -1;
	if (a->nd != n || a->data != p || a->descr != dtype ||
	    a->base != (base == Py_None ? NULL : base) || array_writable(a) != !!writable ||
	    !!(a->flags & ARRAY_CONTIGUOUS) != !!contiguous)
		return 0;
	seen_shape = tuple_of(a->dimensions, n);
	seen_strides = tuple_of(a->strides, n);
	same = seen_shape && seen_strides ? PyObject_RichCompareBool(seen_shape, shape, Py_EQ) : -1;
	if (same == 1)
		same = PyObject_RichCompareBool(seen_strides, strides, Py_EQ);
	Py_XDECREF(seen_shape);
	Py_XDECREF(seen_strides);
	return same;
}

int look_know_numpy(struct looker *k, PyObject *ndarray, PyObject *mmap, PyObject *samples)
{
	Py_ssize_t n = PyTuple_Size(samples);
	int r = n < 0 ? -1 : n > 0;

	assert(!k->ndarray);
	if (!PyType_Check(ndarray) || !PyType_Check(mmap))
		return 0;
	for (Py_ssize_t i = 0; r == 1 && i < n; i++)
		r = sample_agrees(PyTuple_GetItem(samples, i));
	if (r != 1)
		return r;
	Py_INCREF(ndarray);
	Py_INCREF(mmap);
	k->ndarray = ndarray;
	k->mmap = mmap;
	return 1;
}

/* The C function of a method: calling it takes half as long as calling the method. It is that of
 * all objects of the type that defines the method, and stays while its library does: for ever. */
static bool take_method(PyObject *bound, struct method *ret)
{
	int flags = Py_TYPE(bound) == &PyCFunction_Type ? PyCFunction_GetFlags(bound) : 0;

	ret->function = flags ? PyCFunction_GetFunction(bound) : NULL;
	ret->keywords = flags == (METH_VARARGS | METH_KEYWORDS);
	return ret->function && (ret->keywords || flags == METH_NOARGS);
}

int look_know_torch(struct looker *k, PyObject *const types[3], PyObject *calls,
		    PyObject *attributes)
{
	assert(!k->tensor);
	if (!PyTuple_Check(calls) || PyTuple_Size(calls) != CALLS || !PyTuple_Check(attributes) ||
	    PyTuple_Size(attributes) != ATTRIBUTES)
		return 0;
	for (int i = 0; i < CALLS; i++)
		if (!take_method(PyTuple_GetItem(calls, i), &k->call[i]))
			return 0;
	for (int i = 0; i < ATTRIBUTES; i++)
		if (Py_TYPE(PyTuple_GetItem(attributes, i)) != &PyGetSetDescr_Type)
			return 0;
	k->get = (descrgetfunc)PyType_GetSlot(&PyGetSetDescr_Type, Py_tp_descr_get);
	k->no_args = PyTuple_New(0);
	if (!k->no_args)
		return -1;
	for (int i = 0; i < ATTRIBUTES; i++) {
		k->attribute[i] = PyTuple_GetItem(attributes, i);
		Py_INCREF(k->attribute[i]);
	}
	for (int i = 0; i < 3; i++)
		Py_INCREF(types[i]);
	k->tensor = types[0];
	k->parameter = types[1];
	k->storage = types[2];
	return k->get != NULL;
}

void look_clear(struct looker *k)
{
	Py_CLEAR(k->dtype_code);
	Py_CLEAR(k->ndarray);
	Py_CLEAR(k->mmap);
	Py_CLEAR(k->no_file);
	Py_CLEAR(k->tensor);
	Py_CLEAR(k->parameter);
	Py_CLEAR(k->storage);
	Py_CLEAR(k->no_args);
	for (int i = 0; i < ATTRIBUTES; i++)
		Py_CLEAR(k->attribute[i]);
	while (k->n_dtypes > 0)
		Py_CLEAR(k->dtypes[--k->n_dtypes].dtype);
}
