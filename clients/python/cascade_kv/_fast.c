/* The shared index of a rank, read without asking it: docs/format.md, "The shared index". Optional: index.py does without. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "_hash.h"
#include "_holds.h"
#include "_ring.h"
#include "_table.h"

enum { BLOCK_MAGIC = 0x314b4243, SUPER_DATA = 32, SUPER_MOVING = 56 };
enum {
    LET_GO = 256 << 10, /* bytes from which a copy or a checksum lets other threads run */
    FAR = 32 << 10,     /* bytes from which a copy to a large memory goes past the caches */
};

typedef struct {
    PyObject_HEAD
    Table table;
    Ring ring;
    Holds holds; /* shared with the other readers of the connection */
    const uint8_t *arena;
    uint64_t arena_bytes, data;
    PyObject *owner; /* keeps the arena mapped */
    Namespace ns;    /* of the last names */
} Reader;

static int alive(const Reader *r) { return table_alive(&r->table); }
static int final(const Reader *r) { return table_final(&r->table); }

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Looking up */

/* The bytes of a name; ok 0 for what must be asked for, with an error set or not. */
static const char *text(PyObject *o, Py_ssize_t least, Py_ssize_t *n) {
    const char *p = NULL;
    char *q = NULL;
    if (PyUnicode_Check(o))
        p = PyUnicode_AsUTF8AndSize(o, n);
    else if (PyBytes_Check(o) && PyBytes_AsStringAndSize(o, &q, n) == 0)
        p = q;
    if (!p || *n < least || *n > MAX_NAME) {
        PyErr_Clear(); /* the way by the socket says what is wrong */
        return NULL;
    }
    return p;
}

static int use_namespace(Reader *r, PyObject *o) {
    Py_ssize_t n;
    const char *ns = text(o, 0, &n);
    if (!ns)
        return 0;
    if (namespace_set(&r->ns, ns, n))
        ring_use(&r->ring, ns, (size_t)n);
    return 1;
}

/* Look-ups of many keys go through in groups, so that the processor waits for several places of memory at once. */
enum { GROUP = 16 };

typedef struct {
    uint8_t prints[GROUP][16];
    const char *keys[GROUP];
    size_t bytes[GROUP]; /* of the keys */
    int n, bad;          /* bad: the key behind the last print can only be asked for */
} Group;

static void take_group(Reader *r, PyObject **keys, Py_ssize_t n, Group *g) {
    g->n = g->bad = 0;
    while (g->n < GROUP && g->n < n) {
        Py_ssize_t len;
        const char *key = text(keys[g->n], 1, &len);
        if (!key) {
            g->bad = 1;
            return;
        }
        g->keys[g->n] = key, g->bytes[g->n] = (size_t)len;
        uint8_t *print = g->prints[g->n++];
        fingerprint(&r->ns, key, (size_t)len, print);
        table_prefetch(&r->table, print);
    }
}

static void note_group(Note *note, const Reader *r, const Group *g, int i, Answer a, const Entry *e) {
    if (a == HIT)
        note_here(note, e->place);
    else
        note_missing(note, policy_print(&r->ns, g->keys[i], g->bytes[i]));
}

PyDoc_STRVAR(contains_doc, "contains(ns, keys, out) -> whether out, a byte for each key, tells which are there; if not, the rank must be asked.");

static PyObject *reader_contains(Reader *r, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 3)
        return PyErr_Format(PyExc_TypeError, "contains takes 3 arguments");
    Py_buffer out;
    PyObject *keys = PySequence_Fast(args[1], "keys must be a sequence");
    if (!keys)
        return NULL;
    if (PyObject_GetBuffer(args[2], &out, PyBUF_WRITABLE)) {
        Py_DECREF(keys);
        return NULL;
    }
    Py_ssize_t n = PySequence_Fast_GET_SIZE(keys), hits = 0;
    PyObject **items = PySequence_Fast_ITEMS(keys);
    uint8_t *answers = out.buf;
    int sure = final(r), good = out.len >= n && alive(r) && use_namespace(r, args[0]);
    Note note = note_begin(&r->ring, good ? (size_t)n : 0);
    int64_t now = now_ns();
    for (Py_ssize_t i = 0; good && i < n;) {
        Group g;
        take_group(r, items + i, n - i, &g);
        for (int j = 0; good && j < g.n; j++, i++) {
            Entry e;
            Answer a = table_look(&r->table, g.prints[j], sure, now, &e);
            note_group(&note, r, &g, j, a, &e);
            answers[i] = a == HIT;
            hits += a == HIT;
            good = a != ASK;
        }
        good = good && !g.bad;
    }
    if (good && alive(r) && sure == final(r)) {
        ring_count(&r->ring, (uint64_t)n, (uint64_t)hits, 0);
        note_end(&note, CONTAINED, r->table.number, now);
    } else
        good = 0; /* what the rank is asked, it counts */
    PyBuffer_Release(&out);
    Py_DECREF(keys);
    return PyBool_FromLong(good);
}

