/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle.c - the machine behind pickle_parse(): a stack, marks and a memo, as in Python's own, but
 * what would call or import something only notes that it would.
 *
 * One function per kind of opcode, found by a table; an opcode without one is refused by its name.
 * Every refusal names the byte. One thread.
 */
#include <config.h>

#include "tools/pickle.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/plural.h"

enum { VALUE_NONE, VALUE_FALSE, VALUE_TRUE, VALUE_EMPTY, FIXED_VALUES };
#define SMALL_ARRAY 64u
#define LARGE_BYTES (1u << 20)
/* Places on the stack, in the memo, in containers: each took a byte of input, or moved there. */
#define PICKLE_ARRAY_MAX (3u << 30)
#define SMALL_INTS  256 /* are made once: sizes and offsets are full of them */

struct indices {
	uint32_t *at;
	uint32_t n, cap;
};

struct machine {
	struct pickle *p;
	pickle_find_name *find;
	const uint8_t *start;
	struct reader in;
	const uint8_t *opcode; /* the one that is done */
	struct indices stack, memo;
	uint32_t marks[PICKLE_MARKS_MAX]; /* heights of the stack */
	uint32_t n_marks;
	uint32_t small[SMALL_INTS]; /* 0: not made yet */
	bool stopped;
	struct err *e;
};

static __attribute__((format(printf, 3, 4))) int refuse(struct machine *m, int code,
							const char *fmt, ...)
{
	char text[ERR_TEXT_MAX];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	return err_set(m->e, code, "byte %zu of the pickle: %s", (size_t)(m->opcode - m->start),
		       text);
}

/* Room for `more` of them: doubled while it is small, later by a quarter, since growing it then
 * moves pages and not bytes. */
static int reserve(struct machine *m, void **array, uint32_t n, uint64_t more, uint32_t *cap,
		   size_t size)
{
	uint64_t want = n + more, next;
	void *grown;

	if (want <= *cap)
		return 0;
	if (want > PICKLE_ARRAY_MAX)
		return refuse(m, -E2BIG, "it has more than %u values", PICKLE_ARRAY_MAX);
	next = (uint64_t)*cap * size < LARGE_BYTES ? 2 * (uint64_t)*cap : *cap + *cap / 4u;
	next = max_u64(max_u64(want, next), SMALL_ARRAY);
	grown = alloc_resize(*array, next * size);
	if (!grown)
		return refuse(m, -ENOMEM, "no memory for %" PRIu64 " value%s", next, plural(next));
	*array = grown;
	*cap = (uint32_t)next;
	return 0;
}

static int push_index(struct machine *m, struct indices *a, uint32_t value)
{
	int r = reserve(m, (void **)&a->at, a->n, 1, &a->cap, sizeof(*a->at));

	if (r == 0)
		a->at[a->n++] = value;
	return r;
}

static int new_value(struct machine *m, enum pickle_type type, struct pickle_value **ret)
{
	struct pickle *p = m->p;
	int r;

	if (p->n >= PICKLE_VALUES_MAX)
		return refuse(m, -E2BIG, "it has more than %u values", PICKLE_VALUES_MAX);
	r = reserve(m, (void **)&p->values, p->n, 1, &p->cap, sizeof(*p->values));
	if (r < 0)
		return r;
	*ret = &p->values[p->n++];
	**ret = (struct pickle_value){.type = (uint8_t)type};
	return 0;
}

/* The newest value goes onto the stack. */
static int push_new(struct machine *m)
{
	return push_index(m, &m->stack, m->p->n - 1);
}

static uint32_t floor_of(const struct machine *m)
{
	return m->n_marks ? m->marks[m->n_marks - 1] : 0;
}

static int pop(struct machine *m, uint32_t *ret)
{
	if (m->stack.n <= floor_of(m))
		return refuse(m, CKPT_EPROTO, "its stack is empty");
	*ret = m->stack.at[--m->stack.n];
	return 0;
}

static int top(struct machine *m, uint32_t *ret)
{
	if (m->stack.n <= floor_of(m))
		return refuse(m, CKPT_EPROTO, "its stack is empty");
	*ret = m->stack.at[m->stack.n - 1];
	return 0;
}

