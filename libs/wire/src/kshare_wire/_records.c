/* Walks over the records of one batch (message format v2) without making a Python object for each of them.
 *
 * The bytes are a batch's records after decompression; they come from clients and may hold anything. Every read is
 * checked against the end of its record, so a walk costs at most one step for each byte. Nothing is allocated by what a
 * length or a count says. Walks over more than GIL_BYTES release the GIL.
 *
 * The layout and its rules are those of DefaultRecord.readFrom and ByteUtils of Kafka 4.3. `record_walks.py` is the
 * typed Python side and says what the functions return.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define GIL_BYTES 65536
#define NO_TIMESTAMP (-1)
#define SHORTEST_RECORD 7 /* a byte for each of its fields */

enum problem {
    GOOD = 0,
    LENGTH_IS_NO_VARINT = 1,
    TOO_FEW_RECORDS = 2,
    WRONG_LENGTH = 3,
    WRONG_STRUCTURE = 4,
    WRONG_HEADERS = 5,
    BYTES_LEFT = 6,
};

enum record_error { NO_KEY = 1, TIMESTAMP_OUT_OF_RANGE = 2 };

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} cursor;

typedef struct {
    const uint8_t *start;        /* of the record, with its length */
    const uint8_t *attributes;   /* where the body begins */
    const uint8_t *offset_delta_at;
    const uint8_t *end;
    const uint8_t *key;
    int64_t timestamp_delta;
    int32_t offset_delta;
    int32_t key_length;          /* below 0: null */
    int32_t value_length;        /* below 0: null */
    int32_t headers_count;
} record;

/* Kafka's unsigned varint: at most five bytes, of which the last one's surplus bits are dropped. */
static int read_varint(cursor *from, int32_t *found)
{
    uint32_t value = 0;
    for (int shift = 0; shift <= 28; shift += 7) {
        if (from->at == from->end)
            return TOO_FEW_RECORDS;
        uint8_t byte = *from->at++;
        value |= (uint32_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *found = (int32_t)((value >> 1) ^ (0u - (value & 1u)));
            return GOOD;
        }
    }
    return LENGTH_IS_NO_VARINT;
}

static int read_varlong(cursor *from, int64_t *found)
{
    uint64_t value = 0;
    for (int shift = 0; shift <= 63; shift += 7) {
        if (from->at == from->end)
            return WRONG_STRUCTURE;
        uint8_t byte = *from->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *found = (int64_t)((value >> 1) ^ (0ull - (value & 1ull)));
            return GOOD;
        }
    }
    return WRONG_STRUCTURE;
}

/* Passes over a length and as many bytes; a length below 0 is null. */
static int skip_sized(cursor *from, int32_t *length)
{
    if (read_varint(from, length) != GOOD)
        return WRONG_STRUCTURE;
    if (*length > from->end - from->at)
        return WRONG_STRUCTURE;
    if (*length > 0)
        from->at += *length;
    return GOOD;
}

static int read_headers(cursor *body, int32_t *headers_count)
{
    int32_t count, length;
    if (read_varint(body, &count) != GOOD)
        return WRONG_STRUCTURE;
    *headers_count = count;
    if (count < 0 || count > body->end - body->at)
        return WRONG_HEADERS;
    for (int32_t index = 0; index < count; index++) {
        if (skip_sized(body, &length) != GOOD || length < 0)
            return WRONG_HEADERS;
        if (skip_sized(body, &length) != GOOD)
            return WRONG_HEADERS;
    }
    return GOOD;
}

static int read_record(cursor *from, record *found)
{
    int32_t length;
    found->start = from->at;
    int problem = read_varint(from, &length);
    if (problem != GOOD)
        return problem;
    if (length < 0 || length > from->end - from->at)
        return WRONG_LENGTH;
    cursor body = {from->at, from->at + length};
    found->attributes = body.at;
    if (body.at == body.end)
        return WRONG_STRUCTURE;
    body.at++;
    if (read_varlong(&body, &found->timestamp_delta) != GOOD)
        return WRONG_STRUCTURE;
    found->offset_delta_at = body.at;
    if (read_varint(&body, &found->offset_delta) != GOOD)
        return WRONG_STRUCTURE;
    if (skip_sized(&body, &found->key_length) != GOOD)
        return WRONG_STRUCTURE;
    found->key = body.at - (found->key_length > 0 ? found->key_length : 0);
    if (skip_sized(&body, &found->value_length) != GOOD)
        return WRONG_STRUCTURE;
    problem = read_headers(&body, &found->headers_count);
    if (problem != GOOD)
        return problem;
    if (body.at != body.end)
        return WRONG_LENGTH;
    from->at = found->end = body.end;
    return GOOD;
}

