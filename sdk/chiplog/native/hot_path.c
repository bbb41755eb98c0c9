/* What a training calls in every step, in C: log(), phase() and its block, step(), and the last part of every append.

   Each function here has a Python function that does the same and writes the same bytes: `_log_in_python` and so on.
   C handles the usual case. For anything else (texts, nested dicts, values on a GPU, NaN, bad input, a full segment, a
   run that has finished) it changes nothing and calls the Python function.

   Every function that writes has two parts. The first prepares: it reads values and allocates, which may run other
   code, such as the garbage collector's finalisers on Python 3.11. The second checks the state and commits: it runs no
   Python code and allocates no container, so it is atomic under the interpreter lock. A free-threaded Python enables
   the lock when it loads this module.

   Sections: types, clocks, MessagePack, CRC-32, Appender, events of numbers, LoopCalls, Phase, the module. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "records are little-endian: Python writes them here"
#endif

#ifndef SOURCE_CRC
#error "scripts/build_native.py defines SOURCE_CRC, by which loader.py finds a build of another source"
#endif
#define BYTES_ON_STACK 2048 /* of an event without an allocation */
#define FRONT_BYTES_MAX 24  /* of what precedes the keys of an event */
#define INT_BYTES_MAX 9     /* of a number or a header in MessagePack */
#define HEADER_BYTES 24     /* of a record, see chiplog_schemas/storage/record.py */
#define BACK_BYTES 16       /* of a header, behind its checksum, which covers the payload and then these */
#define FAST_BYTES_MIN 16   /* of a payload for fast_crc() */
#define STEP_MAX INT64_MAX
#if defined(__GNUC__) && !defined(__clang__)
#define VECTORIZED __attribute__((optimize("O3"))) /* clang needs no word for it */
#else
#define VECTORIZED
#endif
#define TALLY_COUNTS 3  /* doubles before the columns of a tally, see values/logged_values.py */
#define TALLY_COLUMNS 5 /* each with a double for each key */

enum { METRICS = 1, PHASES = 2 }; /* EventKind of chiplog_schemas */
/* Results of functions. The first three are also those of functions of Python's C API. */
enum { RAISED = -1, FOR_PYTHON = 0, DONE = 1, OTHER_KEYS, HAS_FOREIGN_VALUES };

/* ---- Types: base classes of Python classes of the same name. The tables at the end name their fields. ---- */

typedef struct {
    long long position; /* end of the records in the segment */
    long long seq;      /* of the next event */
    long long limit;    /* append() writes up to here by itself */
    PyObject *layout;
    Py_buffer memory; /* of the layout's segment */
} Tail;

typedef struct {
    PyObject_HEAD
    Tail tail;
    long long process; /* the number of the process that writes here */
} Appender;

typedef struct {
    PyObject_HEAD
    double began, paused; /* 0 while no collection runs; seconds that the next step takes */
} GcPauseTimer;

typedef struct {
    PyObject_HEAD
    PyObject *totals, *partial, *device; /* {phase: seconds}; parts that were emitted; None while the host times */
    char is_pending;
} Timing;

typedef struct {
    PyObject_HEAD
    GcPauseTimer *pauses;
    double began; /* start of the open step, by perf_counter(); 0 without one */
    char is_entered;
} Steps;

typedef struct {
    PyObject *keys, *packed, *tally; /* a tuple, its MessagePack, and what was logged: see values/logged_values.py */
} KeySet;

typedef struct {
    PyObject_HEAD
    Timing *timing;
    Steps *steps;
    PyObject *journal, *phases, *held, *callbacks, *step_block;
    PyObject *key_sets; /* {keys: (their MessagePack, …, tally)} of calls before */
    KeySet last[2];     /* of the last event of each kind: METRICS and PHASES */
    long long next_step, last_step, top_step, former_next_step, former_top_step; /* former: before the last step() */
    long long steps_per_log;
    char finished;
} LoopCalls;

typedef struct {
    PyObject_HEAD
    Timing *timing;
    PyObject *name, *opened; /* opened: {thread: start}; anything but a float is for Python */
    char on_host;
} Phase;

enum { APPENDER, GC_PAUSE_TIMER, TIMING, STEPS, LOOP_CALLS, PHASE, N_TYPES };
static PyTypeObject *type_of[N_TYPES];

/* The number of this process, in a page that the kernel clears in a forked child: see safety/process_number.py. */
static Py_buffer process_page;
static const long long no_number;
static const volatile long long *process_number = &no_number;

static PyObject *float_types;       /* the set of types that PyFloat_AsDouble converts */
static PyObject *tensor_type;       /* torch.Tensor, once the Python path has read one on the host */
static PyObject *is_wrapped_tensor; /* torch's function that recognises values inside of torch.func */

/* Names, interned once. */
#define NAMES(X) X(data) X(gc) X(is_cpu) X(item) X(step)
#define DECLARE(name) static PyObject *n_##name;
NAMES(DECLARE)

static int
is_a(void *object, int type)
{
    static PyTypeObject *found[N_TYPES]; /* the first class of each type, mostly the only one */
    if (object != NULL && Py_TYPE((PyObject *)object) == found[type])
        return 1;
    if (object == NULL || !PyObject_TypeCheck((PyObject *)object, type_of[type]))
        return 0;
    if (found[type] == NULL)
        found[type] = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE((PyObject *)object));
    return 1;
}

/* Return True if a member is a Timing that was initialised. */
static int
is_timing(Timing *timing)
{
    return is_a(timing, TIMING) && timing->totals != NULL && PyDict_CheckExact(timing->totals);
}

/* Assign to a member. Releases the former object last: that may run Python code. */
static void
replace(PyObject **member, PyObject *object)
{
    PyObject *former = *member;
    *member = Py_XNewRef(object);
    Py_XDECREF(former);
}

/* ---- Clocks ---- */

#if defined(__APPLE__)
#define PERF_COUNTER CLOCK_UPTIME_RAW
#else
#define PERF_COUNTER CLOCK_MONOTONIC
#endif
static int64_t fixed_time_us = -1; /* for tests: the time of both clocks */

