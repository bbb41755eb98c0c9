/* A small libnvidia-ml.so.1 for tests: GPUs, and failures by order of a control file.
 *
 * FAKE_NVML_CONTROL names a file whose words are read at each call:
 *   no_driver, no_permission   nvmlInit fails with 9 or 4
 *   hang_init                  nvmlInit hangs for 45 s
 *   hang0, hang1               calls on that GPU hang for 45 s, or until the word is taken back
 *   gpus=N                     so many GPUs, at most 8; 2 without the word
 *   lost0, lost1 …             that GPU fell off the bus: calls fail with 15 (GPU_IS_LOST) …
 *   off0, off1 …               the same, but NVML gives out its handle as if it were well …
 *   unloaded                   the driver is not loaded: all calls fail with 9 …
 *   uninit                     all calls fail with 1 (UNINITIALIZED) …
 *                              … until the word is taken back and NVML was shut down and initialised again
 *   bare1                      GPU 1 supports memory and nothing else
 *   fast1                      GPU 1 has more cores than the others
 *   mig1                       GPU 1 is in MIG mode, with two instances
 *   modefails1                 the MIG mode of GPU 1 cannot be read: 999
 *   pid0=123:500               process 123 holds 500 MiB of GPU 0; `m0` for GPU 1's first MIG instance; any number
 *   busy0=123:40               process 123 uses 40 % of GPU 0, from a new sample at each query; any number
 *   f0.198=5                   field 198 of GPU 0 has this value; f0.198=no: it is not supported; f0.198=fails: 999
 *   gpm0.5=40                  GPM's metric 5 of GPU 0 has this value, in percent, and its instances half of it;
 *                              gpm0=no: GPM is not supported; gpm0=fails: it fails with 999
 *   retired0=2:1               so many pages of GPU 0 are retired by single and double bit errors
 *   xids=0:79,m1:94,1:ecc      events that have happened, oldest first, of GPUs or MIG instances: XIDs, and a double bit
 *                              error. The library delivers each once; those of a GPU that is not registered are lost
 *   no_events, no_event_permission   events are not supported, or fail with 4
 *   hang_events                the wait for an event hangs
 *   no_event_wait              the wait for an event fails with 4
 *   twins                      all GPUs have the UUID of GPU 0
 *   old                        no nvmlDeviceGetMemoryInfo_v2, as before driver 510
 *   slow0                      nvmlDeviceGetFieldValues takes 0.2 s on GPU 0
 *   noisy                      nvmlInit prints to standard output
 * FAKE_NVML_CALLS names a file that gets the GPU's number for each call of nvmlDeviceGetFieldValues.
 * FAKE_NVML_SHUTDOWNS names a file that gets the number of unfreed samples of GPM, 0 to 9, when NVML is shut down.
 * FAKE_NVML_GPUS has the number of GPUs without a control file.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    TOO_SMALL = 7,
    NO_DRIVER = 9,
    TIMEOUT = 10,
    LOST = 15,
    HANG_S = 45,
    UNKNOWN = 999,
    GPUS_MAX = 8,
    CONTROL_BYTES = 4096,
    INSTANCES = 2
};

typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned type;
    int result;
    union {
        double d;
        unsigned ui;
        unsigned long long ull;
    } value;
} field_value; /* nvmlFieldValue_t */

typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} process_info; /* nvmlProcessInfo_t, as of nvmlDeviceGetComputeRunningProcesses_v3 */

typedef struct {
    int gpu, instance; /* instance: -1 for the GPU itself */
} device_of;

static device_of devices[GPUS_MAX] = {{0, -1}, {1, -1}, {2, -1}, {3, -1}, {4, -1}, {5, -1}, {6, -1}, {7, -1}};
static device_of instances[INSTANCES] = {{1, 0}, {1, 1}};
static int dead[GPUS_MAX]; /* the code that calls on a GPU fail with, until NVML is initialised again */
static int all_dead = UNINITIALIZED;
static int users; /* nvmlInit and nvmlShutdown are counted */

/* The text of the control file. Each thread reads it again after 5 ms: calls ask for many words. */
static __thread long long read_at_us;

void fake_reread(void) { read_at_us = 0; } /* for tests whose clock is not the machine's */

static const char *control(void) {
    static __thread char text[CONTROL_BYTES];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long long now_us = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
    if (read_at_us && now_us - read_at_us < 5000) return text;
    const char *path = getenv("FAKE_NVML_CONTROL");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    text[length < 0 ? 0 : length] = 0;
    if (fd >= 0) close(fd);
    read_at_us = now_us;
    return text;
}