static int pop_mark(struct machine *m, uint32_t *ret_first)
{
	if (m->n_marks == 0)
		return refuse(m, CKPT_EPROTO, "a container ends that did not begin");
	*ret_first = m->marks[--m->n_marks];
	assert(*ret_first <= m->stack.n);
	return 0;
}

static int cut_short(struct machine *m)
{
	return refuse(m, CKPT_EPROTO, "it is cut short");
}

/* ---- Items of containers ---- */

/* How many places a container of n items has: those of a tuple are never more. */
static uint64_t room_of(const struct pickle_value *v, uint64_t n)
{
	if (v->type == PICKLE_TUPLE || n < 2)
		return n;
	return 1ull << (64 - __builtin_clzll(n - 1));
}

/* A container whose room is used up moves to the end, where it has twice the room, unless it is the
 * last one there. */
static int make_room(struct machine *m, uint32_t at, uint64_t want)
{
	struct pickle *p = m->p;
	struct pickle_value *v = &p->values[at];
	uint64_t have = room_of(v, v->n), need = room_of(v, want);
	bool last = have > 0 && v->items + have == p->n_items;
	int r;

	if (need == have)
		return 0;
	r = reserve(m, (void **)&p->items, p->n_items, last ? need - have : need, &p->cap_items,
		    sizeof(*p->items));
	if (r < 0)
		return r;
	if (last) {
		p->n_items += (uint32_t)(need - have);
		return 0;
	}
	if (v->n > 0)
		memcpy(p->items + p->n_items, p->items + v->items, v->n * sizeof(*p->items));
	v->items = p->n_items;
	p->n_items += (uint32_t)need;
	return 0;
}

static int add_items(struct machine *m, uint32_t to, const uint32_t *items, uint32_t n)
{
	struct pickle_value *v = &m->p->values[to];
	uint64_t want = (uint64_t)v->n + n;
	int r;

	assert(v->type >= PICKLE_TUPLE && v->type != PICKLE_NAME);
	if (want > PICKLE_VALUES_MAX)
		return refuse(m, -E2BIG, "it has more than %u values", PICKLE_VALUES_MAX);
	r = make_room(m, to, want);
	if (r < 0)
		return r;
	if (n > 0)
		memcpy(m->p->items + v->items + v->n, items, n * sizeof(*items));
	v->n += n;
	return 0;
}

/* n values from the top become a new container of them. */
static int gather(struct machine *m, enum pickle_type type, uint32_t first)
{
	struct pickle_value *v;
	int r = new_value(m, type, &v);

	assert(first <= m->stack.n);
	if (r == 0)
		r = add_items(m, m->p->n - 1, m->stack.at + first, m->stack.n - first);
	if (r < 0)
		return r;
	m->stack.n = first;
	return push_new(m);
}

static int extend(struct machine *m, const uint32_t *items, uint32_t n, enum pickle_type type)
{
	struct pickle_value *v;
	uint32_t to = 0;
	int r = top(m, &to);

	if (r < 0)
		return r;
	v = &m->p->values[to];
	if (type == PICKLE_DICT && n % 2 != 0)
		return refuse(m, CKPT_EPROTO, "a key has no value");
	if (v->type == PICKLE_CALL && type != PICKLE_SET &&
	    (v->n == 0 || v->dict == (type == PICKLE_DICT)))
		v->dict = type == PICKLE_DICT; /* of a class made from list or dict */
	else if (v->type != type)
		return refuse(m, CKPT_EPROTO, "items are put into what takes none of their kind");
	return add_items(m, to, items, n);
}

/* What lies above the mark goes into the container below it. */
static int extend_marked(struct machine *m, enum pickle_type type)
{
	uint32_t first = 0, n;
	int r = pop_mark(m, &first);

	if (r < 0)
		return r;
	n = m->stack.n - first;
	m->stack.n = first;
	return extend(m, m->stack.at + first, n, type);
}