static int64_t
clock_ns(clockid_t clock)
{
    struct timespec now;
    if (fixed_time_us >= 0)
        return fixed_time_us * 1000;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The same as time.perf_counter(), from which Python code subtracts it. */
static double
perf_counter(void)
{
    return (double)clock_ns(PERF_COUNTER) / 1e9;
}

/* A callback of gc.callbacks. In C, so that step() reads the pauses without Python code, and so that no signal handler
   runs in it: the collector would drop what the handler raises. */
static PyObject *
gc_pause_timer_note(GcPauseTimer *self, PyObject *args)
{
    const char *phase;
    double now = perf_counter();
    if (!PyArg_ParseTuple(args, "sO", &phase, &args))
        return NULL;
    int is_start = strcmp(phase, "start") == 0;
    if (!is_start && self->began > 0)
        self->paused += now - self->began;
    self->began = is_start ? now : 0;
    Py_RETURN_NONE;
}

/* ---- MessagePack: the shortest encodings, which msgpack's Packer writes ---- */

/* Return how many bytes an unsigned number takes, as a power of two. */
static int
width_of(uint64_t number)
{
    return number <= UINT8_MAX ? 0 : number <= UINT16_MAX ? 1 : number <= UINT32_MAX ? 2 : 3;
}

/* type: that of one byte; those of 2, 4 and 8 bytes follow it. Always writes INT_BYTES_MAX: eight bytes at once. */
static uint8_t *
put_big_endian(uint8_t *at, int type, int width, uint64_t bits)
{
    *at++ = (uint8_t)(type + width);
    bits = __builtin_bswap64(bits << (64 - (8 << width)));
    memcpy(at, &bits, sizeof(bits));
    return at + (1 << width);
}

static uint8_t *
put_int(uint8_t *at, int64_t value)
{
    uint64_t bits = (uint64_t)value;
    if (value >= 128)
        return put_big_endian(at, 0xcc, width_of(bits), bits);
    if (value < -32)
        return put_big_endian(at, 0xd0, width_of(~bits << 1), bits); /* one bit is the sign */
    *at++ = (uint8_t)bits;
    return at;
}

static uint8_t *
put_bin_header(uint8_t *at, size_t size)
{
    return put_big_endian(at, 0xc4, width_of(size), size);
}

/* ---- CRC-32, that of zlib. The processor's instructions touch no table: beside a training caches are cold. ---- */

#if defined(__x86_64__)
#define HAS_CRC_INSTRUCTIONS (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"))
/* Fold 16 bytes at a time by carry-less multiplication. After V. Gopal et al., "Fast CRC Computation for Generic
   Polynomials Using PCLMULQDQ Instruction", Intel 2009; the constants are those of its reflected CRC-32. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t
fast_crc(const uint8_t *data, size_t size, const uint8_t *back)
{
    const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0), by_8 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i reduction = _mm_set_epi64x(0x01f7011641, 0x01db710641), low_32 = _mm_set_epi32(0, -1, 0, -1);
    /* A checksum starts with ones, which change the first bytes: here they are added to these. Then zeros in front
       change nothing, and fill up the first block. */
    uint8_t front[32] = {0};
    size_t n_odd = size % 16;
    uint32_t first;
    memcpy(&first, data, sizeof(first));
    first = ~first;
    memcpy(front + 16 - n_odd, data, 16);
    memcpy(front + 16, data + n_odd, 16);
    memcpy(front + 16 - n_odd, &first, sizeof(first));
    __m128i x = _mm_loadu_si128((const __m128i *)front), y;
#define FOLD(block)                                                                                                    \
    y = _mm_xor_si128(_mm_clmulepi64_si128(x, by_16, 0x00), _mm_clmulepi64_si128(x, by_16, 0x11));                     \
    x = _mm_xor_si128(y, _mm_loadu_si128((const __m128i *)(block)))
    FOLD(front + 16);
    for (size_t at = n_odd + 16; at < size; at += 16) {
        FOLD(data + at);
    }
    FOLD(back);
    /* 128 bits to 64, and to 32 (Barrett). */
    y = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, by_16, 0x10));
    y = _mm_xor_si128(_mm_srli_si128(y, 4), _mm_clmulepi64_si128(_mm_and_si128(y, low_32), by_8, 0x00));
    x = _mm_clmulepi64_si128(_mm_and_si128(y, low_32), reduction, 0x10);
    x = _mm_clmulepi64_si128(_mm_and_si128(x, low_32), reduction, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(x, y), 1);
}
#elif defined(__aarch64__)
#if defined(__linux__)
#define HAS_CRC_INSTRUCTIONS ((getauxval(AT_HWCAP) & (1 << 7)) != 0) /* HWCAP_CRC32 */
#else
#define HAS_CRC_INSTRUCTIONS 1
#endif
__attribute__((target("+crc"))) static uint32_t
fast_crc(const uint8_t *data, size_t size, const uint8_t *back)
{
    uint32_t crc = ~0u;
    uint64_t word;
    for (; size >= 8; data += 8, size -= 8) {
        memcpy(&word, data, 8);
        crc = __crc32d(crc, word);
    }
    while (size--)
        crc = __crc32b(crc, *data++);
    memcpy(&word, back, 8);
    crc = __crc32d(crc, word);
    memcpy(&word, back + 8, 8);
    return __crc32d(crc, word);
}
#else
#define HAS_CRC_INSTRUCTIONS 0
static uint32_t
fast_crc(const uint8_t *data, size_t size, const uint8_t *back)
{
    return 0;
}
#endif

static int has_fast_crc; /* the processor has the instructions, and they passed a test */
static const uint32_t crc_table[16] = { /* of half a byte: one cache line */
    0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
    0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
};

/* Continue a checksum, inverted before and after by the caller. */
static uint32_t
update_crc(uint32_t crc, const uint8_t *data, size_t size)
{
    while (size--) {
        crc ^= *data++;
        crc = crc_table[crc & 15] ^ (crc >> 4);
        crc = crc_table[crc & 15] ^ (crc >> 4);
    }
    return crc;
}