/* Adds keys of which it is not looked whether they are there. */
static void note_rest(Note *note, const Reader *r, PyObject **keys, Py_ssize_t n) {
    for (Py_ssize_t i = 0; note->ring && i < n && i < NOTE_KEYS; i++) {
        Py_ssize_t bytes;
        const char *key = text(keys[i], 1, &bytes);
        if (!key)
            return; /* the note has no end */
        note_missing(note, policy_print(&r->ns, key, (size_t)bytes));
    }
}

/* Some keys, one after the other, whose blocks the same tier would serve. */
typedef struct {
    int tier;
    Py_ssize_t hits;
    uint64_t bytes;
} Run;

/* Adds a run to those of a chain; 0 if there is no memory for it. One without keys is none. */
static int add_run(PyObject *runs, const Run *run) {
    if (!run->hits)
        return 1;
    PyObject *one = Py_BuildValue("inK", run->tier, run->hits, (unsigned long long)run->bytes);
    int added = one && PyList_Append(runs, one) == 0;
    Py_XDECREF(one);
    return added;
}

PyDoc_STRVAR(probe_doc, "probe(ns, keys) -> runs of the leading keys, each as tier, hits and bytes, or None if it must be asked for.");

static PyObject *reader_probe(Reader *r, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "probe takes 2 arguments");
    PyObject *keys = PySequence_Fast(args[1], "keys must be a sequence");
    if (!keys)
        return NULL;
    PyObject *runs = PyList_New(0);
    Py_ssize_t n = PySequence_Fast_GET_SIZE(keys), hits = 0;
    PyObject **items = PySequence_Fast_ITEMS(keys);
    Run run = {0, 0, 0};
    Answer last = HIT;
    int sure = final(r), added = runs != NULL;
    if (!alive(r) || !use_namespace(r, args[0]))
        last = ASK;
    int64_t now = now_ns();
    Note note = note_begin(&r->ring, last == HIT ? (size_t)n : 0);
    while (last == HIT && hits < n && added) {
        Group g;
        take_group(r, items + hits, n - hits, &g);
        for (int j = 0; j < g.n && added; j++) {
            Entry e;
            if ((last = table_look(&r->table, g.prints[j], sure, now, &e)) != HIT)
                break;
            note_here(&note, e.place);
            int tier = (int)(e.tier % TIERS);
            if (tier != run.tier) {
                added = add_run(runs, &run);
                run = (Run){tier, 0, 0};
            }
            hits++, run.hits++, run.bytes += e.size;
        }
        if (g.bad && last == HIT)
            last = ASK;
    }
    if (last == MISS) /* what follows is no part of the answer, but of what is asked for */
        note_rest(&note, r, items + hits, n - hits);
    Py_DECREF(keys);
    if (!added || !add_run(runs, &run)) {
        Py_XDECREF(runs);
        return NULL;
    }
    if (last == ASK || !alive(r) || sure != final(r)) {
        Py_DECREF(runs);
        Py_RETURN_NONE;
    }
    note_end(&note, PROBED, r->table.number, now);
    ring_count(&r->ring, (uint64_t)hits + (last == MISS), (uint64_t)hits, 0);
    return runs;
}

/* Reading */

/* Whether the block is where the entry says: its record there says so, too. version is the record's. */
static int recorded(const Reader *r, const Entry *e, uint32_t *version) {
    const uint8_t *p = r->arena + e->record;
    if (load32(p) != BLOCK_MAGIC)
        return 0;
    uint64_t uid = load64(p + 8), offset = load64(p + 48), size = load64(p + 56), rest = load64(p + 64);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    *version = (uint32_t)(rest >> 32);
    return uid == e->uid && size == e->size && (uint32_t)rest == e->crc && r->data + offset == e->offset && load32(p) == BLOCK_MAGIC;
}