static int extend_by(struct machine *m, uint32_t n, enum pickle_type type)
{
	if (m->stack.n < floor_of(m) + n)
		return refuse(m, CKPT_EPROTO, "its stack is empty");
	m->stack.n -= n;
	return extend(m, m->stack.at + m->stack.n, n, type);
}

/* ---- Opcodes: plain values ---- */

static int op_fixed(struct machine *m, uint8_t code)
{
	return push_index(m, &m->stack,
			  code == 'N'    ? VALUE_NONE
			  : code == 0x89 ? VALUE_FALSE
			  : code == 0x88 ? VALUE_TRUE
					 : VALUE_EMPTY);
}

static int push_int(struct machine *m, int64_t i)
{
	bool small = i >= 0 && i < SMALL_INTS;
	struct pickle_value *v;
	int r;

	if (small && m->small[i])
		return push_index(m, &m->stack, m->small[i]);
	r = new_value(m, PICKLE_INT, &v);
	if (r < 0)
		return r;
	v->i = i;
	if (small)
		m->small[i] = m->p->n - 1;
	return push_new(m);
}

static int op_int(struct machine *m, uint8_t code)
{
	int64_t i = code == 'K'   ? read_u8(&m->in)
		    : code == 'M' ? read_u16(&m->in)
				  : (int32_t)read_u32(&m->in);

	return m->in.bad ? cut_short(m) : push_int(m, i);
}

static int op_long(struct machine *m, uint8_t code)
{
	uint32_t len = code == 0x8a ? read_u8(&m->in) : read_u32(&m->in);
	const uint8_t *bytes = read_bytes(&m->in, len);
	struct pickle_value *v;
	uint64_t u = 0;
	int r;

	if (!bytes)
		return cut_short(m);
	if (len > sizeof(u)) {
		r = new_value(m, PICKLE_BIG, &v);
		if (r < 0)
			return r;
		v->text = bytes;
		v->n = len;
		return push_new(m);
	}
	if (len > 0 && bytes[len - 1] & 0x80)
		u = UINT64_MAX;
	memcpy(&u, bytes, len); /* little-endian two's complement, its sign spread above */
	return push_int(m, (int64_t)u);
}

static int op_float(struct machine *m, uint8_t code)
{
	const uint8_t *bytes = read_bytes(&m->in, sizeof(double));
	struct pickle_value *v;
	uint64_t u;
	int r;

	(void)code;
	if (!bytes)
		return cut_short(m);
	r = new_value(m, PICKLE_FLOAT, &v);
	if (r < 0)
		return r;
	memcpy(&u, bytes, sizeof(u));
	u = __builtin_bswap64(u);
	memcpy(&v->f, &u, sizeof(u));
	return push_new(m);
}

static int op_text(struct machine *m, uint8_t code)
{
	static const struct {
		uint8_t code, width;
		uint8_t type;
	} kinds[] = {
		{0x8c, 1, PICKLE_STR},  {'X', 4, PICKLE_STR},    {0x8d, 8, PICKLE_STR},
		{'U', 1, PICKLE_STR},   {'T', 4, PICKLE_STR},    {'C', 1, PICKLE_BYTES},
		{'B', 4, PICKLE_BYTES}, {0x8e, 8, PICKLE_BYTES},
	};
	struct pickle_value *v;
	size_t k = 0;
	uint64_t len;
	int r;

	while (kinds[k].code != code)
		k++;
	assert(k < sizeof(kinds) / sizeof(*kinds));
	len = kinds[k].width == 1   ? read_u8(&m->in)
	      : kinds[k].width == 4 ? read_u32(&m->in)
				    : read_u64(&m->in);
	if (m->in.bad || len > reader_left(&m->in))
		return refuse(m, CKPT_EPROTO, "a text of %llu byte%s does not fit into it",
			      (unsigned long long)len, plural(len));
	r = new_value(m, kinds[k].type, &v);
	if (r < 0)
		return r;
	v->text = read_bytes(&m->in, len);
	v->n = (uint32_t)len;
	return push_new(m);
}

/* ---- Opcodes: containers ---- */