/* Return the checksum of a record: of its payload, and then of the back of its header. */
static uint32_t
record_crc(const uint8_t *payload, size_t size, const uint8_t *back)
{
    if (has_fast_crc && size >= FAST_BYTES_MIN)
        return ~fast_crc(payload, size, back);
    return ~update_crc(update_crc(~0u, payload, size), back, BACK_BYTES);
}

/* Use the processor's instructions only if they agree with the table: a wrong checksum would lose the record. */
static void
choose_crc(void)
{
    uint8_t sample[100];
    for (size_t i = 0; i < sizeof(sample); i++)
        sample[i] = (uint8_t)(i * 37 + (i >> 3));
    has_fast_crc = HAS_CRC_INSTRUCTIONS;
    for (size_t size = FAST_BYTES_MIN; has_fast_crc && size <= sizeof(sample) - BACK_BYTES; size++)
        has_fast_crc = fast_crc(sample, size, sample + size) == update_crc(~0u, sample, size + BACK_BYTES);
}

/* ---- Appender: the tail of a journal, and the only code that writes to a segment ---- */

/* Return True if the journal is not that of the process that forked this one. */
static int
is_own(const Appender *journal)
{
    return journal->process == *process_number;
}

/* Return True if this journal is one whose segment has room for so many bytes, with the headers of their records. */
static int
has_room(PyObject *journal, size_t size)
{
    if (!is_a(journal, APPENDER) || !is_own((Appender *)journal))
        return 0;
    const Tail *tail = &((Appender *)journal)->tail;
    return (long long)size <= tail->limit - tail->position;
}

/* Append one event. has_room() has checked that it fits. */
static void
write_record(Appender *self, const void *payload, size_t size)
{
    struct {
        uint32_t magic, crc, length;
        uint8_t kind, version;
        uint16_t flags;
        uint64_t number;
    } header = {0x31524C43u, 0, (uint32_t)size, 1, 1, 0, (uint64_t)self->tail.seq};
    header.crc = record_crc(payload, size, (const uint8_t *)&header.length);
    uint8_t *record = (uint8_t *)self->tail.memory.buf + self->tail.position;
    memcpy(record, &header, HEADER_BYTES);
    memcpy(record + HEADER_BYTES, payload, size);
    self->tail.position += HEADER_BYTES + (long long)size;
    self->tail.seq++;
}

static PyObject *
appender_append(Appender *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"payload", "urgent", NULL};
    PyObject *payload, *urgent = Py_False;
    if (!PyArg_ParseTupleAndKeywords(args, named, "S|$O:append", names, &payload, &urgent))
        return NULL;
    size_t size = (size_t)PyBytes_Size(payload);
    if (!has_room((PyObject *)self, HEADER_BYTES + size))
        return PyObject_CallMethod((PyObject *)self, "_append_in_python", "OO", payload, urgent);
    write_record(self, PyBytes_AsString(payload), size);
    Py_RETURN_NONE;
}

static void
release_tail(Tail *tail)
{
    if (tail->memory.obj != NULL)
        PyBuffer_Release(&tail->memory);
    Py_CLEAR(tail->layout);
}

/* Replace the tail. The caller releases the former one, which it has then: that may run Python code. */
static void
swap_tail(Appender *self, Tail *next)
{
    Tail former = self->tail;
    self->tail = *next;
    *next = former;
}

/* Read a tuple, and the limit and memory of its layout. The caller releases the tail, also after an error. */
static int
read_tail(PyObject *tuple, Tail *tail)
{
    PyObject *layout, *limit, *memory = NULL;
    if (tuple == NULL || !PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "a tail is a tuple");
        return RAISED;
    }
    if (!PyArg_ParseTuple(tuple, "LLO", &tail->position, &tail->seq, &layout))
        return RAISED;
    tail->layout = Py_NewRef(layout);
    tail->limit = (limit = PyObject_GetAttrString(layout, "limit")) == NULL ? RAISED : PyLong_AsLongLong(limit);
    if (!PyErr_Occurred() && (memory = PyObject_GetAttrString(layout, "memory")) != NULL && memory != Py_None)
        PyObject_GetBuffer(memory, &tail->memory, PyBUF_WRITABLE);
    Py_XDECREF(limit);
    Py_XDECREF(memory);
    if (!PyErr_Occurred() && (tail->position < 0 || tail->limit > (long long)tail->memory.len))
        PyErr_SetString(PyExc_ValueError, "the tail is not in its segment");
    return PyErr_Occurred() ? RAISED : DONE;
}

static PyObject *
appender_get_tail(Appender *self, void *closure)
{
    Tail *tail = &self->tail;
    if (tail->layout != NULL)
        /* A new reference, before the tuple is allocated: that may run finalisers, which may replace the tail. */
        return Py_BuildValue("(LLN)", tail->position, tail->seq, Py_NewRef(tail->layout));
    PyErr_SetString(PyExc_AttributeError, "_tail");
    return NULL;
}

static int
appender_set_tail(Appender *self, PyObject *tuple, void *closure)
{
    Tail next = {0};
    int result = read_tail(tuple, &next);
    if (result == DONE)
        swap_tail(self, &next);
    release_tail(&next);
    return result == DONE ? 0 : -1;
}