static int told(const char *word) { return strstr(control(), word) != NULL; }

static int told_of(const char *word, void *device) {
    char name[32];
    snprintf(name, sizeof name, "%s%d", word, ((device_of *)device)->gpu);
    return told(name);
}

static int count_gpus(void) {
    const char *found = strstr(control(), "gpus="), *given = getenv("FAKE_NVML_GPUS");
    return found ? atoi(found + 5) : given ? atoi(given) : 2;
}

/* What follows `<name><gpu><rest>=`; NULL without it. */
static const char *ordered(const char *name, int gpu, const char *rest) {
    char word[48];
    snprintf(word, sizeof word, "%s%d%s=", name, gpu, rest);
    for (const char *at = strstr(control(), word); at; at = strstr(at + 1, word))
        if (at == control() || at[-1] == ' ') return at + strlen(word);
    return NULL;
}

/* Reads a number for which a word may stand: `no` is NOT_SUPPORTED, `fails` UNKNOWN. Leaves `value` without an order. */
static int take_order(const char *text, double *value) {
    if (!text) return SUCCESS;
    if (!strncmp(text, "no", 2)) return NOT_SUPPORTED;
    if (!strncmp(text, "fails", 5)) return UNKNOWN;
    *value = strtod(text, NULL);
    return SUCCESS;
}

/* What every call begins with. */
static int enter_any(void) {
    if (told("unloaded")) all_dead = NO_DRIVER;
    if (told("uninit")) all_dead = UNINITIALIZED;
    return all_dead;
}

/* What every call on a device begins with. */
static int enter(void *device, int everywhere) {
    device_of *of = device;
    for (int i = 0; i < 10 * HANG_S && told_of("hang", device); i++) usleep(100000);
    int code = enter_any();
    if (code) return code;
    if (told_of("lost", device) || told_of("off", device)) dead[of->gpu] = LOST;
    if (dead[of->gpu]) return dead[of->gpu];
    if (of->instance >= 0 && !everywhere) return NOT_SUPPORTED;
    return !everywhere && told_of("bare", device) ? NOT_SUPPORTED : SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (told("noisy")) {
        printf("a library that prints\n");
        fflush(stdout);
    }
    if (told("hang_init")) sleep(HANG_S);
    if (told("no_driver") || told("unloaded")) return NO_DRIVER;
    if (told("no_permission")) return NO_PERMISSION;
    if (users++ == 0) {
        all_dead = SUCCESS;
        memset(dead, 0, sizeof dead);
    }
    return SUCCESS;
}

typedef struct {
    void *device;
    unsigned long long kind, data;
    unsigned gpu_instance, compute_instance;
} event_data; /* nvmlEventData_t */

typedef struct {
    int registered[GPUS_MAX];
} event_set; /* what nvmlEventSet_t points to */

int fake_event_sets;    /* allocated and not freed: tests read it */
int fake_delivered;     /* of the control file's `xids` */

int nvmlEventSetCreate(event_set **set) {
    int code = enter_any();
    if (code) return code;
    if (told("no_event_permission")) return NO_PERMISSION;
    *set = calloc(1, sizeof **set);
    __sync_fetch_and_add(&fake_event_sets, 1);
    return SUCCESS;
}

int nvmlEventSetFree(event_set *set) {
    free(set);
    __sync_fetch_and_sub(&fake_event_sets, 1);
    return all_dead == UNINITIALIZED ? UNINITIALIZED : SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *kinds) {
    *kinds = told("no_events") ? 0 : 0x8 | 0x4 | 0x2; /* XID, P-state, double bit errors */
    return enter(device, 1);
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, event_set *set) {
    int code = enter(device, 1);
    if (code == SUCCESS && kinds & ~0xEULL) return NOT_SUPPORTED;
    if (code == SUCCESS) set->registered[((device_of *)device)->gpu] = 1;
    return code;
}

/* Takes the next event that a set has registered for. */
static int next_event(event_set *set, event_data *data) {
    const char *at = strstr(control(), "xids=");
    int number = 0;
    for (at = at ? at + 5 : NULL; at && *at && *at != ' '; number++) {
        int is_instance = *at == 'm';
        int index = atoi(at + is_instance), gpu = is_instance ? 1 : index;
        const char *what = strchr(at, ':');
        if (!what) return 0;
        const char *end = what + strcspn(what, ", ");
        if (number >= fake_delivered) {
            fake_delivered = number + 1;
            if (set->registered[gpu]) {
                int is_ecc = !strncmp(what + 1, "ecc", 3);
                *data = (event_data){&devices[gpu], is_ecc ? 0x2 : 0x8, is_ecc ? 0 : atoi(what + 1), ~0u, ~0u};
                if (is_instance) data->gpu_instance = 3 + index, data->compute_instance = 0;
                return 1;
            }
        }
        at = *end == ',' ? end + 1 : NULL;
    }
    return 0;
}

