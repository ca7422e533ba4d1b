/*
 * sysmem.c - see sysmem.h. /proc/self/cgroup names the group: "0::/PATH" in the unified hierarchy
 * (memory.max), "N:memory:/PATH" in the old one (memory.limit_in_bytes). A group's limit holds for
 * all below it, so every level up to the root is looked at. Inside a container the path may not
 * exist under the mount: then its root counts, which is the container's own group.
 */
#include "sysmem.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 8192

static bool slurp(const char *path, char text[TEXT_MAX])
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    size_t n = fread(text, 1, TEXT_MAX - 1, f);
    text[n] = 0;
    fclose(f);
    return n > 0;
}

static void lower(int64_t *limit, int64_t v)
{
    if (v > 0 && (*limit == 0 || v < *limit))
        *limit = v;
}

/* "max" and absurdly large numbers mean no limit; they never lower it. */
static void read_limit(const char *root, const char *dir, const char *name, int64_t *limit)
{
    char path[PATH_MAX], text[TEXT_MAX];
    if (snprintf(path, sizeof path, "%s%s/%s", root, dir, name) >= (int)sizeof path ||
        !slurp(path, text))
        return;
    lower(limit, strtoll(text, NULL, 10));
}

/* The group at `path` and all above it. */
static void read_group(const char *root, const char *path, const char *name, int64_t *limit)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s", path);
    for (;;) {
        read_limit(root, dir, name, limit);
        char *slash = strrchr(dir, '/');
        if (!slash)
            return;
        *slash = 0;
    }
}

static void cgroup_line(const char *cgroups, char *line, int64_t *limit)
{
    char root[PATH_MAX];
    char *kinds = strchr(line, ':'), *path = kinds ? strchr(kinds + 1, ':') : NULL;
    if (!path)
        return;
    *path++ = 0;
    kinds++;
    if (*kinds == 0) {
        read_group(cgroups, path, "memory.max", limit);
        return;
    }
    for (char *rest = kinds, *kind; (kind = strsep(&rest, ",")) != NULL;) {
        if (strcmp(kind, "memory") != 0)
            continue;
        snprintf(root, sizeof root, "%s/memory", cgroups);
        read_group(root, path, "memory.limit_in_bytes", limit);
    }
}

int64_t sysmem_limit_at(const char *proc, const char *cgroups)
{
    char path[PATH_MAX], text[TEXT_MAX];
    int64_t limit = 0;
    snprintf(path, sizeof path, "%s/meminfo", proc);
    if (slurp(path, text)) {
        const char *total = strstr(text, "MemTotal:");
        long long kib = total ? strtoll(total + 9, NULL, 10) : 0;
        if (kib > 0 && kib < INT64_MAX / 1024)
            lower(&limit, kib * 1024);
    }
    snprintf(path, sizeof path, "%s/self/cgroup", proc);
    if (slurp(path, text))
        for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;)
            cgroup_line(cgroups, line, &limit);
    return limit;
}

int64_t sysmem_limit(void)
{
    return sysmem_limit_at("/proc", "/sys/fs/cgroup");
}