static int op_empty(struct machine *m, uint8_t code)
{
	struct pickle_value *v;
	int r = new_value(m,
			  code == ']'   ? PICKLE_LIST
			  : code == '}' ? PICKLE_DICT
					: PICKLE_SET,
			  &v);

	return r < 0 ? r : push_new(m);
}

static int op_mark(struct machine *m, uint8_t code)
{
	(void)code;
	if (m->n_marks == PICKLE_MARKS_MAX)
		return refuse(m, -E2BIG, "containers are nested deeper than %d levels",
			      PICKLE_MARKS_MAX);
	m->marks[m->n_marks++] = m->stack.n;
	return 0;
}

static int op_tuple(struct machine *m, uint8_t code)
{
	uint32_t first = 0, n = code - 0x84u; /* of TUPLE1 to TUPLE3 */
	int r;

	if (code == 't' || code == 0x91) {
		r = pop_mark(m, &first);
		return r < 0 ? r : gather(m, code == 't' ? PICKLE_TUPLE : PICKLE_SET, first);
	}
	if (m->stack.n < floor_of(m) + n)
		return refuse(m, CKPT_EPROTO, "its stack is empty");
	return gather(m, PICKLE_TUPLE, m->stack.n - n);
}

static int op_extend(struct machine *m, uint8_t code)
{
	switch (code) {
	case 'a':
		return extend_by(m, 1, PICKLE_LIST);
	case 's':
		return extend_by(m, 2, PICKLE_DICT);
	case 'e':
		return extend_marked(m, PICKLE_LIST);
	case 'u':
		return extend_marked(m, PICKLE_DICT);
	default:
		return extend_marked(m, PICKLE_SET);
	}
}

static int op_pop(struct machine *m, uint8_t code)
{
	uint32_t at = 0;
	int r;

	if (code == '0' && m->stack.n > floor_of(m))
		return pop(m, &at);
	r = pop_mark(m, &at); /* POP of a mark, as Python does it, or POP_MARK */
	if (r == 0)
		m->stack.n = at;
	return r;
}

/* ---- Opcodes: names and calls ---- */

/* The table's names that are used, each once: a value refers to one by two bytes. */
static int note_name(struct machine *m, const struct pickle_name *known, uint16_t *ret)
{
	struct pickle *p = m->p;
	uint32_t cap = p->cap_names;
	uint16_t i = 0;
	int r;

	while (i < p->n_names && p->names[i] != known)
		i++;
	if (i == p->n_names) {
		assert(i < UINT16_MAX);
		r = reserve(m, (void **)&p->names, i, 1, &cap, sizeof(struct pickle_name *));
		if (r < 0)
			return r;
		p->cap_names = (uint16_t)min_u64(cap, UINT16_MAX);
		p->names[p->n_names++] = known;
	}
	*ret = i;
	return 0;
}

static int push_name(struct machine *m, const char *module, size_t module_len, const char *name,
		     size_t name_len)
{
	const struct pickle_name *known = m->find(module, module_len, name, name_len);
	struct pickle_value *v;
	uint16_t name_at = 0;
	int r;

	if (!known)
		return refuse(m, CKPT_EPROTO,
			      "it names '%.*s.%.*s', which is not one of the classes that torch "
			      "itself writes, and nothing of such a file is executed: save a state "
			      "dictionary of tensors and plain values",
			      (int)min_u64(module_len, 100), module, (int)min_u64(name_len, 100),
			      name);
	r = note_name(m, known, &name_at);
	if (r == 0)
		r = new_value(m, PICKLE_NAME, &v);
	if (r < 0)
		return r;
	v->name = name_at;
	return push_new(m);
}

static const char *read_line(struct reader *in, size_t *ret_len)
{
	const uint8_t *end = in->bad ? NULL : memchr(in->p, '\n', reader_left(in));
	const char *line;

	if (!end)
		return NULL;
	*ret_len = (size_t)(end - in->p);
	line = read_bytes(in, *ret_len + 1);
	return line;
}

static int op_global(struct machine *m, uint8_t code)
{
	size_t module_len, name_len;
	const char *module = read_line(&m->in, &module_len), *name;

	(void)code;
	name = module ? read_line(&m->in, &name_len) : NULL;
	return name ? push_name(m, module, module_len, name, name_len) : cut_short(m);
}