/* Java's addition of longs, which wraps around. */
static int64_t plus(int64_t left, int64_t right)
{
    return (int64_t)((uint64_t)left + (uint64_t)right);
}

static PyThreadState *let_others_run(const Py_buffer *view)
{
    return view->len > GIL_BYTES ? PyEval_SaveThread() : NULL;
}

static void go_on(PyThreadState *state)
{
    if (state != NULL)
        PyEval_RestoreThread(state);
}

static const char *const MALFORMED = "record %zd cannot be read";

/* check */

typedef struct {
    int32_t index;
    int kind;
    int64_t timestamp_ms;
} noted_error;

typedef struct {
    int64_t first_timestamp_ms, fixed_timestamp_ms, lowest_ms, highest_ms;
    int32_t count;
    int has_fixed_timestamp, needs_keys, checks_timestamps;
    Py_ssize_t errors_limit;
    /* results */
    int problem;
    int32_t index, first_wrong_offset;
    int64_t newest_ms;
    Py_ssize_t errors_count;
    noted_error *errors;
} checking;

static int error_of(const checking *run, const record *found, int64_t timestamp_ms)
{
    if (run->needs_keys && found->key_length < 0)
        return NO_KEY;
    if (run->checks_timestamps && timestamp_ms != NO_TIMESTAMP
        && (timestamp_ms < run->lowest_ms || timestamp_ms > run->highest_ms))
        return TIMESTAMP_OUT_OF_RANGE;
    return 0;
}

static void check_all(cursor from, checking *run)
{
    record found;
    for (run->index = 0; run->index < run->count; run->index++) {
        run->problem = read_record(&from, &found);
        if (run->problem != GOOD)
            return;
        if (found.offset_delta != run->index && run->first_wrong_offset < 0)
            run->first_wrong_offset = run->index;
        int64_t own_ms = plus(run->first_timestamp_ms, found.timestamp_delta);
        int64_t timestamp_ms = run->has_fixed_timestamp ? run->fixed_timestamp_ms : own_ms;
        if (own_ms > run->newest_ms)
            run->newest_ms = own_ms;
        int kind = error_of(run, &found, timestamp_ms);
        if (kind != 0) {
            if (run->errors_count < run->errors_limit)
                run->errors[run->errors_count] = (noted_error){run->index, kind, timestamp_ms};
            run->errors_count++;
        }
    }
    if (from.at != from.end)
        run->problem = BYTES_LEFT;
}

static PyObject *errors_list(const checking *run)
{
    Py_ssize_t count = run->errors_count < run->errors_limit ? run->errors_count : run->errors_limit;
    PyObject *list = PyList_New(count);
    for (Py_ssize_t at = 0; list != NULL && at < count; at++) {
        const noted_error *noted = &run->errors[at];
        PyObject *entry = Py_BuildValue("(iiL)", noted->index, noted->kind, (long long)noted->timestamp_ms);
        if (entry == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, at, entry);
    }
    return list;
}

