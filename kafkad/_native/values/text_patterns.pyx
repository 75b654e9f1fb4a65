"""Parse times and dates by a user's pattern: Spark's timestampFormat and dateFormat.

Patterns are those of java.time's DateTimeFormatter, with these letters:

    y      year             yy: 2000 to 2099; yyyy: more than four digits only after a sign; else that many or more
    M L    month            M, MM; MMM: Jan; MMMM: January
    d      day of month     H hour, m minute, s second: one letter: any number of digits, two: exactly two
    h K k  hour 1-12, 0-11, 1-24; h and K need an a: AM or PM
    S      fraction of a second, 1 to as many digits as there are letters; after the sixth they are cut
    X x Z  offset: X Z or +01, +0130; XX +0130; XXX +01:30; x and Z write zero in digits
    VV z   name of a zone (Europe/Berlin, UTC); z: some of the usual abbreviations, too
    [ ]    an optional part                  'T', '' and anything but letters: a literal

Every other letter is refused, with an error that names it. Case does not matter in texts and literals. If the pattern
lacks a month or day, it is 1; a missing year is 1970, a missing time 0. April 31 is bad, not May 1.

A pattern is compiled to a list of items, which C walks along the text. Adjacent numbers (yyyyMMdd) are separated as in
Java: all but the first have a fixed width, and the first gets the rest. So yyyyMMddHHmmssSSS matches nothing, in Java
as here, because the width of a fraction is not fixed.
(java.time.format.DateTimeFormatterBuilder; Spark's DateTimeFormatterHelper.)"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kafkad._native.values.arrow_build cimport KIND_DATE32, KIND_TIMESTAMP_US, Column
from kafkad._native.values.arrow_values cimport BAD_DATE, BAD_TIMESTAMP, GOOD
from kafkad._native.values.text_values cimport TimeZone, Zone, days_of, is_date, micros_of, utc_of

from kafkad._native.values.text_values import time_zone

cdef enum:
    OPTIONALS_MAX = 8              # nested optional parts
    ITEMS_MAX = 200
    DIGITS_MAX = 18
    ZONE_SIZE_MAX = 64

cdef enum Step:
    NUMBER
    REDUCED                        # a year of two digits
    FRACTION
    LITERAL
    MONTH_SHORT
    MONTH_LONG
    HALF_TEXT                      # AM or PM
    OFFSET_TEXT
    ZONE_ID
    ZONE_TEXT
    OPTIONAL
    OPTIONAL_END

cdef enum Sign:
    NORMAL                         # - is allowed
    EXCEEDS_PAD                    # - is allowed; + is required before more digits than the least, and only there
    NOT_NEGATIVE                   # no sign is allowed

cdef enum Field:
    YEAR
    MONTH
    DAY
    HOUR
    CLOCK_24                       # 1 to 24
    HOUR_12                        # 0 to 11
    CLOCK_12                       # 1 to 12
    HALF
    MINUTE
    SECOND
    NANO
    OFFSET
    FIELDS_COUNT

cdef enum Form:                    # the form of an offset
    MINUTES_MAY = 0                # +HH or +HHMM
    MINUTES = 1                    # +HHMM
    COLON = 2                      # +HH:MM
    SECONDS_MAY = 3                # +HHMM or +HHMMSS
    COLON_SECONDS_MAY = 4          # +HH:MM or +HH:MM:SS


cdef struct Parsed:
    uint32_t known                 # bit i: field i has a value
    int64_t[FIELDS_COUNT] values
    const uint8_t* zone
    int64_t zone_size
    bint is_zone_text


cdef struct Retreat:               # the state to restore if an optional part does not match
    int32_t end
    const uint8_t* at
    Parsed parsed

NUMBERS = {
    "d": DAY, "H": HOUR, "k": CLOCK_24, "K": HOUR_12, "h": CLOCK_12, "m": MINUTE, "s": SECOND,
}  # fmt: skip
UNDERSTOOD = "yMLdHhKkmsSaXxZVz"
MONTHS = (
    b"january", b"february", b"march", b"april", b"may", b"june", b"july", b"august", b"september", b"october",
    b"november", b"december",
)  # fmt: skip
# java.time's meaning of abbreviations in English; others are ambiguous or rare
ABBREVIATIONS = {
    "EST": "America/New_York", "EDT": "America/New_York", "CST": "America/Chicago", "CDT": "America/Chicago",
    "MST": "America/Denver", "MDT": "America/Denver", "PST": "America/Los_Angeles", "PDT": "America/Los_Angeles",
    "CET": "Europe/Paris", "CEST": "Europe/Paris", "JST": "Asia/Tokyo",
}  # fmt: skip

ctypedef const uint8_t* Text
cdef Text[12] MONTH_NAMES
cdef int month
for month in range(12):
    MONTH_NAMES[month] = MONTHS[month]


cdef inline uint8_t lowered(uint8_t c) noexcept nogil:
    return c | 0x20 if c"A" <= c <= c"Z" else c


cdef inline bint starts_with(const uint8_t* p, const uint8_t* end, const uint8_t* text, int64_t size) noexcept nogil:
    cdef int64_t i
    if end - p < size:
        return False
    for i in range(size):
        if lowered(p[i]) != text[i]:
            return False
    return True


cdef inline bint put(Parsed* parsed, int field, int64_t value) noexcept nogil:
    """Set a field. Return False if it already has another value."""
    if parsed.known >> field & 1:
        return parsed.values[field] == value
    parsed.known |= <uint32_t>1 << field
    parsed.values[field] = value
    return True


cdef const uint8_t* read_number(Item* item, const uint8_t* p, const uint8_t* end, Parsed* parsed) noexcept nogil:
    """Read a number like java.time's NumberPrinterParser.parse, strictly. Return NULL if it does not match."""
    cdef bint is_negative = False
    cdef bint is_positive = False
    cdef int64_t width_max = item.width_max + item.width_behind
    cdef int64_t value = 0
    cdef int64_t size = 0
    cdef int64_t i
    if p < end and (p[0] == c"-" or p[0] == c"+"):
        is_negative = p[0] == c"-"
        is_positive = not is_negative
        if item.sign == NOT_NEGATIVE or (is_positive and item.sign == NORMAL):
            return NULL
        p += 1
    while size < width_max and p + size < end and c"0" <= p[size] <= c"9":
        size += 1
    if size < item.width_min:
        return NULL
    if item.width_behind:
        size = max(<int64_t>item.width_min, size - item.width_behind)
    if size > DIGITS_MAX:
        return NULL
    for i in range(size):
        value = value * 10 + (p[i] - c"0")
    if is_negative and value == 0:
        return NULL
    if item.sign == EXCEEDS_PAD and not is_negative and is_positive != (size > item.width_min):
        return NULL
    if item.step == REDUCED:
        value += 2000
    return p + size if put(parsed, item.field, -value if is_negative else value) else NULL