static int op_stack_global(struct machine *m, uint8_t code)
{
	const struct pickle_value *module, *name;
	uint32_t a = 0, b = 0;
	int r = pop(m, &b);

	(void)code;
	if (r == 0)
		r = pop(m, &a);
	if (r < 0)
		return r;
	module = pickle_at(m->p, a);
	name = pickle_at(m->p, b);
	if (module->type != PICKLE_STR || name->type != PICKLE_STR)
		return refuse(m, CKPT_EPROTO, "a name is no string");
	return push_name(m, (const char *)module->text, module->n, (const char *)name->text,
			 name->n);
}

static int op_call(struct machine *m, uint8_t code)
{
	const struct pickle_value *callee;
	struct pickle_value *v;
	uint32_t args = 0, to = 0;
	int r = pop(m, &args);

	(void)code;
	if (r == 0)
		r = pop(m, &to);
	if (r < 0)
		return r;
	callee = pickle_at(m->p, to);
	if (callee->type != PICKLE_NAME ||
	    !(pickle_name_of(m->p, callee)->uses & PICKLE_AS_CALL))
		return refuse(m, CKPT_EPROTO, "it would call a %s, which is no class of torch",
			      pickle_type_text(m->p, callee));
	if (pickle_at(m->p, args)->type != PICKLE_TUPLE)
		return refuse(m, CKPT_EPROTO, "the arguments of '%s' are no tuple",
			      pickle_name_of(m->p, callee)->name);
	r = reserve(m, (void **)&m->p->calls, m->p->n_calls, 1, &m->p->cap_calls,
		    sizeof(*m->p->calls));
	if (r == 0)
		r = new_value(m, PICKLE_CALL, &v);
	if (r < 0)
		return r;
	v->name = pickle_at(m->p, to)->name;
	v->call = m->p->n_calls++;
	m->p->calls[v->call] = (struct pickle_call){.args = args, .state = VALUE_NONE};
	return push_new(m);
}

static int op_build(struct machine *m, uint8_t code)
{
	struct pickle_value *v;
	uint32_t state = 0, to = 0;
	int r = pop(m, &state);

	(void)code;
	if (r == 0)
		r = top(m, &to);
	if (r < 0)
		return r;
	v = &m->p->values[to];
	if (v->type != PICKLE_CALL)
		return refuse(m, CKPT_EPROTO, "a %s is given the state of an object",
			      pickle_type_text(m->p, v));
	m->p->calls[v->call].state = state;
	return 0;
}

static int op_persistent(struct machine *m, uint8_t code)
{
	struct pickle_value *v;
	uint32_t id = 0;
	int r = pop(m, &id);

	(void)code;
	if (r == 0)
		r = new_value(m, PICKLE_PERSISTENT, &v);
	if (r < 0)
		return r;
	v->call = id;
	return push_new(m);
}

/* ---- Opcodes: the memo and the frame around it all ---- */

/* Writers count up: an index that skips some would only make the memo large. */
static int op_put(struct machine *m, uint8_t code)
{
	uint32_t at = code == 'q' ? read_u8(&m->in) : code == 'r' ? read_u32(&m->in) : 0;
	uint32_t value = 0;
	int r = top(m, &value);

	if (m->in.bad)
		return cut_short(m);
	if (r < 0)
		return r;
	if (code == 0x94)
		at = m->memo.n;
	if (at > m->memo.n)
		return refuse(m, CKPT_EPROTO, "memo %u is written before memo %u", at, m->memo.n);
	if (at == m->memo.n)
		return push_index(m, &m->memo, value);
	m->memo.at[at] = value;
	return 0;
}

static int op_get(struct machine *m, uint8_t code)
{
	uint32_t at = code == 'h' ? read_u8(&m->in) : read_u32(&m->in);

	if (m->in.bad)
		return cut_short(m);
	if (at >= m->memo.n)
		return refuse(m, CKPT_EPROTO, "memo %u is read, which was not written", at);
	return push_index(m, &m->stack, m->memo.at[at]);
}