/* Whether the block was there ever since it was found: one that is back there has another record. */
static int unmoved(const Reader *r, const Entry *e) {
    uint32_t version;
    return recorded(r, e, &version) && version == e->version && load32(e->at) == e->seq;
}

/* Finds a block to read, and counts what is not there. */
static Answer find_block(Reader *r, PyObject *ns, PyObject *key, Entry *e) {
    Py_ssize_t n;
    const char *k = text(key, 1, &n);
    int sure = final(r);
    if (!alive(r) || !k || !use_namespace(r, ns))
        return ASK;
    uint8_t print[16];
    fingerprint(&r->ns, k, (size_t)n, print);
    int64_t now = now_ns();
    Answer a = table_look(&r->table, print, sure, now, e);
    if (a == MISS) {
        if (!alive(r) || !final(r))
            return ASK;
        ring_count(&r->ring, 0, 0, 1);
        Note note = note_begin(&r->ring, 1);
        note_missing(&note, policy_print(&r->ns, k, (size_t)n));
        note_end(&note, READ_MISSED, r->table.number, now);
        return MISS;
    }
    if (a != HIT || e->kind != IN_ARENA || !r->arena || e->record > r->arena_bytes - LANE * 2 || e->record % LANE || e->offset > r->arena_bytes ||
        e->size > r->arena_bytes - e->offset || !recorded(r, e, &e->version))
        return ASK;
    return HIT;
}

/* What get and hold return where there is no block to be had. */
static PyObject *no_block(Answer a) { return Py_NewRef(a == MISS ? Py_None : Py_False); }

typedef uint32_t Copier(uint32_t, uint8_t *restrict, const uint8_t *restrict, size_t);

/* How n bytes get to a large memory of which the next are wanted elsewhere: it does not lie in the caches, and neither should they. */
static Copier *copier(size_t n) { return n >= FAR ? move_crc : copy_crc; }

/* Copies a block that was found, and tells whether it was that block to the end. */
static int copy_block(Reader *r, const Entry *e, uint8_t *dst, Copier *copy) {
    uint32_t crc;
    if (e->size >= LET_GO) {
        Py_BEGIN_ALLOW_THREADS;
        crc = copy(0, dst, r->arena + e->offset, e->size);
        Py_END_ALLOW_THREADS;
    } else
        crc = copy(0, dst, r->arena + e->offset, e->size);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return unmoved(r, e) && alive(r) && crc == e->crc;
}

static void touch(Reader *r, const Entry *e) { ring_touch(&r->ring, r->table.number, e->place); }

PyDoc_STRVAR(get_doc, "get(ns, key) -> the block's bytes, None for a miss, False if it must be asked for.");

static PyObject *reader_get(Reader *r, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "get takes 2 arguments");
    Entry e;
    Answer a = find_block(r, args[0], args[1], &e);
    if (a != HIT)
        return no_block(a);
    PyObject *out = PyBytes_FromStringAndSize(NULL, e.size);
    if (!out)
        return NULL;
    if (!copy_block(r, &e, (uint8_t *)PyBytes_AS_STRING(out), copy_crc)) {
        Py_DECREF(out);
        Py_RETURN_FALSE;
    }
    touch(r, &e);
    return out;
}

PyDoc_STRVAR(get_into_doc, "get_into(ns, key, dst, far) -> bytes of the block, -1 for a miss, -2 if it must be asked for. far: the copy leaves dst out of the caches.");

static PyObject *reader_get_into(Reader *r, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 4)
        return PyErr_Format(PyExc_TypeError, "get_into takes 4 arguments");
    int far = PyObject_IsTrue(args[3]);
    if (far < 0)
        return NULL;
    Py_buffer dst;
    if (PyObject_GetBuffer(args[2], &dst, PyBUF_WRITABLE)) {
        PyErr_Clear();
        return PyLong_FromLong(-2);
    }
    Entry e;
    Py_ssize_t n = -2;
    Answer a = find_block(r, args[0], args[1], &e);
    if (a == MISS)
        n = -1;
    else if (a == HIT && e.size <= (uint64_t)dst.len && copy_block(r, &e, dst.buf, far ? copier(e.size) : copy_crc)) {
        touch(r, &e);
        n = e.size;
    }
    PyBuffer_Release(&dst);
    return PyLong_FromSsize_t(n);
}