static PyObject *check(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    checking run = {.first_wrong_offset = -1, .newest_ms = NO_TIMESTAMP};
    long long first_ms, fixed_ms, lowest_ms, highest_ms;
    if (!PyArg_ParseTuple(args, "y*iLpLppLLn", &view, &run.count, &first_ms, &run.has_fixed_timestamp, &fixed_ms,
                          &run.needs_keys, &run.checks_timestamps, &lowest_ms, &highest_ms, &run.errors_limit))
        return NULL;
    run.first_timestamp_ms = first_ms;
    run.fixed_timestamp_ms = fixed_ms;
    run.lowest_ms = lowest_ms;
    run.highest_ms = highest_ms;
    PyObject *result = NULL;
    if (run.errors_limit < 0)
        run.errors_limit = 0;
    run.errors = PyMem_Malloc((size_t)(run.errors_limit + 1) * sizeof(noted_error));
    if (run.errors == NULL) {
        PyErr_NoMemory();
    } else {
        cursor from = {view.buf, (const uint8_t *)view.buf + view.len};
        PyThreadState *state = let_others_run(&view);
        check_all(from, &run);
        go_on(state);
        PyObject *errors = errors_list(&run);
        if (errors != NULL)
            result = Py_BuildValue("(iiiLnN)", run.problem, run.index, run.first_wrong_offset,
                                   (long long)run.newest_ms, run.errors_count, errors);
        PyMem_Free(run.errors);
    }
    PyBuffer_Release(&view);
    return result;
}

/* find_time and newest_time */

static PyObject *find_time(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    long long first_ms, wanted_ms, lowest_delta;
    if (!PyArg_ParseTuple(args, "y*LLL", &view, &first_ms, &wanted_ms, &lowest_delta))
        return NULL;
    cursor from = {view.buf, (const uint8_t *)view.buf + view.len};
    record found;
    int problem = GOOD, has_found = 0;
    Py_ssize_t index = 0;
    int64_t time_ms = 0;
    PyThreadState *state = let_others_run(&view);
    for (; from.at != from.end && !has_found; index++) {
        problem = read_record(&from, &found);
        if (problem != GOOD)
            break;
        time_ms = plus(first_ms, found.timestamp_delta);
        has_found = time_ms >= wanted_ms && found.offset_delta >= lowest_delta;
    }
    go_on(state);
    PyBuffer_Release(&view);
    if (problem != GOOD)
        return PyErr_Format(PyExc_ValueError, MALFORMED, index);
    if (!has_found)
        Py_RETURN_NONE;
    return Py_BuildValue("(iL)", found.offset_delta, (long long)time_ms);
}

static PyObject *newest_time(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    long long first_ms, lowest_delta;
    if (!PyArg_ParseTuple(args, "y*LL", &view, &first_ms, &lowest_delta))
        return NULL;
    cursor from = {view.buf, (const uint8_t *)view.buf + view.len};
    record found;
    int problem = GOOD;
    Py_ssize_t index = 0;
    int64_t newest_ms = NO_TIMESTAMP;
    PyThreadState *state = let_others_run(&view);
    for (; from.at != from.end; index++) {
        problem = read_record(&from, &found);
        if (problem != GOOD)
            break;
        int64_t time_ms = plus(first_ms, found.timestamp_delta);
        if (found.offset_delta >= lowest_delta && time_ms > newest_ms)
            newest_ms = time_ms;
    }
    go_on(state);
    PyBuffer_Release(&view);
    if (problem != GOOD)
        return PyErr_Format(PyExc_ValueError, MALFORMED, index);
    return PyLong_FromLongLong(newest_ms);
}

/* window */

static PyObject *window(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    long long lowest_delta;
    Py_ssize_t records_limit, headers_limit;
    if (!PyArg_ParseTuple(args, "y*Lnn", &view, &lowest_delta, &records_limit, &headers_limit))
        return NULL;
    const uint8_t *start = view.buf;
    cursor from = {start, start + view.len};
    record found;
    int problem = GOOD;
    Py_ssize_t count = 0, index = 0, begins_at = 0, ends_at = 0, headers_count = 0;
    PyThreadState *state = let_others_run(&view);
    for (; from.at != from.end && count < records_limit; index++) {
        problem = read_record(&from, &found);
        if (problem != GOOD)
            break;
        if (count == 0 && found.offset_delta < lowest_delta)
            continue;
        headers_count += found.headers_count;
        if (headers_count > headers_limit)
            break;
        if (count == 0)
            begins_at = found.start - start;
        ends_at = from.at - start;
        count++;
    }
    go_on(state);
    PyBuffer_Release(&view);
    if (problem != GOOD)
        return PyErr_Format(PyExc_ValueError, MALFORMED, index);
    int is_too_long = count == 0 && headers_count > headers_limit;
    return Py_BuildValue("(nnni)", begins_at, ends_at, count, is_too_long ? (int)found.offset_delta : -1);
}

