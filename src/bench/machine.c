/* machine.c - see machine.h. */
#include "bench/machine.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/file.h"
#include "base/sysmem.h"

#define LARGE_BYTES    2000000000LL
#define SWAP_MAX       (512LL << 20)
#define FREE_SHARE_MIN 0.35
#define BUSY_MAX       0.25 /* of one processor */

static int64_t meminfo(const struct buf *text, const char *key)
{
    const char *p = strstr(buf_z((struct buf *)(uintptr_t)text), key);
    return p ? strtoll(p + strlen(key), NULL, 10) * 1024 : 0;
}

struct machine_ticks machine_ticks(void)
{
    long long v[8];
    struct machine_ticks t = {0};
    FILE *f = fopen("/proc/stat", "re");
    if (f && fscanf(f, "cpu %lld %lld %lld %lld %lld %lld %lld %lld", &v[0], &v[1], &v[2], &v[3],
                    &v[4], &v[5], &v[6], &v[7]) == 8)
        t = (struct machine_ticks){v[0] + v[1] + v[2] + v[5] + v[6], v[7]};
    if (f)
        fclose(f);
    return t;
}

/* Threads besides this one that run or wait for a disk. */
static int queue_now(void)
{
    struct buf b = BUF_INIT;
    int n = 0;
    if (file_read("/proc/stat", 1 << 20, &b, NULL) == QN_OK) {
        const char *run = strstr(buf_z(&b), "\nprocs_running ");
        const char *blocked = strstr(buf_z(&b), "\nprocs_blocked ");
        n = (run ? atoi(run + 15) - 1 : 0) + (blocked ? atoi(blocked + 15) : 0);
    }
    buf_free(&b);
    return n;
}

/* Half a second: who uses the processors, and whether somebody always does. */
static void watch_others(struct machine_state *s)
{
    struct machine_ticks a = machine_ticks();
    double per = 0.5 * (double)sysconf(_SC_CLK_TCK);
    s->queue = queue_now();
    for (int i = 0; i < 10; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        int n = queue_now();
        s->queue = n < s->queue ? n : s->queue;
    }
    struct machine_ticks z = machine_ticks();
    s->busy = (double)(z.busy - a.busy) / per;
    s->steal = (double)(z.steal - a.steal) / per;
}

static void look_for_large(struct machine_state *s)
{
    DIR *d = opendir("/proc");
    long long most = LARGE_BYTES;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char path[64], name[40] = "";
        long long pages = 0;
        if (!isdigit((unsigned char)e->d_name[0]) || atoi(e->d_name) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/%.20s/statm", e->d_name);
        FILE *f = fopen(path, "re");
        if (f && fscanf(f, "%*s %lld", &pages) != 1)
            pages = 0;
        if (f)
            fclose(f);
        if (pages * sysconf(_SC_PAGESIZE) <= most)
            s->n_large += pages * sysconf(_SC_PAGESIZE) > LARGE_BYTES;
        else {
            s->n_large++;
            most = pages * sysconf(_SC_PAGESIZE);
            snprintf(path, sizeof path, "/proc/%.20s/comm", e->d_name);
            f = fopen(path, "re");
            if (f && fscanf(f, "%39[^\n]", name) != 1)
                name[0] = 0;
            if (f)
                fclose(f);
            snprintf(s->largest, sizeof s->largest, "%s, %.1f GB", name, (double)most / 1e9);
        }
    }
    if (d)
        closedir(d);
}

static long long read_number(const char *path)
{
    struct buf b = BUF_INIT;
    long long v = file_read(path, 4096, &b, NULL) == QN_OK ? strtoll(buf_z(&b), NULL, 10) : -1;
    buf_free(&b);
    return v;
}