/* Holding */

/* Holds a block that was found, and tells whether it is that block until the slot is given back. */
static int hold_block(Reader *r, const Entry *e, uint32_t *slot) {
    if (!holds_take(&r->holds, e->offset, e->size, slot))
        return 0;
    /* The rank had not begun to give the room away, so it finds the slot before it does; after the end of the connection it would not look.
     * When moving is 0 again the records of what was moved are gone, so it is loaded before them. */
    int good = !holds_ended(&r->holds) && load32(r->arena + SUPER_MOVING) == 0 && unmoved(r, e) && alive(r);
    if (good) {
        uint32_t crc;
        if (e->size >= LET_GO) {
            Py_BEGIN_ALLOW_THREADS;
            crc = read_crc(0, r->arena + e->offset, e->size);
            Py_END_ALLOW_THREADS;
        } else
            crc = read_crc(0, r->arena + e->offset, e->size);
        good = crc == e->crc && alive(r);
    }
    if (!good)
        holds_give_back(&r->holds, *slot);
    return good;
}

PyDoc_STRVAR(hold_doc, "hold(ns, key) -> (number of the hold, offset, bytes, CRC, tier), None for a miss, False if it must be asked for.");

static PyObject *reader_hold(Reader *r, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "hold takes 2 arguments");
    Entry e;
    uint32_t slot;
    Answer a = find_block(r, args[0], args[1], &e);
    if (a != HIT)
        return no_block(a);
    if (!hold_block(r, &e, &slot))
        Py_RETURN_FALSE;
    touch(r, &e);
    unsigned long long number = r->holds.held[slot].number, offset = e.offset;
    PyObject *out = Py_BuildValue("KKIIi", number, offset, e.size, e.crc, e.tier % TIERS);
    if (!out)
        holds_give_back(&r->holds, slot);
    return out;
}

PyDoc_STRVAR(let_go_doc, "let_go(number): ends a hold, if it has not ended and is not of the process that this one was forked from.");

static PyObject *reader_let_go(Reader *r, PyObject *arg) {
    unsigned long long number = PyLong_AsUnsignedLongLong(arg);
    if (number == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    holds_let_go(&r->holds, number);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(alive_doc, "alive() -> whether the table is kept and in use.");

static PyObject *reader_alive(Reader *r, PyObject *Py_UNUSED(none)) { return PyBool_FromLong(alive(r)); }

/* Making and ending */

static uint8_t *map_file(int fd, int protection, off_t least, size_t *bytes) {
    struct stat st;
    if (fstat(fd, &st) || st.st_size < least) {
        PyErr_SetString(PyExc_ValueError, "a file that is too small");
        return NULL;
    }
    void *p = mmap(NULL, (size_t)st.st_size, protection, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError);
        return NULL;
    }
    *bytes = (size_t)st.st_size;
    return p;
}

static int take_table(Reader *r, int fd) {
    size_t bytes;
    uint8_t *p = map_file(fd, PROT_READ, TABLE_HEADER, &bytes);
    if (!p)
        return 0;
    if (!table_begin(&r->table, p, bytes)) {
        munmap(p, bytes);
        PyErr_SetString(PyExc_ValueError, "no table of this version");
        return 0;
    }
    return 1;
}

static int take_ring(Reader *r, int fd) {
    size_t bytes;
    uint8_t *p = map_file(fd, PROT_READ | PROT_WRITE, RING_HEADER, &bytes);
    if (!p)
        return 0;
    if (!ring_begin(&r->ring, p, bytes)) {
        munmap(p, bytes);
        PyErr_SetString(PyExc_ValueError, "no touch ring of this version");
        return 0;
    }
    return 1;
}

PyDoc_STRVAR(take_holds_doc, "take_holds(fd): the connection's holds, once. The descriptor stays the caller's.");

static PyObject *reader_take_holds(Reader *r, PyObject *args) {
    int fd;
    if (!PyArg_ParseTuple(args, "i", &fd))
        return NULL;
    if (r->holds.mem)
        return PyErr_Format(PyExc_ValueError, "holds are taken once");
    size_t bytes;
    uint8_t *p = map_file(fd, PROT_READ | PROT_WRITE, 1, &bytes);
    if (!p)
        return NULL;
    uint32_t slots = holds_slots(p, bytes);
    Held *held = slots ? PyMem_Calloc(slots, sizeof *held) : NULL;
    if (!held) {
        munmap(p, bytes);
        return slots ? PyErr_NoMemory() : PyErr_Format(PyExc_ValueError, "no holds of this version");
    }
    holds_begin(&r->holds, p, bytes, held);
    Py_RETURN_NONE;
}

/* The arena is of use if it is the file that the table means. */
static void take_arena(Reader *r, unsigned long long address, unsigned long long bytes, PyObject *owner) {
    if (!address || bytes < TABLE_HEADER || bytes != r->table.arena)
        return;
    r->arena = (const uint8_t *)(uintptr_t)address;
    r->arena_bytes = bytes;
    r->data = word64(r->arena + SUPER_DATA);
    r->owner = Py_NewRef(owner);
}

static void reader_dealloc(Reader *r) {
    if (r->table.mem)
        munmap(r->table.mem, r->table.bytes);
    if (r->ring.mem)
        munmap(r->ring.mem, r->ring.bytes);
    if (r->holds.mem)
        munmap(r->holds.mem, r->holds.bytes);
    PyMem_Free(r->holds.held);
    Py_XDECREF(r->owner);
    Py_TYPE(r)->tp_free((PyObject *)r);
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kw)) {
    int table, ring;
    unsigned long long address, bytes;
    PyObject *owner;
    if (!PyArg_ParseTuple(args, "iiKKO", &table, &ring, &address, &bytes, &owner))
        return NULL;
    Reader *r = (Reader *)type->tp_alloc(type, 0);
    if (!r)
        return NULL;
    r->ns.bytes = -1;
    if (!take_table(r, table) || (ring >= 0 && !take_ring(r, ring))) {
        Py_DECREF(r);
        return NULL;
    }
    take_arena(r, address, bytes, owner);
    return (PyObject *)r;
}