/* take_keys */

static PyObject *key_of(const record *found)
{
    PyObject *key;
    if (found->key_length < 0)
        key = Py_NewRef(Py_None);
    else
        key = PyBytes_FromStringAndSize((const char *)found->key, found->key_length);
    if (key == NULL)
        return NULL;
    return Py_BuildValue("(iNO)", found->offset_delta, key, found->value_length < 0 ? Py_True : Py_False);
}

static PyObject *take_keys(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    Py_ssize_t position, records_limit, bytes_limit;
    if (!PyArg_ParseTuple(args, "y*nnn", &view, &position, &records_limit, &bytes_limit))
        return NULL;
    PyObject *list = NULL, *result = NULL;
    record *found = NULL;
    if (position < 0 || position > view.len || records_limit < 0) {
        PyErr_SetString(PyExc_ValueError, "the position lies outside of the records, or the limit is below 0");
        goto done;
    }
    if (records_limit > (view.len - position) / SHORTEST_RECORD + 1)
        records_limit = (view.len - position) / SHORTEST_RECORD + 1;
    found = PyMem_Malloc((size_t)(records_limit + 1) * sizeof(record));
    if (found == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    const uint8_t *start = view.buf;
    cursor from = {start + position, start + view.len};
    const uint8_t *begun = from.at;
    Py_ssize_t count = 0;
    int problem = GOOD;
    PyThreadState *state = let_others_run(&view); /* one record may have millions of headers */
    while (from.at != from.end && count < records_limit && from.at - begun < bytes_limit && problem == GOOD) {
        problem = read_record(&from, &found[count]);
        if (problem == GOOD)
            count++;
    }
    go_on(state);
    if (problem != GOOD) {
        Py_ssize_t at = found[count].start - start;
        PyErr_Format(PyExc_ValueError, "the record at byte %zd cannot be read", at);
        goto done;
    }
    list = PyList_New(count);
    for (Py_ssize_t index = 0; list != NULL && index < count; index++) {
        PyObject *entry = key_of(&found[index]);
        if (entry == NULL)
            goto done;
        PyList_SET_ITEM(list, index, entry);
    }
    if (list != NULL)
        result = Py_BuildValue("(nO)", (Py_ssize_t)(from.at - start), list);
done:
    PyMem_Free(found);
    Py_XDECREF(list);
    PyBuffer_Release(&view);
    return result;
}

/* keep */

static size_t write_varlong(uint8_t *to, int64_t number)
{
    uint64_t value = ((uint64_t)number << 1) ^ (0ull - ((uint64_t)number >> 63));
    size_t length = 0;
    for (; value > 0x7F; value >>= 7, length++)
        if (to != NULL)
            to[length] = (uint8_t)(value & 0x7F) | 0x80;
    if (to != NULL)
        to[length] = (uint8_t)value;
    return length + 1;
}

typedef struct {
    int64_t old_first_ms, new_first_ms, newest_ms;
    int counts_from_first_kept;
    const uint8_t *kept;
    Py_ssize_t kept_count;
} keeping;

/* Writes one record with its time counted from another first timestamp; returns its length. `to` may be NULL. */
static size_t write_record(uint8_t *to, const record *found, int64_t timestamp_delta)
{
    size_t rest = (size_t)(found->end - found->offset_delta_at);
    size_t body = 1 + write_varlong(NULL, timestamp_delta) + rest;
    size_t prefix = write_varlong(to, (int64_t)body);
    if (to != NULL) {
        to[prefix] = *found->attributes;
        size_t after = prefix + 1 + write_varlong(to + prefix + 1, timestamp_delta);
        memcpy(to + after, found->offset_delta_at, rest);
    }
    return prefix + body;
}

/* Returns the bytes written, -1 where the records cannot be read or are not as many as the flags. */
static Py_ssize_t keep_records(cursor from, uint8_t *to, keeping *run, Py_ssize_t flags)
{
    Py_ssize_t written = 0, index = 0;
    record found;
    run->kept_count = 0;
    run->newest_ms = NO_TIMESTAMP;
    for (; from.at != from.end; index++) {
        if (index == flags || read_record(&from, &found) != GOOD)
            return -1;
        if (!run->kept[index])
            continue;
        int64_t time_ms = plus(run->old_first_ms, found.timestamp_delta);
        if (run->counts_from_first_kept && run->kept_count == 0)
            run->new_first_ms = time_ms;
        int64_t delta = (int64_t)((uint64_t)time_ms - (uint64_t)run->new_first_ms);
        written += (Py_ssize_t)write_record(to == NULL ? NULL : to + written, &found, delta);
        run->kept_count++;
        if (time_ms > run->newest_ms)
            run->newest_ms = time_ms;
    }
    return index == flags ? written : -1;
}

static PyObject *keep(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view, flags;
    keeping run;
    long long old_first_ms, new_first_ms;
    if (!PyArg_ParseTuple(args, "y*y*LLp", &view, &flags, &old_first_ms, &new_first_ms, &run.counts_from_first_kept))
        return NULL;
    run.old_first_ms = old_first_ms;
    run.new_first_ms = new_first_ms;
    run.kept = flags.buf;
    cursor from = {view.buf, (const uint8_t *)view.buf + view.len};
    PyObject *data = NULL, *result = NULL;
    PyThreadState *state = let_others_run(&view);
    Py_ssize_t length = keep_records(from, NULL, &run, flags.len);
    go_on(state);
    if (length < 0) {
        PyErr_SetString(PyExc_ValueError, "the records cannot be read, or are not as many as the flags");
    } else {
        data = PyBytes_FromStringAndSize(NULL, length);
        if (data != NULL) {
            state = let_others_run(&view);
            keep_records(from, (uint8_t *)PyBytes_AS_STRING(data), &run, flags.len);
            go_on(state);
            result = Py_BuildValue("(NnLL)", data, run.kept_count, (long long)run.newest_ms,
                                   (long long)run.new_first_ms);
        }
    }
    PyBuffer_Release(&flags);
    PyBuffer_Release(&view);
    return result;
}

/* lz4_frame_length */

static PyObject *lz4_frame_length(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "y*", &view))
        return NULL;
    const uint8_t *start = view.buf, *end = start + view.len;
    Py_ssize_t found = -1;
    uint8_t flags = view.len >= 7 ? start[4] : 0;
    Py_ssize_t head = 7 + (flags & 0x08 ? 8 : 0) + (flags & 0x01 ? 4 : 0);
    if (view.len >= head) {
        const uint8_t *at = start + head;
        while (end - at >= 4) {
            uint32_t size = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
            at += 4;
            if (size == 0) {
                Py_ssize_t tail = flags & 0x04 ? 4 : 0;
                if (end - at >= tail)
                    found = at - start + tail;
                break;
            }
            /* Kafka's reader takes an empty block for the end mark, and a compressed one of a byte for the end. */
            if (size == 0x80000000u || size == 1)
                break;
            int64_t block = (int64_t)(size & 0x7FFFFFFF) + (flags & 0x10 ? 4 : 0);
            if (block > end - at)
                break;
            at += block;
        }
    }
    PyBuffer_Release(&view);
    return PyLong_FromSsize_t(found);
}

/* uninitialized */

static PyObject *uninitialized(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "n", &size))
        return NULL;
    return PyByteArray_FromStringAndSize(NULL, size);
}

static PyMethodDef functions[] = {
    {"check", check, METH_VARARGS, NULL},
    {"find_time", find_time, METH_VARARGS, NULL},
    {"newest_time", newest_time, METH_VARARGS, NULL},
    {"window", window, METH_VARARGS, NULL},
    {"take_keys", take_keys, METH_VARARGS, NULL},
    {"keep", keep, METH_VARARGS, NULL},
    {"lz4_frame_length", lz4_frame_length, METH_VARARGS, NULL},
    {"uninitialized", uninitialized, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "kshare_wire._records",
    .m_size = 0,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__records(void)
{
    return PyModule_Create(&definition);
}