int nvmlEventSetWait_v2(event_set *set, event_data *data, unsigned timeout_ms) {
    for (int i = 0; i < 10 * HANG_S && told("hang_events"); i++) usleep(100000);
    for (unsigned waited_ms = 0;; waited_ms += 50) {
        int code = enter_any();
        if (code) return code;
        if (told("no_event_wait")) return NO_PERMISSION;
        if (next_event(set, data)) return SUCCESS;
        for (int gpu = 0; gpu < GPUS_MAX; gpu++)
            if (set->registered[gpu] && (dead[gpu] || told_of("lost", &devices[gpu]))) return LOST;
        if (waited_ms >= timeout_ms) return TIMEOUT;
        usleep(50000);
    }
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, ids[2];
    char bus_id[32];
} pci_info; /* nvmlPciInfo_t */

int nvmlDeviceGetPciInfo_v3(void *device, pci_info *info) {
    int code = enter(device, 1);
    memset(info, 0, sizeof *info);
    info->bus = 0x10 + ((device_of *)device)->gpu;
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
    return code;
}

static void append_digit(const char *variable, int number) {
    const char *path = getenv(variable);
    char digit = (char)('0' + number);
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd < 0) return;
    if (write(fd, &digit, 1) < 0) perror("write");
    close(fd);
}

int fake_gpm_samples; /* allocated and not freed: tests read it */

int nvmlShutdown(void) {
    if (users == 0) return UNINITIALIZED;
    if (--users == 0) all_dead = UNINITIALIZED;
    append_digit("FAKE_NVML_SHUTDOWNS", fake_gpm_samples > 9 ? 9 : fake_gpm_samples);
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    return code == LOST ? "GPU is lost" : code == NO_DRIVER ? "Driver Not Loaded" : code == 1 ? "Uninitialized" : "Some Error";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = count_gpus();
    return enter_any();
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    int code = enter_any();
    *device = &devices[index];
    return code ? code : told_of("lost", *device) ? LOST : SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    device_of *of = device;
    if (of->instance < 0)
        snprintf(uuid, length, "GPU-00000000-0000-0000-0000-00000000000%d", told("twins") ? 0 : of->gpu);
    else
        snprintf(uuid, length, "MIG-0000000%d-0000-0000-0000-00000000000%d", of->gpu, of->instance);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "580.95.05");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    snprintf(name, length, "NVIDIA H100 80GB HBM3");
    return enter(device, 1);
}

int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, int *level) {
    (void)other;
    *level = 50; /* NVML_TOPOLOGY_SYSTEM */
    return enter(one, 1);
}

int nvmlDeviceGetNumGpuCores(void *device, unsigned *cores) {
    *cores = told_of("fast", device) ? 16896 : 10752;
    return enter(device, 1);
}

int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *megahertz) {
    *megahertz = type == 1 ? 1980 : 2619;
    return enter(device, 1);
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    *current = *pending = told_of("mig", device);
    if (told_of("modefails", device)) return UNKNOWN;
    return enter(device, 1);
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
    *count = 7;
    return enter(device, 1);
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **mig) {
    if (index >= INSTANCES) return NOT_FOUND;
    *mig = &instances[index];
    return enter(device, 1);
}

int nvmlDeviceGetGpuInstanceId(void *device, unsigned *id) {
    *id = 3 + ((device_of *)device)->instance;
    return enter(device, 1);
}

int nvmlDeviceGetComputeInstanceId(void *device, unsigned *id) {
    *id = 0;
    return enter(device, 1);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_info *infos) {
    device_of *of = device;
    char word[16];
    unsigned room = infos ? *count : 0, found = 0;
    int code = enter(device, 1);
    const char *text = control();
    if (code) return code;
    snprintf(word, sizeof word, of->instance < 0 ? "pid%d=" : "pidm%d=", of->instance < 0 ? of->gpu : of->instance);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        unsigned pid = 0, mebibytes = 0;
        int known = sscanf(at + strlen(word), "%u:%u", &pid, &mebibytes) == 2; /* `pid0=123:`: not available */
        if (found < room) infos[found] = (process_info){pid, known ? (unsigned long long)mebibytes << 20 : ~0ULL, ~0u, ~0u};
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : SUCCESS;
}