/* Replace the tail and write records, unless the tail has been replaced already. */
static PyObject *
appender_publish(Appender *self, PyObject *args)
{
    PyObject *before, *after, *memory, *page, *layout;
    PyObject *current = NULL, *segment = NULL, *first_seq = NULL, *result = NULL;
    const char *records;
    Py_ssize_t n_records, page_offset;
    long long position, seq, at;
    Py_buffer target = {0}, counter = {0};
    Tail next = {0};
    if (!PyArg_ParseTuple(args, "O!Oy#OLOn", &PyTuple_Type, &before, &after, &records, &n_records, &memory, &at, &page,
                          &page_offset)
        || !PyArg_ParseTuple(before, "LLO", &position, &seq, &layout))
        return NULL;
    /* First: what an overtaken caller prepared may be invalid by now, such as a segment that is unmapped. What follows
       runs no Python code, so the tail stays the same: the attributes are slots, and ints have no finalisers. */
    if (self->tail.position != position || self->tail.seq != seq || self->tail.layout != layout || !is_own(self))
        Py_RETURN_FALSE;
    if (read_tail(after, &next) == RAISED || PyObject_GetBuffer(memory, &target, PyBUF_WRITABLE) < 0
        || PyObject_GetBuffer(page, &counter, PyBUF_WRITABLE) < 0
        || (current = PyObject_GetAttrString(layout, "segment")) == NULL
        || (segment = PyObject_GetAttrString(next.layout, "segment")) == NULL)
        goto done;
    first_seq = segment == current ? PyObject_GetAttrString(segment, "first_seq") : PyLong_FromLongLong(seq);
    if (first_seq == NULL)
        goto done;
    if ((n_records && (at < 0 || at > target.len - n_records))
        || (counter.len && (page_offset < 0 || page_offset > counter.len - (Py_ssize_t)sizeof(next.seq)))) {
        PyErr_SetString(PyExc_ValueError, "the records exceed the segment");
        goto done;
    }
    if (PyObject_SetAttrString(current, "end", PyTuple_GetItem(before, 0)) < 0
        || PyObject_SetAttrString(current, "next_seq", PyTuple_GetItem(before, 1)) < 0
        || PyObject_SetAttrString(segment, "first_seq", first_seq) < 0)
        goto done;
    if (n_records)
        memcpy((char *)target.buf + at, records, (size_t)n_records);
    if (counter.len)
        memcpy((char *)counter.buf + page_offset, &next.seq, sizeof(next.seq));
    swap_tail(self, &next);
    result = Py_NewRef(Py_True);
done:
    PyBuffer_Release(&target);
    PyBuffer_Release(&counter);
    release_tail(&next);
    Py_XDECREF(current);
    Py_XDECREF(segment);
    Py_XDECREF(first_seq);
    return result;
}

/* ---- Events of numbers: METRICS and PHASES ---- */

/* An event whose keys and values are encoded. What precedes them is encoded when its step is known. */
typedef struct {
    size_t size;              /* of keys and values */
    uint8_t *body;            /* they are here, after room for FRONT_BYTES_MAX */
    uint8_t *large;           /* the allocation, if they do not fit on the stack */
    PyObject *totals, *empty; /* of phases: the dict that the event has, and the next one; else NULL */
    PyObject *tally;          /* of its keys */
    size_t n_values;
    uint8_t small[BYTES_ON_STACK];
} Event;

static void
begin_event(Event *event)
{
    event->large = NULL;
    event->totals = event->empty = event->tally = NULL;
}

static void
release_event(Event *event)
{
    PyMem_Free(event->large);
    Py_XDECREF(event->totals);
    Py_XDECREF(event->empty);
    Py_XDECREF(event->tally);
}

/* Compare a new reference with an object, and release it. */
static int
is_same(PyObject *found, PyObject *expected)
{
    Py_XDECREF(found);
    return found == NULL ? RAISED : found == expected ? DONE : FOR_PYTHON;
}

/* Read a value whose conversion may run code of numpy or torch. */
static int
read_foreign(PyObject *value, double *number)
{
    PyObject *found, *type = (PyObject *)Py_TYPE(value);
    int result = PySet_Contains(float_types, type);
    if (result == DONE)
        *number = PyFloat_AsDouble(value);
    else if (result == FOR_PYTHON && type == tensor_type) {
        result = is_same(PyObject_GetAttr(value, n_is_cpu), Py_True);
        if (result == DONE)
            result = is_same(PyObject_CallFunctionObjArgs(is_wrapped_tensor, value, NULL), Py_False);
        if (result == DONE && (found = PyObject_CallMethodObjArgs(value, n_item, NULL)) != NULL) {
            result = PyFloat_CheckExact(found) || PyLong_CheckExact(found) || PyBool_Check(found) ? DONE : FOR_PYTHON;
            *number = result == DONE ? PyFloat_AsDouble(found) : 0;
            Py_DECREF(found);
        }
    }
    return PyErr_Occurred() ? RAISED : result;
}

/* Encode a dict that has exactly these keys. Runs no Python code, except to read foreign values: they change a dict of
   the training, but not a copy of it. */
static int
encode_numbers(Event *event, PyObject *data, KeySet known, int is_copy)
{
    int result = DONE;
    PyObject *key, *value;
    Py_ssize_t place = 0, i = 0, n = PyTuple_Size(known.keys), n_packed = PyBytes_Size(known.packed);
    uint8_t *buffer = event->small, *at;
    size_t size = FRONT_BYTES_MAX + 2 * INT_BYTES_MAX + (size_t)n_packed + (size_t)n * sizeof(double);
    if (PyDict_Size(data) != n)
        return OTHER_KEYS;
    if (size > sizeof(event->small)) {
        if ((buffer = PyMem_Realloc(event->large, size)) == NULL)
            return FOR_PYTHON;
        event->large = buffer;
    }
    event->body = buffer + FRONT_BYTES_MAX;
    at = put_bin_header(event->body, (size_t)n_packed);
    memcpy(at, PyBytes_AsString(known.packed), (size_t)n_packed);
    at = put_bin_header(at + n_packed, (size_t)n * sizeof(double));
    for (; PyDict_Next(data, &place, &key, &value); i++) {
        double number = 0;
        if (i >= n || key != PyTuple_GetItem(known.keys, i))
            return OTHER_KEYS;
        if (PyFloat_CheckExact(value))
            number = PyFloat_AsDouble(value);
        else if (PyLong_CheckExact(value) || PyBool_Check(value)) {
            number = PyLong_AsDouble(value);
            if (number == -1.0 && PyErr_Occurred()) { /* too large for a float64 */
                PyErr_Clear();
                return FOR_PYTHON;
            }
        }
        else if (!is_copy)
            result = HAS_FOREIGN_VALUES;
        else if ((result = read_foreign(value, &number)) != DONE)
            return result;
        if (!isfinite(number))
            return FOR_PYTHON; /* which reports it */
        memcpy(at, &number, sizeof(number));
        at += sizeof(number);
    }
    event->size = (size_t)(at - event->body);
    event->n_values = (size_t)n;
    replace(&event->tally, known.tally);
    return i == n ? result : OTHER_KEYS;
}

