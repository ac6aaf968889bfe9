// A libnvidia-ml.so.1 for tests: one GPU, as the environment describes it.
// STUB_FIELDS    "id:scope:return:type:value ..."; a field that is not there is not supported
// STUB_FILE      a file that holds them instead, so that they may change
// STUB_LINKS     a state a link, "110"; none: NVLink is not supported
// STUB_REMOTE    type of what is at the other ends: 0 a GPU, 2 a switch
// STUB_REASONS   the clock event reasons' bits
// STUB_PIDS      compute processes, "12 34"; 0 stands for the asking process
// STUB_XIDS      a file of Xid codes that happen, "31 79": each is an event once
// STUB_ROWS      rows remapped: correctable and uncorrectable, "1 2"
// STUB_CC        whether confidential computing is on
// A call that is not named here is one that this NVML does not have.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };
typedef void *Device;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;
typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    int result;
    union { double d; unsigned u; unsigned long long ull; } value;
} Field;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;

static const char *environment(const char *name) {
    const char *text = getenv(name);
    return text ? text : "";
}

static const char *all_fields(void) {
    static char text[4096];
    FILE *file = fopen(environment("STUB_FILE"), "r");
    if (!file)
        return environment("STUB_FIELDS");
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

int nvmlInitWithFlags(unsigned flags) { return atoi(environment("STUB_INIT")); }
const char *nvmlErrorString(int code) { return "words of NVML"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strcpy(text, "580.1"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *d) { *d = (Device)1; return SUCCESS; }
int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    *device = (Device)1;
    return strcmp(uuid, "GPU-1") ? 6 /* NOT_FOUND */ : SUCCESS;
}
int nvmlDeviceGetUUID(Device d, char *text, unsigned n) { strcpy(text, "GPU-1"); return SUCCESS; }
int nvmlDeviceGetName(Device d, char *text, unsigned n) { strcpy(text, "Stub"); return SUCCESS; }

static int pci(Pci *info, unsigned bus) {
    memset(info, 0, sizeof *info);
    info->bus = bus;
    sprintf(info->bus_id, "00000000:%02X:00.0", bus);
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(Device device, Pci *info) { return pci(info, 0x1b); }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, Pci *info) {
    return pci(info, 0x9c);
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, unsigned *type) {
    *type = atoi(environment("STUB_REMOTE"));
    return SUCCESS;
}
int nvmlDeviceGetNvLinkVersion(Device device, unsigned link, unsigned *version) {
    *version = 6;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *state) {
    const char *links = environment("STUB_LINKS");
    if (!*links)
        return NOT_SUPPORTED;
    if (link >= strlen(links))
        return INVALID_ARGUMENT;
    *state = links[link] == '1';
    return SUCCESS;
}
int nvmlDeviceGetFieldValues(Device device, int count, Field *fields) {
    for (int i = 0; i < count; i++) {
        unsigned id, scope, type;
        int result, used;
        unsigned long long value;
        const char *text = all_fields();
        fields[i].result = NOT_SUPPORTED;
        for (; sscanf(text, "%u:%u:%d:%u:%llu%n", &id, &scope, &result, &type, &value, &used) == 5;
             text += used) {
            if (id != fields[i].id || scope != fields[i].scope)
                continue;
            fields[i].result = result;
            fields[i].type = type;
            fields[i].value.ull = 0xABABABABABABABABull; // what the type does not cover
            if (type == 0)
                fields[i].value.d = (double)value;
            else if (type == 1)
                fields[i].value.u = (unsigned)value;
            else
                fields[i].value.ull = value;
        }
    }
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long *reasons) {
    *reasons = strtoull(environment("STUB_REASONS"), NULL, 0);
    return *environment("STUB_REASONS") ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *list) {
    const char *text = environment("STUB_PIDS");
    unsigned found = 0, pid;
    int used;
    for (; sscanf(text, "%u%n", &pid, &used) == 1; text += used, found++)
        if (list)
            list[found].pid = pid ? pid : (unsigned)getpid();
    *count = found;
    return found && !list ? INSUFFICIENT_SIZE : SUCCESS;
}

// Events come from the GPUs that were registered for Xids, and nothing that was before.
typedef struct { Device device; unsigned long long type, data; unsigned gpu, compute; } Event;
static int registered;
static long position;
int nvmlEventSetCreate(void **set) { *set = (void *)2; return SUCCESS; }
int nvmlDeviceRegisterEvents(Device device, unsigned long long types, void *set) {
    registered = types == 8 && set == (void *)2;
    return *environment("STUB_XIDS") ? SUCCESS : NOT_SUPPORTED;
}
int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    unsigned code;
    FILE *file = fopen(environment("STUB_XIDS"), "r");
    int found = file && registered && !fseek(file, position, SEEK_SET)
        && fscanf(file, "%u", &code) == 1;
    if (found) {
        position = ftell(file);
        *event = (Event){(Device)1, 8, code, 0, 0};
    }
    if (file)
        fclose(file);
    return found ? SUCCESS : 10 /* TIMEOUT */;
}
int nvmlDeviceGetRemappedRows(Device d, unsigned *right, unsigned *wrong, unsigned *pending,
                              unsigned *failure) {
    *pending = *failure = 0;
    return sscanf(environment("STUB_ROWS"), "%u %u", right, wrong) == 2 ? SUCCESS : NOT_SUPPORTED;
}
int nvmlSystemGetConfComputeState(unsigned *state) {
    state[1] = atoi(environment("STUB_CC"));
    return *environment("STUB_CC") ? SUCCESS : NOT_SUPPORTED;
}

#define NOT_SUPPORTED_CALL(name) int name(Device device) { return NOT_SUPPORTED; }
NOT_SUPPORTED_CALL(nvmlDeviceGetCurrentClocksThrottleReasons)
NOT_SUPPORTED_CALL(nvmlDeviceGetMigMode)
NOT_SUPPORTED_CALL(nvmlDeviceGetEccMode)
NOT_SUPPORTED_CALL(nvmlDeviceGetCurrPcieLinkGeneration)
NOT_SUPPORTED_CALL(nvmlDeviceGetCurrPcieLinkWidth)
NOT_SUPPORTED_CALL(nvmlDeviceGetMaxPcieLinkGeneration)
NOT_SUPPORTED_CALL(nvmlDeviceGetMaxPcieLinkWidth)
NOT_SUPPORTED_CALL(nvmlDeviceGetMemoryAffinity)
NOT_SUPPORTED_CALL(nvmlDeviceGetTopologyCommonAncestor)
