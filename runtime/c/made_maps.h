/* Maps that a launch makes of tensors which the kernel's other arguments describe, see gluon_nvidia/argument_maps.py. Part of engine.c. */

/* Steps of the programs below: an argument of 32 bits, one of 64, a number, both signs of the lower half, the lower half, and arithmetic. */
enum { HALF, WHOLE, LITERAL, SIGNED, LOW, ADD, SUBTRACT, MULTIPLY, SHIFT, LARGER, SMALLER, DEPTH = 8 };

/* Return what a program computes from the arguments that are put: its number of steps, then each with an operand. */
static uint64_t computed(const int64_t **at, void *const *parameters)
{
    uint64_t stack[DEPTH + 1] = {0}, *top = stack; /* of the last value */
    for (int64_t steps = *(*at)++; steps > 0; steps--, *at += 2) {
        int64_t step = (*at)[0], operand = (*at)[1];
        if (step <= LITERAL)
            *++top = step == HALF ? *(const uint32_t *)parameters[operand] : step == WHOLE ? *(const uint64_t *)parameters[operand]
                                                                                          : (uint64_t)operand;
        else if (step <= LOW)
            *top = step == LOW ? (uint32_t)*top : (uint64_t)(int64_t)(int32_t)*top;
        else {
            uint64_t right = *top--;
            int keeps = ((int64_t)*top > (int64_t)right) == (step == LARGER); /* the left one, of two */
            *top = step == ADD ? *top + right : step == SUBTRACT ? *top - right : step == MULTIPLY ? *top * right
                   : step == SHIFT ? *top << (right & 63) : keeps ? *top : right;
        }
    }
    return *top;
}

#define NO_MAP (1 << 20) /* no status of a driver */

/* Put the maps of tensors whose address, shape and strides in bytes are computed from the arguments; return NO_MAP where the driver refuses one. */
static __attribute__((noinline)) int put_made(const Launch *self, Packed *to)
{
    for (const int64_t *at = self->programs; at < self->end;) {
        const MapKind *kind = &self->maps[to->map];
        Key key = {kind->number, (uint32_t)kind->rank, 0, {0}, {0}};
        key.flags |= FLAG_NAN * (*at++ != 0);
        key.address = computed(&at, to->parameters);
        for (int j = 0; j < kind->rank; j++)
            key.shape[j] = (int64_t)computed(&at, to->parameters);
        for (int j = 0; j < kind->rank; j++) {
            uint64_t bytes = computed(&at, to->parameters);
            if (bytes % (uint64_t)kind->bytes)
                return NO_MAP;
            key.strides[j] = (int64_t)(bytes / (uint64_t)kind->bytes);
        }
        unsigned char *map = to->maps[to->map];
        const Known *known = find(&maps, WORDS(&key));
        if (known != NULL)
            memcpy(map, known->part, MAP_BYTES);
        else if (self->encode_tiled == NULL || encode_map(self->encode_tiled, kind, key.address, (const uint64_t *)key.shape,
                                                          (const uint64_t *)key.strides, 0, key.flags & FLAG_NAN, self->unmark, map))
            return NO_MAP;
        else {
            PyObject *bytes = PyBytes_FromStringAndSize((char *)map, MAP_BYTES);
            if (keep(&maps, WORDS(&key), bytes, bytes == NULL ? NULL : PyBytes_AsString(bytes)) < 0)
                return -1;
        }
        put(to, map);
        to->map++;
    }
    return 0;
}