typedef struct {
    unsigned pid;
    unsigned long long time_us;
    unsigned sm, memory, encoder, decoder;
} process_share; /* nvmlProcessUtilizationSample_t */

/* Two samples of each busy process, of which the newer one has its share, and one entry that the driver left unused. */
int nvmlDeviceGetProcessUtilization(void *device, process_share *shares, unsigned *count, unsigned long long since_us) {
    device_of *of = device;
    char word[16];
    unsigned room = shares ? *count : 0, found = 0;
    int code = enter(device, 0);
    struct timeval now;
    if (code) return code;
    gettimeofday(&now, NULL);
    unsigned long long now_us = now.tv_sec * 1000000ULL + now.tv_usec;
    snprintf(word, sizeof word, "busy%d=", of->gpu);
    for (const char *at = strstr(control(), word); at; at = strstr(at + 1, word)) {
        unsigned pid = 0, percent = 0;
        sscanf(at + strlen(word), "%u:%u", &pid, &percent);
        for (int newer = 0; newer < 2; newer++, found++)
            if (found < room) shares[found] = (process_share){pid, now_us - !newer * 1000, newer ? percent : 99, 0, 0, 0};
    }
    if (shares && (!found || now_us <= since_us)) return NOT_FOUND;
    if (found < room) shares[found] = (process_share){4000000000u, 0, 4000000000u, 0, 0, 0};
    *count = ++found;
    return found > room ? TOO_SMALL : SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    rates[0] = 75, rates[1] = 20;
    return enter(device, 0);
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    memory[0] = 80ULL << 30, memory[1] = 70ULL << 30, memory[2] = 10ULL << 30; /* total, free, used */
    return enter(device, 1);
}

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2; /* nvmlMemory_v2_t */

/* 479 MiB are the driver's, which version 1 counts as used. */
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *memory) {
    if (told("old")) return NOT_SUPPORTED;
    if (memory->version != (sizeof *memory | 2 << 24)) return 25; /* ARGUMENT_VERSION_MISMATCH */
    int parts = ((device_of *)device)->instance >= 0 ? INSTANCES : 1;
    memory->total = (80ULL << 30) / parts, memory->reserved = (479ULL << 20) / parts, memory->free = (70ULL << 30) / parts;
    memory->used = memory->total - memory->free - memory->reserved;
    return enter(device, 1);
}

int nvmlDeviceGetEncoderUtilization(void *device, unsigned *percent, unsigned *period_us) {
    *percent = 25, *period_us = 167000;
    return enter(device, 0);
}

int nvmlDeviceGetDecoderUtilization(void *device, unsigned *percent, unsigned *period_us) {
    *percent = 5, *period_us = 167000;
    return enter(device, 0);
}

int nvmlDeviceGetRetiredPages(void *device, int cause, unsigned *count, unsigned long long *addresses) {
    unsigned pages[2] = {0, 0};
    const char *given = ordered("retired", ((device_of *)device)->gpu, "");
    if (given) sscanf(given, "%u:%u", &pages[0], &pages[1]);
    int code = enter(device, 0);
    if (code) return code;
    unsigned room = addresses ? *count : 0;
    *count = pages[cause];
    for (unsigned i = 0; i < room && i < *count; i++) addresses[i] = i << 16;
    return *count > room ? TOO_SMALL : SUCCESS;
}

typedef struct {
    int gpu, instance;
    unsigned gpu_instance;
} gpm_sample; /* what nvmlGpmSample_t points to */

typedef struct {
    unsigned id;
    int result;
    double value;
    const char *names[3];
} gpm_metric; /* nvmlGpmMetric_t */

typedef struct {
    unsigned version, count;
    gpm_sample *before, *after;
    gpm_metric metrics[];
} gpm_request; /* nvmlGpmMetricsGet_t */

static int gpm_code(void *device) {
    double unused;
    int code = enter(device, 1);
    return code ? code : told_of("bare", device) ? NOT_SUPPORTED : take_order(ordered("gpm", ((device_of *)device)->gpu, ""), &unused);
}

int nvmlGpmQueryDeviceSupport(void *device, unsigned *support) {
    int code = gpm_code(device);
    if (support[0] != 1) return 25;
    support[1] = code != NOT_SUPPORTED;
    return code == NOT_SUPPORTED ? SUCCESS : code;
}

int nvmlGpmSampleAlloc(gpm_sample **sample) {
    *sample = calloc(1, sizeof **sample);
    __sync_fetch_and_add(&fake_gpm_samples, 1);
    return SUCCESS;
}

int nvmlGpmSampleFree(gpm_sample *sample) {
    free(sample);
    __sync_fetch_and_sub(&fake_gpm_samples, 1);
    return SUCCESS;
}

