/* Read one record of a v2 batch in place. This is the innermost loop of every append, so it is inlined C.
 *
 * `*next` depends on the record's length only, never on its fields. So a CPU can read the fields of several records at
 * once; a chain through key and value sizes would make each record wait for the one before. */
#ifndef KAFKAD_RECORD_H
#define KAFKAD_RECORD_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int64_t timestamp_delta;
    int32_t offset_delta;
    int32_t key_size;       /* below 0: null */
    int32_t value_size;     /* below 0: null */
    int32_t headers_count;
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *headers; /* the first header's key size */
} RecordView;

enum { RECORD_COMPLETE = 0, RECORD_INCOMPLETE = 1, RECORD_MALFORMED = 2 };

#define KAFKAD_INLINE static inline __attribute__((always_inline))

KAFKAD_INLINE int32_t record_zigzag(uint32_t value) { return (int32_t)((value >> 1) ^ (0 - (value & 1))); }
KAFKAD_INLINE int64_t record_zigzag64(uint64_t value) { return (int64_t)((value >> 1) ^ (0 - (value & 1))); }

/* Read a varint at p. Return where it ends; NULL if it does not end before `end` or within 5 bytes. */
static __attribute__((noinline, unused)) const uint8_t *record_long_varint(const uint8_t *p, const uint8_t *end,
                                                                           int32_t *out) {
    uint32_t value = 0;
    for (int shift = 0; p < end && shift < 35; shift += 7) {
        uint32_t byte = *p++;
        value |= (byte & 0x7F) << shift;
        if (byte < 0x80) {
            *out = record_zigzag(value);
            return p;
        }
    }
    return NULL;
}

/* The same for 64 bits and 10 bytes. */
static __attribute__((noinline, unused)) const uint8_t *record_long_varlong(const uint8_t *p, const uint8_t *end,
                                                                            int64_t *out) {
    uint64_t value = 0;
    for (int shift = 0; p < end && shift < 70; shift += 7) {
        uint64_t byte = *p++;
        value |= (byte & 0x7F) << shift;
        if (byte < 0x80) {
            *out = record_zigzag64(value);
            return p;
        }
    }
    return NULL;
}

/* Read a varint of one or two bytes, as nearly all are, without a loop or a call. At least `room` bytes follow p. */
KAFKAD_INLINE const uint8_t *record_varint_in(const uint8_t *p, const uint8_t *end, int room, int32_t *out) {
    if (room < 1 && p >= end)
        return NULL;
    uint32_t first = p[0];
    if (first < 0x80) {
        *out = record_zigzag(first);
        return p + 1;
    }
    if ((room >= 2 || end - p >= 2) && p[1] < 0x80) {
        *out = record_zigzag((first & 0x7F) | (uint32_t)p[1] << 7);
        return p + 2;
    }
    int32_t value = 0; /* a local, so that *out, a local of the caller, can stay in a register */
    p = record_long_varint(p, end, &value);
    *out = value;
    return p;
}

KAFKAD_INLINE const uint8_t *record_varlong_in(const uint8_t *p, const uint8_t *end, int room, int64_t *out) {
    if (room < 1 && p >= end)
        return NULL;
    uint64_t first = p[0];
    if (first < 0x80) {
        *out = record_zigzag64(first);
        return p + 1;
    }
    if ((room >= 2 || end - p >= 2) && p[1] < 0x80) {
        *out = record_zigzag64((first & 0x7F) | (uint64_t)p[1] << 7);
        return p + 2;
    }
    int64_t value = 0;
    p = record_long_varlong(p, end, &value);
    *out = value;
    return p;
}

KAFKAD_INLINE const uint8_t *record_varint(const uint8_t *p, const uint8_t *end, int32_t *out) {
    return record_varint_in(p, end, 0, out);
}

/* Return the position after `count` headers; NULL if they do not fit. */
static __attribute__((noinline, unused)) const uint8_t *record_pass_headers(const uint8_t *p, const uint8_t *end,
                                                                            int32_t count) {
    int32_t size;
    for (; count > 0; count--) {
        p = record_varint(p, end, &size);
        if (!p || size < 0 || size > end - p)
            return NULL;
        p = record_varint(p + size, end, &size);
        if (!p || size > end - p)
            return NULL;
        if (size > 0)
            p += size;
    }
    return p;
}

/* Read the fields between `p` and `end`. With `room`, the record is so long that its head needs no check of the end. */
KAFKAD_INLINE int record_fields(const uint8_t *p, const uint8_t *end, int room, RecordView *view) {
    p = record_varlong_in(p + 1, end, room, &view->timestamp_delta); /* after the attributes, which are unused */
    if (!p)
        return RECORD_MALFORMED;
    p = record_varint_in(p, end, room, &view->offset_delta);
    if (!p)
        return RECORD_MALFORMED;
    p = record_varint_in(p, end, room, &view->key_size);
    if (!p || view->key_size > end - p)
        return RECORD_MALFORMED;
    view->key = p;
    p += view->key_size > 0 ? view->key_size : 0;
    p = record_varint(p, end, &view->value_size);
    if (!p)
        return RECORD_MALFORMED;
    view->value = p;
    view->headers_count = 0;
    /* The rest is the value and a 0 for no headers. (uint32_t, because a null value at the end of the record leaves no
       byte for the count, and the size must not equal -1.) */
    if ((uint32_t)view->value_size == end - p - 1 && end[-1] == 0) {
        view->headers = end;
        return RECORD_COMPLETE;
    }
    if (view->value_size > end - p)
        return RECORD_MALFORMED;
    p += view->value_size > 0 ? view->value_size : 0;
    p = record_varint(p, end, &view->headers_count);
    if (!p || view->headers_count < 0 || view->headers_count > end - p)
        return RECORD_MALFORMED;
    view->headers = p;
    if (view->headers_count)
        p = record_pass_headers(p, end, view->headers_count);
    return p == end ? RECORD_COMPLETE : RECORD_MALFORMED;
}

#define RECORD_HEAD_MAX (1 + 10 + 5 + 5) /* attributes, timestamp delta, offset delta, key size */

/* Read the record at p. Return RECORD_INCOMPLETE if its length field, or the record, extends beyond `end`. */
KAFKAD_INLINE int record_read(const uint8_t *p, const uint8_t *end, RecordView *view, const uint8_t **next) {
    int32_t length;
    p = record_varint(p, end, &length);
    if (!p)
        return RECORD_INCOMPLETE;
    if (length <= 0)
        return RECORD_MALFORMED;
    if (length > end - p)
        return RECORD_INCOMPLETE;
    const uint8_t *body_end = p + length;
    *next = body_end;
    __asm__("" : "+r"(body_end)); /* hides that it equals the end of the fields; the compiler would chain records */
    return length >= RECORD_HEAD_MAX ? record_fields(p, body_end, 2, view) : record_fields(p, body_end, 0, view);
}

#endif