static int op_proto(struct machine *m, uint8_t code)
{
	uint8_t version = read_u8(&m->in);

	(void)code;
	if (m->in.bad)
		return cut_short(m);
	if (version < 2 || version > 5)
		return refuse(m, CKPT_EVERSION, "its protocol is %u; 2 to 5 can be read", version);
	return 0;
}

static int op_frame(struct machine *m, uint8_t code)
{
	uint64_t len = read_u64(&m->in);

	(void)code;
	if (m->in.bad || len > reader_left(&m->in))
		return cut_short(m);
	return 0;
}

static int op_stop(struct machine *m, uint8_t code)
{
	(void)code;
	m->stopped = true;
	if (m->n_marks > 0 || m->stack.n != 1)
		return refuse(m, CKPT_EPROTO, "it ends with %u values instead of one", m->stack.n);
	m->p->root = m->stack.at[0];
	return 0;
}

struct op {
	const char *name;
	int (*run)(struct machine *m, uint8_t code); /* NULL: refused */
};

static const struct op ops[256] = {
	[0x80] = {"PROTO", op_proto},
	['.'] = {"STOP", op_stop},
	[0x95] = {"FRAME", op_frame},
	['N'] = {"NONE", op_fixed},
	[0x88] = {"NEWTRUE", op_fixed},
	[0x89] = {"NEWFALSE", op_fixed},
	[')'] = {"EMPTY_TUPLE", op_fixed},
	['J'] = {"BININT", op_int},
	['K'] = {"BININT1", op_int},
	['M'] = {"BININT2", op_int},
	[0x8a] = {"LONG1", op_long},
	[0x8b] = {"LONG4", op_long},
	['G'] = {"BINFLOAT", op_float},
	['X'] = {"BINUNICODE", op_text},
	[0x8c] = {"SHORT_BINUNICODE", op_text},
	[0x8d] = {"BINUNICODE8", op_text},
	['T'] = {"BINSTRING", op_text},
	['U'] = {"SHORT_BINSTRING", op_text},
	['B'] = {"BINBYTES", op_text},
	['C'] = {"SHORT_BINBYTES", op_text},
	[0x8e] = {"BINBYTES8", op_text},
	[']'] = {"EMPTY_LIST", op_empty},
	['}'] = {"EMPTY_DICT", op_empty},
	[0x8f] = {"EMPTY_SET", op_empty},
	['('] = {"MARK", op_mark},
	['t'] = {"TUPLE", op_tuple},
	[0x85] = {"TUPLE1", op_tuple},
	[0x86] = {"TUPLE2", op_tuple},
	[0x87] = {"TUPLE3", op_tuple},
	[0x91] = {"FROZENSET", op_tuple},
	['a'] = {"APPEND", op_extend},
	['e'] = {"APPENDS", op_extend},
	['s'] = {"SETITEM", op_extend},
	['u'] = {"SETITEMS", op_extend},
	[0x90] = {"ADDITEMS", op_extend},
	['0'] = {"POP", op_pop},
	['1'] = {"POP_MARK", op_pop},
	['c'] = {"GLOBAL", op_global},
	[0x93] = {"STACK_GLOBAL", op_stack_global},
	['R'] = {"REDUCE", op_call},
	[0x81] = {"NEWOBJ", op_call},
	['b'] = {"BUILD", op_build},
	['Q'] = {"BINPERSID", op_persistent},
	['q'] = {"BINPUT", op_put},
	['r'] = {"LONG_BINPUT", op_put},
	[0x94] = {"MEMOIZE", op_put},
	['h'] = {"BINGET", op_get},
	['j'] = {"LONG_BINGET", op_get},
	/* Known and refused: they call by another way, or belong to protocols 0 and 1. */
	['i'] = {"INST", NULL},
	['o'] = {"OBJ", NULL},
	[0x92] = {"NEWOBJ_EX", NULL},
	[0x82] = {"EXT1", NULL},
	[0x83] = {"EXT2", NULL},
	[0x84] = {"EXT4", NULL},
	[0x96] = {"BYTEARRAY8", NULL},
	[0x97] = {"NEXT_BUFFER", NULL},
	[0x98] = {"READONLY_BUFFER", NULL},
	['P'] = {"PERSID", NULL},
	['I'] = {"INT", NULL},
	['L'] = {"LONG", NULL},
	['F'] = {"FLOAT", NULL},
	['S'] = {"STRING", NULL},
	['V'] = {"UNICODE", NULL},
	['l'] = {"LIST", NULL},
	['d'] = {"DICT", NULL},
	['p'] = {"PUT", NULL},
	['g'] = {"GET", NULL},
	['2'] = {"DUP", NULL},
};