/* Make the keys of a dict the last ones of their kind, if their MessagePack is known. */
static int
look_up_keys(LoopCalls *self, KeySet *last, PyObject *data)
{
    PyObject *entry = NULL, *keys = PySequence_Tuple(data);
    int are_plain = keys != NULL;
    for (Py_ssize_t i = 0; are_plain && i < PyTuple_Size(keys); i++)
        are_plain = PyUnicode_CheckExact(PyTuple_GetItem(keys, i)); /* others may run code when they are compared */
    if (are_plain && (entry = PyDict_GetItemWithError(self->key_sets, keys)) != NULL) {
        replace(&last->packed, PyTuple_GetItem(entry, 0));
        replace(&last->tally, PyTuple_GetItem(entry, PyTuple_Size(entry) - 1));
        replace(&last->keys, keys);
    }
    Py_XDECREF(keys);
    return PyErr_Occurred() ? RAISED : entry != NULL ? DONE : FOR_PYTHON;
}

/* Prepare the event of a dict of numbers whose keys were logged before. DONE means that it is ready to be committed. */
static int
prepare_event(LoopCalls *self, int kind, PyObject *data, Event *event)
{
    KeySet *last = &self->last[kind - METRICS];
    int result = last->keys == NULL ? OTHER_KEYS : encode_numbers(event, data, *last, 0);
    if (result == OTHER_KEYS && (result = look_up_keys(self, last, data)) == DONE)
        result = encode_numbers(event, data, *last, 0);
    if (result == HAS_FOREIGN_VALUES && kind == METRICS) {
        /* A call of log() within may replace `last`. */
        KeySet known = {Py_NewRef(last->keys), Py_NewRef(last->packed), Py_XNewRef(last->tally)};
        PyObject *copy = PyDict_Copy(data);
        result = copy == NULL ? RAISED : encode_numbers(event, copy, known, 1);
        Py_XDECREF(copy);
        Py_DECREF(known.keys);
        Py_DECREF(known.packed);
        Py_XDECREF(known.tally);
    }
    return result;
}

/* The most that the record of an event takes. */
static size_t
record_bytes_max(const Event *event)
{
    return HEADER_BYTES + FRONT_BYTES_MAX + event->size;
}

/* Append an event. has_room() has checked that it fits. */
static void
write_event(PyObject *journal, int kind, int64_t step, const Event *event)
{
    uint8_t front[FRONT_BYTES_MAX], *at = front;
    *at++ = 0x95; /* an array of five */
    at = put_int(at, kind);
    at = put_int(at, clock_ns(CLOCK_REALTIME) / 1000); /* in microseconds */
    at = put_int(at, step);
    size_t n_front = (size_t)(at - front);
    memcpy(event->body - n_front, front, n_front);
    write_record((Appender *)journal, event->body - n_front, n_front + event->size);
}

/* Add the values of an event, all of them finite, to the tally of their keys: how many events, the numbers of the first
   and last one, and for all keys the last, smallest and largest value, the sum, and the first value. */
VECTORIZED static void
note_values(const Event *event, long long seq)
{
    size_t n = event->n_values;
    if (event->tally == NULL || !PyObject_TypeCheck(event->tally, &PyByteArray_Type)
        || (size_t)PyByteArray_Size(event->tally) != (TALLY_COUNTS + TALLY_COLUMNS * n) * sizeof(double))
        return;
    double *restrict counts = (double *)PyByteArray_AsString(event->tally), *restrict last = counts + TALLY_COUNTS;
    double *restrict min = last + n, *restrict max = min + n, *restrict sum = max + n;
    memcpy(last, event->body + event->size - n * sizeof(double), n * sizeof(double));
    counts[2] = (double)seq;
    if (counts[0]++ == 0) {
        counts[1] = (double)seq;
        for (double *column = min; column <= sum + n; column += n)
            memcpy(column, last, n * sizeof(double));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        min[i] = last[i] < min[i] ? last[i] : min[i];
        max[i] = last[i] > max[i] ? last[i] : max[i];
        sum[i] += last[i];
    }
}

/* ---- LoopCalls: log(), phase() and step() ---- */

/* Prepare the event of the phases that wait for a step. */
static int
prepare_phases(LoopCalls *self, Event *event)
{
    if ((event->empty = PyDict_New()) == NULL)
        return RAISED;
    event->totals = Py_NewRef(self->timing->totals);
    return prepare_event(self, PHASES, event->totals, event);
}

static int
is_empty(PyObject *container)
{
    return container != NULL && PyObject_Size(container) == 0;
}

/* Return True if these phases are still what a step appends, and all of it. */
static int
can_take_phases(LoopCalls *self, const Event *phases)
{
    return self->timing->totals == phases->totals && self->timing->device == Py_None && is_empty(self->timing->partial)
           && is_empty(self->held) && is_empty(self->callbacks);
}

/* Append the phases to a step, and begin new totals. The event holds the former ones: none is released here. */
static void
take_phases(LoopCalls *self, int64_t step, const Event *phases)
{
    replace(&self->timing->totals, phases->empty);
    self->timing->is_pending = 0;
    write_event(self->journal, PHASES, step, phases);
}

/* Return True if C may handle a call of this run. */
static int
is_ready(LoopCalls *self)
{
    return !self->finished && is_timing(self->timing) && self->key_sets != NULL && PyDict_CheckExact(self->key_sets);
}

