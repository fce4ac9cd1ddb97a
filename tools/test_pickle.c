/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pickle machine: what each opcode builds, that nothing unknown gets in, that no length, index
 * or nesting leads outside. test_ctl_torch.sh reads what torch and Python pickle.
 */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/lib/test.h"
#include "tools/pickle.h"
#include "tools/pickle_write.h"
#include "tools/torch_names.h"
#include "tools/torch_tensor.h"

/* A literal with its NULs. */
#define P(text) text, sizeof(text) - 1

static int parse(const char *bytes, size_t len, struct pickle *p, struct err *e)
{
	*e = (struct err){0};
	return pickle_parse(bytes, len, torch_find_name, p, e);
}

static const struct pickle_value *must_parse(const char *bytes, size_t len, struct pickle *p)
{
	struct err e;
	int r = parse(bytes, len, p, &e);

	if (r != 0)
		fail_msg("%d '%s'", r, e.text);
	return pickle_at(p, p->root);
}

static void refused(const char *bytes, size_t len, int code, const char *sentence)
{
	struct pickle p;
	struct err e;
	int r = parse(bytes, len, &p, &e);

	pickle_free(&p);
	if (r != code || !strstr(e.text, sentence))
		fail_msg("%d '%s', not %d '%s'", r, e.text, code, sentence);
}

/* n fields, given as a state before or after all of them are in it. */
static void write_state(struct pickle_writer *w, int n, bool grown)
{
	char name[16];

	pickle_begin(w);
	pickle_object(w, "torch.distributed.checkpoint.metadata", "Metadata");
	pickle_op(w, PICKLE_OP_EMPTY_DICT);
	if (grown) {
		const uint8_t put[] = {'q', (uint8_t)w->n_memo}, get[] = {'h', (uint8_t)w->n_memo};

		w->n_memo++;
		write_bytes(&w->out, put, 2);
		pickle_op(w, PICKLE_OP_BUILD);
		write_bytes(&w->out, get, 2);
	}
	pickle_op(w, PICKLE_OP_MARK);
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "%d", i);
		pickle_text(w, name, strlen(name));
		pickle_op(w, PICKLE_OP_NONE);
	}
	pickle_op(w, PICKLE_OP_SETITEMS);
	pickle_op(w, grown ? PICKLE_OP_TUPLE2 : PICKLE_OP_BUILD);
	pickle_op(w, PICKLE_OP_STOP);
}

static void test_states(void **state)
{
	(void)state;
	for (int grown = 0; grown < 2; grown++) {
		for (int more = 0; more < 2; more++) {
			struct pickle_writer w = {0};

			write_state(&w, PICKLE_FIELDS_MAX + more, grown);
			assert_false(w.out.bad);
			if (more) {
				refused((const char *)w.out.buf, w.out.len, -E2BIG,
					"a Metadata in it has 257 fields; at most 256 can be read");
			} else {
				struct pickle p;

				must_parse((const char *)w.out.buf, w.out.len, &p);
				pickle_free(&p);
			}
			pickle_writer_free(&w);
		}
	}
}