static int run(struct machine *m)
{
	while (!m->stopped) {
		const struct op *op;
		uint8_t code;
		int r;

		m->opcode = m->in.p;
		code = read_u8(&m->in);
		if (m->in.bad)
			return cut_short(m);
		op = &ops[code];
		if (!op->name)
			return refuse(m, CKPT_EPROTO, "0x%02x is no opcode", code);
		if (!op->run)
			return refuse(m, CKPT_EPROTO,
				      "the opcode %s is not allowed: torch does not write it",
				      op->name);
		r = op->run(m, code);
		if (r < 0)
			return r;
	}
	return 0;
}

static int make_fixed(struct machine *m)
{
	static const uint8_t types[FIXED_VALUES] = {
		[VALUE_NONE] = PICKLE_NONE,
		[VALUE_FALSE] = PICKLE_BOOL,
		[VALUE_TRUE] = PICKLE_BOOL,
		[VALUE_EMPTY] = PICKLE_TUPLE,
	};
	struct pickle_value *v;

	for (int i = 0; i < FIXED_VALUES; i++) {
		int r = new_value(m, types[i], &v);

		if (r < 0)
			return r;
		v->flag = i == VALUE_TRUE;
	}
	return 0;
}

/* Behind the last opcode: a dict can grow after it was given as a state. Many objects may share a
 * state, and each is searched: without a bound that is quadratic. */
static int check_states(struct machine *m)
{
	for (uint32_t i = 0; i < m->p->n; i++) {
		const struct pickle_value *v = &m->p->values[i];
		const struct pickle_value *state;

		if (v->type != PICKLE_CALL)
			continue;
		state = pickle_state(m->p, v);
		if (state->type == PICKLE_DICT && state->n / 2 > PICKLE_FIELDS_MAX)
			return err_set(m->e, -E2BIG,
				       "a %s in it has %" PRIu32 " fields; at most %d can be read",
				       pickle_name_of(m->p, v)->name, state->n / 2,
				       PICKLE_FIELDS_MAX);
	}
	return 0;
}

int pickle_parse(const void *bytes, size_t len, pickle_find_name *find, struct pickle *ret,
		 struct err *e)
{
	struct machine *m;
	int r;

	*ret = (struct pickle){0};
	if (len > PICKLE_BYTES_MAX)
		return err_set(e, -E2BIG, "the pickle has %zu byte%s; at most %u can be read", len,
			       plural(len), PICKLE_BYTES_MAX);
	if (len < 2 || *(const uint8_t *)bytes != 0x80)
		return err_set(e, CKPT_EPROTO, "it is no pickle of protocol 2 or later");
	m = alloc_zero(sizeof(*m));
	if (!m)
		return err_code(e, -ENOMEM, "read a pickle");
	m->p = ret;
	m->find = find;
	m->start = m->opcode = bytes;
	m->in = reader_of(bytes, len);
	m->e = e;
	/* Places in both are formed before anything is in them. */
	r = reserve(m, (void **)&m->stack.at, 0, 1, &m->stack.cap, sizeof(*m->stack.at));
	if (r == 0)
		r = reserve(m, (void **)&ret->items, 0, 1, &ret->cap_items, sizeof(*ret->items));
	if (r == 0)
		r = make_fixed(m);
	if (r == 0)
		r = run(m);
	if (r == 0)
		r = check_states(m);
	alloc_free(m->stack.at);
	alloc_free(m->memo.at);
	alloc_free(m);
	return r;
}