/* Call the Python function for this call. */
static PyObject *
in_python(LoopCalls *self, const char *name, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    PyObject *call = PyObject_GetAttrString((PyObject *)self, name), *result = NULL;
    PyObject *positional = PyTuple_New(n_args), *named = PyDict_New();
    int is_failed = call == NULL || positional == NULL || named == NULL;
    for (Py_ssize_t i = 0; !is_failed && i < n_args; i++)
        is_failed = PyTuple_SetItem(positional, i, Py_NewRef(args[i])) < 0;
    for (Py_ssize_t i = 0; !is_failed && kwnames != NULL && i < PyTuple_Size(kwnames); i++)
        is_failed = PyDict_SetItem(named, PyTuple_GetItem(kwnames, i), args[n_args + i]) < 0;
    if (!is_failed)
        result = PyObject_Call(call, positional, named);
    Py_XDECREF(call);
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return result;
}

/* Hand the exception of a value to Python, which raises it again if it is not the value's. */
static PyObject *
log_after_error(LoopCalls *self, PyObject *data, PyObject *step)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(error, traceback);
    PyObject *result = PyObject_CallMethod((PyObject *)self, "_log_after_error", "OOO", error, data, step);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    return result;
}

/* Assign the numbers to a step, with the pending phases, if any. Changes nothing unless it returns DONE. */
static int
commit_log(LoopCalls *self, PyObject *given, const Event *metrics, const Event *phases)
{
    int overflow = 0, has_phases = phases->totals != NULL;
    int64_t step = given == Py_None ? self->next_step : PyLong_AsLongLongAndOverflow(given, &overflow);
    size_t size = record_bytes_max(metrics) + (has_phases ? record_bytes_max(phases) : 0);
    if (overflow || step == STEP_MAX || !is_ready(self) || !has_room(self->journal, size))
        return FOR_PYTHON;
    if (has_phases != (self->steps_per_log && self->timing->is_pending))
        return FOR_PYTHON; /* another thread has ended a phase, or has called step() */
    if (has_phases && !can_take_phases(self, phases))
        return FOR_PYTHON;
    if (step > self->top_step) {
        self->top_step = step;
        self->next_step = step + self->steps_per_log;
    }
    else if (!self->steps_per_log)
        self->next_step = step;
    self->last_step = step;
    if (has_phases)
        take_phases(self, step, phases);
    note_values(metrics, ((Appender *)self->journal)->tail.seq);
    write_event(self->journal, METRICS, step, metrics);
    return DONE;
}

static PyObject *
loop_calls_log(LoopCalls *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    PyObject *data = n_args > 0 ? args[0] : NULL, *given = n_args > 1 ? args[1] : Py_None;
    int is_usual = n_args <= 2 && is_ready(self);
    for (Py_ssize_t i = 0; kwnames != NULL && i < PyTuple_Size(kwnames); i++) {
        PyObject *name = PyTuple_GetItem(kwnames, i);
        if (name == n_step && n_args < 2)
            given = args[n_args + i];
        else if (name == n_data && n_args < 1)
            data = args[n_args + i];
        else
            is_usual = 0;
    }
    if (!is_usual || data == NULL || !PyDict_CheckExact(data) || (given != Py_None && !PyLong_CheckExact(given)))
        return in_python(self, "_log_in_python", args, n_args, kwnames);
    Event metrics, phases;
    begin_event(&metrics);
    begin_event(&phases);
    int result = prepare_event(self, METRICS, data, &metrics);
    if (result == DONE && self->steps_per_log && is_ready(self) && self->timing->is_pending)
        result = prepare_phases(self, &phases);
    if (result == DONE)
        result = commit_log(self, given, &metrics, &phases);
    release_event(&metrics);
    release_event(&phases);
    if (result == DONE)
        Py_RETURN_NONE;
    if (result == RAISED)
        return log_after_error(self, data, given);
    return in_python(self, "_log_in_python", args, n_args, kwnames);
}

static PyObject *
loop_calls_phase(LoopCalls *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    if (n_args == 1 && kwnames == NULL && PyUnicode_CheckExact(args[0]) && self->phases != NULL) {
        PyObject *phase = PyDict_GetItemWithError(self->phases, args[0]);
        if (phase != NULL)
            return Py_NewRef(phase);
        PyErr_Clear();
    }
    return in_python(self, "_phase_in_python", args, n_args, kwnames);
}

/* Add seconds to a phase. Runs no Python code: the keys are of type str, and the values are floats. */
static int
add_seconds(Timing *timing, PyObject *name, double seconds)
{
    PyObject *before = PyDict_GetItemWithError(timing->totals, name);
    PyObject *sum = PyFloat_FromDouble(before == NULL ? seconds : PyFloat_AsDouble(before) + seconds);
    int result = sum == NULL ? RAISED : PyDict_SetItem(timing->totals, name, sum);
    timing->is_pending = 1;
    Py_XDECREF(sum);
    return result;
}

static PyObject *
loop_calls_step(LoopCalls *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    Steps *steps = self->steps;
    if (n_args || kwnames != NULL || !is_ready(self) || self->steps_per_log || self->step_block == NULL
        || !is_a(steps, STEPS) || steps->is_entered || steps->began == 0 || !is_a(steps->pauses, GC_PAUSE_TIMER))
        return in_python(self, "_step_in_python", args, n_args, kwnames);
    long long step = self->last_step;
    double now = perf_counter(), seconds = now - steps->began, paused = steps->pauses->paused;
    self->former_next_step = self->next_step;
    self->former_top_step = self->top_step;
    steps->began = now;
    steps->pauses->paused = 0;
    if (add_seconds(self->timing, n_step, seconds) < 0 || (paused > 0 && add_seconds(self->timing, n_gc, paused) < 0))
        return NULL; /* out of memory */
    Event phases;
    begin_event(&phases);
    int result = prepare_phases(self, &phases);
    if (result == DONE && can_take_phases(self, &phases) && has_room(self->journal, record_bytes_max(&phases)))
        take_phases(self, step, &phases);
    else if (result != RAISED)
        result = is_same(PyObject_CallMethod((PyObject *)self, "_append_phases_of_step", "L", step), Py_True);
    release_event(&phases);
    if (result == RAISED)
        return NULL;
    if (result == DONE) {
        self->top_step = step > self->top_step ? step : self->top_step;
        self->next_step = self->top_step < STEP_MAX ? self->top_step + 1 : STEP_MAX;
        self->last_step = step < STEP_MAX ? step + 1 : STEP_MAX;
    }
    return Py_NewRef(self->step_block);
}