void machine_look(struct machine_state *s, bool watch)
{
    struct buf b = BUF_INIT;
    *s = (struct machine_state){.speed_percent = -1};
    if (watch)
        watch_others(s);
    if (getloadavg(s->load, 3) != 3)
        s->load[0] = s->load[1] = s->load[2] = 0;
    if (file_read("/proc/meminfo", 1 << 16, &b, NULL) == QN_OK) {
        s->mem_total = meminfo(&b, "MemTotal:");
        s->mem_free = meminfo(&b, "MemAvailable:");
        s->swap_used = meminfo(&b, "SwapTotal:") - meminfo(&b, "SwapFree:");
    }
    s->mem_limit = sysmem_limit();
    long long most = read_number("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
    long long now = read_number("/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq");
    if (most > 0 && now > 0)
        s->speed_percent = (int)(100 * now / most);
    look_for_large(s);
    buf_free(&b);
}

void machine_facts(struct jw *w)
{
    char name[128];
    struct utsname u;
    cpu_model_name(name, sizeof name);
    jw_kstrz(w, "processor", name);
    jw_ki64(w, "processors", sysconf(_SC_NPROCESSORS_ONLN));
    if (uname(&u) == 0) {
        jw_kstrz(w, "kernel", u.release);
        jw_kstrz(w, "architecture", u.machine);
    }
    jw_ki64(w, "memory_bytes", sysmem_limit());
}

void machine_state_json(struct jw *w, const struct machine_state *s)
{
    jw_key(w, "load");
    jw_arr(w);
    for (int i = 0; i < 3; i++)
        jw_real(w, s->load[i]);
    jw_arr_end(w);
    jw_kreal(w, "busy_processors", s->busy);
    jw_kreal(w, "stolen_processors", s->steal);
    jw_ki64(w, "queue", s->queue);
    jw_ki64(w, "memory_total_bytes", s->mem_total);
    jw_ki64(w, "memory_free_bytes", s->mem_free);
    jw_ki64(w, "swap_used_bytes", s->swap_used);
    if (s->speed_percent >= 0)
        jw_ki64(w, "speed_limit_percent", s->speed_percent);
    else
        jw_knull(w, "speed_limit_percent");
    jw_ki64(w, "large_processes", s->n_large);
}

int machine_reasons(const struct machine_state *s, int64_t need_bytes, struct buf *out)
{
    int n = 0;
    double n_cpu = (double)sysconf(_SC_NPROCESSORS_ONLN);
    if (s->busy > BUSY_MAX && ++n)
        buf_addf(out, "other processes use %.2f of %.0f processors\n", s->busy, n_cpu);
    if (s->steal > BUSY_MAX / 2 && ++n)
        buf_addf(out, "the hypervisor takes %.2f processors away\n", s->steal);
    /* The average remembers minutes, our own work before this run too: it counts while somebody is
     * still at it. */
    if (s->load[0] > n_cpu && s->queue > 0 && ++n)
        buf_addf(out, "the load average is %.1f on %.0f processors\n", s->load[0], n_cpu);
    if (s->swap_used > SWAP_MAX && ++n)
        buf_addf(out, "%lld MiB are swapped out\n", (long long)(s->swap_used >> 20));
    if (s->mem_total && (double)s->mem_free < FREE_SHARE_MIN * (double)s->mem_total && ++n)
        buf_addf(out, "only %lld of %lld MiB of memory are free\n", (long long)(s->mem_free >> 20),
                 (long long)(s->mem_total >> 20));
    if (need_bytes > s->mem_free && ++n)
        buf_addf(out, "the model needs %lld MiB and %lld are free\n", (long long)(need_bytes >> 20),
                 (long long)(s->mem_free >> 20));
    if (s->speed_percent >= 0 && s->speed_percent < 100 && ++n)
        buf_addf(out, "the processor's clock is limited to %d %%\n", s->speed_percent);
    if (s->n_large && ++n)
        buf_addf(out, "%d other processes hold more than 2 GB (largest: %s)\n", s->n_large,
                 s->largest);
    return n;
}