static PyMethodDef reader_methods[] = {
    {"contains", (PyCFunction)(void (*)(void))reader_contains, METH_FASTCALL, contains_doc},
    {"probe", (PyCFunction)(void (*)(void))reader_probe, METH_FASTCALL, probe_doc},
    {"get", (PyCFunction)(void (*)(void))reader_get, METH_FASTCALL, get_doc},
    {"get_into", (PyCFunction)(void (*)(void))reader_get_into, METH_FASTCALL, get_into_doc},
    {"hold", (PyCFunction)(void (*)(void))reader_hold, METH_FASTCALL, hold_doc},
    {"let_go", (PyCFunction)reader_let_go, METH_O, let_go_doc},
    {"take_holds", (PyCFunction)reader_take_holds, METH_VARARGS, take_holds_doc},
    {"alive", (PyCFunction)reader_alive, METH_NOARGS, alive_doc},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject reader_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cascade_kv._fast.Reader",
    .tp_doc = "Reader(table fd, ring fd or -1, address and bytes of the arena, what keeps it mapped). The descriptors stay the caller's.",
    .tp_basicsize = sizeof(Reader),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = reader_new,
    .tp_dealloc = (destructor)reader_dealloc,
    .tp_methods = reader_methods,
};

PyDoc_STRVAR(crc_doc, "copy_crc32c(dst, src) -> CRC32C of src, which is copied to dst.");

static PyObject *fast_copy(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer dst, src;
    if (!PyArg_ParseTuple(args, "w*y*", &dst, &src))
        return NULL;
    PyObject *out = NULL;
    if (dst.len < src.len)
        PyErr_SetString(PyExc_ValueError, "the target is too small");
    else {
        uint32_t crc;
        Py_BEGIN_ALLOW_THREADS
        crc = copier((size_t)src.len)(0, dst.buf, src.buf, (size_t)src.len);
        Py_END_ALLOW_THREADS
        out = PyLong_FromUnsignedLong(crc);
    }
    PyBuffer_Release(&dst);
    PyBuffer_Release(&src);
    return out;
}

static PyMethodDef functions[] = {{"copy_crc32c", fast_copy, METH_VARARGS, crc_doc}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_fast", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__fast(void) {
    hash_init();
    PyObject *m = PyModule_Create(&module);
    if (m && PyModule_AddType(m, &reader_type)) {
        Py_DECREF(m);
        return NULL;
    }
    return m;
}