/* ---- Phase: the block that run.phase() returns ---- */

static int
is_usable(Phase *self)
{
    return is_timing(self->timing) && self->name != NULL && PyUnicode_CheckExact(self->name) && self->opened != NULL
           && PyDict_CheckExact(self->opened);
}

static PyObject *
phase_enter(Phase *self, PyObject *unused)
{
    if (!is_usable(self) || (!self->on_host && self->timing->device != Py_None))
        return PyObject_CallMethod((PyObject *)self, "_enter_in_python", NULL);
    PyObject *began = PyFloat_FromDouble(perf_counter()), *result = NULL;
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    int is_open = thread == NULL || began == NULL ? RAISED : PyDict_Contains(self->opened, thread);
    if (is_open > 0)
        result = PyObject_CallMethod((PyObject *)self, "_enter_in_python", NULL);
    else if (is_open == 0 && PyDict_SetItem(self->opened, thread, began) == 0)
        result = Py_NewRef((PyObject *)self);
    Py_XDECREF(thread);
    Py_XDECREF(began);
    return result;
}

static PyObject *
phase_exit(Phase *self, PyObject *const *args, Py_ssize_t n_args)
{
    double now = perf_counter();
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident()), *began = NULL, *result = NULL;
    if (thread != NULL && is_usable(self))
        began = PyDict_GetItemWithError(self->opened, thread);
    if (began != NULL && PyFloat_CheckExact(began)) {
        double seconds = now - PyFloat_AsDouble(began);
        if (PyDict_DelItem(self->opened, thread) == 0 && add_seconds(self->timing, self->name, seconds) == 0)
            result = Py_NewRef(Py_None);
    }
    else if (!PyErr_Occurred())
        result = PyObject_CallMethod((PyObject *)self, "_exit_in_python", NULL);
    Py_XDECREF(thread);
    return result;
}

/* ---- The module ---- */

#define OBJECT(Type, name, member) {name, T_OBJECT_EX, offsetof(Type, member), 0, NULL}
#define HIDDEN(Type, name, member) {name, T_OBJECT, offsetof(Type, member), READONLY, NULL}
#define FIELD(Type, kind, name, member) {name, kind, offsetof(Type, member), 0, NULL}

static PyMethodDef no_methods[] = {{NULL}};
static PyGetSetDef no_attributes[] = {{NULL}};

static PyMethodDef appender_methods[] = {
    {"append", (PyCFunction)(void (*)(void))appender_append, METH_VARARGS | METH_KEYWORDS,
     "append($self, payload, *, urgent=False)\n--\n\nAppend an event with the next seq."},
    {"_publish", (PyCFunction)appender_publish, METH_VARARGS,
     "Replace a tail and write records: (tail, after, records, memory, position, page, offset)."},
    {NULL},
};
static PyGetSetDef appender_attributes[] = {
    {"_tail", (getter)appender_get_tail, (setter)appender_set_tail, "End of the records, next seq, layout.", NULL},
    {NULL},
};
static PyMemberDef appender_members[] = {
    HIDDEN(Appender, "_layout", tail.layout),
    HIDDEN(Appender, "_memory", tail.memory.obj),
    FIELD(Appender, T_LONGLONG, "_process", process),
    {NULL},
};

static PyMethodDef gc_pause_timer_methods[] = {
    {"note", (PyCFunction)gc_pause_timer_note, METH_VARARGS, "Note the start or end of a collection."},
    {NULL},
};
static PyMemberDef gc_pause_timer_members[] = {
    FIELD(GcPauseTimer, T_DOUBLE, "paused", paused),
    {NULL},
};

static PyMemberDef timing_members[] = {
    OBJECT(Timing, "totals", totals),
    OBJECT(Timing, "_partial", partial),
    OBJECT(Timing, "device", device),
    FIELD(Timing, T_BOOL, "is_pending", is_pending),
    {NULL},
};

static PyMemberDef steps_members[] = {
    OBJECT(Steps, "_pauses", pauses),
    FIELD(Steps, T_DOUBLE, "began", began),
    FIELD(Steps, T_BOOL, "is_entered", is_entered),
    {NULL},
};

static PyMethodDef loop_calls_methods[] = {
    {"log", (PyCFunction)(void (*)(void))loop_calls_log, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"phase", (PyCFunction)(void (*)(void))loop_calls_phase, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"step", (PyCFunction)(void (*)(void))loop_calls_step, METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL},
};
static PyMemberDef loop_calls_members[] = {
    OBJECT(LoopCalls, "_journal", journal),
    OBJECT(LoopCalls, "_timing", timing),
    OBJECT(LoopCalls, "_steps", steps),
    OBJECT(LoopCalls, "_phases", phases),
    OBJECT(LoopCalls, "_first_step_phases", held),
    OBJECT(LoopCalls, "_per_step_callbacks", callbacks),
    OBJECT(LoopCalls, "_step_block", step_block),
    OBJECT(LoopCalls, "_key_sets", key_sets),
    HIDDEN(LoopCalls, "_last_metrics_keys", last[0].keys),
    HIDDEN(LoopCalls, "_last_metrics_packed", last[0].packed),
    HIDDEN(LoopCalls, "_last_metrics_tally", last[0].tally),
    HIDDEN(LoopCalls, "_last_phases_keys", last[1].keys),
    HIDDEN(LoopCalls, "_last_phases_packed", last[1].packed),
    HIDDEN(LoopCalls, "_last_phases_tally", last[1].tally),
    FIELD(LoopCalls, T_LONGLONG, "_next_step", next_step),
    FIELD(LoopCalls, T_LONGLONG, "_last_step", last_step),
    FIELD(LoopCalls, T_LONGLONG, "_top_step", top_step),
    FIELD(LoopCalls, T_LONGLONG, "_former_next_step", former_next_step),
    FIELD(LoopCalls, T_LONGLONG, "_former_top_step", former_top_step),
    FIELD(LoopCalls, T_LONGLONG, "_steps_per_log", steps_per_log),
    FIELD(LoopCalls, T_BOOL, "_finished", finished),
    {NULL},
};