static void test_numbers(void **state)
{
	static const struct {
		const char *bytes;
		size_t len;
		int64_t value;
	} ints[] = {
		{P("\x80\2K\xff."), 255},
		{P("\x80\2M\x01\x02."), 0x201},
		{P("\x80\2J\xfe\xff\xff\xff."), -2},
		{P("\x80\2\x8a\0."), 0},
		{P("\x80\2\x8a\1\x80."), -128},
		{P("\x80\2\x8a\2\x80\0."), 128},
		{P("\x80\2\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), INT64_MAX},
		{P("\x80\2\x8b\1\0\0\0\5."), 5},
	};
	const struct pickle_value *v;
	struct pickle p;

	(void)state;
	for (size_t i = 0; i < sizeof(ints) / sizeof(*ints); i++) {
		v = must_parse(ints[i].bytes, ints[i].len, &p);
		assert_int_equal(v->type, PICKLE_INT);
		assert_int_equal(v->i, ints[i].value);
		pickle_free(&p);
	}
	v = must_parse(P("\x80\2\x8a\x09\0\0\0\0\0\0\0\0\1."), &p);
	assert_int_equal(v->type, PICKLE_BIG);
	assert_int_equal(v->n, 9);
	pickle_free(&p);
	v = must_parse(P("\x80\2G\x40\x04\0\0\0\0\0\0."), &p);
	assert_int_equal(v->type, PICKLE_FLOAT);
	assert_true(v->f == 2.5);
	pickle_free(&p);
}

static void test_containers(void **state)
{
	const struct pickle_value *v;
	struct pickle p;

	(void)state;
	v = must_parse(P("\x80\4\x95\0\0\0\0\0\0\0\0(K\1K\2\x86\x94]\x94(h\0NeC\2ab\x8c\1x}(\x8c\1k"
			 "K\3\x8c\1kK\4u\x8f(K\7\x90t."),
		       &p);
	assert_int_equal(v->type, PICKLE_TUPLE);
	assert_int_equal(v->n, 6);
	assert_int_equal(pickle_item(&p, v, 0)->n, 2);
	assert_ptr_equal(pickle_item(&p, pickle_item(&p, v, 1), 0), pickle_item(&p, v, 0));
	assert_int_equal(pickle_item(&p, v, 2)->type, PICKLE_BYTES);
	assert_true(pickle_is_text(pickle_item(&p, v, 3), "x"));
	assert_int_equal(pickle_get(&p, pickle_item(&p, v, 4), "k")->i, 4); /* the last counts */
	assert_null(pickle_get(&p, pickle_item(&p, v, 4), "other"));
	assert_int_equal(pickle_item(&p, v, 5)->type, PICKLE_SET);
	pickle_free(&p);
	v = must_parse(P("\x80\2(K\1K\1K\2K\3\x87K\x09"
			 "1]0N."),
		       &p); /* POP_MARK, POP */
	assert_int_equal(v->type, PICKLE_NONE);
	pickle_free(&p);
}

static void test_calls(void **state)
{
	const struct pickle_value *v;
	struct pickle p;

	(void)state;
	v = must_parse(P("\x80\2ccollections\nOrderedDict\nq\0)R(X\1\0\0\0aK\1u}X\1\0\0\0bK\2sb."),
		       &p);
	assert_true(pickle_is_call(&p, v, TORCH_ORDERED_DICT));
	assert_true(v->dict);
	assert_int_equal(v->n, 2);
	assert_int_equal(pickle_get(&p, pickle_state(&p, v), "b")->i, 2);
	pickle_free(&p);
	v = must_parse(P("\x80\4\x8c\5torch\x8c\7"
			 "float32\x93."),
		       &p);
	assert_int_equal(v->type, PICKLE_NAME);
	assert_int_equal(pickle_name_of(&p, v)->dtype, CKPT_F32);
	assert_string_equal(pickle_type_text(&p, v), "float32");
	pickle_free(&p);
	v = must_parse(P("\x80\2K\1Q."), &p);
	assert_int_equal(v->type, PICKLE_PERSISTENT);
	pickle_free(&p);
}

static void test_refusals(void **state)
{
	(void)state;
	refused(P(""), CKPT_EPROTO, "no pickle");
	refused(P("(lp0\n."), CKPT_EPROTO, "no pickle");
	refused(P("\x80\1N."), CKPT_EVERSION, "its protocol is 1; 2 to 5 can be read");
	refused(P("\x80\6N."), CKPT_EVERSION, "its protocol is 6");
	refused(P("\x80\2cos\nsystem\n."), CKPT_EPROTO,
		"byte 2 of the pickle: it names 'os.system'");
	refused(P("\x80\2c\x1b[2J\nsys\x9b\xc2\x9btem\n."), CKPT_EPROTO,
		"it names '?[2J.sys???tem'");
	refused(P("\x80\4\x8c\5posix\x8c\6system\x93."), CKPT_EPROTO, "'posix.system'");
	refused(P("\x80\4\x8c\2os\x8c\6system\x93\x8c\2id\x85R."), CKPT_EPROTO, "'os.system'");
	refused(P("\x80\2ctorch\nSize\nX\1\0\0\0aR."), CKPT_EPROTO,
		"the arguments of 'Size' are no tuple");
	refused(P("\x80\2ctorch\nfloat32\n)R."), CKPT_EPROTO, "it would call a float32");
	refused(P("\x80\2K\1)R."), CKPT_EPROTO, "it would call a int");
	refused(P("\x80\2}}b."), CKPT_EPROTO, "a dict is given the state of an object");
	refused(P("\x80\2K\1K\1\x93."), CKPT_EPROTO, "a name is no string");
	refused(P("\x80\2(ios\nsystem\n."), CKPT_EPROTO, "the opcode INST is not allowed");
	refused(P("\x80\2(o."), CKPT_EPROTO, "the opcode OBJ is not allowed");
	refused(P("\x80\2ctorch\nSize\n)}\x92."), CKPT_EPROTO, "the opcode NEWOBJ_EX");
	refused(P("\x80\2\x82\1."), CKPT_EPROTO, "the opcode EXT1");
	refused(P("\x80\2Pid\n."), CKPT_EPROTO, "the opcode PERSID");
	refused(P("\x80\5\x97."), CKPT_EPROTO, "the opcode NEXT_BUFFER");
	refused(P("\x80\2I1\n."), CKPT_EPROTO, "the opcode INT");
	refused(P("\x80\2\xff."), CKPT_EPROTO, "0xff is no opcode");
}

static void test_bounds(void **state)
{
	char marks[PICKLE_MARKS_MAX + 4] = "\x80\2";

	(void)state;
	refused(P("\x80\2X\xff\xff\xff\xff"
		  "abc"),
		CKPT_EPROTO, "a text of 4294967295 bytes");
	refused(P("\x80\4\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
		  "abc"),
		CKPT_EPROTO, "a text of 18446744073709551615 bytes");
	refused(P("\x80\2\x8b\xff\xff\xff\x7f."), CKPT_EPROTO, "cut short");
	refused(P("\x80\4\x95\x10\0\0\0\0\0\0\0N."), CKPT_EPROTO, "cut short");
	refused(P("\x80\2"), CKPT_EPROTO, "byte 2 of the pickle: it is cut short");
	refused(P("\x80\2ctorch\nSize"), CKPT_EPROTO, "cut short");
	refused(P("\x80\2J\1\2"), CKPT_EPROTO, "cut short");
	refused(P("\x80\2Nr\xff\xff\xff\x7f."), CKPT_EPROTO, "memo 2147483647 is written before");
	refused(P("\x80\2Nq\1."), CKPT_EPROTO, "memo 1 is written before memo 0");
	refused(P("\x80\2h\0."), CKPT_EPROTO, "memo 0 is read, which was not written");
	refused(P("\x80\2q\0."), CKPT_EPROTO, "its stack is empty");
	refused(P("\x80\2R."), CKPT_EPROTO, "its stack is empty");
	refused(P("\x80\2N(R."), CKPT_EPROTO, "its stack is empty"); /* not below a mark */
	refused(P("\x80\2N(\x85."), CKPT_EPROTO, "its stack is empty");
	refused(P("\x80\2](a."), CKPT_EPROTO, "its stack is empty");
	refused(P("\x80\2e."), CKPT_EPROTO, "a container ends that did not begin");
	refused(P("\x80\2}(K\1u."), CKPT_EPROTO, "a key has no value");
	refused(P("\x80\2](K\1K\1u."), CKPT_EPROTO, "takes none of their kind");
	refused(P("\x80\2}K\1a."), CKPT_EPROTO, "takes none of their kind");
	refused(P("\x80\2(N."), CKPT_EPROTO, "it ends with 1 values instead of one");
	refused(P("\x80\2NN."), CKPT_EPROTO, "it ends with 2 values");
	refused(P("\x80\2."), CKPT_EPROTO, "it ends with 0 values");
	memset(marks + 2, '(', PICKLE_MARKS_MAX + 1);
	refused(marks, PICKLE_MARKS_MAX + 3, -E2BIG, "nested deeper than 1000 levels");
}

/* What contains itself, and what is small and unfolds to much: no walk goes on for ever. */
static void test_walks(void **state)
{
	struct pickle_writer w = {0};
	char laughs[2000] = "\x80\2(]q\0(NNe";
	const struct pickle_value *v;
	struct pickle p;
	struct err e = {0};
	size_t len = 10;

	(void)state;
	v = must_parse(P("\x80\2]q\0h\0a."), &p);
	assert_ptr_equal(pickle_item(&p, v, 0), v);
	assert_int_equal(pickle_copy(&w, &p, v, &e), -E2BIG);
	assert_non_null(strstr(e.text, "or contains itself"));
	pickle_writer_free(&w);
	pickle_free(&p);
	for (int i = 1; i < 60; i++)
		len += (size_t)sprintf(laughs + len, "]q%c(h%ch%ch%ch%ce", i, i - 1, i - 1, i - 1,
				       i - 1);
	memcpy(laughs + len, "t.", 2);
	v = must_parse(laughs, len + 2, &p);
	assert_int_equal(v->n, 60);
	w = (struct pickle_writer){0};
	e = (struct err){0};
	assert_int_equal(pickle_copy(&w, &p, v, &e), -E2BIG);
	assert_non_null(strstr(e.text, "refers to its own parts"));
	pickle_writer_free(&w);
	pickle_free(&p);
}

/* Written, read, written again: the same bytes. */
static void test_copies(void **state)
{
	static const struct {
		const char *bytes;
		size_t len;
	} pickles[] = {
		{P("\x80\2(NK\1J\0\1\0\0\x8a\x08\0\0\0\0\1\0\0\0\x88\x89t.")},
		{P("\x80\2](G\x40\x04\0\0\0\0\0\0X\2\0\0\0\xc3\xa9})e.")},
		{P("\x80\2}(X\1\0\0\0a](K\1K\2eu.")},
		{P("\x80\2ctorch\nSize\nq\0(K\1K\2tq\1\x85R.")},
		{P("\x80\2c__builtin__\nset\nq\0](K\1e\x85R.")},
		{P("\x80\2ctorch\nbfloat16\n.")},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(pickles) / sizeof(*pickles); i++) {
		struct pickle_writer one = {0}, two = {0};
		struct pickle p, q;
		struct err e = {0};

		must_parse(pickles[i].bytes, pickles[i].len, &p);
		pickle_begin(&one);
		assert_int_equal(pickle_copy(&one, &p, pickle_at(&p, p.root), &e), 0);
		pickle_op(&one, PICKLE_OP_STOP);
		must_parse((const char *)one.out.buf, one.out.len, &q);
		pickle_begin(&two);
		assert_int_equal(pickle_copy(&two, &q, pickle_at(&q, q.root), &e), 0);
		pickle_op(&two, PICKLE_OP_STOP);
		assert_int_equal(one.out.len, two.out.len);
		assert_memory_equal(one.out.buf, two.out.buf, one.out.len);
		pickle_free(&q);
		pickle_free(&p);
		pickle_writer_free(&one);
		pickle_writer_free(&two);
	}
}

/* Every allocation fails once. */
static void test_memory(void **state)
{
	static const char bytes[] =
		"\x80\2(ccollections\nOrderedDict\nq\0)R(X\1\0\0\0aK\1u](NNe}K\1K\2st.";
	bool fired = true;

	(void)state;
	for (uint64_t n = 1; fired; n++) {
		struct pickle p;
		struct err e = {0};
		int r;

		alloc_fail_at(n, false);
		r = pickle_parse(P(bytes), torch_find_name, &p, &e);
		fired = alloc_fired();
		alloc_fail_at(0, false);
		if (fired)
			assert_int_equal(r, -ENOMEM);
		else
			assert_int_equal(r, 0);
		pickle_free(&p);
	}
}

/* Lists that grow in turns move past each other and keep what is in them. */
static void test_growth(void **state)
{
	enum { LISTS = 3, EACH = 500 };
	struct pickle_writer w = {0};
	const struct pickle_value *v;
	struct pickle p;

	(void)state;
	write_u8(&w.out, 0x80);
	write_u8(&w.out, 4);
	for (int i = 0; i < LISTS; i++) {
		write_bytes(&w.out, "]\x94", 2);
		write_u8(&w.out, '0');
	}
	for (int k = 0; k < EACH; k++)
		for (uint8_t i = 0; i < LISTS; i++) {
			const uint8_t append[] = {'h', i,   'M', (uint8_t)k, (uint8_t)(k >> 8),
						  'a', '0'};

			write_bytes(&w.out, append, sizeof(append));
		}
	write_bytes(&w.out, "h\0h\1h\2\x87.", 8);
	v = must_parse((char *)w.out.buf, w.out.len, &p);
	assert_int_equal(v->n, LISTS);
	for (uint32_t i = 0; i < LISTS; i++) {
		const struct pickle_value *list = pickle_item(&p, v, i);

		assert_int_equal(list->n, EACH);
		for (uint32_t k = 0; k < EACH; k++)
			assert_int_equal(pickle_item(&p, list, k)->i, k);
	}
	pickle_free(&p);
	pickle_writer_free(&w);
}

/* 16 bytes for a value and 8 for its places on the stack and in the list; what hostile input makes
 * of each of its bytes is refused by a budget, and all of it given back. */
static void test_size(void **state)
{
	enum { VALUES = 100000 };
	struct alloc_budget b = {.limit = (16 + 4 + 8) * VALUES * 5 / 4 + 4096};
	struct pickle_writer w = {0};
	struct pickle p;
	struct err e;

	(void)state;
	assert_int_equal(sizeof(struct pickle_value), 16);
	write_bytes(&w.out, "\x80\2(", 3);
	for (int i = 0; i < VALUES; i++)
		write_u8(&w.out, ']');
	write_bytes(&w.out, "t.", 2);
	alloc_set_budget(&b);
	must_parse((char *)w.out.buf, w.out.len, &p);
	pickle_free(&p);
	assert_int_equal(b.wanted, 0);
	assert_true(b.used == 0 && b.most > 20 * VALUES);
	b.limit = 8 * VALUES;
	assert_int_equal(parse((char *)w.out.buf, w.out.len, &p, &e), -ENOMEM);
	pickle_free(&p);
	assert_true(b.wanted > b.limit && b.used == 0);
	alloc_set_budget(NULL);
	pickle_writer_free(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_states),     cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_containers), cmocka_unit_test(test_calls),
		cmocka_unit_test(test_refusals),   cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_walks),      cmocka_unit_test(test_copies),
		cmocka_unit_test(test_memory),     cmocka_unit_test(test_growth),
		cmocka_unit_test(test_size),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
