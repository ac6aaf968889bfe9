// A libcuda.so.1 for tests: cuda.bindings finds every call by cuGetProcAddress_v2. A call answers
// the code that the environment gives for its name (cuInit=802), else as the table below says,
// else plain success. STUB_LACKS names a call that this driver does not have.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*Call)(void);
static long depth; // of the stack of current contexts

static int code_of(const char *name) {
    const char *code = getenv(name);
    return code ? atoi(code) : 0;
}

// With STUB_TELLS in the environment, what was asked of VMM memory and how wide kernels are
// launched goes to standard output, in order.
static int told(const char *what, size_t bytes, int code) {
    if (getenv("STUB_TELLS")) {
        printf("%s %zu\n", what, bytes);
        fflush(stdout);
    }
    return code;
}
static int launch(void *kernel, unsigned blocks) { return told("blocks", blocks, 0); }
static int success(void) { return 0; }
static int init(unsigned flags) { return code_of("cuInit"); }
static int version(int *value) {
    const char *text = getenv("STUB_VERSION");
    *value = text ? atoi(text) : 13000;
    return 0;
}
static int error_string(int code, const char **text) {
    *text = "words of the driver";
    return 0;
}
static int count(int *value) { *value = 2; return 0; }
static int get(int *device, int ordinal) { *device = ordinal; return 0; }
static int uuid(unsigned char *bytes, int device) {
    for (int i = 0; i < 16; i++)
        bytes[i] = 0xf0 + i - device;
    return 0;
}
static int pci(char *text, int size, int device) {
    snprintf(text, size, "0000:%02X:00.0", 0x1b + device);
    return 0;
}
static int name(char *text, int size, int device) {
    snprintf(text, size, "NVIDIA Stub");
    return 0;
}
static int memory(size_t *bytes, int device) { *bytes = 1ull << 34; return 0; }
static int can_access(int *can, int device, int peer) { *can = device < peer; return 0; }
static int push(void *context) { depth++; return 0; }
static int pop(void **context) { depth--; return 0; }
static int current(void **context) { *context = (void *)depth; return 0; }
static int enable(void *peer, unsigned flags) { return code_of("cuCtxEnablePeerAccess"); }
static int query(void *stream) { return code_of("cuStreamQuery"); }
static int attribute(int *value, int attribute, int device) { *value = 10; return 0; }
static int atomics(int *value, int attribute, int device, int peer) {
    *value = device < peer;
    return 0;
}
static int granularity(size_t *bytes, const void *properties, int option) {
    *bytes = 1 << 21;
    return 0;
}
static int reserve(void **address, size_t size) {
    *address = (void *)(0x700000000000 + size);
    return 0;
}
static int map(void *address, size_t size) { return told("map", size, code_of("cuMemMap")); }
static int unmap(void *address, size_t size) { return told("unmap", size, 0); }
static int release(void *handle) { return told("release", 0, 0); }
static int address_free(void *address, size_t size) { return told("address free", size, 0); }
static int export(int *descriptor) { *descriptor = open("/dev/null", O_RDONLY); return 0; }
static int registered_at(void **address, void *host, unsigned flags) {
    const char *shift = getenv("STUB_SHIFT");
    *address = (char *)host + (shift ? atoi(shift) : 0);
    return 0;
}
static int prefetch(void *address, size_t size, struct { int type, id; } location, unsigned flags) {
    printf("prefetch %zu type %d id %d\n", size, location.type, location.id);
    return fflush(stdout);
}
static int host_alloc(void **address, size_t size, unsigned flags) {
    *address = calloc(1, size);
    return 0;
}

static const struct { const char *name; Call call; } TABLE[] = {
    {"cuInit", (Call)init}, {"cuDriverGetVersion", (Call)version},
    {"cuGetErrorString", (Call)error_string}, {"cuDeviceGetCount", (Call)count},
    {"cuDeviceGet", (Call)get}, {"cuDeviceGetUuid", (Call)uuid},
    {"cuDeviceGetPCIBusId", (Call)pci}, {"cuDeviceGetName", (Call)name},
    {"cuDeviceTotalMem", (Call)memory}, {"cuDeviceCanAccessPeer", (Call)can_access},
    {"cuCtxPushCurrent", (Call)push}, {"cuCtxPopCurrent", (Call)pop},
    {"cuCtxGetCurrent", (Call)current}, {"cuCtxEnablePeerAccess", (Call)enable},
    {"cuStreamQuery", (Call)query}, {"cuMemHostAlloc", (Call)host_alloc},
    {"cuLaunchKernel", (Call)launch}, {"cuDeviceGetAttribute", (Call)attribute}, {"cuDeviceGetP2PAttribute", (Call)atomics},
    {"cuMemGetAllocationGranularity", (Call)granularity},
    {"cuMemAddressReserve", (Call)reserve}, {"cuMemMap", (Call)map}, {"cuMemUnmap", (Call)unmap},
    {"cuMemRelease", (Call)release}, {"cuMemAddressFree", (Call)address_free},
    {"cuMemExportToShareableHandle", (Call)export},
    {"cuMemHostGetDevicePointer", (Call)registered_at}, {"cuMemPrefetchAsync", (Call)prefetch},
};

int cuGetProcAddress_v2(const char *symbol, void **call, int wanted_version,
                        unsigned long long flags, int *status) {
    const char *lacks = getenv("STUB_LACKS");
    *call = NULL;
    if (status)
        *status = 0;
    if (lacks && strcmp(lacks, symbol) == 0)
        return 500;
    *call = (void *)success;
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
        if (strcmp(TABLE[i].name, symbol) == 0)
            *call = (void *)TABLE[i].call;
    return 0;
}