static PyMethodDef phase_methods[] = {
    {"__enter__", (PyCFunction)phase_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))phase_exit, METH_FASTCALL, NULL},
    {NULL},
};
static PyMemberDef phase_members[] = {
    OBJECT(Phase, "_timing", timing),
    OBJECT(Phase, "_name", name),
    OBJECT(Phase, "_opened", opened),
    FIELD(Phase, T_BOOL, "_on_host", on_host),
    {NULL},
};

#define NAME(Type) "chiplog.native._hot_path." #Type, sizeof(Type)
static struct {
    const char *name;
    size_t size;
    PyMemberDef *members;
    PyMethodDef *methods;
    PyGetSetDef *attributes;
} types[N_TYPES] = {
    [APPENDER] = {NAME(Appender), appender_members, appender_methods, appender_attributes},
    [GC_PAUSE_TIMER] = {NAME(GcPauseTimer), gc_pause_timer_members, gc_pause_timer_methods, no_attributes},
    [TIMING] = {NAME(Timing), timing_members, no_methods, no_attributes},
    [STEPS] = {NAME(Steps), steps_members, no_methods, no_attributes},
    [LOOP_CALLS] = {NAME(LoopCalls), loop_calls_members, loop_calls_methods, no_attributes},
    [PHASE] = {NAME(Phase), phase_members, phase_methods, no_attributes},
};

static const PyMemberDef *
members_of(PyObject *self)
{
    int type = 0;
    while (!is_a(self, type))
        type++;
    return types[type].members;
}

static PyObject **
held_by(PyObject *self, const PyMemberDef *member)
{
    int is_object = member->type == T_OBJECT || member->type == T_OBJECT_EX;
    return is_object ? (PyObject **)((char *)self + member->offset) : NULL;
}

/* There is no tp_clear: each circle goes through an object of Python, which has one. */
static int
traverse(PyObject *self, visitproc visit, void *arg)
{
    PyObject **held;
    Py_VISIT(Py_TYPE(self));
    for (const PyMemberDef *member = members_of(self); member->name != NULL; member++)
        if ((held = held_by(self, member)) != NULL)
            Py_VISIT(*held);
    return 0;
}

static void
deallocate(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject **held;
    PyObject_GC_UnTrack(self);
    if (is_a(self, APPENDER))
        release_tail(&((Appender *)self)->tail);
    for (const PyMemberDef *member = members_of(self); member->name != NULL; member++)
        if ((held = held_by(self, member)) != NULL)
            Py_CLEAR(*held);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Name the types of values that C reads: the set of those that convert to a float; torch.Tensor, with torch's function
   that recognises values inside of torch.func; None for both until a tensor on the host was read. */
static PyObject *
set_value_types(PyObject *module, PyObject *args)
{
    PyObject *floats, *tensor, *is_wrapped;
    if (!PyArg_ParseTuple(args, "O!OO", &PySet_Type, &floats, &tensor, &is_wrapped))
        return NULL;
    replace(&float_types, floats);
    replace(&is_wrapped_tensor, is_wrapped);
    replace(&tensor_type, tensor);
    Py_RETURN_NONE;
}

/* Read the number of this process from now on in this page, which stays for as long as the process. */
static PyObject *
set_process_page(PyObject *module, PyObject *page)
{
    if (process_page.obj == NULL && PyObject_GetBuffer(page, &process_page, PyBUF_SIMPLE) == 0)
        process_number = process_page.buf;
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Take the texts of help() from the Python functions. */
static PyObject *
set_docs(PyObject *module, PyObject *docs)
{
    PyMethodDef *log = &loop_calls_methods[0], *phase = &loop_calls_methods[1], *step = &loop_calls_methods[2];
    if (!PyArg_ParseTuple(docs, "sss", &log->ml_doc, &phase->ml_doc, &step->ml_doc))
        return NULL;
    Py_INCREF(docs); /* for as long as the methods, which is to the end of the process */
    Py_RETURN_NONE;
}

static PyObject *
fix_time(PyObject *module, PyObject *time_us)
{
    fixed_time_us = PyLong_AsLongLong(time_us);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef functions[] = {
    {"set_value_types", set_value_types, METH_VARARGS, "Name types: (floats, tensor, is_wrapped_tensor)."},
    {"set_process_page", set_process_page, METH_O, "Set the page with the number of this process."},
    {"set_docs", set_docs, METH_VARARGS, "Set the texts of help() for log, phase and step."},
    {"fix_time", fix_time, METH_O, "For tests: stop both clocks at this time, in microseconds; -1 starts them."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_hot_path", "What a training calls in every step, in C.", -1, functions,
};

PyMODINIT_FUNC
PyInit__hot_path(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyModule_AddObjectRef(module, "SOURCE_CRC", PyLong_FromUnsignedLong(SOURCE_CRC)) < 0)
        return NULL;
#define INTERN(name)                                                                                                   \
    if ((n_##name = PyUnicode_InternFromString(#name)) == NULL)                                                        \
        return NULL;
    NAMES(INTERN)
    choose_crc();
    for (int i = 0; i < N_TYPES; i++) {
        PyType_Slot slots[] = {
            {Py_tp_members, types[i].members},   {Py_tp_methods, types[i].methods},
            {Py_tp_getset, types[i].attributes}, {Py_tp_traverse, (void *)traverse},
            {Py_tp_dealloc, (void *)deallocate}, {0, NULL},
        };
        PyType_Spec spec = {types[i].name, (int)types[i].size, 0, 0, slots};
        spec.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;
        type_of[i] = (PyTypeObject *)PyType_FromSpec(&spec);
        if (type_of[i] == NULL || PyModule_AddType(module, type_of[i]) < 0)
            return NULL;
    }
    return module;
}
