/* A small libnvidia-ml.so.1 for tests: GPUs, and failures by order of a control file.
 *
 * FAKE_NVML_CONTROL names a file whose words are read at each call:
 *   no_driver, no_permission   nvmlInit fails with 9 or 4
 *   hang_init                  nvmlInit hangs for 45 s
 *   hang0, hang1               calls on that GPU hang for 45 s, or until the word is taken back
 *   gpus=N                     so many GPUs, at most 8; 2 without the word
 *   lost0, lost1 …             that GPU fell off the bus: calls fail with 15 (GPU_IS_LOST) …
 *   unloaded                   the driver is not loaded: all calls fail with 9 …
 *   uninit                     all calls fail with 1 (UNINITIALIZED) …
 *                              … until the word is taken back and NVML was shut down and initialised again
 *   bare1                      GPU 1 supports memory and nothing else
 *   fast1                      GPU 1 has more cores than the others
 *   mig1                       GPU 1 is in MIG mode, with two instances
 *   pid0=123:500               process 123 holds 500 MiB of GPU 0; `m0` for GPU 1's first MIG instance; any number
 *   noisy                      nvmlInit prints to standard output
 * FAKE_NVML_CALLS names a file that gets one byte per call of nvmlDeviceGetFieldValues.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    TOO_SMALL = 7,
    NO_DRIVER = 9,
    LOST = 15,
    HANG_S = 45,
    GPUS_MAX = 8,
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

static void read_control(char *text, size_t size) {
    const char *path = getenv("FAKE_NVML_CONTROL");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    memset(text, 0, size);
    if (fd < 0) return;
    if (read(fd, text, size - 1) < 0) text[0] = 0;
    close(fd);
}

static int told(const char *word) {
    char text[1024];
    read_control(text, sizeof text);
    return strstr(text, word) != NULL;
}

static int told_of(const char *word, void *device) {
    char name[32];
    snprintf(name, sizeof name, "%s%d", word, ((device_of *)device)->gpu);
    return told(name);
}

static int count_gpus(void) {
    char text[1024];
    read_control(text, sizeof text);
    char *found = strstr(text, "gpus=");
    return found ? atoi(found + 5) : 2;
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
    if (told_of("lost", device)) dead[of->gpu] = LOST;
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

int nvmlShutdown(void) {
    if (users == 0) return UNINITIALIZED;
    if (--users == 0) all_dead = UNINITIALIZED;
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
        snprintf(uuid, length, "GPU-00000000-0000-0000-0000-00000000000%d", of->gpu);
    else
        snprintf(uuid, length, "MIG-0000000%d-0000-0000-0000-00000000000%d", of->gpu, of->instance);
    return SUCCESS;
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
    char text[1024], word[16];
    unsigned room = infos ? *count : 0, found = 0;
    int code = enter(device, 1);
    if (code) return code;
    read_control(text, sizeof text);
    snprintf(word, sizeof word, of->instance < 0 ? "pid%d=" : "pidm%d=", of->instance < 0 ? of->gpu : of->instance);
    for (char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        unsigned pid = 0, mebibytes = 0;
        sscanf(at + strlen(word), "%u:%u", &pid, &mebibytes);
        if (found < room) infos[found] = (process_info){pid, (unsigned long long)mebibytes << 20, ~0u, ~0u};
        found++;
    }
    *count = found;
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

int nvmlDeviceGetFieldValues(void *device, int count, field_value *values) {
    const char *path = getenv("FAKE_NVML_CALLS");
    int result = enter(device, 0);
    if (path && ((device_of *)device)->gpu == 0) {
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (fd >= 0) {
            if (write(fd, ".", 1) < 0) perror("write");
            close(fd);
        }
    }
    if (result != SUCCESS) return result;
    for (int i = 0; i < count; i++) {
        values[i].result = SUCCESS;
        values[i].type = 3; /* unsigned long long */
        switch (values[i].field) {
            case 83: values[i].value.ull = 123456789; break; /* energy, mJ */
            case 82: values[i].type = 1, values[i].value.ui = 72; break; /* memory temperature */
            case 3: values[i].value.ull = 7; break;
            case 4: values[i].value.ull = 1; break;
            default: values[i].result = NOT_SUPPORTED; /* 186, as on GPUs before Ampere */
        }
    }
    return SUCCESS;
}