cdef const uint8_t* read_fraction(Item* item, const uint8_t* p, const uint8_t* end, Parsed* parsed) noexcept nogil:
    cdef int64_t value = 0
    cdef int i = 0
    while i < item.width_max and p < end and c"0" <= p[0] <= c"9":
        value = value * 10 + (p[0] - c"0")
        p += 1
        i += 1
    if i == 0:
        return NULL
    for i in range(i, 9):
        value *= 10
    return p if put(parsed, NANO, value) else NULL


cdef int two_at(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Read two digits: 0 to 99; -1 if there are no two digits."""
    if end - p < 2 or not c"0" <= p[0] <= c"9" or not c"0" <= p[1] <= c"9":
        return -1
    return (p[0] - c"0") * 10 + (p[1] - c"0")


cdef const uint8_t* read_offset(Item* item, const uint8_t* p, const uint8_t* end, Parsed* parsed) noexcept nogil:
    """Read an offset like java.time's OffsetIdPrinterParser.parse, strictly."""
    cdef int form = item.form
    cdef bint has_colon = form == COLON or form == COLON_SECONDS_MAY
    cdef int hours
    cdef int minutes
    cdef int seconds = 0
    cdef int sign
    if starts_with(p, end, item.text, item.size):          # Z, +00, +0000 or +00:00
        return p + item.size if put(parsed, OFFSET, 0) else NULL
    if p == end or (p[0] != c"+" and p[0] != c"-"):
        return NULL
    sign = -1 if p[0] == c"-" else 1
    hours = two_at(p + 1, end)
    if hours < 0:
        return NULL
    p += 3
    minutes = -1
    if not has_colon:
        minutes = two_at(p, end)
    elif p < end and p[0] == c":":
        minutes = two_at(p + 1, end)
    if minutes < 0:
        if form != MINUTES_MAY:
            return NULL
        minutes = 0
    else:
        p += 2 + has_colon
        if form == SECONDS_MAY and two_at(p, end) >= 0:
            seconds = two_at(p, end)
            p += 2
        elif form == COLON_SECONDS_MAY and p < end and p[0] == c":" and two_at(p + 1, end) >= 0:
            seconds = two_at(p + 1, end)
            p += 3
    if minutes > 59 or seconds > 59 or hours * 3600 + minutes * 60 + seconds > 18 * 3600:
        return NULL
    return p if put(parsed, OFFSET, sign * (hours * 3600 + minutes * 60 + seconds)) else NULL


cdef const uint8_t* read_zone(Item* item, const uint8_t* p, const uint8_t* end, Parsed* parsed) noexcept nogil:
    """Read a possible zone name. It is looked up later, when everything else is known."""
    cdef const uint8_t* start = p
    while p < end and p - start < ZONE_SIZE_MAX and (
        c"a" <= lowered(p[0]) <= c"z" or c"0" <= p[0] <= c"9" or p[0] == c"/" or p[0] == c"_" or p[0] == c"-"
        or p[0] == c"+" or p[0] == c":"
    ):
        p += 1
    if p == start or parsed.zone is not NULL:
        return NULL
    parsed.zone, parsed.zone_size, parsed.is_zone_text = start, p - start, item.step == ZONE_TEXT
    return p


cdef const uint8_t* read_month(Item* item, const uint8_t* p, const uint8_t* end, Parsed* parsed) noexcept nogil:
    cdef int i
    cdef int64_t size
    for i in range(12):
        size = 3
        if item.step == MONTH_LONG:
            while MONTH_NAMES[i][size]:
                size += 1
        if starts_with(p, end, MONTH_NAMES[i], size):
            return p + size if put(parsed, MONTH, i + 1) else NULL
    return NULL


cdef const uint8_t* read_item(Item* item, const uint8_t* p, const uint8_t* end, Parsed* parsed) noexcept nogil:
    """Read an item. Return where it ends, or NULL if it does not match."""
    if item.step == NUMBER or item.step == REDUCED:
        return read_number(item, p, end, parsed)
    if item.step == LITERAL:
        return p + item.size if starts_with(p, end, item.text, item.size) else NULL
    if item.step == FRACTION:
        return read_fraction(item, p, end, parsed)
    if item.step == OFFSET_TEXT:
        return read_offset(item, p, end, parsed)
    if item.step == MONTH_SHORT or item.step == MONTH_LONG:
        return read_month(item, p, end, parsed)
    if item.step == HALF_TEXT:
        if not starts_with(p, end, b"am", 2) and not starts_with(p, end, b"pm", 2):
            return NULL
        return p + 2 if put(parsed, HALF, lowered(p[0]) == c"p") else NULL
    return read_zone(item, p, end, parsed)


cdef bint walk(Steps* pattern, const uint8_t* p, const uint8_t* end, Parsed* parsed) noexcept nogil:
    """Return whether the whole text matches the pattern."""
    cdef Retreat[OPTIONALS_MAX] retreats
    cdef int depth = 0
    cdef int32_t i = 0
    cdef Item* item
    cdef const uint8_t* next
    parsed.known = 0
    parsed.zone = NULL
    while i < pattern.count:
        item = &pattern.items[i]
        i += 1
        if item.step == OPTIONAL:
            retreats[depth].end, retreats[depth].at = item.end, p
            retreats[depth].parsed = parsed[0]
            depth += 1
        elif item.step == OPTIONAL_END:
            depth -= 1
        else:
            next = read_item(item, p, end, parsed)
            if next is NULL:
                if depth == 0:
                    return False
                depth -= 1
                i, p = retreats[depth].end, retreats[depth].at
                parsed[0] = retreats[depth].parsed
            else:
                p = next
    return p == end


cdef inline int64_t value_of(Parsed* parsed, int field, int64_t otherwise) noexcept nogil:
    return parsed.values[field] if parsed.known >> field & 1 else otherwise


cdef bint day_of(Parsed* parsed, int64_t* days) noexcept nogil:
    """Compute the days since 1970. Return False if the day does not exist."""
    cdef int64_t year = value_of(parsed, YEAR, 1970)
    cdef int64_t month = value_of(parsed, MONTH, 1)
    cdef int64_t day = value_of(parsed, DAY, 1)
    if not -999999999 <= year <= 999999999 or not is_date(year, month, day):
        return False
    days[0] = days_of(year, <int>month, <int>day)
    return True


cdef bint second_of(Parsed* parsed, int64_t* seconds) noexcept nogil:
    """Compute the second of the day. Return False if a part is out of range."""
    cdef int64_t minute = value_of(parsed, MINUTE, 0)
    cdef int64_t second = value_of(parsed, SECOND, 0)
    cdef int64_t half = value_of(parsed, HALF, 0)
    cdef int64_t hour = value_of(parsed, HOUR, 12 * half)
    if parsed.known >> CLOCK_24 & 1:
        hour = parsed.values[<int>CLOCK_24]
        if not 1 <= hour <= 24:
            return False
        hour %= 24
    elif parsed.known >> HOUR_12 & 1:
        hour = parsed.values[<int>HOUR_12]
        if not 0 <= hour <= 11:
            return False
        hour += 12 * half
    elif parsed.known >> CLOCK_12 & 1:
        hour = parsed.values[<int>CLOCK_12]
        if not 1 <= hour <= 12:
            return False
        hour = hour % 12 + 12 * half
    if not 0 <= hour <= 23 or not 0 <= minute <= 59 or not 0 <= second <= 59:
        return False
    seconds[0] = hour * 3600 + minute * 60 + second
    return True


cdef int pattern_date(Steps* pattern, const uint8_t* p, int64_t size, int32_t* days) noexcept nogil:
    """Parse a date. Return GOOD or BAD_DATE."""
    cdef Parsed parsed
    cdef int64_t found = 0
    cdef int64_t seconds = 0
    if not walk(pattern, p, p + size, &parsed) or not day_of(&parsed, &found) or not second_of(&parsed, &seconds):
        return BAD_DATE
    if found != <int32_t>found:
        return BAD_DATE
    days[0] = <int32_t>found
    return GOOD


cdef int pattern_timestamp(Steps* pattern, const uint8_t* p, int64_t size, Zone* zone,
                           int64_t* micros) noexcept nogil:
    """Parse a timestamp. `zone` applies to texts that name none; NULL means a timestamp without a zone. Return the
    reason."""
    cdef Parsed parsed
    cdef int64_t days = 0
    cdef int64_t seconds = 0
    if not walk(pattern, p, p + size, &parsed) or not day_of(&parsed, &days) or not second_of(&parsed, &seconds):
        return BAD_TIMESTAMP
    seconds += days * 86400
    if zone is NULL:
        if parsed.zone is not NULL or parsed.known >> OFFSET & 1:
            return BAD_TIMESTAMP
    elif parsed.zone is not NULL:
        if not named_zone(parsed.zone, parsed.zone_size, parsed.is_zone_text, &seconds):
            return BAD_TIMESTAMP
    elif parsed.known >> OFFSET & 1:
        seconds -= parsed.values[<int>OFFSET]
    else:
        seconds = utc_of(zone, seconds)
    return GOOD if micros_of(seconds, value_of(&parsed, NANO, 0) // 1000, micros) else BAD_TIMESTAMP


cdef bint named_zone(const uint8_t* p, int64_t size, bint is_text, int64_t* seconds) noexcept with gil:
    """Convert local time to UTC by a named zone. Return False if there is no such zone."""
    cdef TimeZone zone
    try:
        name = (<const char*>p)[:size].decode()
        if is_text:
            name = ABBREVIATIONS.get(name, name)
        if name not in ("UTC", "GMT", "UT", "Z") and "/" not in name:
            return False
        zone = time_zone(name)
    except Exception:
        return False
    seconds[0] = utc_of(&zone.zone, seconds[0])
    return True


cdef Steps* pattern_for(Column* column, tuple patterns) except? NULL:
    """Return the pattern for a column out of `patterns`: for timestamps, for timestamps without a zone, for dates. It lives
    as long as `patterns`. NULL means Spark's default format."""
    cdef Pattern pattern = None
    if column.kind == KIND_TIMESTAMP_US:
        pattern = patterns[0 if column.format[4] else 1]
    elif column.kind == KIND_DATE32:
        pattern = patterns[2]
    return NULL if pattern is None else &pattern.steps


# Compiling

OFFSETS = {
    "X": (MINUTES_MAY, "z"), "XX": (MINUTES, "z"), "XXX": (COLON, "z"), "XXXX": (SECONDS_MAY, "z"),
    "XXXXX": (COLON_SECONDS_MAY, "z"), "x": (MINUTES_MAY, "+00"), "xx": (MINUTES, "+0000"),
    "xxx": (COLON, "+00:00"), "xxxx": (SECONDS_MAY, "+0000"), "xxxxx": (COLON_SECONDS_MAY, "+00:00"),
    "Z": (MINUTES, "+0000"), "ZZ": (MINUTES, "+0000"), "ZZZ": (MINUTES, "+0000"), "ZZZZZ": (COLON_SECONDS_MAY, "z"),
}  # fmt: skip


cdef class Pattern:
    """A compiled pattern. `option` is its name in error messages. Raise ValueError for a letter that is not supported."""

    def __cinit__(self, str text, str option="the pattern"):
        self.text = text
        items = compiled(text, option)
        self.steps.items = <Item*>calloc(<size_t>max(len(items), 1), sizeof(Item))
        if self.steps.items is NULL:
            raise MemoryError
        for item in items:
            self.open_item(&self.steps.items[self.steps.count], item)

    cdef int open_item(self, Item* item, dict given) except -1:
        cdef bytes literal = given.get("text", "").encode()
        item.step = given["step"]
        item.field = given.get("field", 0)
        item.width_min, item.width_max = given.get("widths", (0, 0))
        item.width_behind = given.get("behind", 0)
        item.sign = given.get("sign", NOT_NEGATIVE)
        item.form = given.get("form", 0)
        item.end = given.get("end", 0)
        item.text = <uint8_t*>calloc(<size_t>len(literal) + 1, 1)
        if item.text is NULL:
            raise MemoryError
        self.steps.count += 1                      # now __dealloc__ frees it
        item.size = len(literal)
        memcpy(item.text, <const uint8_t*>literal, <size_t>len(literal))
        for i in range(item.size):
            item.text[i] = lowered(item.text[i])
        self.has_zone = self.has_zone or item.step in (OFFSET_TEXT, ZONE_ID, ZONE_TEXT)
        return 0

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.steps.count):
            free(self.steps.items[i].text)
        free(self.steps.items)


def compiled(text, option):
    """Compile a pattern to a list of items, as dicts."""
    def refuse(why):
        raise ValueError(f"option {option} {text!r}: {why}")

    items, optionals, letters = [], [], set()
    adjacent = None                                # the first of adjacent numbers; the others limit its digits
    i = 0
    while i < len(text):
        c = text[i]
        n = 1
        if c.isascii() and c.isalpha():
            while i + n < len(text) and text[i + n] == c:
                n += 1
            item = letter_item(c, n, refuse)
            letters.add(c)
            is_number = item["step"] in (NUMBER, REDUCED)
            if is_number and item["sign"] == NOT_NEGATIVE and adjacent is not None:
                adjacent["behind"] = adjacent.get("behind", 0) + item["widths"][1]
            else:
                if is_number and adjacent is not None:
                    adjacent["behind"] = 0         # as in java.time, it takes all digits
                adjacent = item if is_number else None
            items.append(item)
        else:
            adjacent = None
            if c == "[":
                if len(optionals) == OPTIONALS_MAX:
                    refuse(f"more than {OPTIONALS_MAX} optional parts are in each other")
                part = {"step": OPTIONAL}
                optionals.append(part)
                items.append(part)
            elif c == "]":
                if not optionals:
                    refuse("] stands without its [")
                items.append({"step": OPTIONAL_END})
                optionals.pop()["end"] = len(items)
            elif c in "#{}":
                refuse(f"{c} is kept for later by java.time; write '{c}'")
            elif c == "'":
                literal, n = quoted(text, i, refuse)
                items.append({"step": LITERAL, "text": literal})
            else:
                items.append({"step": LITERAL, "text": c})
        i += n
    for one in optionals:
        items.append({"step": OPTIONAL_END})
    for one in reversed(optionals):                # unclosed parts end with the pattern
        one["end"] = len(items)
    if not letters:
        refuse("it has no letter of a date or a time")
    if len(items) > ITEMS_MAX:
        refuse(f"it has more than {ITEMS_MAX} parts")
    hours = letters & set("HhKk")
    if len(hours) > 1:
        refuse(f"{' and '.join(sorted(hours))} are two kinds of hours")
    if bool(letters & set("hK")) != ("a" in letters):
        refuse("h and K go together with a, which says AM or PM")
    if letters & set("Vz") and (letters & set("XxZ") or {"V", "z"} <= letters):
        refuse("it has several kinds of zones")
    return items


def quoted(text, start, refuse):
    """Return (the quoted text, the number of characters that it takes in the pattern)."""
    if text[start + 1 : start + 2] == "'":
        return "'", 2
    found, i = "", start + 1
    while i < len(text):
        if text[i] == "'":
            if text[i + 1 : i + 2] != "'":
                return found, i + 1 - start
            i += 1
        found += text[i]
        i += 1
    refuse("a quote is not closed")


def letter_item(c, n, refuse):
    if c not in UNDERSTOOD:
        refuse(f"the letter {c} is not understood; of java.time's {' '.join(UNDERSTOOD)} are")
    if c == "y":
        if n > 6:
            refuse(f"{c} stands at most six times")
        if n == 2:
            return {"step": REDUCED, "field": YEAR, "widths": (2, 2), "sign": NOT_NEGATIVE}
        return {"step": NUMBER, "field": YEAR, "widths": (n, 19), "sign": NORMAL if n < 4 else EXCEEDS_PAD}
    if c in "ML" and n in (3, 4):
        return {"step": MONTH_SHORT if n == 3 else MONTH_LONG}
    if c in "ML" or c in NUMBERS:
        if n > 2:
            refuse(f"{c} stands at most {'four times' if c in 'ML' else 'twice'}")
        field = NUMBERS.get(c, MONTH)
        if n == 1:
            return {"step": NUMBER, "field": field, "widths": (1, 19), "sign": NORMAL}
        return {"step": NUMBER, "field": field, "widths": (2, 2), "sign": NOT_NEGATIVE}
    if c == "S":
        if n > 9:
            refuse("S stands at most nine times")
        return {"step": FRACTION, "widths": (1, n)}
    if c in "XxZ":
        if c * n not in OFFSETS:
            refuse(f"{c * n} is not understood; of its kind {' '.join(OFFSETS)} are")
        form, zero = OFFSETS[c * n]
        return {"step": OFFSET_TEXT, "form": form, "text": zero}
    if c == "V":
        if n != 2:
            refuse("the letter V stands twice")
        return {"step": ZONE_ID}
    if n > (1 if c == "a" else 3):
        refuse(f"{c * n} is not understood; {c} is")
    return {"step": HALF_TEXT} if c == "a" else {"step": ZONE_TEXT}