int nvmlGpmSampleGet(void *device, gpm_sample *sample) {
    device_of *of = device;
    if (of->instance >= 0) return 2; /* INVALID_ARGUMENT */
    *sample = (gpm_sample){of->gpu, -1, 0};
    return gpm_code(device);
}

int nvmlGpmMigSampleGet(void *device, unsigned gpu_instance, gpm_sample *sample) {
    device_of *of = device;
    if (of->instance >= 0 || gpu_instance < 3 || gpu_instance >= 3 + INSTANCES) return 2; /* INVALID_ARGUMENT */
    *sample = (gpm_sample){of->gpu, 0, gpu_instance};
    return gpm_code(device);
}

int nvmlGpmMetricsGet(gpm_request *request) {
    gpm_sample *of = request->after;
    if (request->version != 1) return 25;
    if (request->before->gpu != of->gpu || request->before->gpu_instance != of->gpu_instance) return 2;
    int code = gpm_code(&devices[of->gpu]);
    for (unsigned i = 0; i < request->count; i++) {
        char rest[16];
        gpm_metric *metric = &request->metrics[i];
        metric->value = metric->id < 100 ? 50.0 + metric->id : 0.0;
        snprintf(rest, sizeof rest, ".%u", metric->id);
        metric->result = take_order(ordered("gpm", of->gpu, rest), &metric->value);
        if (of->instance >= 0) metric->value /= 2.0;
    }
    return code;
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) {
    *milliwatts = 700000;
    return enter(device, 0);
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    *milliwatts = 250000;
    return enter(device, 0);
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    (void)sensor;
    *celsius = 61;
    return enter(device, 0);
}

int nvmlDeviceGetClockInfo(void *device, int type, unsigned *megahertz) {
    *megahertz = type == 1 ? 1980 : 2619; /* NVML_CLOCK_SM is 1, NVML_CLOCK_MEM is 2 */
    return enter(device, 0);
}

/* nvmlDeviceGetCurrentClocksEventReasons is missing, as before driver 535. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    *reasons = 0x44;
    return enter(device, 0);
}

/* The values of an idle device that has everything but field 186, as GPUs before Ampere; -1: not supported. */
static double field_default(unsigned field, unsigned scope) {
    switch (field) {
        case 83: return 123456789; /* energy, mJ */
        case 82: return 72; /* memory temperature */
        case 3: return 7;
        case 4: return 1;
        case 5: return 70;
        case 6: return 10;
        case 74: return 2.5e9; /* throttled, ns */
        case 75: return 0.25e9;
        case 76: return 0.5e9;
        case 77: return 0.75e9;
        case 79: return 1.25e9;
        case 269: return 3e9;
        case 270: return 4e9;
        case 271: return 5e9;
        case 94: return 6; /* PCIe replays */
        case 197: return 1e6; /* PCIe, bytes sent and received */
        case 198: return 2e6;
        case 138: return scope == ~0u ? 3000 : -1; /* NVLink, KiB sent and received; here only of all links */
        case 139: return scope == ~0u ? 4000 : -1;
        case 161: return scope == ~0u ? 11 : -1; /* NVLink replays, recoveries, CRC errors */
        case 162: return scope == ~0u ? 12 : -1;
        case 163: return scope == ~0u ? 13 : -1;
        case 142: return 2; /* rows remapped */
        case 143: return 1;
        case 144: return 1; /* pending */
        case 145: return 0;
        case 230: return 1; /* recovery action: reset */
        default: return -1;
    }
}

int nvmlDeviceGetFieldValues(void *device, int count, field_value *values) {
    int result = enter(device, 0), gpu = ((device_of *)device)->gpu;
    append_digit("FAKE_NVML_CALLS", gpu);
    if (told_of("slow", device)) usleep(200000);
    if (result != SUCCESS) return result;
    for (int i = 0; i < count; i++) {
        char rest[16];
        double value = field_default(values[i].field, values[i].scope);
        snprintf(rest, sizeof rest, ".%u", values[i].field);
        values[i].result = take_order(ordered("f", gpu, rest), &value);
        if (values[i].result == SUCCESS && value < 0) values[i].result = NOT_SUPPORTED;
        if (values[i].result != SUCCESS) continue;
        values[i].type = values[i].field == 82 ? 1 : 3; /* unsigned int; unsigned long long */
        if (values[i].type == 1)
            values[i].value.ui = (unsigned)value;
        else
            values[i].value.ull = (unsigned long long)value;
    }
    return SUCCESS;
}
