/* The drivers of CUDA and HIP: devices, code that is loaded, memory, one launch. Part of gluon_bundle.c. */

/* The functions that drivers have: both, CUDA, HIP. */
enum { SET_DEVICE, LOAD, FIND, LAUNCH, ALLOCATE, FREE,
       INIT, GET_DEVICE, GET_ATTRIBUTE, RETAIN, GET_CONTEXT, OF_FUNCTION, SET_FUNCTION, PREFER, VERSION, ENCODE,
       PROPERTIES, LAUNCH_PLAIN, LAUNCH_COOPERATIVE, CALLS };

typedef int (*Call)();

typedef struct {
    const char *name, *libraries[4], *calls[CALLS];
} Driver;
static const Driver DRIVERS[] = {
    {"cuda", {"libcuda.so.1"},
     {"cuCtxSetCurrent", "cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernelEx", "cuMemAllocAsync",
      "cuMemFreeAsync", "cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent",
      "cuFuncGetAttribute", "cuFuncSetAttribute", "cuFuncSetCacheConfig", "cuDriverGetVersion",
      "cuTensorMapEncodeTiled"}},
    {"hip", {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"},
     {"hipSetDevice", "hipModuleLoadData", "hipModuleGetFunction", "hipDrvLaunchKernelEx", "hipMallocAsync",
      "hipFreeAsync", [PROPERTIES] = "hipGetDevicePropertiesR0600", "hipModuleLaunchKernel",
      "hipModuleLaunchCooperativeKernel"}}};

typedef struct Loaded {
    const gb_form *form;
    void *function;
    struct Loaded *next;
} Loaded;

struct gb_device {
    const Driver *driver;
    Call calls[CALLS];
    int hip, index;
    void *context;
    char architecture[64];
    Loaded *loaded;
};

static int missing_call(void) { return 999; }

/* Name the architecture of a CUDA device; 0 where there is such a device. */
static int open_cuda(gb_device *self)
{
    int device = 0, major = 0, minor = 0;
    if (self->calls[INIT](0) || self->calls[GET_DEVICE](&device, self->index) ||
        self->calls[GET_ATTRIBUTE](&major, 75, device) ||
        self->calls[GET_ATTRIBUTE](&minor, 76, device) ||
        self->calls[RETAIN](&self->context, device))
        return -1;
    snprintf(self->architecture, sizeof self->architecture, "sm_%d%d", major, minor);
    return 0;
}

static int open_hip(gb_device *self)
{
    static char room[4096]; /* more than hipDeviceProp_t of any release has */
    size_t length = sizeof self->architecture - 1;
    if (self->calls[SET_DEVICE](self->index) || self->calls[PROPERTIES](room, self->index))
        return -1;
    for (size_t i = 256; i + length + 1 < sizeof room; i++) /* behind the device's own name */
        if (memcmp(room + i, "gfx", 3) == 0) {
            size_t own = strcspn(room + i, ":");
            memcpy(self->architecture, room + i, own < length ? own : length);
            return 0;
        }
    return -1;
}

static int open_driver(gb_device *self, const Driver *driver, int index)
{
    void *library = NULL, *symbol;
    self->index = index;
    self->driver = driver;
    self->hip = strcmp(driver->name, "hip") == 0;
    for (size_t i = 0; library == NULL && driver->libraries[i] != NULL; i++)
        library = dlopen(driver->libraries[i], RTLD_NOW);
    if (library == NULL)
        return -1;
    for (size_t i = 0; i < CALLS; i++) {
        self->calls[i] = (Call)missing_call;
        if (driver->calls[i] != NULL && (symbol = dlsym(library, driver->calls[i])) != NULL)
            memcpy(&self->calls[i], &symbol, sizeof symbol);
    }
    return self->hip ? open_hip(self) : open_cuda(self);
}

gb_device *gb_device_open(int index, gb_error *error)
{
    gb_device *self = calloc(1, sizeof *self);
    for (size_t i = 0; self != NULL && i < sizeof DRIVERS / sizeof *DRIVERS; i++)
        if (open_driver(self, &DRIVERS[i], index) == 0) {
            fail(error, GB_OK, "%s", "");
            return self;
        }
    fail(error, GB_DEVICE, "neither libcuda.so.1 nor libamdhip64.so has a device %d", index);
    free(self);
    return NULL;
}

void gb_device_close(gb_device *self)
{
    for (Loaded *next; self != NULL && self->loaded != NULL; self->loaded = next) {
        next = self->loaded->next;
        free(self->loaded);
    }
    free(self);
}

const char *gb_device_architecture(const gb_device *self) { return self->architecture; }

static gb_status enter(gb_device *self, gb_error *error)
{
    void *current = NULL;
    int status;
    if (self->hip)
        status = self->calls[SET_DEVICE](self->index);
    else if ((status = self->calls[GET_CONTEXT](&current)) == 0 && current != self->context)
        status = self->calls[SET_DEVICE](self->context);
    return status ? fail(error, GB_DRIVER, "the device cannot be used: error %d of the driver", status) : GB_OK;
}

static gb_status set_up(gb_device *self, void *function, const gb_form_info *info, gb_error *error)
{
    Call of_device = self->calls[GET_ATTRIBUTE], of_function = self->calls[OF_FUNCTION];
    Call set = self->calls[SET_FUNCTION];
    int device = 0, most = 0, own = 0, limit = 0, status;
    unsigned threads = info->num_warps * info->warp_size;
    (void)((status = self->calls[GET_DEVICE](&device, self->index)) ||
           (status = of_device(&most, 97, device)) || (status = of_function(&limit, 0, function)));
    if (!status && (info->shared > (unsigned)most || threads > (unsigned)limit))
        return fail(error, GB_DEVICE, "%s needs %u bytes of shared memory and %u threads; the device has "
                                      "%d and %d", info->entry, info->shared, threads, most, limit);
    if (!status && info->shared > 48 * 1024)
        (void)((status = self->calls[PREFER](function, 1)) ||
               (status = of_function(&own, 1, function)) || (status = set(function, 8, most - own)));
    if (!status && info->num_ctas > 8)
        status = set(function, 14, 1);
    return status ? fail(error, GB_DRIVER, "%s cannot be set up: error %d of the driver", info->entry, status) : GB_OK;
}

static gb_status load(gb_device *self, const gb_form *form, const gb_form_info *info, void **function, gb_error *error)
{
    void *module = NULL;
    int status;
    for (Loaded *loaded = self->loaded; loaded != NULL; loaded = loaded->next)
        if (loaded->form == form) {
            *function = loaded->function;
            return GB_OK;
        }
    if (checksum_of(info->code, info->code_size) != form->checksum)
        return fail(error, GB_DAMAGED, "the code of %s is damaged or was exchanged", info->entry);
    if ((status = self->calls[LOAD](&module, info->code)) ||
        (status = self->calls[FIND](function, module, info->entry)))
        return fail(error, GB_DRIVER, "%s cannot be loaded: error %d of the driver", info->entry, status);
    if (!self->hip && (status = set_up(self, *function, info, error)) != 0)
        return (gb_status)status;
    Loaded *loaded = malloc(sizeof *loaded);
    if (loaded == NULL)
        return fail(error, GB_MEMORY, "out of memory");
    *loaded = (Loaded){form, *function, self->loaded};
    self->loaded = loaded;
    return GB_OK;
}

static int launch_now(gb_device *self, void *function, const gb_form_info *info, const uint32_t *grid,
                      void *stream, void **pointers)
{
    Attribute attributes[MOST_ATTRIBUTES];
    unsigned threads = info->num_warps * info->warp_size;
    Config config = {.grid = {grid[0] * info->num_ctas, grid[1], grid[2]}, .block = {threads, 1, 1},
                     .shared = info->shared, .stream = stream};
    if (self->hip && info->num_ctas == 1)
        return self->calls[info->cooperative ? LAUNCH_COOPERATIVE : LAUNCH_PLAIN](
            function, grid[0], grid[1], grid[2], threads, 1u, 1u, info->shared, stream, pointers, (void *)NULL);
    set_attributes(&config, attributes, info->num_ctas, info->cooperative, info->dependent, self->hip);
    return self->calls[LAUNCH](&config, function, pointers, (void *)NULL);
}

/* Allocate memory for one launch. `*owned` is to be freed. */
static int scratch(gb_device *self, const uint32_t size_and_alignment[2], uint64_t blocks, void *stream,
                   uint64_t *address, uint64_t *owned)
{
    uint64_t align = size_and_alignment[1] ? size_and_alignment[1] : 1;
    size_t size = (size_t)(size_and_alignment[0] * blocks + (align > 256 ? align : 0));
    *address = 0;
    if (!size_and_alignment[0])
        return 0;
    int status = self->calls[ALLOCATE](address, size, stream);
    *owned = status ? 0 : *address;
    *address = (*address + align - 1) / align * align;
    return status;
}

/* Encode the map of a descriptor; `into` is aligned to 64. */
static int encode(gb_device *self, MapKind kind, const gb_descriptor *it, void *into)
{
    int version = 0, unmark = !self->calls[VERSION](&version) && version <= 13010;
    return encode_map((EncodeTiled)self->calls[ENCODE], &kind, (uint64_t)(uintptr_t)it->address, it->shape, it->strides,
                      it->tf32, it->nan, unmark, into);
}
